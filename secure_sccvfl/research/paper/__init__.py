"""The paper's method as it is written: its settings, roles, generators at the parties, and joint training.

Plaintext only, for comparison. What the paper leaves open is decided in one place and said there.
"""
