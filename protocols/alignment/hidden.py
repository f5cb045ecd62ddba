"""Alignment with a hidden intersection: no party learns which of its records others hold.

| | before | after |
|---|---|---|
| each party | its ids | the number of rows of the common table, and the rows of its own records |
| dealer | nothing | keyed pseudonyms: how many each party has, how many are common to which parties |

1. The parties agree on a key that the dealer does not have: a hash of 32 random bytes of each party, so it is uniform
   if one of them is (one round). The pseudonym of a record is BLAKE2b of its id under this key, 128 bits; two of a
   million ids collide with probability 2^-89. Pseudonyms of two sessions are unrelated without both keys.
2. Each party sends the dealer the pseudonyms of its ids, sorted. The dealer matches them, puts all distinct ones into
   a random order, and sends each party the rows of its own and its share of the membership mask: one bit for each
   row, whether all parties have a record there (protocols/dealing/matching.py).
3. The parties compare the number of rows that they received, a declared release, and stop if they differ.

A party fills rows where it has no record with zeros. protocols/alignment/presence.py says how the mask is used.

Why it is secure. A party, or any m-1 of them, receives random bytes of the key, one number (the size of the union of
all lists), uniform shares, and rows: a uniformly random choice for the distinct ids that they hold together. So their
view follows from their own ids and the size of the union. That size tells them how many records the others hold that
they do not: two alignments, with one id more in the second, reveal whether anybody else holds that id. With `bounds`
there are as many rows as all bounds together, and they learn nothing at all.

The dealer receives values of a pseudorandom function in sorted order. Without the key they are random bytes, equal
where ids are equal. It cannot test ids against them, nor compare them with those of another session. What remains is
the size of each overlap; `bounds` hide the sizes of the lists from it, but not those of overlaps. The dealer and one
party together can read which ids the others hold: as everywhere, the dealer must not collude.

A party that deviates can send pseudonyms of ids that it has no record of, if it knows these ids. It cannot claim a
row otherwise: the dealer computes the mask from the pseudonyms alone.

Three rounds and about 230 bytes to each peer. To the dealer 16 bytes for each record, from it 4 bytes for each record
and 8 bytes for each row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NoReturn

import numpy as np

from protocols.alignment.seam import UNION, Aligned, checked
from protocols.dealing.matching import PSEUDONYM_BYTES, Bounds, Pseudonyms
from protocols.dealing.randomness import KEY_BYTES, fresh_key
from protocols.errors import PeerError, ProtocolError
from protocols.session.runtime import Session

_PATIENCE = 600.0
"""Seconds that a party waits for the rows: others may hold many more records, and nobody tells how many."""


class HiddenAlignment:
    """`bounds`: the most records of each party, which are public, if the real numbers are to stay hidden."""

    def __init__(self, session: Session, bounds: Bounds | None = None) -> None:
        self._session, self._bounds = session, bounds

    def align(self, ids: Iterable[str]) -> Aligned:
        names, session = checked(ids), self._session
        with session.measure("alignment"), session.deadline(_PATIENCE):
            tags = SessionPseudonyms.agreed(session).of(names)
            result = session.match(tags, self._bounds)
            sizes = session.announce({f"party {session.rank}": result.size}, session.declared(UNION))
        if len(set(sizes.values())) > 1:
            raise PeerError("dealer", UNION, "sent the parties different numbers of rows")
        return Aligned(result.size, result.places, result.shares)


class SessionPseudonyms:
    """Makes pseudonyms; shows nothing of its key."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"a key of tags has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    @classmethod
    def agreed(cls, session: Session) -> SessionPseudonyms:
        """Run by all parties together: under a new key of theirs."""
        parts = session.swap_bytes("parts of the key of tags", fresh_key())
        return cls(hashlib.blake2b(b"".join(parts), digest_size=KEY_BYTES, person=b"key of alignment").digest())

    def of(self, ids: Iterable[str]) -> Pseudonyms:
        """One row for each id, in order."""
        keyed = hashlib.blake2b(key=self._key, person=b"alignment tag", digest_size=PSEUDONYM_BYTES)

        def tag(name: str) -> bytes:
            one = keyed.copy()
            one.update(name.encode())
            return one.digest()

        return np.frombuffer(b"".join(map(tag, ids)), "<u8").reshape(-1, 2)

    def __repr__(self) -> str:
        return "<tags of records: key hidden>"

    def __reduce__(self) -> NoReturn:
        raise ProtocolError("a key of tags is not pickled")
