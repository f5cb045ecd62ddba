"""A whole session on this machine: its processes, what lies between them, and the run from training to report.

Called by `launch/` and by benchmarks.
"""
