"""Input space: every feature as columns between 0 and 1, made from the public dictionary alone.

A number is scaled by its public range (one column). A category or code is one-hot. A column that may be missing has
one more flag. Generators edit here, attacks perturb here, encoders read from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from secure_sccvfl.data.features import DataError, Feature


@dataclass(frozen=True)
class Block:
    feature: Feature
    start: int
    stop: int

    @property
    def columns(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def width(self) -> int:
        return self.stop - self.start

    @property
    def one_hot(self) -> bool:
        """True where the columns are a category; else column 0 is a number and column 1 a gap flag."""
        return self.feature.kind != "number"


@dataclass(frozen=True)
class Layout:
    """Where each feature of one party (or of all) sits in input space."""

    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, features: Sequence[Feature]) -> Layout:
        blocks, at = [], 0
        for feature in features:
            width = 1 + feature.missing if feature.kind == "number" else feature.bins
            blocks.append(Block(feature, at, at + width))
            at += width
        return cls(tuple(blocks))

    @property
    def width(self) -> int:
        return self.blocks[-1].stop

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(b.feature.name for b in self.blocks)

    def columns(self, names: Iterable[str]) -> np.ndarray:
        """Column numbers of these features, in layout order."""
        wanted = set(names)
        picked = [np.arange(b.start, b.stop) for b in self.blocks if b.feature.name in wanted]
        return np.concatenate(picked) if picked else np.zeros(0, int)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Party step, local: cells to input space."""
        out = np.zeros((len(values), self.width))
        for block, column in zip(self.blocks, values.T, strict=True):
            feature = block.feature
            _check_range(feature, column)
            if block.one_hot:
                out[np.arange(len(values)), block.start + feature.bin_index(column)] = 1.0
                continue
            gap = np.isnan(column)
            scaled = (np.nan_to_num(column, nan=feature.low) - feature.low) / (feature.high - feature.low)
            out[:, block.start] = np.where(gap, 0.0, scaled)
            if feature.missing:
                out[:, block.start + 1] = gap
        return out

    def bin_one_hot(self, block: Block, inputs: np.ndarray) -> np.ndarray:
        """Public bins (n x bins) of one feature, read back from input space."""
        feature = block.feature
        if block.one_hot:
            return inputs[:, block.columns]
        cuts = unit_cuts(feature)
        inner = np.searchsorted(cuts[1:-1], inputs[:, block.start], side="right")
        if feature.missing:
            inner = np.where(inputs[:, block.start + 1] > 0.5, feature.bins - 1, inner)
        return one_hot(inner, feature.bins)


def one_hot(codes: np.ndarray, count: int, dtype: DTypeLike = np.float64) -> np.ndarray:
    """A row per code, with a 1 in the column of that number."""
    indicators: np.ndarray = np.eye(count, dtype=dtype)[codes]
    return indicators


def _check_range(feature: Feature, column: np.ndarray) -> None:
    """Raise for values outside the public dictionary: none may reach a statistic, where some bin would count it."""
    gap = np.isnan(column)
    if gap.any() and not feature.missing:
        raise DataError(f"{feature.name}: {int(gap.sum())} values are NaN; declare `missing = true` or fill them in")
    low, high = (0, len(feature.categories) - 1) if feature.kind == "category" else (feature.low, feature.high)
    if ((column[~gap] < low) | (column[~gap] > high)).any():
        raise DataError(f"{feature.name}: a record lies outside the public range {low:g}..{high:g}")


def unit_cuts(feature: Feature) -> np.ndarray:
    """Public edges of a number, scaled to 0..1."""
    return (feature.cuts - feature.low) / (feature.high - feature.low)
