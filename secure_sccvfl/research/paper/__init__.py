"""The paper-faithful method: its settings, roles, generators at the parties, networks and joint training.

Plaintext only, for comparison; mode `split` uses its generators under MPC. What the paper leaves open is decided in
one place and documented there.
"""
