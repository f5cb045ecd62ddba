"""The releases that an audit attacks, each with the canary that it is weakest against.

Two data sets differ in s of the first record, the canary. Sums over records move by the canary's own row of columns,
out of the cells of one group and into those of another. The row decides how much of the charge that is:

- `sketch`, counts of bins by group. Any record moves two cells of each table by 1: all that is charged.
- `clipped sketch`, the same scaled to length S. A record moves two cells of a table c by about S / |c|. The charge
  holds for tables of every length, and |c| is at least 2 S in every run. So a record moves half of the charge at
  most, and less the more records there are. The canary is one of the fewest records that S allows.
- `risk gains`, sums of both halves of residuals. The canary's residuals are all 1: it moves all that is charged. A
  record with residuals of 0 would move 1 / sqrt(2) of it.

`Audit.reach` says how much of the charge the canary moved. No number of releases shows a larger epsilon than that of
this share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from protocols.steps.clipping import scaled
from secure_sccvfl.data.party import MOMENT_GRID, AtHolder, Party
from secure_sccvfl.discovery.gains import HALVES
from secure_sccvfl.discovery.inputs import clipping_of, joint_norm
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.modes.options import RunOptions
from secure_sccvfl.privacy.kinds import Kind
from secure_sccvfl.privacy.releases import RISK_GAINS, SKETCH

Columns = dict[str, np.ndarray]
Sums = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Groups:
    """Public sizes: bins of every feature, groups of every attribute."""

    bins: tuple[int, ...]
    counts: tuple[int, ...]


class Canary(Protocol):
    """One kind of release under attack."""

    @property
    def name(self) -> str:
        """Its name in results and reports."""
        ...

    @property
    def kind(self) -> Kind:
        """The release of a run."""
        ...

    def records(self, train: np.ndarray, sizes: Groups) -> np.ndarray:
        """The records of the two data sets; the first is the canary."""
        ...

    def columns(self, parties: Sequence[Party], others: Sequence[Party]) -> Columns:
        """Party step, local: what is summed. `others`: the same columns of records that are not in it."""
        ...

    def released(
        self, statistics: Statistics, columns: Columns, codes: Sequence[AtHolder], sizes: Groups, name: str
    ) -> Sums:
        """One release through the protocol of a run."""
        ...

    def exact(self, table: np.ndarray) -> np.ndarray:
        """What is released of a table of sums, without noise."""
        ...


@dataclass(frozen=True)
class CountsCanary:
    """Tables of counts."""

    name: str = "sketch"
    kind: Kind = SKETCH

    def records(self, train: np.ndarray, sizes: Groups) -> np.ndarray:
        return train

    def columns(self, parties: Sequence[Party], others: Sequence[Party]) -> Columns:
        return {key: block for party in parties for key, block in party.bins().items()}

    def released(
        self, statistics: Statistics, columns: Columns, codes: Sequence[AtHolder], sizes: Groups, name: str
    ) -> Sums:
        bound = joint_norm(1.0, len(sizes.bins), len(sizes.counts))
        return statistics.group_sums(columns, codes, sizes.counts, name, bound)

    def exact(self, table: np.ndarray) -> np.ndarray:
        return table


@dataclass(frozen=True)
class ClippedCanary(CountsCanary):
    """Tables of counts that are scaled to one length in secret."""

    name: str = "clipped sketch"
    length: float = 1.0

    def records(self, train: np.ndarray, sizes: Groups) -> np.ndarray:
        least = clipping_of(sizes.bins, sizes.counts, len(train), self.length).least
        return train[: max(2, math.ceil(self.length / math.sqrt(least)))]

    def released(
        self, statistics: Statistics, columns: Columns, codes: Sequence[AtHolder], sizes: Groups, name: str
    ) -> Sums:
        return statistics.clipped_sums(columns, codes, sizes.counts, name, self.length).tables

    def exact(self, table: np.ndarray) -> np.ndarray:
        return scaled(table, self.length)


@dataclass(frozen=True)
class GainsCanary(CountsCanary):
    """Sums of both halves of residuals."""

    name: str = "risk gains"
    kind: Kind = RISK_GAINS

    def columns(self, parties: Sequence[Party], others: Sequence[Party]) -> Columns:
        made: Columns = {}
        for party, other in zip(parties, others, strict=True):
            made.update(party.residual_halves(other.inputs))
        for block in made.values():
            block[0] = [MOMENT_GRID, 0]
        return made

    def released(
        self, statistics: Statistics, columns: Columns, codes: Sequence[AtHolder], sizes: Groups, name: str
    ) -> Sums:
        bound = joint_norm(MOMENT_GRID, len(sizes.bins), len(sizes.counts))
        return statistics.group_sums(columns, codes, sizes.counts, name, bound, HALVES)


def canaries_of(options: RunOptions) -> tuple[Canary, ...]:
    """The canaries for what a run with these options releases."""
    sketch = CountsCanary() if options.sketch == "counts" else ClippedCanary(length=options.clip)
    return (sketch, GainsCanary()) if options.gain else (sketch,)


def audited_as(canary: Canary, world: str) -> Kind:
    """The release under a name of its own for each world, numbered as sketches are."""
    name = f"{world} {canary.name}-K"
    return replace(SKETCH, title=f"{name} for party P", charge=name, shape=canary.kind.shape)
