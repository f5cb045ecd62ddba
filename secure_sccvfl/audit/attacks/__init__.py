"""Attacks. Each takes what an adversary holds (a view) and returns rates with interval and chance level.

catalogue.py lists them, each with a positive control: the same attack where the secret is there to be found.
"""
