"""Experiments over seeds on one machine: tables of methods, the paper's tables as one plan, whole runs in secret.

Called by `launch/reproduce.py`.
"""
