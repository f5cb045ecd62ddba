"""Generators that need nothing but the party's own noisy tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Block, Layout, unit_cuts
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.scores import probabilities
from secure_sccvfl.models.encoders import plain_columns
from secure_sccvfl.models.generators import GeneratorConfig, Material

FLOOR = 0.5


@dataclass(frozen=True)
class TableGenerator(ABC):
    """Changes every mediator by its table; each kind says how."""

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
        """What is known of one feature in each group, a column per group: the shares of its bins."""
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
            out = inputs + self.config.scale * (out - inputs)
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
