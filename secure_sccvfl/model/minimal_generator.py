"""The `minimal` generator: shrunken tables, and edits that move as few records as possible.

A table of a few hundred records shows differences between groups that are sampling and release noise alone. Each
group's distribution is therefore shrunk towards the pooled one (positive-part James-Stein), by as much as its known
noise explains. Where nothing but noise is left, nothing is edited. With bins k, group g of n_g records, its share
pi_g of all records, its distribution p_g, the pooled distribution q and the deviation sigma of the release:

    v_k    = q_k (1 - q_k) (1 - pi_g) / n_g + (sigma / n_g)^2
    chi_g  = (K - 1) / K * sum_k (p_gk - q_k)^2 / v_k
    p~_g   = q + max(0, 1 - (K - 1) / chi_g) (p_g - q)

A category moves by the maximal coupling of two shrunken distributions. A number moves by the comonotone coupling of
their bins: who stays in its bin is unchanged, and who moves keeps its place inside the bin. `thinning` is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Block, unit_cuts
from secure_sccvfl.model.generators import GeneratorKind
from secure_sccvfl.model.quantile_generator import moved_categories
from secure_sccvfl.model.table_generator import TableGenerator


def shrunken(table: np.ndarray, sizes: np.ndarray, deviation: float) -> np.ndarray:
    """Distributions of the bins in each group (bins x groups), shrunk towards the pooled one.

    `sizes`: records of each group. `deviation`: of the noise in a cell.
    """
    bins, known = len(table), np.maximum(sizes, 1.0)
    shares = known / known.sum()
    own = table / known
    pooled = own @ shares
    spread = np.clip(pooled * (1 - pooled), 0.0, None)
    variance = np.outer(spread, (1 - shares) / known) + (deviation / known) ** 2
    chi = (bins - 1) / bins * ((own - pooled[:, None]) ** 2 / np.maximum(variance, 1e-12)).sum(axis=0)
    kept = np.clip(1 - (bins - 1) / np.maximum(chi, 1e-12), 0.0, None)
    found = np.clip(pooled[:, None] + kept * (own - pooled[:, None]), 0.0, None)
    return found / np.maximum(found.sum(axis=0), 1e-12)


@dataclass(frozen=True)
class MinimalGenerator(TableGenerator):
    """Shrinks what noise explains, then moves as few records as the rest demands."""

    def summary(self, block: Block, draw: int) -> np.ndarray:
        """The same in every draw: only who moves is drawn."""
        tables = [self.material.tables[name] for name in self.material.layout.names]
        sizes = np.mean([table.sum(axis=0) for table in tables], axis=0)
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
