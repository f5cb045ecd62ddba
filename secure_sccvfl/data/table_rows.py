"""Records of a party's CSV file in input space, read where they are used: by the workers of its row shards.

The head process of a party with row shards reads ids, label and protected attributes. It looks at the cells of its
features once, a batch at a time, and keeps none. Workers on the same host read the cells of their own rows, in the
order that the head process gives them after alignment. Ranges, categories and bins are in the public description, and
sums over rows are added up by batch, so nothing is released for this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.sources import open_batches
from secure_sccvfl.protocols.session.rows import RowSource

_TOGETHER = 1 << 20
"""How many values are encoded at a time, about."""
_MOST_KEPT = 2
_KEPT: dict[bytes, list[np.ndarray]] = {}
"""At a worker: the cells of its rows in the last parts of the split, which several orders encode."""


def stamp_of(path: Path) -> tuple[int, int]:
    """What shows that a file has changed: its size, and when it was written."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@dataclass(frozen=True, eq=False)
class TableRows(RowSource):
    """Rows of a CSV file by number, in any order. keeps: whether cells stay in memory, as at a worker."""

    path: Path
    owner: str
    ids: tuple[str, ...]
    features: tuple[Feature, ...]
    stamp: tuple[int, int]
    numbers: np.ndarray
    keeps: bool = False

    @property
    def layout(self) -> Layout:
        return Layout.of(self.features)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (len(self.numbers), self.layout.width)

    def __getitem__(self, rows: np.ndarray) -> TableRows:
        return replace(self, numbers=self.numbers[rows])

    def part(self, start: int, end: int) -> TableRows:
        return replace(self, numbers=self.numbers[start:end], keeps=True)

    def pieces(self) -> Iterator[np.ndarray]:
        layout, cells, each = self.layout, self._cells(), max(1, _TOGETHER // self.shape[1])
        for start in range(0, len(self), each):
            yield layout.encode(np.column_stack([column[start : start + each] for column in cells]))

    def unordered(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return ((where, self.layout.encode(cells)) for where, cells in self._read())

    def extremes(self) -> np.ndarray | None:
        """The least and the largest cell of each feature (two rows), or None if a cell cannot be used."""
        low, high = np.full((2, len(self.features)), np.nan)
        try:
            for _, cells in self._read():
                low, high = np.fmin(low, np.fmin.reduce(cells)), np.fmax(high, np.fmax.reduce(cells))
        except DataError:
            return None
        return np.stack([low, high])

    def _cells(self) -> list[np.ndarray]:
        """The cells of each feature in the order of the rows; the codes of a category in half the bytes."""
        key = hashlib.blake2b(repr((self.path, self.owner, self.stamp)).encode() + self.numbers.tobytes()).digest()
        if key in _KEPT:
            return _KEPT[key]
        dtypes = [np.float32 if feature.kind == "category" else np.float64 for feature in self.features]
        columns = [np.empty(len(self), dtype) for dtype in dtypes]
        for where, cells in self._read():
            for column, values in zip(columns, cells.T, strict=True):
                column[where] = values
        if self.keeps:
            while len(_KEPT) >= _MOST_KEPT:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[key] = columns
        return columns

    def _read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of cells (rows x features), with the places of these rows among `numbers`."""
        order = np.argsort(self.numbers, kind="stable")
        wanted, names = self.numbers[order], [feature.name for feature in self.features]
        first = read = 0
        for batch in open_batches(self.path, self.owner, self.ids, names):
            if stamp_of(self.path) != self.stamp or not set(names) <= set(batch):
                raise self._changed()
            low, high = np.searchsorted(wanted, [first, first + len(batch)])
            if high > low:
                rows = batch.iloc[wanted[low:high] - first]
                looked = [feature.look(rows[feature.name]) for feature in self.features]
                if any(problems for _, problems in looked):
                    raise self._changed()
                yield order[low:high], np.column_stack([values for values, _ in looked])
            first, read = first + len(batch), read + high - low
        if read < len(self):
            raise self._changed()

    def _changed(self) -> DataError:
        return DataError(
            f"{self.owner}: {self.path.name!r} has changed since the run began: start or resume it again"
        )
