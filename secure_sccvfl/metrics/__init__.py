"""What a model is worth, computed in secret: rates of groups, exact or with noise, and intervals.

Called by the jobs of `run`, and by everything that reports a rate.
"""
