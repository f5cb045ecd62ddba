"""How fast it is: ours beside stock CrypTen and plain torch, measured in one run.

Called by `launch/bench.py`; some of it runs as a job of a session.
"""
