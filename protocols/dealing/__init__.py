"""Correlated randomness: what the dealer makes, how a party receives it, and a party's view of a session.

`randomness` (ChaCha20 key streams), `gaussian` (exact discrete Gaussian samples), `tuples` (a recipe for each kind
of tuple, such as Beaver triples), `dealer` (both ends of its protocol), `matching` (records matched by the dealer
on keyed pseudonyms), `party` (`Party`: keys, masked openings, consistency checks). The dealer receives no
data, except keyed pseudonyms of ids if records are matched (`matching`).
"""
