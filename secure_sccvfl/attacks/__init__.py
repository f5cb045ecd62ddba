"""Attacks. Each takes a View, what an adversary holds, and returns a rate with interval and chance level."""
