"""Policy cards: the role of each column, who decided it, on what evidence, who approved it, and what was objected.

Nothing here runs under MPC or sees another party's data. Discovery, training and the reports follow a card.
"""
