"""The `minimal` generator: shrunken tables, and edits that move as few records as possible.

Each group's distribution is shrunk towards the pooled one by as much as noise explains
(`secure_sccvfl.discovery.scores`). Where nothing but noise is left, nothing is edited.

A category moves by the maximal coupling of two shrunken distributions. A number moves by the comonotone coupling of
their bins: who stays in its bin is unchanged, and who moves keeps its place inside the bin. `thinning` is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Block, unit_cuts
from secure_sccvfl.discovery.scores import group_sizes, shrunken
from secure_sccvfl.models.generators import GeneratorKind
from secure_sccvfl.models.quantile_generator import moved_categories
from secure_sccvfl.models.table_generator import TableGenerator


@dataclass(frozen=True)
class MinimalGenerator(TableGenerator):
    """Shrinks what noise explains, then moves as few records as the rest demands."""

    @property
    def redraws(self) -> int:
        """The summary is the same in every draw: only who moves is drawn."""
        return 1

    def shares(self, block: Block, draw: int) -> np.ndarray:
        sizes = group_sizes(self.material.own_tables)
        return shrunken(self.material.tables[block.feature.name], sizes, self.material.deviation)

    def edit(
        self, block: Block, columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        if block.one_hot:
            return moved_categories(columns, old, new, uniform)
        cuts = unit_cuts(block.feature)
        low, high = (np.concatenate([[0.0], np.cumsum(v[: len(cuts) - 1])]) for v in (old, new))
        if low[-1] <= 0 or high[-1] <= 0:
            return columns
        known = np.flatnonzero(columns[:, 1] < 0.5) if block.width > 1 else np.arange(len(columns))
        value = columns[known, 0]
        own = np.clip(np.searchsorted(cuts[1:-1], value, side="right"), 0, len(cuts) - 2)
        low, high = low / low[-1], high / high[-1]
        rank = low[own] + uniform[known] * (low[own + 1] - low[own])
        there = np.clip(np.searchsorted(high[1:-1], rank, side="right"), 0, len(cuts) - 2)
        inside = (value - cuts[own]) / (cuts[own + 1] - cuts[own])
        moved = cuts[there] + inside * (cuts[there + 1] - cuts[there])
        out = columns.copy()
        out[known, 0] = np.where(there == own, value, np.clip(moved, 0.0, 1.0))
        return out


KIND = GeneratorKind(MinimalGenerator)
