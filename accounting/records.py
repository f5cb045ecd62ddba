"""Sets of records, by a tag for each. The maker of the tags keeps their key: without it they name nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Tags = npt.NDArray[np.uint64]


class RecordSet:
    """Which records a release is about: sorted tags, each once.

    Two records with one tag (chance n^2 / 2^65) count as one record that was part of everything that either was
    part of. Then too much is charged, never too little.
    """

    __slots__ = ("_tags", "digest")

    def __init__(self, pseudonyms: npt.ArrayLike) -> None:
        given = np.asarray(pseudonyms)
        if given.ndim != 1 or given.dtype.kind != "u" or not given.size:
            raise ValueError("a set of records needs one unsigned tag for each, and a record")
        self._tags: Tags = np.unique(given.astype("<u8"))
        self._tags.setflags(write=False)
        self.digest = hashlib.sha256(self._tags.tobytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> RecordSet:
        """A set from the result of `to_bytes`."""
        return cls(np.frombuffer(data, "<u8"))

    @classmethod
    def union(cls, sets: Sequence[RecordSet]) -> RecordSet:
        return cls(np.concatenate([one._tags for one in sets]))

    def to_bytes(self) -> bytes:
        return self._tags.tobytes()

    def __len__(self) -> int:
        return len(self._tags)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordSet) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<{len(self)} records>"

    def inside(self, other: RecordSet) -> npt.NDArray[np.bool_]:
        """For each of these records, in the order of their tags: is it in the other set?"""
        if self == other:
            return np.ones(len(self), bool)
        index = np.minimum(np.searchsorted(other._tags, self._tags), len(other) - 1)
        return np.asarray(other._tags[index] == self._tags)


def memberships(records: RecordSet, kinds: Sequence[Sequence[RecordSet]]) -> npt.NDArray[np.int64]:
    """Every distinct way in which a record of this set lies in others: for each kind of set, in how many."""
    counts = np.zeros((len(records), len(kinds)), np.int64)
    for column, sets in enumerate(kinds):
        for one in sets:
            counts[:, column] += records.inside(one)
    return np.unique(counts, axis=0)
