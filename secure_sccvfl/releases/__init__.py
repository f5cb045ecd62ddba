"""What leaves a run and what it costs: releases, their noise and price, a party's ledgers, tags of records.

This is the only package that joins `protocols` (what is opened) with `accounting` (what it costs). Discovery, modes
and metrics call it before they open anything about records.
"""
