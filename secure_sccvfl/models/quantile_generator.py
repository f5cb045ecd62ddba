"""The `quantile` generator: maps numbers between the noisy histograms, and moves as few categories as possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Block, one_hot, unit_cuts
from secure_sccvfl.models.generators import GeneratorKind
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
class QuantileGenerator(TableGenerator):
    """A number keeps its quantile, a category moves by the maximal coupling."""

    def edit(
        self, block: Block, columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        if block.one_hot:
            return moved_categories(columns, old, new, uniform)
        cuts = unit_cuts(block.feature)
        known = columns[:, 1] < 0.5 if block.width > 1 else np.ones(len(columns), bool)
        low, high = (np.concatenate([[0.0], np.cumsum(v[: len(cuts) - 1])]) for v in (old, new))
        low, high = low / max(low[-1], 1e-12), high / max(high[-1], 1e-12)
        out = columns.copy()
        out[known, 0] = np.interp(np.interp(columns[known, 0], cuts, low), high, cuts)
        return out


KIND = GeneratorKind(QuantileGenerator)
