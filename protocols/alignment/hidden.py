"""Alignment that tells nobody which of its records others hold.

| | before | after |
|---|---|---|
| each party | its ids | how many places there are, and the places of its own records |
| dealer | nothing | tags without meaning, how many each party has, how many are common to which parties |

1. The parties agree on a key for this session, which the dealer does not have (protocols/alignment/hidden.py).
2. Each party sends the dealer the tags of its ids, sorted. The dealer matches them, puts all different tags into a
   random order, and tells each party the places of its own and its share of one bit for each place: whether all
   parties have a record there (protocols/dealing/matching.py).
3. The parties tell each other the number of places that they were told, a declared release, and stop if they differ.

A party fills places where it has no record with zeros. What follows from the shared bits is in
protocols/alignment/presence.py.

Why it is secure. A party, or any m-1 of them, receives random bytes of the key, one number (the size of the union of
all lists), uniform shares, and places: a uniformly random choice of places for the different ids that they hold
together. So what they receive follows from their own ids and the size of the union. That size tells them how many
records the others hold that they do not. So two alignments, with one id more in the second, tell whether anybody else
holds that id. With `bounds` there are as many places as all bounds together, and they learn nothing at all.

The dealer receives values of a pseudorandom function in an order that follows from these values. Without the key
they are random bytes, equal where ids are equal. It cannot try ids against them, nor compare them with those of
another session. What remains is how many are equal: the size of each overlap. `bounds` hide the sizes of the lists
from it, and not those of overlaps. The dealer and one party together can read which ids the others hold: as
everywhere, the dealer works with nobody.

A party that deviates can send tags of ids that it does not hold a record of, if it knows these ids. It cannot claim a
place otherwise: the dealer makes the bits from the tags alone.

Three rounds and about 230 bytes to each peer. To the dealer 16 bytes for each record, from it 4 bytes for each record
and 8 bytes for each place.

Tags of records for one session: keyed hashes of 128 bits that mean nothing to whoever lacks the key.

Before: nothing. After: all parties know a key; the dealer does not. Every party sends 32 random bytes to every other
over the channel of the two; the key is a hash of all of them, so it is uniform if one of them is. One round, 32 bytes
to each peer. The key lives as long as the object: tags of two sessions are unrelated to whoever lacks both keys.

A tag is BLAKE2b of the id under this key, a pseudorandom function. Two of a million ids have one tag with chance
2^-89.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NoReturn

import numpy as np

from protocols.alignment.seam import UNION, Aligned, checked
from protocols.dealing.matching import TAG_BYTES, Bounds, Tags
from protocols.dealing.randomness import KEY_BYTES, fresh_key
from protocols.errors import PeerError, ProtocolError
from protocols.session.runtime import Session

_PATIENCE = 600.0
"""Seconds that a party waits for the places: others may hold many more records, and nobody tells how many."""


class HiddenAlignment:
    """`bounds`: the most records of each party, which are public, if the real numbers are to stay hidden."""

    def __init__(self, session: Session, bounds: Bounds | None = None) -> None:
        self._session, self._bounds = session, bounds

    def align(self, ids: Iterable[str]) -> Aligned:
        names, session = checked(ids), self._session
        with session.measure("alignment"), session.deadline(_PATIENCE):
            tags = SessionTags.agreed(session).of(names)
            found = session.match(tags, self._bounds)
            told = session.announce({f"party {session.rank}": found.size}, session.declared(UNION))
        if len(set(told.values())) > 1:
            raise PeerError("dealer", UNION, "told the parties different numbers of places")
        return Aligned(found.size, found.places, found.shares)


class SessionTags:
    """Makes tags; shows nothing of its key."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"a key of tags has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    @classmethod
    def agreed(cls, session: Session) -> SessionTags:
        """Run by all parties together: under a new key of theirs."""
        parts = session.swap_bytes("parts of the key of tags", fresh_key())
        return cls(hashlib.blake2b(b"".join(parts), digest_size=KEY_BYTES, person=b"key of alignment").digest())

    def of(self, ids: Iterable[str]) -> Tags:
        """One row for each id, in order."""
        keyed = hashlib.blake2b(key=self._key, person=b"alignment tag", digest_size=TAG_BYTES)

        def tag(name: str) -> bytes:
            one = keyed.copy()
            one.update(name.encode())
            return one.digest()

        return np.frombuffer(b"".join(map(tag, ids)), "<u8").reshape(-1, 2)

    def __repr__(self) -> str:
        return "<tags of records: key hidden>"

    def __reduce__(self) -> NoReturn:
        raise ProtocolError("a key of tags is not pickled")
