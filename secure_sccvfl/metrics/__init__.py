"""Evaluation of a model under MPC: `exact` figures, `noisy` charged sums, `rates` of groups with intervals, `slices`.

A slice is a group of s crossed with a column. Called by the jobs `evaluate` and `predict`. Its plaintext
counterpart is `secure_sccvfl.evaluation`.
"""
