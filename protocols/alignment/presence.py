"""The secret membership mask: one shared bit for each row of the common table, and its products.

Before: the dealer, which matched the pseudonyms of all parties, has dealt additive shares of 1 where all have a
record, else of 0 (protocols/dealing/matching.py). After `Presence.kept`: shares of rows that are zero where not all
have a record. Nobody learns anything. A party influences the mask only by the pseudonyms that it sends, unless it
deviates and shifts its share. `Presence.veiled` makes that useless where rows are opened to one receiver.

Rows are multiplied by the mask as integers, so nothing is rounded. Every opened value is under a uniform mask that is
used once. A row that is zero in every column, that of the bias too, adds nothing to any sum. So rows are weighted
once, and a training step on them has the rounds of any other.

| step | rounds | bytes to each peer |
|---|---|---|
| `kept`, `veiled` | 1 for each 2^20 ring elements | 8 an element, and 8 a row |
| `ratio` | 1 | 16 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protocols.net.transport import Array
from protocols.ring import RingArray
from protocols.session.binding_tensors import share_in
from protocols.session.runtime import Session, crypten

RATIO_BITS = 20
_ROUND_WORDS = 1 << 20
"""How many ring elements are multiplied in one round."""


@dataclass(repr=False, eq=False)
class Presence:
    """Shares of the bits of a table, and the public number by which means over its records are divided.

    count: the number of rows until a noisy number of records is known. The exact number stays secret. known:
    whether it is.
    """

    bits: RingArray
    count: int
    known: bool = False

    @classmethod
    def of(cls, shares: RingArray) -> Presence:
        """From this party's shares of the bits."""
        return cls(shares, len(shares))

    @classmethod
    def of_tensor(cls, bits: Any) -> Presence:
        """From a tensor of the bits, integers."""
        return cls.of(share_in(bits))

    def told(self, count: int) -> None:
        """A noisy number of records is known now."""
        self.count, self.known = count, True

    def marks(self, session: Session) -> Any:
        """The bits as a tensor of integers."""
        return session.wrap(self.bits, 0)

    def kept(self, session: Session, rows: Any) -> Any:
        """These rows (rows x columns), zero where not all parties have a record; CrypTen tensors."""
        if not rows.nelement():
            return rows
        each, marks = max(1, _ROUND_WORDS // rows.size(1)), self.marks(session)[:, None]
        output = [rows[at : at + each] * marks[at : at + each] for at in range(0, rows.size(0), each)]
        return crypten.cat(output)

    def veiled(self, session: Session, rows: Any) -> Any:
        """The same for a tensor of integers or fractions that is opened to one receiver.

        It has uniform ring elements where not all parties have a record.

        A party that deviates can add numbers of its choice to its shares, and so make a 1 of its bit. The veil, which
        the dealer deals (protocols/dealing/matching.py), hides these rows nevertheless.
        """
        veil = session.veil(rows.size(1), session.fraction(rows))
        return self.marks(session)[:, None] * rows + veil

    def ratio(self, session: Session) -> Any:
        """The number of records over `count`, RATIO_BITS; a tensor of one."""
        total = self.marks(session).sum(0, keepdim=True)
        return (total.exact() / self.count).rescale(RATIO_BITS, sliced=True)


def unveiled(opened: Array, mark: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Opened rows without those under a veil, which become zeros; and which rows are real.

    mark: an opened column that is 1 where all parties have a record. Under a veil it is 1 with probability 2^-64.
    """
    real = mark == 1
    return np.where(real.reshape(-1, *[1] * (opened.ndim - 1)), opened, 0), real
