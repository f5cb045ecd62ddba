"""Tags of records for one session: keyed hashes of 128 bits that mean nothing to whoever lacks the key.

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

from protocols.dealing.matching import TAG_BYTES, Tags
from protocols.dealing.randomness import KEY_BYTES, fresh_key
from protocols.errors import ProtocolError
from protocols.session.runtime import Session


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
