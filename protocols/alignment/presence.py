"""Do all parties have a record at a place? One secret bit for each place.

Before: each party knows at which places it has a record. After: arithmetic shares of 1 where all have one, else of 0.
Nobody learns anything.

A party's own bits are shared from the start: it holds them, and the others hold zeros. Products of bits are taken in
secret, half as many in each round, and the last ones are turned into numbers (protocols/operations/comparison.py).
Every opened bit is under a uniform mask that is used once.

ceil(log2 m) + 1 rounds; (m - 1) / 4 + 1 / 8 bytes a place to each peer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocols.dealing.party import Party
from protocols.operations import comparison
from protocols.ring import Words


def all_present(party: Party, own: npt.NDArray[np.bool_]) -> Words:
    """Shares of whether every party has a record at a place; `own` says where this one has."""
    if not len(own):
        return np.zeros(0, np.int64)
    bits = np.zeros((len(own), party.parties), np.uint8)
    bits[:, party.rank] = own
    return comparison.to_arithmetic(party, comparison.all_ones(party, bits))
