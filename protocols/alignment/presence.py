"""Do all parties have a record at a place? One secret bit for each place, and what follows from it.

Before: each party knows at which places it has a record. After `all_present`: arithmetic shares of 1 where all have
one, else of 0. After `Presence.kept`: shares of rows that are zero where not all have a record. Nobody learns
anything.

A party's own bits are shared from the start: it holds them, and the others hold zeros. Products of bits are taken in
secret, half as many in each round, and the last ones are turned into numbers (protocols/operations/comparison.py).
Rows are multiplied by them as whole numbers, so nothing is rounded. Every opened value is under a uniform mask that
is used once.

A row that is zero in every column, that of the bias too, adds nothing to any sum. So rows are weighted once, and a
training step on them has the rounds of any other.

| step | rounds | bytes to each peer |
|---|---|---|
| `all_present` | ceil(log2 m) + 1 | (m - 1) / 4 + 1 / 8 a place |
| `kept` | 1 for each 2^20 words | 8 a word, and 8 a place |
| `ratio` | 1 | 16 |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocols.dealing.party import Party
from protocols.operations import arithmetic, comparison
from protocols.ring import Words

RATIO_BITS = 20
_ROUND_WORDS = 1 << 20
"""How many words are multiplied in one round."""


def all_present(party: Party, own: npt.NDArray[np.bool_]) -> Words:
    """Shares of whether every party has a record at a place; `own` says where this one has."""
    if not len(own):
        return np.zeros(0, np.int64)
    bits = np.zeros((len(own), party.parties), np.uint8)
    bits[:, party.rank] = own
    return comparison.to_arithmetic(party, comparison.all_ones(party, bits))


@dataclass(repr=False, eq=False)
class Presence:
    """Shares of the bits of a table, and the public number by which means over its records are divided.

    count: the number of places until a noisy number of records is known. The exact number stays secret. known:
    whether it is.
    """

    bits: Words
    count: int
    known: bool = False

    @classmethod
    def of(cls, party: Party, own: npt.NDArray[np.bool_]) -> Presence:
        """Run by all parties together, each with the places of its own records."""
        return cls(all_present(party, own), len(own))

    def told(self, count: int) -> None:
        """A noisy number of records is known now."""
        self.count, self.known = count, True

    def kept(self, party: Party, rows: Words) -> Words:
        """Shares of these rows (places x columns), zero where not all parties have a record."""
        if not rows.size:
            return rows
        each = max(1, _ROUND_WORDS // rows.shape[1])
        made = [
            arithmetic.bilinear(party, "mul", rows[at : at + each], self.bits[at : at + each, None])
            for at in range(0, len(rows), each)
        ]
        return np.concatenate(made)

    def ratio(self, party: Party) -> Words:
        """Shares of the number of records over `count`, RATIO_BITS; an array of one."""
        total: Words = self.bits.sum(keepdims=True)
        return arithmetic.divide(party, np.left_shift(total, RATIO_BITS), self.count)
