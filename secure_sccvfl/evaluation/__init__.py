"""Evaluation in plaintext on data that may be pooled: counterfactual models, scores, baselines and the frontier.

A benchmark run, `security_eval` and `reproduce.py` call it; a party of a consortium never does.
"""
