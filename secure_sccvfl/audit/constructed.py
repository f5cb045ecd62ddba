"""Canaries on constructed data: worst-case pairs for the charged releases that benchmark records do not stress.

Each canary builds two small neighbouring data sets, which differ in one replaced record, and makes the release with
the code of a run: the same charge, the same noise and the same secret computation. The data are the same at every
process and public, so an adversary that knows every other record is given for nothing. `exact` is what would be
opened without noise, computed in the clear and apart from the protocol. The audit compares what was opened with it
in two ways: along the direction in which the record moves the release (the likelihood-ratio statistic of Gaussian
noise), and as a whole, where the difference is the noise that was drawn.

| release | how the record differs | share of the charged movement |
|---|---|---|
| `residuals` | the group of a record whose kernel feature opposes its group | .6, the bound in `hsic.py` is loose |
| `first count` | one party has the record or lacks it | all of it |
| `noisy gradient` | score and label: a residual of -1 or 1 on a gradient of the clipped length | all but 1e-3 |
| `gram` | the group of a record whose two edits have the full length at a right angle | all of it |
| `head output` | the error of the finished weights, which finite precision bounds | all of it |
| `evaluation` | group, label and logits: right and flipped, or neither | all of it |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from accounting.budget import Budget
from accounting.calibration import noise_multiplier
from accounting.events import Sensitivity
from accounting.records import RecordSet
from protocols.alignment.presence import Presence
from protocols.operations import noise
from protocols.operations.noise import NoiseKind
from protocols.records.releases import Release
from protocols.session.runtime import Session
from protocols.steps.head import HEAD_BITS, LOGIT_BOUND
from protocols.steps.second_order import noise_of_heads
from protocols.steps.weighted_sums import WEIGHT_BITS, clipped
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import KERNEL_FEATURES, Attribute, Party
from secure_sccvfl.discovery.hsic import Grid, dependence
from secure_sccvfl.discovery.noisy_tables import residual_scores
from secure_sccvfl.discovery.secure_statistics import ONE_RECORD, SURE, SecureStatistics
from secure_sccvfl.metrics.copies import Copies
from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.noisy import MAJORITY, NoisyEvaluation, Sums
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.gram import gram_sensitivity
from secure_sccvfl.releases.kinds import Facts, Kind
from secure_sccvfl.releases.releases import (
    EVALUATION,
    FIRST_COUNT,
    GRAM,
    HEAD_OUTPUT,
    NOISY_GRADIENT,
    RESIDUALS,
)
from secure_sccvfl.training.modes.dp import DpConfig, noisy_sum, step_sensitivity
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import share_label

WORLDS = ("kept", "changed")
"""The two data sets: with the record as it is, and with another in its place."""
LABEL_HOLDER, GROUP_HOLDER = 0, 1
Report = Callable[[str, int, int], None]


class Constructed(Protocol):
    """One kind of release under attack on data of the canary's own."""

    @property
    def name(self) -> str:
        """Its name in results and reports."""
        ...

    @property
    def kind(self) -> Kind:
        """The release of a run."""
        ...

    @property
    def rows(self) -> int:
        """How many records the data sets have."""
        ...

    @property
    def holders(self) -> int:
        """How many parties add a copy of noise where holders do."""
        ...

    def plan(self, parties: int, times: int) -> list[Release]:
        """What a session that releases so often opens."""
        ...

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        """Run by all parties together: one release of a run's code. Returns the values opened to this party."""
        ...

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        """The values opened to a party, without noise."""
        ...


@dataclass(frozen=True)
class Opened:
    """What one party saw of many releases, and the noise that was charged for.

    values: releases x numbers, empty for parties that see only what the first sees. deviation: of all copies of noise
    in a number.
    """

    values: np.ndarray
    multiplier: float
    sensitivity: float
    deviation: float


def release_often(
    canary: Constructed,
    session: Session,
    options: RunOptions,
    multiplier: float,
    world: str,
    times: int,
    kind: NoiseKind = "dealer",
    report: Report = lambda *step: None,
) -> Opened:
    """Run by all parties together: releases of one data set, each with a budget of its own in memory.

    multiplier: the noise that a run with these options plans for its statistics; an evaluation has its own.
    """
    records = RecordSet(np.arange(canary.rows, dtype=np.uint64))
    epsilon, delta = terms_of(canary, options)
    if canary.kind is EVALUATION:
        multiplier = noise_multiplier(epsilon, delta, options.evaluation.planned)
    if isinstance(canary, OutputCanary):
        multiplier = canary.multiplier
    seen = []
    for number in range(times):
        if number % 100 == 0:
            report(f"{canary.name}, the canary {world}", number, times)
        budget = Budget.in_memory(epsilon, delta)
        charger = Charger(session, budget, multiplier, f"{canary.name} {world} {number}", records, kind)
        seen.append(canary.release(session, charger, world))
    (event,) = budget.events
    deviation = noise.deviation(kind, event.sigma, session.parties, canary.holders)
    return Opened(np.array(seen), event.multiplier, event.sensitivity, deviation)


def terms_of(canary: Constructed, options: RunOptions) -> tuple[float, float]:
    """Epsilon and delta of the ledger that pays for the release."""
    if canary.kind is EVALUATION:
        return options.evaluation.epsilon, options.evaluation.delta
    return options.privacy.epsilon, options.privacy.delta


@dataclass(frozen=True)
class _Columns:
    """Stands for a party whose columns are given: what the release functions of `discovery` read of one."""

    blocks: Mapping[str, np.ndarray]
    inputs: np.ndarray

    @property
    def known(self) -> _Columns:
        return self

    def residual_features(self, seed: int, fit: np.ndarray) -> dict[str, np.ndarray]:
        return dict(self.blocks)


def _names(parties: int, each: int) -> dict[int, list[str]]:
    return {rank: [f"column {rank}-{number}" for number in range(each)] for rank in range(parties)}


def _facts(parties: int, each: int, width: int) -> Facts:
    bins = {rank: dict.fromkeys(own, width) for rank, own in _names(parties, each).items()}
    return Facts(bins, (2,), conditional=True, align="hidden")


@dataclass(frozen=True)
class _OfGroups:
    """What the canaries of statistics of s have in common: a few columns at each party, two groups at one."""

    rows: int = 4
    each: int = 2
    holders: int = 1

    def codes(self, world: str) -> np.ndarray:
        """Groups of the records; the first is the canary, whose group is what differs."""
        made = np.arange(self.rows) % 2
        made[0] = world == WORLDS[1]
        return made

    def _attribute(self, session: Session, world: str) -> Attribute:
        return Attribute("s", "", ("0", "1"), self.codes(world) if session.rank == GROUP_HOLDER else None)

    def _statistics(
        self, session: Session, charger: Charger, width: int, presence: Presence | None = None
    ) -> SecureStatistics:
        bins = _facts(session.parties, self.each, width).bins
        return SecureStatistics(session, bins, (GROUP_HOLDER,), self.rows, charger, presence)


@dataclass(frozen=True)
class ResidualsCanary(_OfGroups):
    """HSIC of kernel features: -1 in the smaller group (.35 of the records), 1 in the other.

    The record has -1 and moves from the smaller group to the other. That moves H by 2.37 / N, more than any other
    replacement of these two values, where 3.9 / N is charged.
    """

    name: str = "residuals"
    kind: Kind = RESIDUALS
    rows: int = 200
    each: int = 5
    smaller: float = 0.35

    def codes(self, world: str) -> np.ndarray:
        made = (np.arange(self.rows) >= self.smaller * self.rows).astype(np.int64)
        made[0] = world == WORLDS[1]
        return made

    def _features(self) -> np.ndarray:
        made = np.zeros((self.rows, KERNEL_FEATURES))
        made[:, 0] = 2.0 * self.codes(WORLDS[0]) - 1
        return made

    def plan(self, parties: int, times: int) -> list[Release]:
        return self.kind.releases(_facts(parties, self.each, KERNEL_FEATURES), times=times)

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        names, block = _names(session.parties, self.each), self._features()
        own = cast(Party, _Columns(dict.fromkeys(names[session.rank], block), block))
        statistics = self._statistics(session, charger, KERNEL_FEATURES)
        features = session.parties * self.each
        (found,), _ = residual_scores(statistics, [own], [own], [self._attribute(session, world)], features, seed=0)
        return np.array([found[name] for name in names[session.rank]])

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        grid = Grid(self.rows)
        groups = one_hot(self.codes(world), 2, np.int64)
        return np.full(self.each, dependence(grid.features(self._features()), groups, grid))


@dataclass(frozen=True)
class FirstCountCanary(_OfGroups):
    """How many records all parties have, less the number of places: the first party lacks the record or has it."""

    name: str = "first count"
    kind: Kind = FIRST_COUNT

    def plan(self, parties: int, times: int) -> list[Release]:
        return self.kind.releases(_facts(parties, self.each, 1), times=times)

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        # So many that no draw of noise stops the count for want of records: the limit is SURE deviations.
        sigma = charger.event(self.kind.charged_as(), ONE_RECORD).sigma
        rows = math.ceil(100 + (SURE + 12) * noise.deviation(charger.noise, sigma, session.parties))
        bits = np.ones(rows, np.int64)
        bits[0] = world == WORLDS[0]
        presence = Presence.of_tensor(session.share(bits, owner=0, shape=(rows,), bits=0))
        found = self._statistics(session, charger, 1, presence).first_count(presence)
        return np.array([found - rows] if session.rank == 0 else [])

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        return np.full(1 if rank == 0 else 0, -float(world == WORLDS[1]))


@dataclass(frozen=True)
class GradientCanary:
    """A step of mode `dp`: the record's gradient has the clipped length at every party, its residual is -1 or 1.

    It is audited without sampling, which only hides more.
    """

    name: str = "noisy gradient"
    kind: Kind = NOISY_GRADIENT
    rows: int = 2
    holders: int = 1
    width: int = 5
    config: DpConfig = field(default_factory=DpConfig)

    def plan(self, parties: int, times: int) -> list[Release]:
        facts = Facts({rank: {"encoder": 1} for rank in range(parties)}, sizes={"parameters": self.width})
        return self.kind.releases(facts, times=times)

    def _gradients(self) -> np.ndarray:
        made = np.zeros((self.rows, self.width))
        made[0] = 1e3  # clipping makes it as long as is charged
        return clipped(made, self.config.clip)

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        up = world == WORLDS[1]
        scores = np.array([LOGIT_BOUND if up else -LOGIT_BOUND, 0.0]) / session.parties
        label = share_label(session, np.array([0.0 if up else 1.0, 0.0]), LABEL_HOLDER, (self.rows, 1), WEIGHT_BITS)
        moved = step_sensitivity(self.config, session.parties)
        paid = charger.charge(self.kind.charged_as(0), moved, 1.0, self.kind.pays)
        widths = [self.width] * session.parties
        return noisy_sum(session, scores, self._gradients(), widths, label, paid, LABEL_HOLDER, charger.noise)

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        residual = 1 / (1 + math.exp(LOGIT_BOUND))
        residual = 1 - residual if world == WORLDS[1] else residual - 1
        made: np.ndarray = residual * self._gradients()[0]
        return made


@dataclass(frozen=True)
class GramCanary(_OfGroups):
    """The sum of squares of edits: the record's edit has the full length, along one column or along another.

    No party knows its noise, whatever the kind.
    """

    name: str = "gram"
    kind: Kind = GRAM
    holders: int = 0
    each: int = 3
    draws: int = 2
    radius: float = 2.0

    def plan(self, parties: int, times: int) -> list[Release]:
        return self.kind.releases(_facts(parties, self.each, 1), times=times)

    def _edits(self, parties: int, group: int) -> np.ndarray:
        """Of every record if it was in this group (records x columns of all parties)."""
        made = np.zeros((self.rows, parties * self.each))
        made[:, group] = self.radius
        made[1:, group] /= 4
        return made

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        own = slice(session.rank * self.each, (session.rank + 1) * self.each)
        by_group = [{session.rank: self._edits(session.parties, group)[:, own]} for group in range(2)]
        moving = {rank: np.ones(self.each, bool) for rank in range(session.parties)}
        engine = SecureEngine(session, LABEL_HOLDER, (GROUP_HOLDER,))
        engine.widths = (self.each,) * session.parties
        moved = gram_sensitivity([self.radius], session.parties * self.each, self.draws, self.rows)
        codes = [self._attribute(session, world).codes]
        found = engine.noisy_gram([[by_group] * self.draws], codes, moving, None, lambda: charger.charge_gram(moved))
        return found.reshape(-1) if session.rank == 0 else np.zeros(0)

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        if rank:
            return np.zeros(0)
        choices = np.stack([self._edits(parties, group) for group in range(2)])
        chosen = choices[self.codes(world), np.arange(self.rows)]
        made: np.ndarray = self.draws * (chosen.T @ chosen).reshape(-1)
        return made


@dataclass(frozen=True)
class OutputCanary:
    """Noise on finished weights of a private head, which are off by half of the bound to one side or to the other.

    The dealer alone makes it, whatever the kind of noise. moved: between the two. multiplier: of a run.
    """

    moved: float
    multiplier: float
    name: str = "head output"
    kind: Kind = HEAD_OUTPUT
    rows: int = 2
    holders: int = 0
    width: int = 40

    def plan(self, parties: int, times: int) -> list[Release]:
        return self.kind.releases(Facts({rank: {} for rank in range(parties)}), times=times)

    def _weights(self, world: str) -> np.ndarray:
        side = 0.5 if world == WORLDS[1] else -0.5
        return np.full(self.width, side * self.moved / math.sqrt(self.width))

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        paid = charger.charge(self.kind.charged_as(), Sensitivity(self.moved, self.moved, 2.0**-HEAD_BITS))
        drawn = noise_of_heads(session, "dealer", paid.event.sigma, (self.width, 1), HEAD_BITS)[:, 0]
        noisy = session.own(self._weights(world), owner=0, shape=(self.width,), bits=HEAD_BITS) + drawn
        opened = session.open(noisy, session.declared(self.kind.name), paid.receipt)
        if opened is None:
            raise ValueError("the weights must go to every party here")
        values: np.ndarray = opened.numpy().astype(float)
        return values if session.rank == 0 else values[:0]

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        return self._weights(world) if rank == 0 else np.zeros(0)


@dataclass(frozen=True)
class EvaluationCanary:
    """Noisy figures of two test records. The first is right and its copy flips, or it is wrong in another group.

    Of a number: the label is 1, and prediction and copy are far beyond the public range, where each counts 1 at most;
    or all of them are 0.
    """

    name: str = "evaluation"
    kind: Kind = EVALUATION
    task: Task = "binary"
    rows: int = 2
    holders: int = 2

    @property
    def layout(self) -> Sums:
        return Sums(self.task, 2, ("own",), (MAJORITY,))

    def plan(self, parties: int, times: int) -> list[Release]:
        return [replace(self.layout.release(parties), times=times)]

    def release(self, session: Session, charger: Charger, world: str) -> np.ndarray:
        kept = world == WORLDS[0]
        secret = SecureEvaluation(session, self.task, LABEL_HOLDER, GROUP_HOLDER)

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
        of = Copies(np.arange(self.rows), np.ones(self.rows))
        found = NoisyEvaluation(secret, charger).sums(
            self.layout,
            logits,
            label if session.rank == LABEL_HOLDER else None,
            groups if session.rank == GROUP_HOLDER else None,
            {"own": (edited, of)},
        )
        values = np.concatenate(list(found.values()))
        return values if session.rank == 0 else values[:0]

    def exact(self, parties: int, rank: int, world: str) -> np.ndarray:
        kept = world == WORLDS[0]
        if rank:
            return np.zeros(0)
        if self.task == "regression":
            return np.ones(4) * kept
        cells = np.zeros((2, 2, 2))
        cells[0, 1, 1] += 1
        cells[(0, 1, 1) if kept else (1, 1, 0)] += 1
        return np.array([1.0 + kept, *cells.reshape(-1), float(kept)])
