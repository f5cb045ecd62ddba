"""Readers of the files of a run: report tree, pages, tables and checks. Nothing here computes a result.

`folders` (where files are) -> `collect` (from the parties' files to a report) -> `results` (the tree of
`report.json`) -> `page` and its `sections`, `figures`, `tables`, `policy_card`, `explain` (one person). `verify`,
`signed` and `run_log` check chains and digests; `history` lists and compares runs; `exports` writes them for MLflow,
in-toto and Hugging Face.
"""
