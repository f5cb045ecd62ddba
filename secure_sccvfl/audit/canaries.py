"""The DP audit: an empirical lower bound on the epsilon of each kind of release, next to the accountant's upper one.

A charged `Kind` of the catalogue names its canary, a class of this module; one without cannot be built. Each canary
constructs two small data sets that differ in one replaced record, and makes the release with the code of a run: the
same charge, the same noise and the same computation under MPC. Every kind that a run is charged for is released many
times from each data set, each time as the only release of its own budget. The adversary knows all records and decides
only which of the two data sets it sees: it takes the sum of what was opened along the direction in which the canary
moves it, the likelihood-ratio test for Gaussian noise. Noise is the dealer's alone. All records are constructed, so
no record of a user is involved and no ledger is charged.

`bounds.py` turns the samples into lower bounds. From a few hundred releases these are far below the accounted
epsilon, so noise that is too small by a third may pass. The audit therefore also recomputes the noise that was drawn,
as what was opened minus the exact value, and tests its deviation against the charged one.

| release | how the record differs | share of the charged movement |
|---|---|---|
| `sketch`, `risk gains` | its group; its row of every column is as long as is charged | all of it |
| clipped `sketch` | its group, among the fewest records that S allows: it moves cells by about S / |c| | below half |
| `residuals` | the group of a record whose kernel feature opposes its group | .6: the bound is loose |
| `first count` | one party has the record or lacks it | all of it |
| `noisy gradient` | score and label: a residual of -1 or 1 on a gradient of the clipped length | all but 1e-3 |
| `gram` | the group of a record whose two changes have the full length at a right angle | all of it |
| `head output` | the error of the finished weights, which finite precision bounds | all of it |
| `evaluation` | group, label and logits: right and flipped, or neither | all of it |
| `head` | trains in the clear (`HeadCanary`), since trainings under MPC are too slow for an audit | nearly all |

`Audit.reach` reports this share. No number of releases shows a larger epsilon than that of the share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.audit.bounds import CONFIDENCE, Audit, Loss, Records, audit, capped, head_noise, log_cosh, train
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import KERNEL_FEATURES, MOMENT_GRID, AtHolder, Attribute, Party
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.discovery.residuals import HALVES, Grid, dependence, residual_scores
from secure_sccvfl.discovery.secure_statistics import ONE_RECORD, SURE, SecureStatistics
from secure_sccvfl.discovery.statistics import ClippedSums, GroupSums, clipping_of, joint_norm
from secure_sccvfl.metrics.certified import AtEnds
from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.noisy import NoisyEvaluation, Sums
from secure_sccvfl.metrics.rates import Copies
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.clipping import scaled
from secure_sccvfl.protocols.steps.head import HEAD_BITS, LOGIT_BOUND
from secure_sccvfl.protocols.steps.second_order import noise_of_heads
from secure_sccvfl.protocols.steps.weighted_sums import WEIGHT_BITS, clipped
from secure_sccvfl.releases import catalogue
from secure_sccvfl.releases.catalogue import CATALOGUE, Kind, PlanFacts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.mechanisms import HeadPlan, PricedHead, gram_sensitivity, price_head
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.training.modes.base import mode_plan, noise_multiplier_of, spread_of
from secure_sccvfl.training.modes.dp import DpConfig, noisy_sum, step_sensitivity
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import share_label

WORLDS = KEPT, CHANGED = ("kept", "changed")
"""The two data sets: with the record as it is, and with another in its place."""
LABEL_HOLDER, GROUP_HOLDER = 0, 1
GROUPS = 2


@dataclass(frozen=True)
class Canary:
    """One charged kind of release on two neighbouring data sets.

    rows: records of a data set. holders: how many parties contribute noise where holders do.
    """

    kind: ClassVar[Kind]
    rows: int = 4
    holders: int = 1

    @classmethod
    def of(cls, options: RunOptions, schema: Schema) -> Canary:
        return cls()

    @property
    def name(self) -> str:
        return self.kind.name

    def terms(self, options: RunOptions) -> tuple[float, float]:
        """Epsilon and delta of the ledger that pays for the release."""
        return options.privacy.epsilon, options.privacy.delta

    def multiplier_of(self, options: RunOptions, planned: float) -> float:
        """The noise multiplier; planned: that of the run's statistics."""
        return planned

    def plan(self, parties: int, times: int) -> list[Release]:
        raise NotImplementedError

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        """Run by all parties together: one release by a run's code. Returns the values opened to this party.

        Values that all parties see are returned by the first one only.
        """
        raise NotImplementedError

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class _Columns:
    """Stands for a party whose columns are given: what the release functions of `discovery` read of one."""

    blocks: Mapping[str, np.ndarray]
    inputs: np.ndarray

    @property
    def with_record(self) -> _Columns:
        return self

    def residual_features(self, seed: int, fit: np.ndarray) -> dict[str, np.ndarray]:
        return dict(self.blocks)


@dataclass(frozen=True)
class _GroupCanary(Canary):
    """Statistics of s: `each` columns at every party with `width` numbers, and two groups at one party."""

    each: int = 2
    width: int = 1

    def codes(self, world: str) -> np.ndarray:
        """Groups of the records; the first is the canary, whose group is what differs."""
        groups = np.arange(self.rows) % GROUPS
        groups[0] = world == CHANGED
        return groups

    def names(self, parties: int) -> dict[int, list[str]]:
        return {rank: [f"column {rank}-{number}" for number in range(self.each)] for rank in range(parties)}

    def bins(self, parties: int) -> dict[int, dict[str, int]]:
        return {rank: dict.fromkeys(names, self.width) for rank, names in self.names(parties).items()}

    def plan(self, parties: int, times: int) -> list[Release]:
        facts = PlanFacts(self.bins(parties), (GROUPS,), conditional=True, align="hidden")
        return self.kind.releases(facts, times=times)

    def held(self, session: Session, world: str) -> AtHolder:
        return self.codes(world) if session.rank == GROUP_HOLDER else None

    def statistics(
        self, session: Session, charger: Charger, membership: MembershipMask | None = None
    ) -> SecureStatistics:
        return SecureStatistics(session, self.bins(session.parties), (GROUP_HOLDER,), self.rows, charger, membership)


@dataclass(frozen=True)
class TableCanary(_GroupCanary):
    """Counts of bins by group. Any record moves two cells of each table by 1."""

    kind: ClassVar[Kind] = catalogue.NOISY_TABLES
    width: int = 5

    @classmethod
    def of(cls, options: RunOptions, schema: Schema) -> Canary:
        return cls() if options.discovery.table_kind == "counts" else ClippedCanary.of_length(options.discovery.clip)

    def block(self) -> np.ndarray:
        """The numbers of every column (records x width)."""
        return one_hot(np.arange(self.rows) % self.width, self.width, np.int64)

    def released(self, statistics: SecureStatistics, columns: Any, codes: Any, features: int) -> Any:
        bound = joint_norm(1.0, features, 1)
        return statistics.release(GroupSums(self.kind.charged_as(0), bound), columns, codes, (GROUPS,)).tables

    def table(self, counts: np.ndarray) -> np.ndarray:
        """What is released of a table of sums, without noise."""
        return counts

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        names = self.names(session.parties)[session.rank]
        columns = dict.fromkeys(names, self.block())
        features = session.parties * self.each
        (tables,) = self.released(self.statistics(session, charger), columns, [self.held(session, world)], features)
        return np.concatenate([tables[name].reshape(-1) for name in names])

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        table = self.table(self.block().T @ one_hot(self.codes(world), GROUPS, np.int64))
        return np.tile(table.reshape(-1), self.each)


@dataclass(frozen=True)
class ClippedCanary(TableCanary):
    """Tables of counts that are scaled to one length under MPC."""

    length: float = 1.0

    @classmethod
    def of_length(cls, length: float) -> ClippedCanary:
        least = clipping_of((cls.width,), (GROUPS,), 1 << 20, length).least
        return cls(rows=max(2, math.ceil(length / math.sqrt(least))), length=length)

    @property
    def name(self) -> str:
        return "clipped sketch"

    def released(self, statistics: SecureStatistics, columns: Any, codes: Any, features: int) -> Any:
        released = ClippedSums(self.kind.charged_as(0), self.length)
        return statistics.release(released, columns, codes, (GROUPS,)).tables

    def table(self, counts: np.ndarray) -> np.ndarray:
        return scaled(counts, self.length)


@dataclass(frozen=True)
class GainsCanary(TableCanary):
    """Sums of both halves of residuals. All residuals of the record are 1; one of 0 would move 1 / sqrt(2) of it."""

    kind: ClassVar[Kind] = catalogue.RISK_GAINS
    width: int = HALVES

    @classmethod
    def of(cls, options: RunOptions, schema: Schema) -> Canary:
        return cls()

    def block(self) -> np.ndarray:
        halves = np.full((self.rows, HALVES), MOMENT_GRID // 2)
        halves[0] = [MOMENT_GRID, 0]
        return halves

    def released(self, statistics: SecureStatistics, columns: Any, codes: Any, features: int) -> Any:
        bound = joint_norm(MOMENT_GRID, features, 1)
        released = GroupSums(self.kind.charged_as(), bound, HALVES)
        return statistics.release(released, columns, codes, (GROUPS,)).tables


@dataclass(frozen=True)
class ResidualsCanary(_GroupCanary):
    """HSIC of kernel features: -1 in the smaller group (.35 of the records), 1 in the other.

    The record has -1 and moves to the other group. That moves H by 2.37 / N, more than any other replacement of these
    two values, where 3.9 / N is charged.
    """

    kind: ClassVar[Kind] = catalogue.RESIDUALS
    rows: int = 200
    each: int = 5
    width: int = KERNEL_FEATURES
    smaller: float = 0.35

    def codes(self, world: str) -> np.ndarray:
        groups = (np.arange(self.rows) >= self.smaller * self.rows).astype(np.int64)
        groups[0] = world == CHANGED
        return groups

    def _features(self) -> np.ndarray:
        features = np.zeros((self.rows, KERNEL_FEATURES))
        features[:, 0] = 2.0 * self.codes(KEPT) - 1
        return features

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        names, block = self.names(session.parties)[session.rank], self._features()
        party = cast(Party, _Columns(dict.fromkeys(names, block), block))
        attribute = Attribute("s", "", ("0", "1"), self.held(session, world))
        features = session.parties * self.each
        statistics = self.statistics(session, charger)
        (gains,), _ = residual_scores(statistics, [party], [party], [attribute], features, seed=0)
        return np.array([gains[name].item() for name in names])

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        grid = Grid(self.rows)
        groups = one_hot(self.codes(world), GROUPS, np.int64)
        return np.full(self.each, dependence(grid.features(self._features()), groups, grid))


@dataclass(frozen=True)
class FirstCountCanary(_GroupCanary):
    """How many records all parties have, less the number of rows: the first party lacks the record or has it."""

    kind: ClassVar[Kind] = catalogue.FIRST_COUNT

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        # So many that no draw of noise stops the count for want of records: the limit is SURE deviations.
        sigma = charger.event(self.kind.charged_as(), ONE_RECORD).sigma
        rows = math.ceil(100 + (SURE + 12) * noise.deviation(charger.noise, sigma, session.parties))
        bits = np.ones(rows, np.int64)
        bits[0] = world == KEPT
        membership = MembershipMask.of(session.share(bits, owner=0, shape=(rows,), bits=0))
        count = self.statistics(session, charger, membership).first_count(membership)
        return np.array([count - rows] if session.rank == 0 else [])

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        return np.full(1 if rank == 0 else 0, -float(world == CHANGED))


@dataclass(frozen=True)
class GramCanary(_GroupCanary):
    """The sum of squares of changes: the record's change has the full length, along one column or along another."""

    kind: ClassVar[Kind] = catalogue.GRAM
    holders: int = 0
    each: int = 3
    draws: int = 2
    radius: float = 2.0

    def _differences(self, parties: int, group: int) -> np.ndarray:
        """Of every record if it was in this group (records x columns of all parties)."""
        differences = np.zeros((self.rows, parties * self.each))
        differences[:, group] = self.radius
        differences[1:, group] /= 4
        return differences

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        own_columns = slice(session.rank * self.each, (session.rank + 1) * self.each)
        by_group = [
            {session.rank: self._differences(session.parties, group)[:, own_columns]} for group in range(GROUPS)
        ]
        moving = {rank: np.ones(self.each, bool) for rank in range(session.parties)}
        engine = SecureEngine(session, LABEL_HOLDER, (GROUP_HOLDER,))
        engine.widths = (self.each,) * session.parties
        moved = gram_sensitivity([self.radius], session.parties * self.each, self.draws, self.rows)
        counterfactuals, codes = [[by_group] * self.draws], [self.held(session, world)]
        gram = engine.noisy_gram(counterfactuals, codes, moving, None, lambda: charger.charge_gram(moved))
        return gram.reshape(-1) if session.rank == 0 else np.zeros(0)

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        if rank:
            return np.zeros(0)
        choices = np.stack([self._differences(parties, group) for group in range(GROUPS)])
        chosen = choices[self.codes(world), np.arange(self.rows)]
        return np.asarray(self.draws * (chosen.T @ chosen).reshape(-1))


@dataclass(frozen=True)
class GradientCanary(Canary):
    """A step of mode `dp`, without sampling: the gradient has the clipped length, the residual is -1 or 1."""

    kind: ClassVar[Kind] = catalogue.NOISY_GRADIENT
    rows: int = 2
    width: int = 5
    config: DpConfig = field(default_factory=DpConfig)

    def plan(self, parties: int, times: int) -> list[Release]:
        facts = PlanFacts({rank: {"encoder": 1} for rank in range(parties)}, sizes={"parameters": self.width})
        return self.kind.releases(facts, times=times)

    def _gradients(self) -> np.ndarray:
        gradients = np.zeros((self.rows, self.width))
        gradients[0] = 1e3  # clipping makes it as long as is charged
        return clipped(gradients, self.config.clip)

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        up = world == CHANGED
        scores = np.array([LOGIT_BOUND if up else -LOGIT_BOUND, 0.0]) / session.parties
        label = share_label(session, np.array([0.0 if up else 1.0, 0.0]), LABEL_HOLDER, (self.rows, 1), WEIGHT_BITS)
        moved = step_sensitivity(self.config, session.parties)
        paid = charger.charge(self.kind.charged_as(0), moved, 1.0, self.kind.pays)
        widths = [self.width] * session.parties
        return noisy_sum(session, scores, self._gradients(), widths, label, paid, LABEL_HOLDER, charger.noise)

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        residual = 1 / (1 + math.exp(LOGIT_BOUND))
        residual = 1 - residual if world == CHANGED else residual - 1
        return np.asarray(residual * self._gradients()[0])


@dataclass(frozen=True)
class HeadOutputCanary(Canary):
    """The dealer's noise on finished weights of a private head, which are off by half of the bound to either side."""

    kind: ClassVar[Kind] = catalogue.HEAD_OUTPUT
    rows: int = 2
    holders: int = 0
    moved: float = 0.01
    multiplier: float = 7.0
    width: int = 40

    @classmethod
    def of(cls, options: RunOptions, schema: Schema) -> Canary:
        event = _priced(options, schema, cls.kind)[1].events[1]
        return cls(moved=event.sensitivity, multiplier=event.multiplier)

    def multiplier_of(self, options: RunOptions, planned: float) -> float:
        return self.multiplier

    def plan(self, parties: int, times: int) -> list[Release]:
        return self.kind.releases(PlanFacts({rank: {} for rank in range(parties)}), times=times)

    def _weights(self, world: str) -> np.ndarray:
        side = 0.5 if world == CHANGED else -0.5
        return np.full(self.width, side * self.moved / math.sqrt(self.width))

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        paid = charger.charge(self.kind.charged_as(), Sensitivity(self.moved, self.moved, 2.0**-HEAD_BITS))
        drawn = noise_of_heads(session, "dealer", paid.event.sigma, (self.width, 1), HEAD_BITS)[:, 0]
        noisy = session.owned(self._weights(world), owner=0, shape=(self.width,), bits=HEAD_BITS) + drawn
        opened = session.open(noisy, session.declared(self.kind.name), paid.receipt)
        if opened is None:
            raise ValueError("the weights must go to every party here")
        values: np.ndarray = opened.numpy().astype(float)
        return values if session.rank == 0 else values[:0]

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        return self._weights(world) if rank == 0 else np.zeros(0)


@dataclass(frozen=True)
class EvaluationCanary(Canary):
    """Noisy figures of two test records. The first is right, its copy flips and no values of its mediators change its
    decision; or it is wrong in another group, and some do.

    Regression: the label is 1, prediction and copy are far beyond the public range (each counts 1 at most); or all 0.
    """

    kind: ClassVar[Kind] = catalogue.EVALUATION
    rows: int = 2
    holders: int = 2
    task: Task = "binary"
    certificate: bool = True

    @classmethod
    def of(cls, options: RunOptions, schema: Schema) -> Canary:
        task: Task = "regression" if schema.task == "regression" else "binary"
        return cls(task=task, certificate=options.evaluation.certificate)

    def terms(self, options: RunOptions) -> tuple[float, float]:
        return options.evaluation.epsilon, options.evaluation.delta

    def multiplier_of(self, options: RunOptions, planned: float) -> float:
        return noise_multiplier(*self.terms(options), options.evaluation.planned)

    @property
    def layout(self) -> Sums:
        return Sums(self.task, 2, ("own",), majority=True, certificate=self.certificate)

    def plan(self, parties: int, times: int) -> list[Release]:
        return [replace(self.layout.release(parties), times=times)]

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        kept = world == KEPT
        evaluation = SecureEvaluation(session, self.task, LABEL_HOLDER, GROUP_HOLDER)

        def shared(first: float, second: float) -> Any:
            return session.share(np.array([[first], [second]]), owner=0, shape=(self.rows, 1))

        far = 20.0
        if self.task == "regression":
            label = np.array([float(kept), 0.0])
            logits, edited = shared(far * kept, 0.0), shared(-far * kept, 0.0)
        else:
            label = np.ones(self.rows, np.int64)
            logits, edited = shared(far if kept else -far, far), shared(-far, far)
        groups = np.array([0 if kept else 1, 0])
        ends = AtEnds(shared(-far, -far), shared(-far if kept else far, -far))
        sums = NoisyEvaluation(evaluation, charger).sums(
            self.layout,
            logits,
            label if session.rank == LABEL_HOLDER else None,
            groups if session.rank == GROUP_HOLDER else None,
            {"own": (edited, Copies(np.arange(self.rows), np.ones(self.rows)))},
            ends=ends if self.certificate else None,
        )
        values = np.concatenate(list(sums.values()))
        return values if session.rank == 0 else values[:0]

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        kept = world == KEPT
        if rank:
            return np.zeros(0)
        if self.task == "regression":
            return np.ones(4) * kept
        cells = np.zeros((2, 2, 2))
        cells[0, 1, 1] += 1
        cells[(0, 1, 1) if kept else (1, 1, 0)] += 1
        stays = [0.0, 1.0 + kept, float(not kept), 0.0] if self.certificate else []
        return np.array([1.0 + kept, *cells.reshape(-1), float(kept), *stays])


class BaselineOutputCanary(HeadOutputCanary):
    """The same of the baseline heads."""

    kind: ClassVar[Kind] = catalogue.BASELINE_OUTPUT


RECORDS = 1000
"""Of a head that is audited: so few that the ridge is the smallest of a run."""


def _priced(options: RunOptions, schema: Schema, kind: Kind) -> tuple[HeadPlan, PricedHead]:
    """One private head of a run with these options, charged as this kind."""
    heads = spread_of(options, schema).heads
    if heads is None:
        raise ConfigError("this run has no private head to audit")
    plan, budget = heads
    if plan.baselines and kind in (catalogue.BASELINE_HEADS, catalogue.BASELINE_OUTPUT):
        budget = plan.of_baselines(budget)
    plan = replace(plan, heads=1, baselines=0, baseline_share=0.0)
    return plan, price_head(plan, budget, RECORDS, "dealer", len(schema.parties), "audit")


@dataclass(frozen=True)
class HeadCanary:
    """The worst case for a private head of these public settings, audited in the clear with Newton's method.

    The bound on epsilon counts a change of the gradient by 2 c R, where a record of length R is replaced by another
    one and the slope of the loss is c for both. Records u and -u alone cannot do that: where one is misclassified the
    other is not, and their slopes add up to about c. The worst case has u' close to -u, both turned slightly in the
    same direction, and very many short records that push the head so far the other way that both are misclassified.
    The head's distribution then shifts by nearly 2 c R in terms of b, and the curvature hardly differs. The adversary
    recomputes b under the first data set and projects it on u - u'. The two distributions are Gaussian to e^-15, so
    bounds for Gaussian noise apply.

    sigma: of the noise. radius: R, the bound of a row. ridge: lambda. accounted: the epsilon of one head at delta, by
    the accountant. turned: the sine of the angle that both records are turned by.
    """

    kind: ClassVar[Kind] = catalogue.HEAD
    name: ClassVar[str] = catalogue.HEAD.name
    sigma: float
    radius: float
    ridge: float
    delta: float
    accounted: float
    loss: Loss
    turned: float = 0.05

    @classmethod
    def of(cls, options: RunOptions, schema: Schema) -> HeadCanary:
        plan, priced = _priced(options, schema, cls.kind)
        accounted = epsilon_of(priced.events[:1], options.privacy.delta)
        loss = log_cosh(plan.slope) if schema.task == "regression" else capped(plan.slope)
        return cls(priced.noise.sigma, plan.radius, priced.noise.ridge, options.privacy.delta, accounted, loss)

    def pair(self) -> tuple[Records, Records]:
        """The two data sets. All labels are 1; the first record is the canary."""
        radius, level = self.radius, math.sqrt(1 - self.turned**2)
        # Where noise is at eight deviations and the record pulls too, both logits must be far below zero.
        reach = (8 * self.sigma + self.loss.cap * radius) / self.ridge
        push = 2 * (reach + 15 / radius) / self.turned
        short = 0.01 / push
        slope = -float(self.loss.slope(np.array([0.01]), np.array([1.0]))[0])
        often = math.ceil(self.ridge * push / (short * slope))
        first, second = (
            Records(
                np.array([[side * radius * level, radius * self.turned], [0.0, -short]]),
                np.ones(2),
                np.array([1.0, often]),
            )
            for side in (1.0, -1.0)
        )
        return first, second

    def _drawn(self, shape: tuple[int, int]) -> np.ndarray:
        return np.random.default_rng().normal(0.0, self.sigma, shape)

    def audit(
        self,
        trainings: int = 2000,
        confidence: float = CONFIDENCE,
        draw: Callable[[tuple[int, int]], np.ndarray] | None = None,
    ) -> Audit:
        """Bounds from so many heads of each data set. draw: the noise, if it is not that of this canary."""
        draw = self._drawn if draw is None else draw
        pair, none = self.pair(), np.zeros((2, 2))
        moved = pair[0].rows[0] - pair[1].rows[0]
        statistics, noises = [], []
        for records in pair:
            heads = train(records, none, self.ridge, draw((trainings, 2)), self.loss)
            statistics.append(head_noise(heads, pair[0], none, self.ridge, self.loss) @ moved)
            noises.append(head_noise(heads, records, none, self.ridge, self.loss))
        length = self.loss.cap * float(moved @ moved)
        largest = 2 * self.loss.cap * self.radius
        return audit(
            statistics[0] / length,
            statistics[1] / length,
            self.sigma / largest,
            self.delta,
            confidence,
            self.loss.cap * float(np.linalg.norm(moved)) / largest,
            np.concatenate(noises) / self.sigma,
            accounted=self.accounted,
        )


class BaselineHeadCanary(HeadCanary):
    """The same for a baseline head."""

    kind: ClassVar[Kind] = catalogue.BASELINE_HEADS
    name: ClassVar[str] = catalogue.BASELINE_HEADS.name


def charged_kinds(options: RunOptions | None = None, schema: Schema | None = None) -> tuple[Kind, ...]:
    """The charged kinds of the catalogue, or those that a run with these options on such data releases."""
    charged = tuple(kind for kind in CATALOGUE if kind.charge is not None)
    if options is None or schema is None:
        return charged
    planned = mode_plan(schema, options).releases.values()
    evaluated = [catalogue.EVALUATION] if options.evaluation.kind == "noisy" else []
    paid = [release.name for release in planned if release.event is not None]
    return tuple(kind for kind in charged if kind in evaluated or any(map(kind.is_name, paid)))


def canaries_of(kinds: Sequence[Kind], options: RunOptions, schema: Schema) -> tuple[Canary | HeadCanary, ...]:
    """The canaries that the catalogue names for these kinds."""
    canaries: list[Canary | HeadCanary] = [globals()[kind.canary].of(options, schema) for kind in kinds]
    return tuple(canaries)


RELEASES = 1000


@dataclass(frozen=True)
class Opened:
    """What one party saw of many releases (releases x numbers; empty if the first sees it), and the charged noise."""

    values: np.ndarray
    multiplier: float
    sensitivity: float
    deviation: float


def release_often(
    canary: Canary,
    session: Session,
    options: RunOptions,
    planned: float,
    world: str,
    times: int,
    kind: NoiseKind = "dealer",
    report: Callable[[str, int, int], None] = lambda *step: None,
) -> Opened:
    """Run by all parties together: releases of one data set, each with a separate budget in memory."""
    records = RecordSet(np.arange(canary.rows, dtype=np.uint64))
    multiplier, values = canary.multiplier_of(options, planned), []
    for number in range(times):
        if number % 100 == 0:
            report(f"{canary.name}, the canary {world}", number, times)
        budget = Budget.in_memory(*canary.terms(options))
        charger = Charger(session, budget, multiplier, f"{canary.name} {world} {number}", records, kind)
        values.append(canary.release(session, charger, world))
    (event,) = budget.events
    deviation = noise.deviation(kind, event.sigma, session.parties, canary.holders)
    return Opened(np.array(values), event.multiplier, event.sensitivity, deviation)


class CanaryAudit:
    """Job "canary-audit": `releases` of each kind from each data set; other options as for a run.

    everything: every charged kind of the catalogue, not only those of a run with these options.
    """

    def __init__(self, config: SessionConfig, rank: int) -> None:
        settings = dict(config.options)
        self.releases = int(settings.pop("releases", RELEASES))
        everything = bool(settings.pop("everything", False))
        self.options = RunOptions.of(settings)
        self.parties = len(config.parties)
        schema = self.options.schema(self.parties)
        self.multiplier = noise_multiplier_of(self.options, schema)
        kinds = charged_kinds() if everything else charged_kinds(self.options, schema)
        canaries = canaries_of(kinds, self.options, schema)
        self.canaries = [canary for canary in canaries if isinstance(canary, Canary)]

    def plan(self) -> ReleasePlan:
        times = len(WORLDS) * self.releases
        return ReleasePlan([release for canary in self.canaries for release in canary.plan(self.parties, times)])

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        return {"ok": True, "audited": {c.name: self._audited(session, c, progress) for c in self.canaries}}

    def _audited(self, session: Session, canary: Canary, progress: Progress) -> dict[str, Any]:
        given = (canary, session, self.options, self.multiplier)
        opened = {world: release_often(*given, world, self.releases, report=progress) for world in WORLDS}
        last = opened[CHANGED]
        return {
            "values": {world: one.values.tolist() for world, one in opened.items()},
            "multiplier": last.multiplier,
            "sensitivity": last.sensitivity,
            "deviation": last.deviation,
            "delta": canary.terms(self.options)[1],
        }


def of_results(
    results: Sequence[Mapping[str, Any]], canaries: Sequence[Canary | HeadCanary], confidence: float = CONFIDENCE
) -> dict[str, Audit]:
    """The audits of a session by name, by an adversary that knows all records and all parties' values."""
    return {
        canary.name: canary.audit(confidence=confidence)
        if isinstance(canary, HeadCanary)
        else audit_of(canary, [result["audited"][canary.name] for result in results], confidence)
        for canary in canaries
    }


def audit_of(canary: Canary, seen: Sequence[Mapping[str, Any]], confidence: float = CONFIDENCE) -> Audit:
    """The audit of one kind from all parties' results: the statistic is along the direction of the difference."""
    ranks, first = range(len(seen)), seen[0]
    exact = {world: np.concatenate([canary.exact(len(seen), rank, world) for rank in ranks]) for world in WORLDS}
    opened = {world: np.hstack([np.array(part["values"][world]) for part in seen]) for world in WORLDS}
    moved = exact[CHANGED] - exact[KEPT]
    kept, changed = ((opened[world] - exact[KEPT]) @ moved / (moved @ moved) for world in WORLDS)
    reach = float(np.linalg.norm(moved)) / first["sensitivity"]
    drawn = np.concatenate([opened[world] - exact[world] for world in WORLDS]) / first["deviation"]
    return audit(kept, changed, first["multiplier"], first["delta"], confidence, reach, drawn)
