"""One party's part in a session: the jobs, checkpoints, model files and logs.

Called by the programs that start a party, and by readers of a run's results.
"""
