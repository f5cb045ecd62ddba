"""Correlated randomness: key streams, tuples, the dealer, and a party's view of a session."""
