"""What runs on this machine: sessions, whole runs and security evaluations.

It starts the processes of a session and what lies between them, a whole run from training to report, and the run's
security evaluation. Called by `launch/` and by `research`.
"""
