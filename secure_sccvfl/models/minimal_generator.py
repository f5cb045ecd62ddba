"""The `minimal` generator: shrunken tables, and counterfactuals that change as few records as possible.

Each group's distribution is shrunk towards the pooled one by as much as noise explains
(`secure_sccvfl.discovery.scores`). Where nothing but noise is left, nothing changes.

A category moves by the maximal coupling of two shrunken distributions. A number moves by the comonotone coupling of
their bins: who stays in its bin is unchanged, and who moves keeps its position inside the bin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Block, one_hot, unit_cuts
from secure_sccvfl.discovery.scores import group_sizes, shrunken
from secure_sccvfl.models.table_generator import TableGenerator


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
    """Shrinks what noise explains, then moves as few records as the rest demands."""

    def shares(self, block: Block) -> np.ndarray:
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
