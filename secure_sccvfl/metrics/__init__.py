"""Evaluation of a model under MPC: rates of groups with intervals, exact or with noise.

Called by the job `evaluate`. Its plaintext counterpart is `secure_sccvfl.evaluation`.
"""
