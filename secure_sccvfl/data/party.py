"""What each party computes alone: input space, public bins, residuals. s is never used here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.groups import Factor, Structure
from secure_sccvfl.data.layout import Block, Layout
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.session.rows import RowSource, applied

if TYPE_CHECKING:
    from secure_sccvfl.data.dataset import Dataset

KERNEL_FEATURES = 8
MOMENT_GRID = 1024
Blocks = Mapping[int, np.ndarray]
"""Columns by the rank of the party that holds them."""
AtHolder = np.ndarray | None
"""Values of one holder; None at every other process."""


@dataclass(frozen=True)
class Party:
    """One party: rank, public layout, and its own rows in input space.

    present: rows of a common table at which this party has a record; None if it has one at every row. All other rows
    are zero in everything that leaves this class.
    """

    rank: int
    name: str
    layout: Layout
    inputs: Any
    """An array, or rows that stay in their file (`data.table_rows`) until workers of row shards encode them."""
    present: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> Party:
        present = None if self.present is None else self.present[rows]
        return Party(self.rank, self.name, self.layout, self.inputs[rows], present)

    @property
    def with_record(self) -> Party:
        """The rows with a record, for what a party fits or measures alone."""
        return self if self.present is None else replace(self.take(self.present), present=None)

    def cleared(self, rows: np.ndarray) -> np.ndarray:
        """Rows that were computed from `inputs`, zero where there is no record."""
        return rows if self.present is None else rows * self.present[:, None]

    def bins(self) -> dict[str, np.ndarray]:
        """Party step, local: one-hot public bins of each feature. Each row of a block has norm 1, or 0."""
        return {
            b.feature.name: self.cleared(applied(partial(self.layout.bin_one_hot, b), self.inputs, b.feature.bins))
            for b in self.layout.blocks
        }

    def bin_counts(self) -> dict[str, np.ndarray]:
        """Party step, local: how many own records are in each bin."""
        counts = {b.feature.name: np.zeros(b.feature.bins) for b in self.layout.blocks}
        parts = self.inputs.unordered() if isinstance(self.inputs, RowSource) else [(None, self.inputs)]
        for _, inputs in parts:
            for name, block in replace(self, inputs=inputs).bins().items():
                counts[name] += block.sum(axis=0)
        return counts

    def residual_features(self, seed: int, fit: np.ndarray) -> dict[str, np.ndarray]:
        """Party step, local: bounded kernel features of x_j minus a ridge prediction from the other columns.

        The prediction is fitted on `fit`, rows of *other* records. So a record moves only its own features, which
        is what the sensitivity of the statistic counts. The result is random Fourier features of the residual,
        scaled so that every row has norm 1.
        """
        out = {}
        for name, residual in self._residuals(fit).items():
            angle = residual @ stream(seed, "kernel", name).normal(0, 3.0, (1, KERNEL_FEATURES // 2))
            out[name] = self.cleared(np.hstack([np.cos(angle), np.sin(angle)]) / (KERNEL_FEATURES / 2) ** 0.5)
        return out

    def residual_halves(self, fit: np.ndarray) -> dict[str, np.ndarray]:
        """Party step, local: the same residuals r, cut to -1..1, as whole steps of (1 + r) / 2 and (1 - r) / 2.

        Steps are 1/MOMENT_GRID. Both are at least 0 and sum to MOMENT_GRID, so no row is longer than that.
        """
        out = {}
        for name, residual in self._residuals(fit).items():
            up = np.rint(MOMENT_GRID * (1 + np.clip(residual, -1, 1)) / 2)
            out[name] = self.cleared(np.hstack([up, MOMENT_GRID - up]))
        return out

    def _residuals(self, fit: np.ndarray) -> dict[str, np.ndarray]:
        """x_j minus a ridge prediction from the other columns (records x 1), fitted on `fit`."""
        out = {}
        for block in self.layout.blocks:
            others, target = self._regression(block, fit)
            weights = np.linalg.solve(others.T @ others + np.eye(others.shape[1]), others.T @ target)
            rest, feature_value = self._regression(block, self.inputs)
            out[block.feature.name] = feature_value - rest @ weights
        return out

    @staticmethod
    def _regression(block: Block, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The other columns with a constant, and one number for the feature."""
        feature_value = inputs[:, block.columns]
        if block.one_hot:
            feature_value = feature_value @ np.arange(block.width)[:, None] / block.width
        else:
            feature_value = feature_value[:, :1]
        rest = np.delete(inputs, np.arange(block.start, block.stop), axis=1)
        return np.hstack([np.ones((len(rest), 1)), rest]), feature_value


@dataclass(frozen=True)
class Attribute:
    """A protected attribute: who holds it, its public groups, and its group codes (None except at the holder).

    factors: the columns that the groups follow from, where they are ordered or crossed; () for a list of groups.
    """

    name: str
    holder: str
    groups: tuple[str, ...]
    codes: AtHolder
    factors: tuple[Factor, ...] = field(default=(), kw_only=True)

    @property
    def columns(self) -> tuple[Factor, ...]:
        """The columns of its holder's file that it is read from."""
        return self.factors or (Factor(self.name, self.groups),)

    @property
    def structure(self) -> Structure:
        return tuple((len(factor.groups), factor.ordered) for factor in self.factors)


@dataclass(frozen=True)
class Part:
    """Records as one process holds them: its parties, and label and s where it is the holder.

    membership: the secret membership mask of the rows at which all parties have a record; None if all rows have one.
    """

    parties: tuple[Party, ...]
    label: AtHolder
    protected: tuple[Attribute, ...]
    membership: MembershipMask | None = None

    @property
    def rows(self) -> int:
        return len(self.parties[0].inputs)

    @property
    def count(self) -> int:
        """The public number that means over records are divided by."""
        return self.rows if self.membership is None else self.membership.count

    def mean(self, rows: np.ndarray) -> np.ndarray:
        """The sum of rows of this part over `count`: the mean, where all parties have a record at every row."""
        mean: np.ndarray = rows.sum(axis=0) / self.count
        return mean

    def in_memory(self) -> Part:
        """The same, with features read that were left in their file."""
        return replace(self, parties=tuple(replace(p, inputs=np.asarray(p.inputs)) for p in self.parties))

    def take(self, rows: np.ndarray) -> Part:
        """These rows of a part without a membership mask."""
        label = None if self.label is None else self.label[rows]
        protected = tuple(replace(a, codes=None if a.codes is None else a.codes[rows]) for a in self.protected)
        return Part(tuple(party.take(rows) for party in self.parties), label, protected)


def make_party(rank: int, name: str, features: Sequence[Feature], values: np.ndarray) -> Party:
    """A party with these cells (records x features)."""
    layout = Layout.of(features)
    return Party(rank, name, layout, layout.encode(values))


def make_parties(data: Dataset) -> tuple[Party, ...]:
    return tuple(make_party(k, t.name, t.features, t.values) for k, t in enumerate(data.parties))


def part_of(data: Dataset, rows: np.ndarray, parties: tuple[Party, ...] | None = None) -> Part:
    """These records of a pooled data set; `parties`: those of `make_parties`, if they exist already."""
    return Part(make_parties(data) if parties is None else parties, data.label.values, data.protected).take(rows)
