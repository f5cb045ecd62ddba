"""What each party computes alone: input space, public bins, residuals. s never comes here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data import Dataset
from secure_sccvfl.streams import stream
from secure_sccvfl.units import Layout

KERNEL_FEATURES = 8


@dataclass(frozen=True)
class Party:
    """One feature party: rank, public layout, and its own rows in input space."""

    rank: int
    name: str
    layout: Layout
    units: np.ndarray

    def take(self, rows: np.ndarray) -> Party:
        return Party(self.rank, self.name, self.layout, self.units[rows])

    def bins(self) -> dict[str, np.ndarray]:
        """Party step, local: one-hot public bins of each feature. Each row of a block has norm 1."""
        return {b.feature.name: self.layout.bin_one_hot(b, self.units) for b in self.layout.blocks}

    def residual_features(self, seed: int) -> dict[str, np.ndarray]:
        """Party step, local: bounded kernel features of x_j after a ridge fit on the other columns.

        Random Fourier features of the residual, scaled so that every row has norm 1.
        """
        out = {}
        for block in self.layout.blocks:
            own = self.units[:, block.columns]
            own = own[:, :1] if not block.one_hot else own @ np.arange(block.width)[:, None] / block.width
            rest = np.delete(self.units, np.arange(block.start, block.stop), axis=1)
            rest = np.hstack([np.ones((len(rest), 1)), rest])
            fit = np.linalg.solve(rest.T @ rest + np.eye(rest.shape[1]), rest.T @ own)
            residual = own - rest @ fit
            rng = stream(seed, "kernel", block.feature.name)
            angle = residual @ rng.normal(0, 3.0, (1, KERNEL_FEATURES // 2))
            out[block.feature.name] = np.hstack([np.cos(angle), np.sin(angle)]) / (KERNEL_FEATURES / 2) ** 0.5
        return out


def make_parties(data: Dataset) -> tuple[Party, ...]:
    """The harness hands each party its own columns."""
    parties = []
    for rank, table in enumerate(data.parties):
        layout = Layout.of(table.features)
        parties.append(Party(rank, table.name, layout, layout.encode(table.values)))
    return tuple(parties)
