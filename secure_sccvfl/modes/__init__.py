"""Gradient modes: what each opens, and how it trains once the statistics of s are in hand.

Called by the job `train`.
"""
