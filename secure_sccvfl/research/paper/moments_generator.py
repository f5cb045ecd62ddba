"""The `moments` generator: it shifts and scales numbers by the groups' moments, and shifts shares of categories.

Moments of a number come from its noisy table. Baselines of the paper's tables use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Block, unit_cuts
from secure_sccvfl.models.table_generator import TableGenerator


@dataclass(frozen=True)
class MomentsGenerator(TableGenerator):
    """A number moves from one mean and deviation to another, a category by the difference of shares."""

    def edit(
        self, block: Block, columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        return np.clip(columns + new - old, 0.0, 1.0) if block.one_hot else _shifted(columns, old, new)

    def summary(self, block: Block) -> np.ndarray:
        """Shares of the categories, or mean and deviation of a number."""
        if block.one_hot:
            return self.shares(block)
        return np.stack([_of_table(block, v) for v in self.shares(block).T], axis=1)


def _of_table(block: Block, shares: np.ndarray) -> np.ndarray:
    """Mean and deviation of a number, from the shares of its bins in one group."""
    cuts = unit_cuts(block.feature)
    middle = (cuts[:-1] + cuts[1:]) / 2
    inner = shares[: len(middle)] / max(shares[: len(middle)].sum(), 1e-12)
    mean = inner @ middle
    return np.array([mean, np.sqrt(inner @ (middle - mean) ** 2)])


def _shifted(columns: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """A number moved from one mean and deviation to another; gaps stay."""
    known = columns[:, 1] < 0.5 if columns.shape[1] > 1 else np.ones(len(columns), bool)
    out = columns.copy()
    ratio = new[1] / max(old[1], 1e-3)
    out[known, 0] = np.clip(new[0] + (columns[known, 0] - old[0]) * ratio, 0.0, 1.0)
    return out
