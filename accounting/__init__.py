"""Privacy costs of releases: events, accountant, ledger and report. Plain Python: no torch, no MPC, no network.

In the order in which a release passes it: `events` (a release as data: records, sensitivity, noise), `calibration`
(noise from a budget), `objective_bounds` (cost of a private head), `accountant` (Rényi, with tighter and
independent cross-checks), `budget` (ask, charge, only then release), `ledger` (the hash-chained file behind a
budget), `records` (sets of keyed pseudonyms), `report` (a ledger as text and page). `paper` prices the paper's
mechanism. `tables`, `charts` and `plain_text` render results for other packages too.

It never sees a record or opens a value: `secure_sccvfl.releases` joins it with what is opened.
"""
