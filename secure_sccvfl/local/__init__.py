"""What runs on this machine: the processes of a session and what lies between them; a whole run from training to
report; its security evaluation; runs over many seeds.

Called by `launch/` and by benchmarks.
"""
