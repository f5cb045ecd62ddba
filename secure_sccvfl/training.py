"""SCC-VFL, sealed: label-free local encoders, a fused linear head, consistency under masked edits.

The driver reads like the paper: discovery with refreshes during warm-up, generators, joint training, then
the weight lambda chosen on validation by a stated rule. The same code drives the plaintext and the secure
engine; no per-record value of s, of the label or of a logit passes through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from secure_sccvfl.data import Dataset, Task
from secure_sccvfl.discovery import (
    Attribute,
    DiscoveryConfig,
    Evidence,
    Finding,
    Sketch,
    decide,
    interventional_check,
    release_sketches,
    residual_scores,
    weigh,
)
from secure_sccvfl.encoders import Encoder, EncoderKind, fit_encoder
from secure_sccvfl.engine import CURVATURE, SIGN_WIDTH, Blocks, ConsistencyKind, Engine, Held, Measures, Step
from secure_sccvfl.generators import (
    Generator,
    GeneratorConfig,
    make_generator,
    public_targets,
    shift_direction,
)
from secure_sccvfl.parties import Party, make_parties
from secure_sccvfl.policy import PolicyCard, Roles
from secure_sccvfl.splits import Split

EDITED_ROWS = 20_000


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the sealed method; the defaults are the ones reported.

    Rule for lambda: the smallest value of the grid at which, on validation and under the run's own
    generator, the root-mean-square gap is at most `gap_target` of the logit's spread; the largest if none.
    """

    encoder: EncoderKind = "plain"
    consistency: ConsistencyKind = "squared"
    lambdas: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
    gap_target: float = 0.02
    guard: float = 0.05
    ridge: float = 5e-3
    refreshes: int = 4
    warmup: int = 60
    steps: int = 120
    rate: float = 0.2
    momentum: float = 0.9
    check_every: int = 10
    patience: int = 3
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)

    def __post_init__(self) -> None:
        if not self.lambdas or list(self.lambdas) != sorted(self.lambdas) or self.lambdas[0] < 0:
            raise ValueError(f"lambdas must rise from 0 or more, got {self.lambdas}")
        if self.gap_target <= 0 or self.guard < 0 or self.ridge <= 0:
            raise ValueError(f"bad gap_target {self.gap_target}, guard {self.guard} or ridge {self.ridge}")
        if min(self.warmup, self.steps, self.check_every, self.patience) < 1 or self.refreshes < 0:
            raise ValueError("warmup, steps, check_every and patience must be at least 1, refreshes at least 0")


@dataclass(frozen=True)
class Trial:
    """One value of lambda as seen on validation."""

    lam: float
    validation: Measures
    steps: int


@dataclass(frozen=True)
class Model:
    """A trained consortium model: local parts per party, the head's handle, and how it came about."""

    engine: Engine
    encoders: Mapping[int, Encoder]
    head: Any
    task: Task
    temperature: float
    lam: float
    finding: Finding
    sketches: tuple[Sketch, ...]
    generators: Mapping[str, Mapping[int, Generator]]
    trials: tuple[Trial, ...]

    @property
    def roles(self) -> Roles:
        return self.finding.roles

    def encode(self, parties: Sequence[Party]) -> Blocks:
        return {p.rank: self.encoders[p.rank](p.units) for p in parties}

    def logits(self, parties: Sequence[Party]) -> np.ndarray:
        """Calibrated logits of these records."""
        return self.engine.logits(self.head, self.encode(parties)) / self.temperature


@dataclass(frozen=True)
class Part:
    """One part of the split as this process holds it: its parties; label and s where it is the holder."""

    parties: tuple[Party, ...]
    label: Held
    protected: tuple[Attribute, ...]

    @property
    def rows(self) -> int:
        return len(self.parties[0].units)


def part_of(data: Dataset, rows: np.ndarray, parties: tuple[Party, ...] | None = None) -> Part:
    """The harness hands out one part of the split."""
    whole = make_parties(data) if parties is None else parties
    chosen = data.take(rows)
    return Part(tuple(p.take(rows) for p in whole), chosen.label.values, chosen.protected)


class _Displacements:
    """Edits of one part: [draw][hypothesised group] -> encoded displacement per party, made on demand.

    Keeps, per party, the largest mean square of each column over groups: the owner's curvature bound.
    """

    def __init__(
        self,
        part: Part,
        groups: int,
        generators: Mapping[int, Generator],
        encoders: Mapping[int, Encoder],
        draws: int,
        seed: int,
    ) -> None:
        self.part, self.groups, self.draws, self.seed = part, groups, draws, seed
        self.generators, self.encoders = generators, encoders
        self.base = {p.rank: encoders[p.rank](p.units) for p in part.parties}
        self.energy = {rank: np.zeros(b.shape[1]) for rank, b in self.base.items()}

    def __iter__(self) -> Iterator[Iterator[Blocks]]:
        for draw in range(self.draws):
            targets = public_targets(self.part.rows, self.groups, self.seed, draw)
            yield self._draw(draw, targets)

    def _draw(self, draw: int, targets: np.ndarray) -> Iterator[Blocks]:
        for source in range(self.groups):
            blocks = {}
            for party in self.part.parties:
                generator, encoder = self.generators[party.rank], self.encoders[party.rank]
                edited = generator(party.units, source, targets[:, source], draw)
                delta = encoder(edited) - self.base[party.rank]
                self.energy[party.rank] = np.maximum(self.energy[party.rank], (delta**2).mean(axis=0))
                blocks[party.rank] = delta
            yield blocks


def _movement(
    part: Part, generators: Mapping[int, Generator], roles: Roles, groups: int
) -> tuple[dict[str, float], dict[str, float]]:
    """A trial edit of every source group: how far each N or P and each M moved. Party-local."""
    fixed: dict[str, float] = {}
    edited: dict[str, float] = {}
    for party in part.parties:
        for source in range(groups):
            target = np.full(len(party.units), (source + 1) % groups)
            moved = np.abs(generators[party.rank](party.units, source, target, 0) - party.units)
            for block in party.layout.blocks:
                name = block.feature.name
                far = float(moved[:, block.columns].max())
                where = edited if roles.of[name] == "M" else fixed
                where[name] = max(where.get(name, 0.0), far)
    return fixed, edited


class Trainer:
    """One run on one engine. Fields are the run's public state; methods are its phases, in order."""

    def __init__(
        self,
        engine: Engine,
        train: Part,
        validation: Part,
        task: Task,
        outputs: int,
        config: TrainConfig,
        seed: int,
        card: PolicyCard | None = None,
    ) -> None:
        self.engine, self.train, self.validation = engine, train, validation
        self.task, self.outputs, self.config, self.seed, self.card = task, outputs, config, seed, card
        self.encoders = {p.rank: fit_encoder(p.layout, p.units, config.encoder, seed) for p in train.parties}
        widths = engine.publish("columns", {str(k): e.columns for k, e in self.encoders.items()})
        counts = engine.publish("features", {str(p.rank): len(p.layout.blocks) for p in train.parties})
        self.features = int(sum(counts.values()))
        self.batch = self._bind(train)
        self.check = self._bind(validation)
        self.head = engine.head(int(sum(widths.values())), outputs, task)
        self.flat = {
            p.rank: CURVATURE[task] * self.encoders[p.rank](p.units).var(axis=0) + config.ridge for p in train.parties
        }

    def _bind(self, part: Part) -> Any:
        encodings = {p.rank: self.encoders[p.rank](p.units) for p in part.parties}
        ridge = {rank: np.full(block.shape[1], self.config.ridge) for rank, block in encodings.items()}
        return self.engine.bind(encodings, part.label, ridge)

    def discover(self, fixed: Roles | None = None) -> tuple[Finding, tuple[Sketch, ...]]:
        """Sketch, then refreshes spread over the warm-up of the head; tables are averaged, roles damped."""
        config = self.config
        sketches: tuple[Sketch, ...] = ()
        finding: Finding | None = None
        residual: dict[str, float] | None = None
        if config.discovery.conditional:
            residual = residual_scores(
                self.engine, self.train.parties, self.train.protected, self.seed, self.features
            )
        rounds = config.refreshes + 1
        for refresh in range(rounds):
            fresh = release_sketches(
                self.engine, self.train.parties, self.train.protected, f"sketch-{refresh}", self.features
            )
            sketches = tuple(a.merged(b) for a, b in zip(sketches, fresh, strict=True)) if sketches else fresh
            previous = finding.roles if finding is not None else None
            finding = decide(self._evidence(sketches, residual), config.discovery, previous, self.card)
            for _ in range(config.warmup // rounds):
                step = Step(config.rate, config.momentum)
                self.head = self.engine.step(self.head, self.batch, None, step, self.flat)
        if finding is None:
            raise RuntimeError("no sketch was released")
        if fixed is not None:
            finding = replace(finding, roles=fixed)
        return finding, sketches

    def _evidence(self, sketches: Sequence[Sketch], residual: Mapping[str, float] | None) -> Evidence:
        """Scores of the own tables, then those of all parties."""
        own = weigh(sketches, self.config.discovery, self.seed, residual)
        return Evidence(
            self.engine.publish("scores", own.scores),
            self.engine.publish("p-values", own.p_values),
            self.engine.publish("residual-scores", own.residual),
        )

    def generate(
        self, finding: Finding, sketches: Sequence[Sketch]
    ) -> tuple[Finding, dict[str, dict[int, Generator]]]:
        """Local generators of every party for every protected attribute, after the interventional check."""

        def build(roles: Roles) -> dict[str, dict[int, Generator]]:
            return {
                sketch.attribute: {
                    p.rank: make_generator(
                        p.layout,
                        sketch.tables,
                        sketch.deviation,
                        roles,
                        self.config.generator,
                        self.seed,
                        p.units,
                    )
                    for p in self.train.parties
                }
                for sketch in sketches
            }

        generators = build(finding.roles)
        fixed: dict[str, float] = {}
        edited: dict[str, float] = {}
        for attribute in self.train.protected:
            a, b = _movement(self.train, generators[attribute.name], finding.roles, len(attribute.groups))
            fixed = {k: max(fixed.get(k, 0.0), v) for k, v in a.items()}
            edited = {k: max(edited.get(k, 0.0), v) for k, v in b.items()}
        checked = interventional_check(
            finding, self.engine.publish("moved-fixed", fixed), self.engine.publish("moved-edited", edited)
        )
        return checked, build(checked.roles)

    def penalties(
        self,
        finding: Finding,
        sketches: Sequence[Sketch],
        generators: Mapping[str, Mapping[int, Generator]],
    ) -> tuple[Any, Any, Blocks]:
        """Consistency of train and validation, and each owner's curvature bound of it."""
        energy = {p.rank: np.zeros(self.encoders[p.rank].columns) for p in self.train.parties}
        joined = []
        for part in (self.train, self.validation):
            edits = []
            for attribute in part.protected:
                draws = int(np.clip(EDITED_ROWS // part.rows, 2, self.config.generator.draws))
                made = _Displacements(
                    part, len(attribute.groups), generators[attribute.name], self.encoders, draws, self.seed
                )
                edits.append(self.engine.edits(made, attribute.codes))
                if part is self.train:
                    energy = {k: np.maximum(v, made.energy[k]) for k, v in energy.items()}
            joined.append(self.engine.join(edits, self.guards(finding.roles, sketches)))
        return joined[0], joined[1], energy

    def guards(self, roles: Roles, sketches: Sequence[Sketch]) -> list[Blocks]:
        """Directions along which the proxies give s away, one per protected attribute."""
        guards: list[Blocks] = []
        for sketch in sketches:
            blocks = {}
            for party in self.train.parties:
                plain = shift_direction(party.layout, sketch.tables, roles.named("P"))
                spare = self.encoders[party.rank].columns - len(plain)
                blocks[party.rank] = np.concatenate([plain, np.zeros(spare)])
            guards.append(blocks)
        return guards

    def fit(
        self, penalty: Any, check: Any, energy: Blocks, guards: Sequence[Blocks]
    ) -> tuple[float, tuple[Trial, ...]]:
        """Train along the grid of lambda, each from the last head, until the rule is met."""
        reach = {k: np.zeros(len(v)) for k, v in self.flat.items()}
        for guard in guards:
            lengths = {str(rank): float(np.abs(block).sum()) for rank, block in guard.items()}
            length = sum(self.engine.publish("guard-length", lengths).values())
            reach = {k: v + np.abs(guard[k]) * length for k, v in reach.items()}
        steep = 1.0 if self.config.consistency == "squared" else 1.0 / SIGN_WIDTH
        trials: list[Trial] = []
        for lam in self.config.lambdas:
            weight = self.config.guard * max(lam, 0.0)
            bound = {k: self.flat[k] + lam * steep * energy[k] + weight * reach[k] for k in self.flat}
            step = Step(self.config.rate, self.config.momentum, lam, self.config.consistency, weight)
            measures, taken = self._descend(penalty, check, step, bound)
            trials.append(Trial(lam, measures, taken))
            if lam > 0 and measures.relative_gap <= self.config.gap_target:
                break
        return trials[-1].lam, tuple(trials)

    def _descend(self, penalty: Any, check: Any, step: Step, bound: Blocks) -> tuple[Measures, int]:
        """Steps at one lambda; stops after `patience` checks without a better validation objective."""
        best, best_head, waited = np.inf, self.head, 0
        measures = self.engine.measure(self.head, self.check, check)
        for taken in range(1, self.config.steps + 1):
            self.head = self.engine.step(self.head, self.batch, penalty, step, bound)
            if taken % self.config.check_every:
                continue
            seen = self.engine.measure(self.head, self.check, check)
            gap = seen.gap_rms**2 / 2 if step.kind == "squared" else seen.gap
            objective = seen.loss + step.lam * gap
            if not np.isfinite(objective):
                raise FloatingPointError(f"training diverged at lambda {step.lam}: lower the rate")
            if objective < best - 1e-5:
                best, best_head, measures, waited = objective, self.head, seen, 0
                continue
            waited += 1
            if waited >= self.config.patience:
                break
        self.head = best_head
        return measures, taken

    def temperature(self) -> float:
        """Temperature with the lowest validation log loss, from a fixed grid."""
        if self.task == "regression":
            return 1.0
        grid = np.geomspace(0.5, 3.0, 25)
        losses = [self.engine.measure(self.head, self.check, None, float(t)).loss for t in grid]
        return float(grid[int(np.argmin(losses))])

    def run(self, roles: Roles | None = None) -> Model:
        """All phases in order. Every process of a run calls this with what it holds."""
        finding, sketches = self.discover(roles)
        finding, generators = self.generate(finding, sketches)
        penalty, check, energy = self.penalties(finding, sketches, generators)
        lam, trials = self.fit(penalty, check, energy, self.guards(finding.roles, sketches))
        temperature = self.temperature()
        return Model(
            self.engine,
            self.encoders,
            self.head,
            self.task,
            temperature,
            lam,
            finding,
            sketches,
            generators,
            trials,
        )


def train(
    engine: Engine,
    data: Dataset,
    split: Split,
    config: TrainConfig,
    seed: int,
    card: PolicyCard | None = None,
    roles: Roles | None = None,
    parties: tuple[Party, ...] | None = None,
) -> Model:
    """The whole method on one split, all parties in this process. `roles` fixes them for a comparison."""
    whole = make_parties(data) if parties is None else parties
    parts = [part_of(data, rows, whole) for rows in (split.train, split.validation)]
    return Trainer(engine, parts[0], parts[1], data.task, data.outputs, config, seed, card).run(roles)
