"""What leaves a run and what it costs: releases, their noise and privacy cost, a party's ledgers, keyed pseudonyms.

`catalogue` (every kind of release; plans follow from `PlanFacts`), `mechanisms` (sensitivity, noise and DP event of
each charged kind), `charging` (`Charger`: asks the budget, writes the charge to every party's ledger, then permits
the opening), `ledgers` (where they are), `record_key` (pseudonyms of records), `prediction_log` (one answer per
person and model), `default_budget` (epsilon by the number of records), `noise` (plaintext runs).

This is the only package that joins `protocols` (what is opened) with `accounting` (what it costs). Discovery, modes
and metrics call it before they open anything about records.
"""
