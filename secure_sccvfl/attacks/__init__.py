"""Attacks. Each takes what an adversary holds (view.py) and returns rates with interval and chance level.

The table of them is catalogue.py.
"""
