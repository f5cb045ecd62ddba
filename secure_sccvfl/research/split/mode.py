"""`split` mode: the paper's split learning with head, labels and s under MPC. One instance per party process.

Every party trains its own encoder with torch. In every step the gradient in its own activations is opened to it alone
(protocols/steps/split.py says what that reveals: labels of its training records, and s with consistency). What else
it trains alone, and why that reveals nothing of s to it, is in split/local.py. Steps follow a public schedule:
warm-up without consistency, then with it. Every few steps it is opened whether logits left the range of the sigmoid.
With a patience, one bit after each step says whether training goes on (split/stopping.py). Late refreshes are spread
evenly over the steps with consistency. Each releases one more table per column, and what follows from roles and
tables is built again: generators, counterfactuals, posteriors, dropped columns. Encoders, adversaries and head go on.
The result is an encoder per party and a shared head. The secure engine evaluates them like those of a sealed run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import Part
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.protocols.session.products import MOST_ROWS, SplitLayout
from secure_sccvfl.protocols.session.runtime import crypten
from secure_sccvfl.protocols.session.saving import restore_share, save_share
from secure_sccvfl.protocols.steps import head as secret_head
from secure_sccvfl.protocols.steps.head import HEAD_BITS, LOGIT_BOUND, Weights
from secure_sccvfl.protocols.steps.split import (
    RESIDUAL_BITS,
    SPLIT_HEAD_BITS,
    Inputs,
    Probes,
    Shared,
    SplitPace,
    gradient_of,
    inputs_of,
    split_step,
)
from secure_sccvfl.releases import catalogue
from secure_sccvfl.releases.catalogue import PlanFacts, plan_of
from secure_sccvfl.research.paper.generators import MaskedGenerator
from secure_sccvfl.research.paper.networks import MlpEncoder, code_columns, make_mlp, part_of
from secure_sccvfl.research.paper.settings import DECAY, Columns, settings_of
from secure_sccvfl.research.split.local import OwnTraining, ValidityWeights
from secure_sccvfl.research.split.stopping import EarlyStopping
from secure_sccvfl.training.model import Model, with_leak
from secure_sccvfl.training.modes.base import (
    PartyContext,
    Seen,
    Trained,
    common_releases,
    plan_facts,
    refuse_dp_sampling,
)
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import SharedHead, share_label
from secure_sccvfl.training.trainer import Hooks, Phase, Problem, State, Trainer, calibrated


@dataclass(frozen=True)
class SplitConfig:
    """Settings of `split`; `batch` None is the full batch, or the largest that a step can take.

    `steps`: the most with consistency. `keep_every`: how many of them are between two checkpoints. `columns`: what
    encoders read of a feature, as in `PaperSettings`. `patience`: steps without a better validation objective after
    which training stops, counted from the first one; 0: it never stops early. `keep_shown`: keep the gradients of all
    steps for attacks on the run. They reveal labels and s, so it is for pooled data.
    """

    hidden: int = 64
    encoder_rate: float = 0.002
    decay: float = 5e-3
    head_rate: float = 0.05
    momentum: float = 0.9
    lam: float = 4.0
    batch: int | None = None
    warmup: int = 20
    steps: int = 60
    keep_every: int = 10
    draws: int = 4
    dropout: float = 0.0
    columns: Columns = "one_hot"
    patience: int = 0
    late_refreshes: int = 0
    keep_shown: bool = True
    weights: ValidityWeights = field(default_factory=ValidityWeights)

    def __post_init__(self) -> None:
        if min(self.hidden, self.warmup, self.steps, self.keep_every, self.draws) < 1:
            raise ValueError(f"hidden, warmup, steps, keep_every and draws must be at least 1, got {self}")
        if self.encoder_rate <= 0 or self.head_rate <= 0 or not 0 <= self.momentum < 1 or self.lam < 0:
            raise ValueError(f"bad rates, momentum or lam in {self}")
        if not 0 <= self.dropout < 1 or self.patience < 0:
            raise ValueError(f"dropout must be below 1 and patience not negative, got {self}")
        if not 0 <= self.late_refreshes < self.steps:
            raise ValueError(
                f"steps come before and after every late refresh: {self.steps} steps with consistency are too few "
                f"for {self.late_refreshes} late_refreshes"
            )

    @property
    def most(self) -> int:
        """Steps of a run that does not stop early."""
        return self.warmup + self.steps

    @property
    def refreshed_at(self) -> tuple[int, ...]:
        """After how many steps with consistency each late refresh comes.

        They are spread evenly over all of these steps; where training may stop early, over as many as the patience.
        """
        stretches = self.late_refreshes + 1
        whole = max(min(self.steps, self.patience or self.steps), stretches)
        return tuple(number * whole // stretches for number in range(1, stretches))

    @property
    def kept_at(self) -> tuple[int, ...]:
        """After how many steps with consistency the range is checked and the state is kept; 0: after the warm-up."""
        every = range(0, self.steps, self.keep_every)
        return tuple(sorted({*every, *self.refreshed_at, self.steps}))


def split_config(options: RunOptions) -> SplitConfig:
    """The same number of steps as for one lambda of a sealed run; one weight of consistency, named or its own.

    Method `paper` has the column of its table: sizes, dropout, rates, warm-up, and epochs with early stopping, whose
    bits are figures of validation records. The head has the table's rate with momentum: Adam would divide by roots
    under MPC.
    """
    weights = ValidityWeights(
        options.training.weight_identity, options.training.weight_support, options.training.weight_leak
    )
    plain = SplitConfig(
        steps=options.training.steps,
        lam=options.training.lambda_,
        late_refreshes=options.privacy.late_table_releases,
        keep_shown=options.data.pooled,
        weights=weights,
    )
    if options.training.method != "paper":
        return plain
    column = settings_of(options.data.dataset)
    return replace(
        plain,
        hidden=column.hidden,
        encoder_rate=column.rate,
        head_rate=column.rate,
        decay=DECAY if column.optimiser == "adamw" else 0.0,
        warmup=options.training.warmup,
        dropout=column.dropout,
        columns=column.columns,
        patience=column.patience,
        weights=replace(weights, generator_rate=column.generator_rate, adversary_rate=column.adversary_rate),
    )


def split_releases(parties: int, config: SplitConfig, task: Task = "binary") -> list[Release]:
    """What `split` opens besides what the engine does, known before the session."""
    facts = PlanFacts({rank: {"encoder": config.hidden} for rank in range(parties)}).with_settings(config)
    checks = len(config.kept_at) + 1  # the last check is about validation records
    return [
        *catalogue.GRADIENT.releases(facts, times=config.most),
        *catalogue.EDITING_PARTIES.releases(facts),
        *catalogue.RANGE_CHECK.releases(facts, times=checks if task != "regression" else 0),
        *catalogue.EARLY_STOPPING.releases(facts, times=config.most if config.patience else 0),
    ]


PARTS = ("weight", "bias", "velocity", "bias_velocity")


@dataclass(frozen=True)
class SplitState:
    """The state after the warm-up and every few steps. `weights` are tensors, `local` is the party's own.

    seen: what each step showed, if that is kept. taken: all steps so far. watched: shares of what early stopping has
    seen. stopped: whether it has stopped.
    """

    weights: Weights
    local: Mapping[str, np.ndarray] = field(repr=False)
    seen: tuple[Seen, ...] = field(repr=False)
    taken: int = 0
    watched: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    stopped: bool = False

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything by name, to be kept on disk."""
        made = {"taken": np.array(self.taken), "stopped": np.array(self.stopped)}
        made |= {f"weights/{name}": save_share(getattr(self.weights, name)) for name in PARTS}
        made |= {f"local/{key}": value for key, value in self.local.items()}
        made |= {f"watched/{key}": value for key, value in self.watched.items()}
        for number, step in enumerate(self.seen):
            made |= {f"seen/{number}/{f.name}": getattr(step, f.name) for f in fields(Seen)}
        return made

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> SplitState:
        """The state from what `arrays` returned."""
        shown, names = part_of(arrays, "seen"), [f.name for f in fields(Seen)]
        count = sum(key.endswith(f"/{names[-1]}") for key in shown)
        weights = {k: restore_share(share, SPLIT_HEAD_BITS) for k, share in part_of(arrays, "weights").items()}
        return cls(
            Weights(**weights),
            part_of(arrays, "local"),
            tuple(Seen(*(shown[f"{n}/{name}"] for name in names)) for n in range(count)),
            int(arrays["taken"]),
            part_of(arrays, "watched"),
            bool(arrays["stopped"]),
        )


Generators = Mapping[str, Mapping[int, Generator]]
"""By name of the protected attribute and rank, as discovery returns them."""


@dataclass(frozen=True)
class SplitModel:
    """Own encoder, shares of the head for this engine, steps taken, and what each of them showed (if it is kept).

    finding, generators: those of the last late refresh that was granted; without one, None and those it began with.
    """

    engine: SecureEngine
    encoder: MlpEncoder
    head: SharedHead
    steps: int
    seen: tuple[Seen, ...]
    assignment: RoleAssignment | None
    generators: Generators


class SplitTrainer:
    """One run of `split`. The session's plan holds `split_releases` and those of an engine that trains."""

    def __init__(
        self,
        engine: SecureEngine,
        problem: Problem,
        roles: Roles,
        generators: Generators,
        config: SplitConfig,
        seed: int,
        hooks: Hooks | None = None,
        state: State | None = None,
    ) -> None:
        """`state`: the state of the run, with what was released; a checkpoint adds what is kept (`SplitState`)."""
        self.session = engine.session
        self.engine = SecureEngine(engine.session, engine.label_holder, engine.group_holders)
        self.engine.widths = (config.hidden,) * self.session.parties
        self.train, self.task, self.outputs = problem.train, problem.task, problem.outputs
        self.config, self.seed = config, seed
        self.hooks = Hooks() if hooks is None else hooks
        self.state = State(None) if state is None else state
        (self.party,) = self.train.parties
        self.rank = self.party.rank
        read = code_columns(self.party.layout) if config.columns == "codes" else None
        encoder = make_mlp(self.party.inputs, config.hidden, torch_seed(seed, "split", self.rank), read)
        pace = config.encoder_rate, config.decay
        self.local = OwnTraining(encoder, pace, self.party, config.weights, seed, config.dropout)
        shape = (self.train.rows, self.outputs)
        self.label = share_label(self.session, self.train.label, engine.label_holder, shape, RESIDUAL_BITS)
        self.validation, self.stopping = problem.validation, None
        if config.patience:
            self.stopping = EarlyStopping(self.engine, self.validation, self.task, self.outputs, config.patience)
        self.take_up(roles, generators)
        self._patterns: dict[SplitLayout, list[Request]] = {}
        self._last: tuple[Shared, Shared] | None = None

    def take_up(self, roles: Roles, generators: Generators) -> None:
        """Everything that follows from roles and from what was released: who edits, edits, what parties train.

        For the begin of training, and for releases during it that change roles. Says who has mediators.
        """
        self.generators: Generators = generators
        own = {attribute.name: generators[attribute.name][self.rank] for attribute in self.train.protected}
        self.local.take_up(self.state.noisy_tables, own, self.party.layout.columns(roles.dropped))
        edits = not set(roles.edited).isdisjoint(self.party.layout.names)
        opened = self.engine.publish(catalogue.EDITING_PARTIES.name, {str(self.rank): float(edits)})
        self.editing = tuple(rank for rank in range(self.session.parties) if opened[str(rank)])
        self._edited: dict[int, list[np.ndarray]] = {}

    def run(self, late: Trainer | None = None, phase: Phase = lambda name: nullcontext()) -> SplitModel:
        """The whole schedule, or the rest of it from a kept state. `phase` is entered around each phase.

        `late`, after its discovery, is asked for the late refreshes of the settings; without it there are none.
        """
        config = self.config
        due = {config.warmup + end: number for number, end in enumerate(config.refreshed_at)}
        finding: RoleAssignment | None = None
        at = self._begin()
        for end in (config.warmup + steps for steps in config.kept_at):
            if end <= at.taken or at.stopped:
                continue
            with phase("training"):
                self.hooks.progress("split training", at.taken, config.most)
                at = self._steps(at, end, config.lam if end > config.warmup else 0.0)
                self._check_range()
            if late is not None and end in due and not at.stopped:
                finding = self._refresh(late, due[end], at, phase) or finding
            else:
                self._keep(at)
        self.hooks.audit("split training", {"steps": at.taken, "stopped early": at.stopped})
        head = self._head(at.weights)
        return SplitModel(self.engine, self.local.encoder, head, at.taken, at.seen, finding, self.generators)

    def _begin(self) -> SplitState:
        """The kept state, or the first one."""
        if not self.state.mode_arrays:
            return SplitState(self._initial(), self.local.state(), ())
        at = SplitState.of(self.state.mode_arrays)
        self.local.go_on(at.local)
        if self.stopping is not None:
            self.stopping.go_on(at.watched)
        return at

    def _keep(self, at: SplitState) -> None:
        self.hooks.keep(replace(self.state, mode_arrays=at.arrays()))

    def _refresh(self, late: Trainer, number: int, at: SplitState, phase: Phase) -> RoleAssignment | None:
        """One late refresh: its finding, or None if the budget refused it.

        What was released is kept before generators are made from it, so that a fault costs no second release. Kept
        networks of the old generators would not fit: a run that goes on from there makes the new ones first.
        """
        with phase("late refreshes"):
            found = late.release_again(number)
            self.state = late.state
            self._keep(at if found is None else replace(at, local=self.local.lasting()))
        if found is None:
            return None
        with phase("counterfactuals"):
            finding, generators = late.generate(found)
            self.take_up(finding.roles, generators)
        return finding

    def _check_range(self) -> None:
        """Stop if logits of the last step, or their shifts by edits, left the range of the sigmoid; opens one bit."""
        if self.task != "regression" and self._last is not None:
            self.engine.stop_outside(crypten.cat([secret_head.headroom(one) for one in self._last]))

    # one step

    def _steps(self, at: SplitState, end: int, lam: float) -> SplitState:
        """All steps up to this one, or up to where early stopping ends them."""
        rows = min(MOST_ROWS if self.config.batch is None else self.config.batch, self.train.rows)
        editing = self.editing if lam > 0 else ()
        groups = [len(attribute.groups) for attribute in self.train.protected]
        attributes = tuple(zip(self.engine.group_holders, groups, strict=True))
        layout = SplitLayout(rows, self.engine.widths, editing, attributes, self.outputs)
        pace = SplitPace(self.config.head_rate, self.config.momentum, self.config.decay, lam)
        batches, seen = self._batches(rows, at.taken, lam), [*at.seen]
        weights, first, taken, goes_on = at.weights, at.taken, at.taken, True
        for number in self.session.repeat(end - first, self._patterns.setdefault(layout, [])):
            picked = next(batches)
            with self.session.measure("split step"):
                weights, gradient = self._step(weights, layout, picked, pace, first + number)
            taken += 1
            if self.config.keep_shown:
                seen.append(Seen.of(picked, gradient, self.outputs))
            goes_on = self._goes_on(weights)
            if not goes_on:
                break
        watched = {} if self.stopping is None else self.stopping.state()
        return SplitState(weights, self.local.state(), tuple(seen), taken, watched, not goes_on)

    def _goes_on(self, weights: Weights) -> bool:
        """Whether the validation part asks for more steps; without early stopping always."""
        if self.stopping is None:
            return True
        (party,) = self.validation.parties
        activations, moved = self.local.encoder(party.inputs), None
        if self.rank in self.editing:
            edited = self._edits(self.validation, np.arange(self.validation.rows), 0)
            moved = np.stack([self.local.encoder(inputs) - activations for inputs in edited], axis=1)
        return self.stopping.goes_on(weights, activations, moved, bool(self.editing))

    def _step(
        self, weights: Weights, layout: SplitLayout, rows: np.ndarray, pace: SplitPace, number: int
    ) -> tuple[Weights, np.ndarray]:
        own, probe = self._inputs(layout, rows, number), probes(layout)
        label = self.label[torch.from_numpy(rows)]
        stepped = split_step(layout, weights, own, pace, lambda logits: residual_of(logits, label, self.task), probe)
        self._last = stepped.logits, stepped.shifts
        opened = self.session.open_each(
            [
                (sketch, self.session.declared(catalogue.GRADIENT.titled(rank)))
                for rank, sketch in enumerate(stepped.projections)
            ]
        )[self.rank]
        if opened is None:
            raise RuntimeError("the gradient did not reach its owner")
        gradient = gradient_of(opened.numpy(), layout, self.rank, probe)
        self.local.step(gradient / len(rows), rows, number)
        return stepped.weights, gradient

    def _inputs(self, layout: SplitLayout, rows: np.ndarray, number: int) -> Inputs:
        """Party step, local: activations of these rows, and how far the edits of this step's draw move them."""
        activations = self.local.begin(self.party.inputs[rows], number)
        deltas, groups = None, {}
        if layout.directions:
            if self.rank in layout.editing:
                edited = self._edits_of(number, rows)
                moved = [self.local.edited(inputs) - activations for inputs in edited]
                deltas = np.stack(moved, axis=1)
            for number, attribute in enumerate(self.train.protected):
                if self.engine.group_holders[number] == self.rank and attribute.codes is not None:
                    groups[number] = one_hot(attribute.codes[rows], len(attribute.groups), np.int64)
        return inputs_of(self.session, layout, activations, deltas, groups)

    def _edits_of(self, number: int, rows: np.ndarray) -> list[np.ndarray]:
        """Edited inputs of these rows in a step; made once per draw, unless generators train and draw their codes."""
        draw = number % self.config.draws
        if self.local.generates:
            codes = torch.Generator().manual_seed(torch_seed(self.seed, "codes", self.rank, number))
            return self._edits(self.train, rows, draw, codes)
        if draw not in self._edited:
            self._edited[draw] = self._edits(self.train, np.arange(self.train.rows), draw)
        return [inputs[rows] for inputs in self._edited[draw]]

    def _edits(
        self, part: Part, rows: np.ndarray, draw: int, codes: torch.Generator | None = None
    ) -> list[np.ndarray]:
        """Own columns of these rows for every hypothesised group. codes: for latent codes of masked generators."""
        made, inputs = [], part.parties[0].inputs[rows]
        for attribute in part.protected:
            groups = len(attribute.groups)
            targets = public_targets(part.rows, groups, self.seed, draw)[rows]
            generator = self.generators[attribute.name][self.rank]
            for g in range(groups):
                if codes is not None and isinstance(generator, MaskedGenerator):
                    made.append(generator.edited(inputs, g, targets[:, g], codes))
                else:
                    made.append(generator(inputs, g, targets[:, g], draw))
        return made

    def _batches(self, rows: int, first: int, lam: float) -> Iterator[np.ndarray]:
        """Public rows of every step: all, or batches of one size from a public order."""
        if rows == self.train.rows:
            while True:
                yield np.arange(rows)
        epoch = 0
        while True:
            order = stream(self.seed, "batches", first, str(lam > 0), epoch).permutation(self.train.rows)
            for at in range(0, self.train.rows - rows + 1, rows):
                yield np.sort(order[at : at + rows])
            epoch += 1

    # inputs and result

    def _initial(self) -> Weights:
        """A small public start: with a zero head no encoder would learn."""
        columns = sum(self.engine.widths)
        start = stream(self.seed, "split head").uniform(-1, 1, (columns, self.outputs)) / columns**0.5
        zero, bias = np.zeros_like(start), np.zeros(self.outputs)
        return Weights(*(self.session.public(part, SPLIT_HEAD_BITS) for part in (start, bias, zero, bias)))

    def _head(self, weights: Weights) -> SharedHead:
        """The head as the engine knows it: longer fraction, unscaled columns."""
        parts = (weights.weight, weights.bias, weights.velocity, weights.bias_velocity)
        return SharedHead(
            Weights(*(part.rescale(HEAD_BITS) for part in parts)),
            np.ones(self.engine.widths[self.rank]),
            self.task,
        )


def probes(layout: SplitLayout) -> Probes:
    """Public sign matrices, the same in every step: V for the columns, Q for the rows."""
    signs = stream(0, "probes", layout.rows, layout.columns, layout.probes).integers(
        0, 2, (layout.columns + layout.rows, layout.probes)
    )
    both: np.ndarray = 2 * signs.astype(np.int64) - 1
    return both[: layout.columns], both[layout.columns :]


def residual_of(logits: Shared, label: Shared, task: Task) -> Shared:
    """Prediction minus label, RESIDUAL_BITS; each of several classes against the rest. One round."""
    if task == "regression":
        return logits.rescale(RESIDUAL_BITS) - label
    return logits.sigmoid(bound=LOGIT_BOUND, bits=RESIDUAL_BITS) - label


class Split:
    """The `split` gradient mode: the paper's split learning. Each party's gradients reveal the labels to it."""

    def check(self, options: RunOptions, schema: Schema) -> None:
        refuse_dp_sampling(options, "split")
        try:
            split_config(options)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def releases(self, options: RunOptions, schema: Schema) -> list[Release]:
        facts = replace(plan_facts(schema, options), lambdas=())
        return [
            *common_releases(schema, options),
            *split_releases(len(schema.parties), split_config(options), schema.task),
            *plan_of(facts, "validation"),
        ]

    def heads(self, options: RunOptions, schema: Schema) -> None:
        """None: what a party is shown of gradients reveals more than a private head would hide."""
        if options.privacy.private_model:
            raise ConfigError(
                "mode split opens gradients, so its model cannot be private: private_model must be false"
            )

    def charged_steps(self, options: RunOptions) -> tuple[tuple[float, int], ...]:
        return ()

    def train(self, context: PartyContext) -> Trained:
        """Discovery as in `sealed`, then split learning; the result is a model like any other."""
        options = context.options
        trainer = context.trainer(options.train_config())
        if context.state is not None:
            trainer.begin(context.state)
        with context.phase("discovery and warm-up"):
            trainer.discover()
        found = trainer.state.assignment
        if found is None:
            raise RuntimeError("no sketch was released")
        with context.phase("counterfactuals"):
            finding, generators = trainer.generate(found)
        with context.phase("training"):
            config = split_config(options)
            given = (context.engine, context.problem, finding.roles, generators, config, options.drawn_seed)
            training = SplitTrainer(*given, context.hooks, trainer.state)
        made = training.run(trainer, context.phase)
        with context.phase("late refreshes" if config.late_refreshes else "discovery and warm-up"):
            finding = trainer.with_confidence(made.assignment or finding)
        with context.phase("training"):
            trainer.validate(finding.roles, made.generators)
            temperature = _temperature(made, trainer)
        model = Model(
            made.engine,
            {context.engine.session.rank: made.encoder},
            made.head,
            trainer.task,
            temperature,
            config.lam,
            finding,
            trainer.state.noisy_tables,
            made.generators,
            (),
            validity=with_leak(trainer.validity),
        )
        return Trained(model, made.engine, made.steps, made.seen)


def _temperature(made: SplitModel, trainer: Trainer) -> float:
    """The temperature that fits validation records best."""
    (party,) = trainer.validation.parties
    activations, ridge = {party.rank: made.encoder(party.inputs)}, {party.rank: np.zeros(made.encoder.columns)}
    check = made.engine.bind(activations, trainer.validation.label, ridge, trainer.outputs)
    made.engine.check_range([made.head], check)
    return calibrated(made.engine, made.head, check, trainer.task)
