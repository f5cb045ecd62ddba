"""SCC-VFL, sealed: label-free local encoders, a fused linear head (or a module), consistency under masked edits.

The driver reads like the paper: discovery, generators, joint training with a refresh of the tables. The weight
lambda is a setting. With a target instead, a stated rule chooses it on validation: by opened means (`exact`), or in
secret (`noisy`). The same code drives the plaintext and the secure engine. No per-record value of s, of the label or
of a logit passes through it.
The objective is convex, so a fixed number of steps is taken and nothing is opened to stop early. A private head is
trained at one public lambda, unless `lambdas` names more, each of which is charged. Without privacy the whole grid of
lambda is trained, at once where steps are of second order: it is the frontier between accuracy and consistency, and
one point of it becomes the model.
Before each late refresh a head takes a few steps under the penalty of the tables so far (`Descents.warm_up`). Roles,
edits and penalty then follow the tables of all releases, and the grid starts from that head after the last of them.
So the model and every point of the frontier are trained under the final roles and tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Dataset, Task
from secure_sccvfl.data.party import Blocks, Part, Party, make_parties, part_of
from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.decisions import RoleAssignment, interventional_check
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.models.edits import EncodedEdits, Validity, movement, validity
from secure_sccvfl.models.encoders import (
    Encoder,
    FeatureEncoder,
    PlainEncoder,
    edit_radius,
    fit_encoder,
    public_encoder,
    public_reach,
    reached,
    without,
)
from secure_sccvfl.models.generators import Generator, make_generator
from secure_sccvfl.models.table_generator import shift_direction
from secure_sccvfl.models.table_gram import TableGram, sampled_gram, table_gram, table_movement
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.gram import SHORTENED, gram_sensitivity, released_root
from secure_sccvfl.releases.heads import HeadCharge
from secure_sccvfl.releases.releases import (
    FEATURES,
    GRAM,
    LEFT_OUT,
    MOVED_EDITED,
    MOVED_FIXED,
    VALIDITY,
)
from secure_sccvfl.training.config import TEMPERATURES, EvaluationKind, TrainConfig
from secure_sccvfl.training.descents.steps import WARM_STEPS, Descend, Descents
from secure_sccvfl.training.engine import CURVATURE, Engine, Measures
from secure_sccvfl.training.leak import adversaries_alone, leaks
from secure_sccvfl.training.model import Model, Trial, with_leaks
from secure_sccvfl.training.state import Hooks, Problem, State

EDITED_ROWS = 20_000
Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class _Edited:
    """A checked finding, its generators, the penalty of its edits with curvature bounds, and edits of validation."""

    finding: RoleAssignment
    generators: Mapping[str, Mapping[int, Generator]]
    penalty: Any
    energy: Blocks
    reach: Blocks
    check: Any


class Trainer(Descents):
    """One run on one engine. Its methods are the phases, in order; `state` is its current state."""

    by_card = True
    """Whether it needs no table but those of `TrainConfig.tabled`."""

    def __init__(
        self,
        engine: Engine,
        statistics: Statistics,
        problem: Problem,
        config: TrainConfig,
        seed: int,
        card: PolicyCard | None = None,
        hooks: Hooks | None = None,
        encoders: Mapping[int, Encoder] | None = None,
        privacy: HeadCharge | None = None,
    ) -> None:
        """`encoders` were trained before in `dp` mode; otherwise they are fitted here, without labels.

        `privacy` charges a private head.
        """
        self.privacy = privacy
        self.engine, self.config, self.seed, self.card = engine, config, seed, card
        self.task, self.outputs = problem.task, problem.outputs
        if config.flip_target is not None and self.task == "regression":
            raise ValueError("a flip_target is about decisions, and the label is a number")
        self.train, self.validation = train, _ = problem.train, problem.validation
        self.layouts = problem.layouts
        self.hooks = Hooks() if hooks is None else hooks
        self.validity: dict[str, dict[str, Any]] = {}
        self.fitted_here = encoders is None
        self.encoders: Mapping[int, Encoder] = (
            {p.rank: self._encoder(p) for p in train.parties} if encoders is None else encoders
        )
        counts = engine.publish(FEATURES.name, {str(p.rank): len(p.layout.blocks) for p in train.parties})
        features = int(sum(counts.values()))
        self.discovery = Discovery(
            statistics,
            train.parties,
            train.protected,
            features,
            config.discovery,
            seed,
            card,
            self.hooks.audit,
            owners=problem.owners,
            tabled=problem.tabled,
            released=problem.released,
        )
        self.dropped: tuple[str, ...] = ()
        self.enter()

    def _encoder(self, party: Party) -> Encoder:
        """For a private head no record but its own may move a row, so it is centred on public values."""
        if self.config.private:
            return public_encoder(party.layout)
        return fit_encoder(party.layout, party.known.inputs, self.config.encoder, self.seed)

    def enter(self) -> None:
        """Hand the encoded records to the engine, and begin with a zero head, or a module at its first weights."""
        self._read()
        self.state = State(self._first_head())

    def _first_head(self) -> Any:
        given, module = (self.batch, self.outputs, self.task), self.config.module
        return self.engine.head(*given) if module is None else self.engine.module_head(*given, module, self.seed)

    def _read(self) -> None:
        """Encode both parts for the engine."""
        self.encodings: Blocks = self._encode(self.train)
        self.check_encodings: Blocks = self._encode(self.validation)
        self.batch = self._bind(self.encodings, self.train)
        self.check = self._bind(self.check_encodings, self.validation)
        self.limit()

    def limit(self) -> None:
        """Set each owner's curvature bound of loss and ridge; again once the number of records is known."""
        self.flat = self._flat()

    def _flat(self) -> Blocks:
        """Columns are centred on the records of their owner, common or not."""
        if self.train.presence is not None:
            return self.steepness()
        steep = CURVATURE[self.task]
        return {rank: steep * block.var(axis=0) + self.config.ridge for rank, block in self.encodings.items()}

    def _encode(self, part: Part) -> Blocks:
        return {p.rank: p.cleared(self.encoders[p.rank](p.inputs)) for p in part.parties}

    def _bind(self, encodings: Blocks, part: Part) -> Any:
        ridge = {rank: np.full(block.shape[1], self.config.ridge) for rank, block in encodings.items()}
        return self.engine.bind(encodings, part.label, ridge, self.outputs, part.presence, self.classes)

    @property
    def classes(self) -> bool:
        """Whether the engine must know the label as a class."""
        return self.config.private and self.task != "regression"

    def begin(self, state: State) -> None:
        """Continue from a kept state."""
        self.state = state if state.head is not None else replace(state, head=self.state.head)
        if self.train.presence is not None and state.records:
            self.train.presence.told(state.records)
            self.limit()

    def discover(self) -> None:
        """The first release of noisy tables and early repeated ones; tables are averaged, roles damped."""
        if self.state.conditional is None:
            self.go_on(conditional=self.discovery.conditional(self.validation.parties))
        rounds = self.config.refreshes + 1
        for refresh in range(self.state.refreshes, rounds):
            self.hooks.progress("discovery and warm-up", refresh, rounds)
            state = self.state
            beyond = state.conditional or ()
            sketches, finding = self.discovery.refresh(refresh, state.sketches, state.finding, beyond)
            self.go_on(sketches=sketches, finding=finding)
            self._count()
            self.go_on(refreshes=refresh + 1)
            self.hooks.keep(self.state)

    def judge(self, finding: RoleAssignment) -> RoleAssignment:
        """The same with the confidence of its proposed roles, after the last release. Every process calls this."""
        last = self.state
        if last.finding is not None and not last.finding.confidence:
            self.go_on(finding=self.discovery.with_confidence(last.sketches, last.finding, last.conditional or ()))
            self.hooks.keep(self.state)
        return finding if self.state.finding is None else replace(finding, confidence=self.state.finding.confidence)

    def _count(self) -> None:
        """Keep the noisy number of records that the statistics have told, if it is needed."""
        if self.train.presence is not None and not self.state.records:
            self.go_on(records=self.train.count)
            self.limit()

    def refresh_late(self, number: int) -> RoleAssignment | None:
        """One more release of the sketch, during joint training. `number`: from 0, of the `late_refreshes`.

        Returns the new finding: its caller makes generators and edits anew, which follow from roles and tables. If
        the budget refuses the release, roles and tables stay, and it returns None. Either way its caller keeps the
        state next. Every process of a run calls this.
        """
        state, release = self.state, self.config.refreshes + 1 + number
        if state.finding is None:
            raise RuntimeError("a late refresh comes after discovery")
        self.hooks.progress("late refresh", number, self.config.late_refreshes)
        beyond = state.conditional or ()
        sketches, finding = self.discovery.refresh(release, state.sketches, state.finding, beyond)
        self.go_on(sketches=sketches, finding=finding, refreshes=release + 1)
        return finding if sketches is not state.sketches else None

    def leave_out(self, names: Sequence[str]) -> None:
        """Take these features, and no others, out of the model.

        The head keeps weights for their columns, which are 0 from now on.
        """
        self.dropped = tuple(names)
        self.encoders = {p.rank: without(self.encoders[p.rank], names, p.known.inputs) for p in self.train.parties}
        self._read()

    def generate(
        self, finding: RoleAssignment, decided: Collection[str] | None = None
    ) -> tuple[RoleAssignment, dict[str, dict[int, Generator]]]:
        """Local generators of every party for every protected attribute, after the interventional check.

        `decided`: features whose roles stay, whether or not they respond; by default those of the card.
        """
        if decided is None:
            decided = self.card.decisions if self.card is not None else ()

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
                        p.known.inputs,
                    )
                    for p in self.train.parties
                }
                for sketch in self.state.sketches
            }

        self.hooks.progress("generators", 0, 1)
        generators = build(finding.roles)
        fixed: dict[str, float] = {}
        edited: dict[str, float] = {}
        for attribute in self.train.protected:
            moved = self._movement(generators[attribute.name], finding.roles, len(attribute.groups))
            for known, seen in zip((fixed, edited), moved, strict=True):
                known.update({k: max(known.get(k, 0.0), float(v != 0)) for k, v in seen.items()})
        checked = interventional_check(
            finding,
            self.engine.publish(MOVED_FIXED.name, fixed),
            self.engine.publish(MOVED_EDITED.name, edited),
            decided,
        )
        self.hooks.audit("interventional check", checked.as_record())
        if not checked.roles.edited:
            self.hooks.audit("no mediator", {"so": "nothing is edited, and training is plain training"})
        return checked, build(checked.roles)

    def _movement(
        self, generators: Mapping[int, Generator], roles: Roles, groups: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """How far each fixed and each edited feature moves: under the tables, or in the training records.

        Edits that follow from tables touch no other feature, so fixed ones do not move.
        """
        if self.config.exact_records:
            return movement(self.own_records, generators, roles, groups)
        fixed: dict[str, float] = {}
        edited: dict[str, float] = {}
        for party in self.train.parties:
            fixed |= dict.fromkeys(set(party.layout.names) - set(roles.edited), 0.0)
            edited |= table_movement(party.layout, generators[party.rank], roles.edited, groups)
        return fixed, edited

    def _validity(self, generators: Mapping[int, Generator], roles: Roles, groups: int) -> Validity:
        """Validity terms of this process's parties; table generators stay in the public range."""
        if self.config.exact_records:
            return validity(self.own_records, generators, roles, groups)
        moved = self._movement(generators, roles, groups)[1]
        return Validity(size=sum(moved.values()))

    def validate(self, roles: Roles, generators: Mapping[str, Mapping[int, Generator]]) -> None:
        """Open V_id, V_supp and the size of edits, summed over the parties that edit."""
        edits = any(not set(roles.edited).isdisjoint(p.layout.names) for p in self.train.parties)
        for attribute in self.train.protected:
            own = self._validity(generators[attribute.name], roles, len(attribute.groups))
            summed = self.engine.total(VALIDITY.name, astuple(own), edits)
            told: dict[str, Any] = {"so": "fewer than two parties edit, and one party's own terms are not opened"}
            if summed is not None:
                told = asdict(Validity(*summed))
            self.hooks.audit("validity of edits, summed over parties", {"attribute": attribute.name, **told})
            self.validity[attribute.name] = told

    @property
    def own_records(self) -> tuple[Party, ...]:
        """The training records of this process, without rows where a party has none."""
        return tuple(p.known for p in self.train.parties)

    def leaking(self) -> dict[str, dict[str, Any]]:
        """V_leak of every protected attribute, if it is asked for."""
        if not self.config.leak:
            return {}
        if not self.guessers:  # steps of first order, or a resumed run that had taken them all
            steep, known = CURVATURE[self.task], self.train.protected
            self.guessers = adversaries_alone(self.engine, self.batch, self.steepness(), steep, known)
        known, floor = self.validation.protected, self.config.min_group
        return leaks(self.engine, self.guessers, self.check, known, floor, self.hooks.audit)

    def learned(self, finding: RoleAssignment) -> None:
        """Called once roles and tables are final, before edits are encoded. Encodings without s need neither."""

    def penalties(
        self, finding: RoleAssignment, generators: Mapping[str, Mapping[int, Generator]], last: bool = True
    ) -> tuple[Any, Any, Blocks]:
        """Consistency of train and validation, and each owner's curvature bound of it.

        From tables no record enters, and both are the same, unless a rule asks for flips of validation records.
        `last`: no refresh follows. A noisy Gram matrix of records' edits is released for the last tables alone; the
        steps before a refresh take the penalty from tables.
        """
        if self.config.consistency_from == "tables" or (self.config.releases_gram and not last):
            expected, energy = self._expected(finding, generators)
            check = expected if self.config.flip_target is None else self._edits_of_validation(finding, generators)
            return expected, check, energy
        if self.config.releases_gram:
            penalty, energy = self._released(finding, generators)
            return penalty, penalty, energy
        return self._penalties_of_records(finding, generators)

    def _released(
        self, finding: RoleAssignment, generators: Mapping[str, Mapping[int, Generator]]
    ) -> tuple[Any, dict[int, np.ndarray]]:
        """The penalty under the noisy Gram matrix of records' edits, and the diagonal of each owner's part.

        The matrix is released once; a resumed run reads it from its checkpoint.
        """
        moving = self.moving(finding.roles)
        if moving is None:
            raise ValueError("a noisy Gram matrix of edits is for mode sealed and public layouts of all parties")
        if GRAM.name not in self.state.own:
            self.go_on(own={**self.state.own, GRAM.name: self._noisy_gram(finding.roles, generators, moving)})
            self.hooks.keep(self.state)
        root = released_root(self.state.own[GRAM.name])
        ends = np.cumsum([0, *(len(moving[rank]) for rank in sorted(moving))])
        parts = {
            p.rank: TableGram(root[:, ends[p.rank] : ends[p.rank + 1]], np.zeros((self.columns(p.rank),) * 2))
            for p in self.train.parties
        }
        guards = self.guards(finding.roles)
        return self.engine.expected([parts], guards), {rank: part.energy for rank, part in parts.items()}

    def _noisy_gram(
        self, roles: Roles, generators: Mapping[str, Mapping[int, Generator]], moving: Mapping[int, np.ndarray]
    ) -> np.ndarray:
        """Release the mean Gram matrix of the training records' edits, over all columns; 0 if nothing is edited."""
        self.hooks.progress("counterfactuals", 0, 1)
        train, privacy, names = self.train, self.privacy, set(roles.edited) - set(roles.dropped)
        if privacy is None:
            raise ValueError("a noisy Gram matrix of edits needs something that charges it")
        radii = {rank: SHORTENED * edit_radius(layout, names) for rank, layout in self.layouts.items()}
        columns = sum(int(reach.sum()) for reach in moving.values())
        if not columns:
            return np.zeros((sum(map(len, moving.values())),) * 2)
        made = [
            EncodedEdits(
                train.parties,
                len(attribute.groups),
                generators[attribute.name],
                self.encoders,
                self.encodings,
                self._draws(train),
                self.seed,
                radii,
            )
            for attribute in train.protected
        ]
        edits = len(made) * self._draws(train)
        moved = gram_sensitivity(radii.values(), columns, edits, train.rows)
        codes = [attribute.codes for attribute in train.protected]
        summed = self.engine.noisy_gram(made, codes, moving, train.presence, lambda: privacy.charge_gram(moved))
        return summed / (edits * train.count)

    def _draws(self, part: Part) -> int:
        """Edits of each record and attribute."""
        return int(np.clip(EDITED_ROWS // part.rows, min(2, self.config.draws), self.config.draws))

    def _expected(
        self, finding: RoleAssignment, generators: Mapping[str, Mapping[int, Generator]]
    ) -> tuple[Any, dict[int, np.ndarray]]:
        """The penalty under the released tables, and the diagonal of each owner's part."""
        self.hooks.progress("counterfactuals", 0, 1)
        names = set(finding.roles.edited) - set(finding.roles.dropped)
        grams = [
            {
                p.rank: self.gram_of(p, generators[attribute.name][p.rank], names, len(attribute.groups))
                for p in self.train.parties
            }
            for attribute in self.train.protected
        ]
        energy = {p.rank: np.max([gram[p.rank].energy for gram in grams], axis=0) for p in self.train.parties}
        return self.engine.expected(grams, self.guards(finding.roles)), energy

    def gram_of(self, party: Party, generator: Generator, names: Collection[str], groups: int) -> TableGram:
        """Party step, local: its part of the expected Gram matrix of edits of these features."""
        encoder = self.encoders[party.rank]
        if isinstance(encoder, FeatureEncoder):
            return sampled_gram(party.layout, generator, encoder, names, groups, self.seed)
        if not isinstance(encoder, PlainEncoder):
            raise TypeError(f"no edits from tables for encoder {type(encoder).__name__}")
        return table_gram(party.layout, generator, encoder, names, groups)

    def public_reach(self) -> Blocks:
        found = {}
        for party in self.train.parties:
            encoder, plain = self.encoders[party.rank], public_reach(party.layout)
            more = encoder.columns - len(plain)
            radius = encoder.radius if isinstance(encoder, FeatureEncoder) else 0.0
            found[party.rank] = np.concatenate([plain, np.full(more, radius)])
        return found

    def _edits_of_validation(self, finding: RoleAssignment, generators: Mapping[str, Mapping[int, Generator]]) -> Any:
        """Edits of validation records, selected by their s."""
        joined = self._edits_of_parts(finding, generators, [(self.validation, self.check_encodings)])
        return joined[0][0]

    def _penalties_of_records(
        self, finding: RoleAssignment, generators: Mapping[str, Mapping[int, Generator]]
    ) -> tuple[Any, Any, Blocks]:
        parts = [(self.train, self.encodings), (self.validation, self.check_encodings)]
        joined, energy = self._edits_of_parts(finding, generators, parts)
        return joined[0], joined[1], energy

    def _edits_of_parts(
        self,
        finding: RoleAssignment,
        generators: Mapping[str, Mapping[int, Generator]],
        parts: Sequence[tuple[Part, Blocks]],
    ) -> tuple[list[Any], dict[int, np.ndarray]]:
        """Edits of the records of these parts, and each owner's curvature bound of those of the training part."""
        energy = {p.rank: np.zeros(self.columns(p.rank)) for p in self.train.parties}
        joined = []
        for number, (part, encodings) in enumerate(parts):
            self.hooks.progress("counterfactuals", number, len(parts))
            edits = []
            for place, attribute in enumerate(part.protected):
                draws, given = self._draws(part), generators[attribute.name]
                made = self.edits_of(part, encodings, len(attribute.groups), given, draws)
                moving = self.moving(finding.roles)
                edits.append(self.engine.edits(made, attribute.codes, place, moving, part.presence))
                if part is self.train:
                    share = part.rows / part.count
                    energy = {k: np.maximum(v, share * made.energy[k]) for k, v in energy.items()}
            joined.append(self.engine.join(edits, self.guards(finding.roles)))
        return joined, energy

    def edits_of(
        self, part: Part, encodings: Blocks, groups: int, generators: Mapping[int, Generator], draws: int
    ) -> EncodedEdits:
        """Encoded edits of one part under one protected attribute."""
        return EncodedEdits(part.parties, groups, generators, self.encoders, encodings, draws, self.seed)

    def moving(self, roles: Roles) -> Mapping[int, np.ndarray] | None:
        """Of every party, the columns of the head that edits may change; None where that is not known."""
        if not self.layouts or not self.fitted_here:
            return None
        names, kind = set(roles.edited) - set(roles.dropped), self.config.encoder
        return {rank: reached(layout, names, kind) for rank, layout in self.layouts.items()}

    def columns(self, rank: int) -> int:
        """How many columns of the head a party has."""
        return self.encoders[rank].columns

    def guards(self, roles: Roles) -> list[Blocks]:
        """Directions along which the proxies reveal s, one per protected attribute; none without a proxy."""
        guards: list[Blocks] = []
        if not roles.guarded:  # as all know
            return guards
        for sketch in self.state.sketches:
            blocks = {}
            for party in self.train.parties:
                plain = shift_direction(party.layout, sketch.tables, roles.guarded)
                spare = self.columns(party.rank) - len(plain)
                blocks[party.rank] = np.concatenate([plain, np.zeros(spare)])
            guards.append(blocks)
        return guards

    def columns_left_out(self, roles: Roles) -> tuple[int, ...] | None:
        """Columns of mediators and proxies over all parties, by the public roles; None without a control."""
        if not (self.config.control and self.config.second_order and self.outputs == 1):
            return None
        hidden: dict[str, float] = {}
        for party in self.train.parties:
            encoder = self.encoders[party.rank]
            if not isinstance(encoder, PlainEncoder):
                raise TypeError("a control leaves columns out, so each must belong to one feature")
            shown = replace(encoder, dropped=frozenset(roles.descendants)).shown
            hidden |= {f"{party.rank} {number}": 1.0 - value for number, value in enumerate(shown)}
        told = self.engine.publish(LEFT_OUT.name, hidden)
        order = sorted(told, key=lambda name: tuple(map(int, name.split())))
        return tuple(at for at, name in enumerate(order) if told[name])

    def fit(self, descend: Descend, check: Any) -> None:
        """Train the whole grid of lambda, then check, measure or choose among all heads at once.

        The heads are kept if their measures are opened, else the one that is taken, or the engine's choice.
        """
        config, lambdas = self.config, self.config.trained
        if len(self.state.trials) == len(lambdas):  # a resumed run may have done all of it
            return
        heads = self.heads_of(descend, lambdas)
        seen: Sequence[Measures | None] = [None] * len(heads)
        choice = None
        if not config.private:
            # The bit is opened, so in secret evaluation it may be about training records only.
            every = heads if self.state.control is None else (*heads, self.state.control)
            self.engine.check_range(every, self.check if config.evaluation == "exact" else self.batch)
        if config.private and (len(heads) == 1 or config.evaluation == "noisy"):
            heads = (heads[lambdas.index(config.taken)],) if config.evaluation == "noisy" else heads
        elif config.evaluation == "exact":
            seen = self.engine.measure(heads, self.check, check, config.target.measure == "flips")
        elif config.taken is None:
            choice, heads = self.engine.choose(heads, self.check, check, config.target), ()
        else:
            heads = (heads[lambdas.index(config.taken)],)
        trials = tuple(Trial(lam, found, config.steps_per_lambda) for lam, found in zip(lambdas, seen, strict=True))
        for trial in trials:
            self.hooks.audit("lambda tried", asdict(trial))
        self.go_on(trials=trials, taken=0, heads=heads, choice=choice)
        self.hooks.keep(self.state)

    def steps_before_grid(self) -> int:
        """The warm-up before each late release."""
        return self.config.late_refreshes * WARM_STEPS

    def chosen(self) -> tuple[Any, float | None]:
        """The head that the rule chooses, and its lambda unless that is secret."""
        config, trials = self.config, self.state.trials
        if config.evaluation == "exact":
            met = [t.lam == config.taken for t in trials]
            if config.taken is None:
                met = [t.validation is not None and t.validation.meets(config.target) for t in trials]
            place = met.index(True) if any(met) else len(met) - 1
            return self.state.heads[place], trials[place].lam
        if config.taken is not None:
            return self.state.heads[0], config.taken
        only = config.lambdas[0] if len(config.lambdas) == 1 else None
        return self.state.choice, only

    def frontier(self) -> tuple[tuple[float, Any], ...]:
        """Every lambda with its head, unless the choice among them is secret."""
        if self.config.evaluation != "exact":
            return ()
        return tuple((trial.lam, head) for trial, head in zip(self.state.trials, self.state.heads, strict=True))

    def run(
        self,
        roles: Roles | None = None,
        state: State | None = None,
        phase: Phase = lambda name: nullcontext(),
    ) -> Model:
        """All phases in order, or the rest of them from a kept state. `roles` fixes the roles for a comparison.

        Every process of a run calls this with what it holds; `phase` is entered around each phase.
        """
        if state is not None:
            self.begin(state)
        with phase("discovery and warm-up"):
            self.discover()
        found = self.state.finding
        if found is None:
            raise RuntimeError("no sketch was released")
        left = range(self.state.refreshes - self.config.refreshes - 1, self.config.late_refreshes)
        made = self._edited(found, roles, phase, not left)
        for number in left:
            with phase("discovery and warm-up"):
                self.warm_up(made.penalty, made.energy, made.reach)
            with phase("late refreshes"):
                later = self.refresh_late(number)
                self.hooks.keep(self.state)
            last = number == left[-1]
            if later is not None or (last and self.config.releases_gram):
                found = found if later is None else later
                made = self._edited(found, roles, phase, last)
        with phase("late refreshes" if self.config.late_refreshes else "discovery and warm-up"):
            finding, generators = self.judge(made.finding), made.generators
        with phase("counterfactuals"):
            self.left_out = self.columns_left_out(finding.roles)
            self.validate(finding.roles, generators)
        with phase("training"):
            self.fit(self.joint(made.penalty, made.energy, made.reach), made.check)
            head, lam = self.chosen()
            temperature = 1.0
            if not self.config.private:  # a temperature would be chosen on records
                head, temperature = calibrated(self.engine, head, self.check, self.task, self.config.evaluation)
            leak = self.leaking()
        return Model(
            self.engine,
            self.encoders,
            head,
            self.task,
            temperature,
            lam,
            finding,
            self.state.sketches,
            generators,
            self.state.trials,
            self.frontier(),
            control=self.state.control,
            validity=with_leaks(self.validity, leak),
        )

    def _edited(self, found: RoleAssignment, roles: Roles | None, phase: Phase, last: bool) -> _Edited:
        """Generators and penalty for these roles and the tables of the state. `last`: no refresh follows."""
        found = found if roles is None else replace(found, roles=roles)
        with phase("counterfactuals"):
            if found.roles.dropped != self.dropped:
                self.leave_out(found.roles.dropped)
            finding, generators = self.generate(found, None if roles is None else roles.of)
            self.learned(finding)
            penalty, check, energy = self.penalties(finding, generators, last)
            return _Edited(finding, generators, penalty, energy, self.reach(self.guards(finding.roles)), check)


def calibrated(engine: Engine, head: Any, batch: Any, task: Task, evaluation: EvaluationKind) -> tuple[Any, float]:
    """Head and temperature with the lowest log loss on a batch, from a fixed grid.

    In secret the temperature becomes part of the head, and the returned temperature is 1.
    """
    if task == "regression":
        return head, 1.0
    if evaluation == "exact":
        return head, TEMPERATURES[engine.best_temperature(head, batch, TEMPERATURES)]
    return engine.with_best_temperature(head, batch, TEMPERATURES), 1.0


def train(
    engine: Engine,
    statistics: Statistics,
    data: Dataset,
    split: Split,
    config: TrainConfig,
    seed: int,
    *,
    card: PolicyCard | None = None,
    roles: Roles | None = None,
    parties: tuple[Party, ...] | None = None,
    driver: type[Trainer] = Trainer,
    privacy: HeadCharge | None = None,
    tabled: Roles | None = None,
) -> Model:
    """The whole method on one split, all parties in this process. `roles` fixes them for a comparison.

    `tabled`: roles that are taken as those of a card, where tables of s are released for the columns it names alone.
    """
    whole = make_parties(data) if parties is None else parties
    parts = [part_of(data, rows, whole) for rows in (config.training_rows(split), split.validation)]
    layouts = {party.rank: party.layout for party in whole}
    decided = (None if card is None else card.roles) if tabled is None else tabled
    names = config.tabled(decided, data.owners) if driver.by_card else ()
    problem = Problem(data.task, data.outputs, parts[0], parts[1], data.owners, layouts, names)
    return driver(engine, statistics, problem, config, seed, card, privacy=privacy).run(roles)
