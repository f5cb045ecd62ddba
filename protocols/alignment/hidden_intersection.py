"""Hidden intersection: no party learns which of its records others hold. Also the secret membership mask.

| | before | after |
|---|---|---|
| each party | its ids | the number of rows of the common table, the rows of its own records, shares of the mask |
| dealer | nothing | keyed pseudonyms: how many each party has, how many are common to which parties |

1. The parties agree on a key that the dealer does not have: a hash of 32 random bytes of each party, so it is uniform
   if one of them is (one round). The pseudonym of a record is BLAKE2b of its id under this key, 128 bits; two of a
   million ids collide with probability 2^-89. Pseudonyms of two sessions are unrelated without both keys.
2. Each party sends the dealer the pseudonyms of its ids, sorted. The dealer matches them, puts all distinct ones into
   a random order, and sends each party the rows of its own and its share of the membership mask: one bit for each
   row, whether all parties have a record there (protocols/dealing/matching.py).
3. The parties compare the number of rows that they received, a declared release, and stop if they differ.

A party fills rows where it has no record with zeros.

Why it is secure. A party, or any m-1 of them, receives random bytes of the key, one number (the size of the union of
all lists), uniform shares, and rows: a uniformly random choice for the distinct ids that they hold together. So their
view follows from their own ids and the size of the union. That size reveals how many records the others hold that
they do not: two alignments, with one id more in the second, reveal whether anybody else holds that id. With `bounds`
there are as many rows as all bounds together, and they learn nothing at all.

The dealer receives values of a pseudorandom function in sorted order. Without the key they are random bytes, equal
where ids are equal. It cannot test ids against them, nor compare them with those of another session. What remains is
the size of each overlap; `bounds` hide the sizes of the lists from it, but not those of overlaps. The dealer and one
party together can read which ids the others hold: as everywhere, the dealer must not collude.

A party that deviates can send pseudonyms of ids that it has no record of, if it knows these ids. It cannot claim a
row otherwise: the dealer computes the mask from the pseudonyms only. It can shift its share of the mask, which
`MembershipMask.veiled` makes useless where rows are opened to one receiver.

Rows are multiplied by the mask as integers, so nothing is rounded. Every opened value is under a uniform mask that is
used once. A row that is zero in every column, that of the bias too, adds nothing to any sum. So rows are multiplied
once, and a training step on them has the rounds of any other.

| step | rounds | bytes to each peer |
|---|---|---|
| `align` | 3 | about 230; to the dealer 16 a record; from it 4 a record and 8 a row |
| `masked`, `veiled` | 1 for each 2^20 ring elements | 8 an element, and 8 a row |
| `ratio` | 1 | 16 |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.alignment.interface import UNION, checked
from secure_sccvfl.protocols.dealing.matching import PSEUDONYM_BYTES, Aligned, Bounds, Pseudonyms
from secure_sccvfl.protocols.dealing.randomness import KEY_BYTES, Unshown, fresh_key
from secure_sccvfl.protocols.errors import PeerError, ProtocolError
from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.ring import RingArray
from secure_sccvfl.protocols.session.binding_tensors import share_in
from secure_sccvfl.protocols.session.runtime import Session, crypten

RATIO_BITS = 20
_PATIENCE = 600.0
"""Seconds that a party waits for the rows: others may hold many more records, and do not say how many."""
_ELEMENTS_PER_ROUND = 1 << 20


class HiddenIntersection:
    """`bounds`: the most records of each party, which are public, if the real numbers are to stay hidden."""

    def __init__(self, session: Session, bounds: Bounds | None = None) -> None:
        self._session, self._bounds = session, bounds

    def align(self, ids: Iterable[str]) -> Aligned:
        names, session = checked(ids), self._session
        with session.measure("alignment"), session.deadline(_PATIENCE):
            pseudonyms = SessionPseudonyms.agreed(session).of(names)
            aligned = session.match(pseudonyms, self._bounds)
            sizes = session.announce({f"party {session.rank}": aligned.size}, session.declared(UNION))
        if len(set(sizes.values())) > 1:
            raise PeerError("dealer", UNION, "sent the parties different numbers of rows")
        return aligned


class SessionPseudonyms(Unshown):
    """Makes pseudonyms; never shows its key."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"a key of pseudonyms has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    @classmethod
    def agreed(cls, session: Session) -> SessionPseudonyms:
        """Run by all parties together: under a new key of theirs."""
        parts = session.swap_bytes("parts of the key of tags", fresh_key())
        return cls(hashlib.blake2b(b"".join(parts), digest_size=KEY_BYTES, person=b"key of alignment").digest())

    def of(self, ids: Iterable[str]) -> Pseudonyms:
        """One row for each id, in order."""
        keyed = hashlib.blake2b(key=self._key, person=b"alignment tag", digest_size=PSEUDONYM_BYTES)

        def pseudonym(name: str) -> bytes:
            one = keyed.copy()
            one.update(name.encode())
            return one.digest()

        return np.frombuffer(b"".join(map(pseudonym, ids)), "<u8").reshape(-1, 2)


@dataclass(repr=False, eq=False)
class MembershipMask:
    """Shares of a bit for each row: do all parties have a record there?

    count: the public number by which means over the records are divided: the number of rows until a noisy number of
    records is released. The exact number stays secret.
    """

    bits: RingArray
    count: int
    has_noisy_count: bool = False

    @classmethod
    def of(cls, bits: Any) -> MembershipMask:
        """From this party's shares of the bits, or from a tensor of integers."""
        shares = bits if isinstance(bits, np.ndarray) else share_in(bits)
        return cls(shares, len(shares))

    def set_count(self, count: int) -> None:
        """Use a noisy number of records, which was released."""
        self.count, self.has_noisy_count = count, True

    def tensor(self, session: Session) -> Any:
        return session.wrap(self.bits, 0)

    def of_rows(self, rows: slice) -> MembershipMask:
        return replace(self, bits=self.bits[rows])

    def masked(self, session: Session, rows: Any) -> Any:
        """A tensor (rows x columns) that is zero where not all parties have a record."""
        if 0 in rows.size():
            return rows
        if session.shards is not None:
            return rows.product(self.tensor(session.tall)[:, None], None)
        each, bits = max(1, _ELEMENTS_PER_ROUND // rows.size(1)), self.tensor(session)[:, None]
        return crypten.cat([rows[at : at + each] * bits[at : at + each] for at in range(0, rows.size(0), each)])

    def veiled(self, session: Session, rows: Any) -> Any:
        """The same for a tensor that is opened to one receiver: uniform ring elements where `masked` has zeros.

        A party that deviates can add numbers of its choice to its shares, and so make a 1 of its bit. The veil, which
        the dealer deals (protocols/dealing/matching.py), hides these rows nevertheless.
        """
        veil = session.veil(rows.size(1), session.fraction(rows))
        return self.tensor(session)[:, None] * rows + veil

    def ratio(self, session: Session) -> Any:
        """The number of records over `count`, RATIO_BITS; a tensor of one."""
        total = self.tensor(session).sum(0, keepdim=True)
        return (total.exact() / self.count).rescale(RATIO_BITS, sliced=True)


def unveiled(opened: Array, mark: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Opened rows without those under a veil, which become zeros; and which rows are real.

    mark: an opened column that is 1 where all parties have a record. Under a veil it is 1 with probability 2^-64.
    """
    real = mark == 1
    return np.where(real.reshape(-1, *[1] * (opened.ndim - 1)), opened, 0), real
