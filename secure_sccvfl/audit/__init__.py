"""Security evaluation of a finished run: attacks on what each process saw (transcripts), and the DP audit.

`finished_run` (what each process held) -> `inference` and `attacks` -> `evaluation` (rows of results) -> `report`.
`canaries` (the DP audit: a lower bound on epsilon for each kind of release) uses `bounds`. `share_probe` tests that
shares are indistinguishable. No training or prediction imports it.
"""
