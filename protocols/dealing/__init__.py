"""Randomness and who holds which part of it: key streams, tuples, the dealer, and a party's end of a session."""
