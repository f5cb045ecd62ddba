"""Benchmarks of `launch/bench.py`: operations, steps, noisy tables, alignments and whole trainings, next to peers.

`measuring` has the loop that runs systems in turn, and the form of a result. The jobs run in sessions of ours.
"""
