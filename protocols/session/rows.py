"""Rows of a party that are made where they are used, some at a time: by its process, or by the workers of its shards.

A table of many rows need not be in memory as real numbers, nor in the head process of a party with row shards: its
rows go into the ring a piece at a time, and stay there as 32-bit integers while they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.transport import Array

_TOGETHER = 1 << 20
"""How many values make a piece, about."""


class RowSource:
    """Rows that are made when they are asked for. It can be pickled; a worker gets the part of its shard.

    at_worker: whether a worker can make its part. Otherwise the rows are sent to it, a piece at a time.
    """

    shape: tuple[int, ...]
    at_worker = True

    def __len__(self) -> int:
        return self.shape[0]

    def part(self, start: int, end: int) -> RowSource:
        """The rows from `start` to before `end`."""
        raise NotImplementedError

    def pieces(self) -> Iterator[Array]:
        """All rows in their order, some at a time."""
        raise NotImplementedError

    def unordered(self) -> Iterator[tuple[Any, Array]]:
        """All rows in the order in which they are read, some at a time, with an index of their places."""
        at = 0
        for piece in self.pieces():
            yield slice(at, at + len(piece)), piece
            at += len(piece)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate([*self.pieces()], dtype=dtype)


def part_of(values: Any, start: int, end: int) -> Any:
    """Some rows of an array or of a source."""
    return values.part(start, end) if isinstance(values, RowSource) else values[start:end]


def pieces_of(values: Any) -> Iterator[Array]:
    """The rows of an array or of a source, some at a time."""
    if isinstance(values, RowSource):
        yield from values.pieces()
        return
    each = max(1, _TOGETHER // max(1, int(np.prod(values.shape[1:]))))
    for start in range(0, len(values), each):
        yield values[start : start + each]


def encoded(values: Any, bits: int, limit: float) -> Array:
    """`ring.encode` of the rows of an array or of a source; shorter integers, that stand for elements, if all fit."""
    if not isinstance(values, RowSource):
        values = np.asarray(values.detach() if hasattr(values, "detach") else values)
        if bits == 0:
            return ring.encode(values, bits, limit)
    result, at = np.empty(values.shape, np.int32 if bits else np.int8), 0
    for piece in pieces_of(values):
        elements = ring.encode(piece, bits, limit)
        if elements.shape[1:] != result.shape[1:] or at + len(elements) > len(result):
            raise ProtocolError("a source of rows has made rows of another shape than it has told")
        if elements.size and int(np.abs(elements).max()) > np.iinfo(result.dtype).max:
            result = result.astype(np.int64)
        result[at : at + len(elements)] = elements
        at += len(elements)
    if at < len(result):
        raise ProtocolError(f"a source of rows has made {at} rows of {len(result)}")
    return result


class Mapped(RowSource):
    """What a function makes of each row of a source. It is pickled with its source."""

    def __init__(self, function: Callable[[Array], Array], source: RowSource, columns: int) -> None:
        self.function, self.source, self.shape = function, source, (len(source), columns)
        self.at_worker = source.at_worker

    def part(self, start: int, end: int) -> Mapped:
        return Mapped(self.function, self.source.part(start, end), self.shape[1])

    def pieces(self) -> Iterator[Array]:
        return map(self.function, self.source.pieces())

    def unordered(self) -> Iterator[tuple[Any, Array]]:
        return ((where, self.function(piece)) for where, piece in self.source.unordered())


def applied(function: Callable[[Array], Array], rows: Any, columns: int) -> Any:
    """A function of each row, of an array at once, of a source where it is used. columns: of the result."""
    return Mapped(function, rows, columns) if isinstance(rows, RowSource) else function(rows)


class Scaled(RowSource):
    """Own rows times a factor for each column, computed where they are used: with shards a piece at a time."""

    def __init__(self, values: Array | RowSource, factor: Array) -> None:
        self.values, self.factor, self.shape = values, factor, tuple(values.shape)
        self.at_worker = isinstance(values, RowSource) and values.at_worker

    def part(self, start: int, end: int) -> Scaled:
        return Scaled(part_of(self.values, start, end), self.factor)

    def pieces(self) -> Iterator[Array]:
        return (piece * self.factor for piece in pieces_of(self.values))
