"""Security evaluation of a finished run: attacks on what each process saw (transcripts), and the DP audit.

`finished_run` (what each process held) -> `inference` and `attacks` -> `evaluation` (rows of results, for transcripts
and for the model) -> `report`. `canaries` (the DP audit: one class for each charged kind of release, which gives a
lower bound on its epsilon) uses `bounds`. `share_probe` tests that shares are indistinguishable. No training or
prediction imports it.
"""
