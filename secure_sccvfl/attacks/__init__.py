"""Attacks. Each takes what an adversary holds (view.py) and returns rates with interval and chance level.

catalogue.py lists them.
"""
