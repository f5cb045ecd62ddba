"""What `launch/reproduce.py` runs: experiments over seeds, the paper's tables as one plan, whole runs under MPC."""
