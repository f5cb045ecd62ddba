"""One party's part in a session: its options, the jobs, checkpoints, model files and logs.

Called by the programs that start a party, and by readers of what a run left behind.
"""
