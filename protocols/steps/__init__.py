"""Protocols written with CrypTen tensors: training steps, split learning, aggregation, choices.

Statistics: `clipping`. Training: `head` (the fused linear head: encodings under their owners' masks, one
first-order step), `second_order` (the default steps, for one or several lambdas), `weighted_sums` (mode `dp`),
`split` (mode `split`). Results: `aggregation` (opens a sum over parties), `choice` (secret selection, withheld
answers).
"""
