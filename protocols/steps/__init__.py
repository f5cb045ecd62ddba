"""Whole protocols made of operations: the head, split learning, statistics, sums, sampling, alignment."""
