"""Correlated randomness: what the dealer makes, how a party receives it, and a party's view of a session.

`randomness` (`Stream`: a ChaCha20 key stream; `Draw`: uniform ring elements from it), `gaussian` (exact discrete
Gaussian samples), `tuples` (a recipe for each kind of tuple, such as Beaver triples; it often has the name of its
kernel in `operations`), `dealer` (both ends of its protocol), `matching` (records matched by the dealer on keyed
pseudonyms), `party` (`Party`: keys, masked openings, consistency checks). The dealer receives no data, except keyed
pseudonyms of ids if records are matched (`matching`).
"""
