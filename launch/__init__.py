"""The programs. Each parses its arguments, calls the library, and prints the result.

`cli` is the program `sccvfl`, which starts the others: `run_mpc` (a session on this machine), `run_party` and
`run_dealer` (one process per host), `own_data` (descriptions), `policy` (cards), `consortium` (plans, approvals,
budgets), `certs`, `flare`, `finished` (results of a run), `privacy_report`, `security_eval`, `reproduce` and `bench`.
`arguments` makes options of the configuration's fields. Only other programs and tests import from here.
"""
