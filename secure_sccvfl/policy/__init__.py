"""Policy cards: the role of each column, who decided it, on what evidence, who approved it, and what was objected.

`roles` (M, P, N and what becomes of proxies), `card` (the file), `approvals` (signatures, validity), `reviews`
(answers to objections, due dates), `shift` (has a party's own data changed since a run?). Nothing here runs under
MPC or sees another party's data. Discovery, training and the reports follow a card.
"""
