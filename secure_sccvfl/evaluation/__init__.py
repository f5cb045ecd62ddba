"""How the method is judged, in plaintext and on data that may be pooled: judges, baselines, experiments.

Called by the harness of a benchmark run and by `launch/reproduce.py`; never by a party.
"""
