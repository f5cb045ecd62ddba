"""Every charged kind of release with the canary that it is weakest against.

`CANARIES` names a canary for every charged kind of the catalogue; a kind without one makes an audit fail. Canaries of
this module put one record of benchmark data to the test, those of `constructed.py` bring data of their own. A private
head has one that trains in the clear (`head_noise.py`), since secret trainings are too slow for an audit.

Here two data sets differ in s of the first record, the canary. Sums over records move by the canary's own row of
columns, out of the cells of one group and into those of another. The row decides how much of the charge that is:

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from accounting.accountant import epsilon_of
from protocols.config import ConfigError
from protocols.steps.clipping import scaled
from secure_sccvfl.audit.constructed import (
    Constructed,
    EvaluationCanary,
    FirstCountCanary,
    GradientCanary,
    GramCanary,
    OutputCanary,
    ResidualsCanary,
)
from secure_sccvfl.audit.head_noise import HeadCanary, capped, log_cosh
from secure_sccvfl.data.party import MOMENT_GRID, AtHolder, Party
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.discovery.gains import HALVES
from secure_sccvfl.discovery.statistics import ClippedSums, GroupSums, Statistics, clipping_of, joint_norm
from secure_sccvfl.releases.heads import HeadPlan, PricedHead, price_head
from secure_sccvfl.releases.kinds import Kind
from secure_sccvfl.releases.releases import (
    CATALOGUE,
    EVALUATION,
    FIRST_COUNT,
    GRAM,
    HEAD,
    HEAD_OUTPUT,
    NOISY_GRADIENT,
    RESIDUALS,
    RISK_GAINS,
    SKETCH,
)
from secure_sccvfl.training.modes.base import mode_plan, spread_of
from secure_sccvfl.training.modes.options import RunOptions

Columns = dict[str, np.ndarray]
Sums = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Groups:
    """Public sizes: bins of every feature, groups of every attribute."""

    bins: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class CountsCanary:
    """Tables of counts, and what the canaries of all tables have in common.

    name: in results and reports. kind: the release of a run.
    """

    name: str = "sketch"
    kind: Kind = SKETCH

    def records(self, train: np.ndarray, sizes: Groups) -> np.ndarray:
        """The records of the two data sets; the first is the canary."""
        return train

    def columns(self, parties: Sequence[Party], others: Sequence[Party]) -> Columns:
        """Party step, local: what is summed. `others`: the same columns of records that are not in it."""
        return {key: block for party in parties for key, block in party.bins().items()}

    def released(
        self, statistics: Statistics, columns: Columns, codes: Sequence[AtHolder], sizes: Groups, name: str
    ) -> Sums:
        """One release through the protocol of a run."""
        bound = joint_norm(1.0, len(sizes.bins), len(sizes.counts))
        return statistics.release(GroupSums(name, bound), columns, codes, sizes.counts).tables

    def exact(self, table: np.ndarray) -> np.ndarray:
        """What is released of a table of sums, without noise."""
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
        return statistics.release(ClippedSums(name, self.length), columns, codes, sizes.counts).tables

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
        return statistics.release(GroupSums(name, bound, HALVES), columns, codes, sizes.counts).tables


Canary = CountsCanary | Constructed | HeadCanary


def _of_sketch(options: RunOptions, schema: Schema) -> CountsCanary:
    return (
        CountsCanary() if options.discovery.table_kind == "counts" else ClippedCanary(length=options.discovery.clip)
    )


RECORDS = 1000
"""Of a head that is audited: so few that the ridge is the smallest of a run."""


def _priced(options: RunOptions, schema: Schema) -> tuple[HeadPlan, PricedHead]:
    """One private head of a run with these options. Of few records, for which the ridge is smallest."""
    heads = spread_of(options, schema).heads
    if heads is None:
        raise ConfigError("this run has no private head to audit")
    plan, budget = heads
    return plan, price_head(replace(plan, heads=1), budget, RECORDS, "dealer", len(schema.parties), "audit")


def _of_head(options: RunOptions, schema: Schema) -> HeadCanary:
    plan, priced = _priced(options, schema)
    accounted = epsilon_of([priced.objective], options.privacy.delta)
    loss = log_cosh(plan.slope) if schema.task == "regression" else capped(plan.slope)
    sigma, ridge = priced.noise.sigma, priced.noise.ridge
    return HeadCanary(HEAD, sigma, plan.radius, ridge, options.privacy.delta, accounted, loss)


def _of_output(options: RunOptions, schema: Schema) -> OutputCanary:
    event = _priced(options, schema)[1].output
    return OutputCanary(moved=event.sensitivity, multiplier=event.multiplier)


CANARIES: Mapping[str, Callable[[RunOptions, Schema], Canary]] = {
    SKETCH.name: _of_sketch,
    RISK_GAINS.name: lambda options, schema: GainsCanary(),
    RESIDUALS.name: lambda options, schema: ResidualsCanary(),
    FIRST_COUNT.name: lambda options, schema: FirstCountCanary(),
    GRAM.name: lambda options, schema: GramCanary(),
    HEAD.name: _of_head,
    HEAD_OUTPUT.name: _of_output,
    NOISY_GRADIENT.name: lambda options, schema: GradientCanary(),
    EVALUATION.name: lambda options, schema: EvaluationCanary(
        task="regression" if schema.task == "regression" else "binary"
    ),
}
"""By the name of a charged kind: its canary in a run with these options on such data."""


def charged_kinds(options: RunOptions | None = None, schema: Schema | None = None) -> tuple[Kind, ...]:
    """The charged kinds of the catalogue, or those that a run with these options on such data releases."""
    charged = tuple(kind for kind in CATALOGUE if kind.charge is not None)
    if options is None or schema is None:
        return charged
    made = mode_plan(schema, options).releases.values()
    found = [kind for kind in charged if any(r.event is not None and kind.is_name(r.name) for r in made)]
    return (*found, EVALUATION) if options.evaluation.kind == "noisy" and EVALUATION not in found else tuple(found)


def canaries_of(kinds: Sequence[Kind], options: RunOptions, schema: Schema) -> tuple[Canary, ...]:
    """The canaries of these kinds, as far as they have one."""
    return tuple(CANARIES[kind.name](options, schema) for kind in kinds if kind.name in CANARIES)


def without_canary(kinds: Sequence[Kind]) -> list[str]:
    """Charged kinds that nobody can audit."""
    return [kind.name for kind in kinds if kind.name not in CANARIES]


def audited_as(canary: CountsCanary, world: str) -> Kind:
    """The release under a name of its own for each world, numbered as sketches are."""
    name = f"{world} {canary.name}-K"
    return replace(SKETCH, title=f"{name} for party P", charge=name, shape=canary.kind.shape)
