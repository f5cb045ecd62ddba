"""Generators that need only the party's own noisy tables; `minimal` is the default.

`MinimalGenerator`: each group's distribution is shrunk towards the pooled one by as much as noise explains
(`secure_sccvfl.discovery.scores`). If only noise remains, nothing changes. A category moves by the maximal
coupling of two shrunken distributions. A number moves by the comonotone coupling of their bins: who stays in its bin
is unchanged, and who moves keeps its position inside the bin. A number that may be missing first moves between
missing and present (`models.missing`): who becomes present draws a value from the bins of the target group, who
becomes missing gets the flag.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Block, Layout, one_hot, unit_cuts
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.scores import group_sizes, probabilities, shrunken
from secure_sccvfl.models.encoders import plain_columns
from secure_sccvfl.models.generators import GeneratorConfig, Material
from secure_sccvfl.models.missing import gaps, moved_missing, with_missing

FLOOR = 0.5


@dataclass(frozen=True)
class TableGenerator(ABC):
    """Changes every mediator by its table, as each subclass defines."""

    material: Material
    config: GeneratorConfig
    seed: int

    @abstractmethod
    def edit(
        self, block: Block, columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        """Columns of one feature, moved from the summary of one group to that of another.

        `uniform`: a random number for each row.
        """

    def summary(self, block: Block) -> np.ndarray:
        """The shares of one feature's bins in each group, a column per group.

        The last row of a number that may be missing is the share of missing values.
        """
        return self.shares(block)

    def shares(self, block: Block) -> np.ndarray:
        """Shares of the bins of one feature in each group (bins x groups)."""
        return probabilities(np.clip(self.material.tables[block.feature.name], FLOOR, None), FLOOR)

    def __call__(self, inputs: np.ndarray, source: int, target: np.ndarray, draw: int) -> np.ndarray:
        out = inputs.copy()
        for block in self.material.layout.blocks:
            if block.feature.name not in self.material.edited:
                continue
            summary = self.summary(block)
            uniform = stream(self.seed, "lot", block.feature.name, draw, source).random(len(inputs))
            for group in np.unique(target):
                rows = np.flatnonzero(target == group)
                old, new = summary[:, source], summary[:, group]
                out[rows, block.columns] = self.edit(block, inputs[rows, block.columns], old, new, uniform[rows])
            if self.config.scale < 1:
                out[:, block.columns] = self.scaled(block, inputs[:, block.columns], out[:, block.columns])
        return out

    def scaled(self, block: Block, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Columns of one feature at `scale` of the way; moves between missing and present are not scaled."""
        out = before + self.config.scale * (after - before)
        if not block.one_hot and block.width > 1:
            moves = before[:, 1] != after[:, 1]
            out[moves] = after[moves]
        return out


def shift_direction(layout: Layout, tables: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Change of the mean encoding of these features between the two most distant groups (plain columns).

    Party step, local, from its own noisy tables: the direction along which a proxy reveals s.
    """
    parts = []
    for block in layout.blocks:
        if block.feature.name not in names:
            parts.append(np.zeros(plain_columns(block)))
            continue
        table = probabilities(tables[block.feature.name], FLOOR)
        far = np.unravel_index(
            np.abs(table[:, :, None] - table[:, None, :]).sum(axis=0).argmax(), (table.shape[1],) * 2
        )
        parts.append(mean_encoding(block, table[:, far[1]] - table[:, far[0]]))
    return np.concatenate(parts)


def mean_encoding(block: Block, shares: np.ndarray) -> np.ndarray:
    """Mean of the plain columns of a feature whose bins have these shares; a number is in the middle of its bin.

    A missing number is in the middle of every step.
    """
    if block.one_hot:
        return shares
    steps = len(unit_cuts(block.feature)) - 1
    upper = np.concatenate([np.cumsum(shares[:steps][::-1])[::-1][1:], [0.0]])
    return np.concatenate([upper + shares[:steps] / 2 + shares[steps:].sum() / 2, shares[steps:]])


def maximal_coupling(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Row-stochastic matrix that turns category distribution p into q and moves as few rows as possible."""
    stay = np.minimum(1.0, q / np.maximum(p, 1e-12))
    excess = np.clip(q - p, 0.0, None)
    total = excess.sum()
    if total <= 0:
        return np.eye(len(p))
    return np.diag(stay) + np.outer(1.0 - stay, excess / total)


def moved_categories(columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One-hot columns after a draw from the maximal coupling. `uniform`: a random number for each row."""
    width = columns.shape[1]
    steps = maximal_coupling(old, new).cumsum(axis=1)
    chosen = (uniform[:, None] > steps[columns.argmax(axis=1)]).sum(axis=1).clip(0, width - 1)
    return one_hot(chosen, width)


@dataclass(frozen=True)
class MinimalGenerator(TableGenerator):
    """Shrinks differences by what noise explains, then moves as few records as the remainder requires."""

    def shares(self, block: Block) -> np.ndarray:
        sizes = group_sizes(self.material.own_tables)
        table, material = self.material.tables[block.feature.name], self.material
        return shrunken(table, sizes, material.deviation, material.structure)

    def edit(
        self, block: Block, columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        if block.one_hot:
            return moved_categories(columns, old, new, uniform)
        if block.width == 1:
            return moved_numbers(unit_cuts(block.feature), columns[:, 0], old, new, uniform)[:, None]
        cuts, missing = unit_cuts(block.feature), gaps(columns)
        after, left = moved_missing(missing, old[-1], new[-1], uniform)
        out, stays = columns.copy(), ~missing & ~after
        out[stays, 0] = moved_numbers(cuts, columns[stays, 0], old, new, left[stays])
        return with_missing(out, missing, after, drawn_numbers(cuts, new, left[missing & ~after]))


def _cumulative(cuts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Cumulative shares of the bins of present values."""
    return np.concatenate([[0.0], np.cumsum(shares[: len(cuts) - 1])])


def moved_numbers(
    cuts: np.ndarray, value: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray
) -> np.ndarray:
    """Present values after the comonotone coupling of bins; unchanged where a group has no present value."""
    low, high = _cumulative(cuts, old), _cumulative(cuts, new)
    if low[-1] <= 0 or high[-1] <= 0:
        return value
    source_bin = np.clip(np.searchsorted(cuts[1:-1], value, side="right"), 0, len(cuts) - 2)
    low, high = low / low[-1], high / high[-1]
    rank = low[source_bin] + uniform * (low[source_bin + 1] - low[source_bin])
    there = np.clip(np.searchsorted(high[1:-1], rank, side="right"), 0, len(cuts) - 2)
    inside = (value - cuts[source_bin]) / (cuts[source_bin + 1] - cuts[source_bin])
    moved = cuts[there] + inside * (cuts[there + 1] - cuts[there])
    return np.where(there == source_bin, value, np.clip(moved, 0.0, 1.0))


def drawn_numbers(cuts: np.ndarray, shares: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Present values at these ranks of the distribution over bins; values are spread evenly inside a bin."""
    high = _cumulative(cuts, shares)
    high = high / max(high[-1], 1e-12)
    bins = np.clip(np.searchsorted(high[1:-1], uniform, side="right"), 0, len(cuts) - 2)
    inside = (uniform - high[bins]) / np.maximum(high[bins + 1] - high[bins], 1e-12)
    return np.clip(cuts[bins] + inside * (cuts[bins + 1] - cuts[bins]), 0.0, 1.0)
