"""Sets of records, by a keyed pseudonym for each. Their maker keeps the key: without it they name nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Pseudonyms = npt.NDArray[np.uint64]


class RecordSet:
    """Which records a release is about: sorted pseudonyms, each once.

    Two records with one pseudonym (chance n^2 / 2^65) count as one record that was part of everything that either was
    part of. Then too much is charged, never too little.
    """

    __slots__ = ("_pseudonyms", "digest")

    def __init__(self, pseudonyms: npt.ArrayLike) -> None:
        given = np.asarray(pseudonyms)
        if given.ndim != 1 or given.dtype.kind != "u" or not given.size:
            raise ValueError("a set of records needs at least one record, and an unsigned pseudonym for each")
        self._pseudonyms: Pseudonyms = np.unique(given.astype("<u8"))
        self._pseudonyms.setflags(write=False)
        self.digest = hashlib.sha256(self._pseudonyms.tobytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> RecordSet:
        """A set from the result of `to_bytes`."""
        return cls(np.frombuffer(data, "<u8"))

    @classmethod
    def union(cls, sets: Sequence[RecordSet]) -> RecordSet:
        return cls(np.concatenate([one._pseudonyms for one in sets]))

    def to_bytes(self) -> bytes:
        return self._pseudonyms.tobytes()

    def __len__(self) -> int:
        return len(self._pseudonyms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordSet) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<{len(self)} records>"

    def inside(self, other: RecordSet) -> npt.NDArray[np.bool_]:
        """For each of these records, in the order of their pseudonyms: is it in the other set?"""
        if self == other:
            return np.ones(len(self), bool)
        index = np.minimum(np.searchsorted(other._pseudonyms, self._pseudonyms), len(other) - 1)
        return np.asarray(other._pseudonyms[index] == self._pseudonyms)


def memberships(records: RecordSet, kinds: Sequence[Sequence[RecordSet]]) -> npt.NDArray[np.int64]:
    """Every distinct way in which a record of this set lies in others: for each kind of set, in how many."""
    counts = np.zeros((len(records), len(kinds)), np.int64)
    for column, sets in enumerate(kinds):
        for one in sets:
            counts[:, column] += records.inside(one)
    return np.unique(counts, axis=0)
