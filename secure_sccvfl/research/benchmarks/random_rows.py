"""The rows of `bench.py shards`. A worker imports this module, so it must be small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from secure_sccvfl.protocols.operations.banded import BAND_ROWS
from secure_sccvfl.protocols.session.rows import RowSource

SIZE = 0.5
"""Largest entry."""


@dataclass(frozen=True)
class RandomRows(RowSource):
    """Uniform numbers of a party, the same however rows are cut: each band has its own seed."""

    rank: int
    columns: int
    start: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.end - self.start, self.columns)

    def part(self, start: int, end: int) -> RandomRows:
        return replace(self, start=self.start + start, end=self.start + end)

    def pieces(self) -> Iterator[np.ndarray]:
        for at in range(self.start, self.end, BAND_ROWS):  # shards begin with a band
            rows = (min(BAND_ROWS, self.end - at), self.columns)
            yield np.random.default_rng((self.rank, at)).random(rows, np.float32) * np.float32(SIZE)
