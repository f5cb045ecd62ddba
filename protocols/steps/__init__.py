"""Protocols written with CrypTen tensors: training steps, split learning, aggregation, choices."""
