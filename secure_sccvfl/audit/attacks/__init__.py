"""Attacks. Each takes what an adversary holds (`view.View`) and returns rates with interval and chance level.

`catalogue` lists them, each with a positive control in which it must succeed. By target: `attributes` (s),
`labels`, `columns` (of another party), `training_data` (membership and reconstruction), `perturbation` (decisions).
"""
