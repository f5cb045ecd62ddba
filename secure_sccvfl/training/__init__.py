"""The Engine seam, where values of several parties meet, its two sides, and the driver of the sealed method.

Called by modes, evaluation and benchmarks.
"""
