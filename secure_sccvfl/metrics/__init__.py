"""Evaluation of a model under MPC: `exact` figures, `noisy` charged sums, `rates` of groups with intervals.

`certified`: the share of decisions that no values of the mediators change. `what_if`: decisions in other groups, and
reasons. Called by the jobs `evaluate` and `predict`. Its plaintext counterpart is `secure_sccvfl.evaluation`.
"""
