"""SCC-VFL, sealed: label-free local encoders, a fused linear head (or a module), consistency under counterfactuals.

`Trainer.run` reads like the paper: discovery, generators, joint training with a repeated release of the tables. The
same code drives the plaintext and the secure engine. No per-record value of s, of the label or of a logit passes
through it. The weight lambda is a setting.

A private head is trained at one public lambda, unless `lambdas` names more, each of which is charged. Without privacy
the whole grid of lambda is trained: it is the frontier between accuracy and consistency, and one point of it becomes
the model. Before each late release the weights take a few steps under the penalty of the tables so far (`warm_up`).
Roles, counterfactuals and penalty then follow the tables of all releases, and the grid starts from those weights. So
the model and every point of the frontier are trained under the final roles and tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from secure_sccvfl.models.aware import AwareCounterfactuals, AwareEncoders, hypotheses, make_aware
from secure_sccvfl.models.certificate import range_gram
from secure_sccvfl.models.counterfactuals import EncodedCounterfactuals, ValidityTerms, movement, validity
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
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.session.rows import RowSource, applied
from secure_sccvfl.releases.catalogue import (
    FEATURES,
    GRAM,
    GUARD_LENGTH,
    MOVED_EDITED,
    MOVED_FIXED,
    VALIDITY,
)
from secure_sccvfl.releases.mechanisms import (
    LARGEST_CURVATURE,
    SHORTENED,
    HeadCharge,
    HeadNoise,
    gram_sensitivity,
    released_root,
)
from secure_sccvfl.training.config import (
    BASELINES,
    PRIVATE_RATE,
    TEMPERATURES,
    WARM_RATE,
    WARM_STEPS,
    Segment,
    TrainConfig,
    least_curvature,
    private_schedule,
    second_order_schedule,
)
from secure_sccvfl.training.engine import CURVATURE, PRIVATE_CURVATURE, Engine, Measures, Step
from secure_sccvfl.training.grid import Bounds, Grid, sampled_rows
from secure_sccvfl.training.model import Hooks, Model, Problem, State, Trial, with_leak
from secure_sccvfl.training.modules import MODULE_MOMENTUM, MODULE_RATE
from secure_sccvfl.training.proven import TRAINING, VALIDATION, Records, forms_of

EDITED_ROWS = 20_000
Phase = Callable[[str], AbstractContextManager[None]]
Generators = Mapping[str, Mapping[int, Generator]]
"""By name of the protected attribute and rank."""


@dataclass(frozen=True)
class Counterfactuals:
    """What follows from roles and tables: a checked role assignment, its generators, and the penalty of training.

    energy, reach: each owner's curvature bounds of the consistency penalty and of the proxy penalty. check: the
    consistency penalty over validation records. ranges: each owner's part of the range penalty; none without kappa.
    """

    assignment: RoleAssignment
    generators: Generators
    penalty: Any
    energy: Blocks
    reach: Blocks
    check: Any
    ranges: Blocks

    def with_ranges(self, flat: Blocks) -> Blocks:
        """Curvature bounds of loss and ridge, and of the range penalty too."""
        return {rank: bound + np.diag(self.ranges[rank]) for rank, bound in flat.items()} if self.ranges else flat


class Trainer:
    """One run on one engine. `run` is the whole method; `state` is what a checkpoint keeps."""

    state: State
    by_card = True
    """Whether it needs no table but those of `TrainConfig.tabled`."""
    further_steps = 0
    """So many more steps of private heads than mode `sealed` takes."""

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
        """`encoders`: trained before in mode `dp`; otherwise they are fitted here, without labels.

        `privacy` charges a private head.
        """
        self.privacy = privacy
        config = config.with_ridge(problem.train.rows)
        self.engine, self.config, self.seed, self.card = engine, config, seed, card
        self.task, self.outputs = problem.task, problem.outputs
        self.train, self.validation, self.layouts = problem.train, problem.validation, problem.layouts
        self.hooks = Hooks() if hooks is None else hooks
        self.validity: dict[str, dict[str, Any]] = {}
        self.dropped: tuple[str, ...] = ()
        self.fitted_here = encoders is None
        self.encoders: Mapping[int, Encoder] = (
            {p.rank: self._encoder(p) for p in self.train.parties} if encoders is None else encoders
        )
        counts = engine.publish(FEATURES.name, {str(p.rank): len(p.layout.blocks) for p in self.train.parties})
        self.discovery = Discovery(
            statistics,
            self.train.parties,
            self.train.protected,
            int(sum(counts.values())),
            config.discovery,
            seed,
            card,
            self.hooks.audit,
            owners=problem.owners,
            tabled=problem.tabled,
            released=problem.released,
            may_be_missing=problem.may_be_missing,
        )
        self.enter()

    def update(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    # inputs

    def _encoder(self, party: Party) -> Encoder:
        """For a private head a row may depend only on its own record, so it is centred on public values."""
        if self.config.private:
            return public_encoder(party.layout)
        return fit_encoder(party.layout, party.with_record.inputs)

    def enter(self) -> None:
        """Pass the encoded records to the engine, and start from zero weights, or a module's public first weights."""
        self._read()
        first, module = (self.batch, self.outputs, self.task), self.config.module
        head = self.engine.head(*first) if module is None else self.engine.module_head(*first, module, self.seed)
        self.state = State(head)

    def _read(self) -> None:
        self.encodings: Blocks = self._encode(self.train)
        self.check_encodings: Blocks = self._encode(self.validation)
        self.batch = self.bind(self.encodings, self.train)
        self.check = self.bind(self.check_encodings, self.validation)

    def _encode(self, part: Part) -> Blocks:
        return {
            p.rank: p.cleared(applied(self.encoders[p.rank], p.inputs, self.columns(p.rank))) for p in part.parties
        }

    def bind(self, encodings: Any, part: Part, dropped: Sequence[str] | None = None) -> Any:
        """A batch of these encodings. A private head of classes needs the label as a class.

        dropped: features that are left out; by default those of this trainer.
        """
        ridge = {p.rank: np.full(self.columns(p.rank), self.config.ridge) for p in part.parties}
        classes = self.config.private and self.task != "regression"
        records = None
        if self.config.private and all(isinstance(one, PlainEncoder) for one in self.encoders.values()):
            left_out = self.dropped if dropped is None else dropped
            forms = forms_of([self.layouts[rank] for rank in sorted(self.layouts)], left_out)
            name = TRAINING if part is self.train else VALIDATION
            records = Records(name, forms, {p.rank: p.inputs for p in part.parties})
        return self.engine.bind(encodings, part.label, ridge, self.outputs, part.membership, classes, records)

    def columns(self, rank: int) -> int:
        return self.encoders[rank].columns

    def drop(self, names: Sequence[str]) -> None:
        """Take these features, and no others, out of the model; weights of their columns are 0 from now on."""
        self.dropped = tuple(names)
        self.encoders = {
            p.rank: without(self.encoders[p.rank], names, p.with_record.inputs) for p in self.train.parties
        }
        self._read()

    # discovery

    def begin(self, state: State) -> None:
        self.state = state if state.head is not None else replace(state, head=self.state.head)
        if self.train.membership is not None and state.records:
            self.train.membership.set_count(state.records)

    def discover(self) -> None:
        """The first release of noisy tables and early repeated ones; tables are averaged, roles damped."""
        if self.state.conditional is None:
            self.update(conditional=self.discovery.conditional(self.validation.parties))
        rounds = self.config.refreshes + 1
        for release in range(self.state.refreshes, rounds):
            self.hooks.progress("discovery and warm-up", release, rounds)
            self._release(release)
            if self.train.membership is not None and not self.state.records:
                self.update(records=self.train.count)  # the noisy number that the statistics have opened
            self.update(refreshes=release + 1)
            self.hooks.keep(self.state)

    def _release(self, number: int) -> None:
        """One more release of the tables, and the roles that follow from all of them."""
        state = self.state
        noisy_tables, assignment = self.discovery.refresh(
            number, state.noisy_tables, state.assignment, state.conditional or ()
        )
        self.update(noisy_tables=noisy_tables, assignment=assignment)

    def release_again(self, number: int) -> RoleAssignment | None:
        """One more release of the tables, during joint training. `number`: from 0, of the `late_refreshes`.

        Returns the new assignment: its caller makes generators and counterfactuals again. If the budget refuses the
        release, roles and tables stay, and it returns None. Either way its caller keeps the state next. Every process
        of a run calls this.
        """
        before, release = self.state.noisy_tables, self.config.refreshes + 1 + number
        if self.state.assignment is None:
            raise RuntimeError("a late release comes after discovery")
        self.hooks.progress("late refresh", number, self.config.late_refreshes)
        self._release(release)
        self.update(refreshes=release + 1)
        return self.state.assignment if self.state.noisy_tables is not before else None

    def with_confidence(self, assignment: RoleAssignment) -> RoleAssignment:
        """The assignment with the confidence of its roles, after the last release. Every process calls this."""
        last = self.state
        if last.assignment is not None and not last.assignment.confidence:
            self.update(
                assignment=self.discovery.with_confidence(last.noisy_tables, last.assignment, last.conditional or ())
            )
            self.hooks.keep(self.state)
        if self.state.assignment is None:
            return assignment
        decided = self.state.assignment
        return replace(assignment, confidence=decided.confidence, missing_depends=decided.missing_depends)

    # generators

    def generate(
        self, assignment: RoleAssignment, decided: Collection[str] | None = None
    ) -> tuple[RoleAssignment, dict[str, dict[int, Generator]]]:
        """Local generators of every party for every protected attribute, after the interventional check.

        `decided`: features whose roles stay, whether or not they respond; by default those of the card.
        """
        if decided is None:
            decided = self.card.decisions if self.card is not None else ()

        tables = self.state.noisy_tables
        if self.config.own_marginals:
            if self.train.membership is not None:
                raise ValueError("own_marginals needs a known set of records: hidden alignment is refused")
            tables = tuple(one.with_marginals(self.train.parties) for one in tables)

        def build(roles: Roles) -> dict[str, dict[int, Generator]]:
            settings = roles, self.config.generator, self.seed
            return {
                one.attribute: {
                    p.rank: make_generator(
                        p.layout, one.tables, one.deviation, *settings, p.with_record.inputs, one.structure
                    )
                    for p in self.train.parties
                }
                for one in tables
            }

        self.hooks.progress("generators", 0, 1)
        generators = build(assignment.roles)
        fixed: dict[str, float] = {}
        edited: dict[str, float] = {}
        for attribute in self.train.protected:
            moved = self._movement(generators[attribute.name], assignment.roles, len(attribute.groups))
            for largest, seen in zip((fixed, edited), moved, strict=True):
                largest.update({k: max(largest.get(k, 0.0), float(v != 0)) for k, v in seen.items()})
        checked = interventional_check(
            assignment,
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

        Counterfactuals that follow from tables touch no other feature, so fixed ones do not move.
        """
        if self.config.exact_records:
            return movement(self.own_records, generators, roles, groups)
        fixed: dict[str, float] = {}
        edited: dict[str, float] = {}
        for party in self.train.parties:
            fixed |= dict.fromkeys(set(party.layout.names) - set(roles.edited), 0.0)
            edited |= table_movement(party.layout, generators[party.rank], roles.edited, groups)
        return fixed, edited

    def validate(self, roles: Roles, generators: Generators) -> None:
        """Open V_id, V_supp and the size of counterfactual changes, summed over the parties with mediators."""
        has_mediators = any(not set(roles.edited).isdisjoint(p.layout.names) for p in self.train.parties)
        for attribute in self.train.protected:
            given = generators[attribute.name], roles, len(attribute.groups)
            if self.config.exact_records:
                terms = validity(self.own_records, *given)
            else:  # table generators stay in the public range
                terms = ValidityTerms(size=sum(self._movement(*given)[1].values()))
            summed = self.engine.total(VALIDITY.name, astuple(terms), has_mediators)
            record: dict[str, Any] = {"so": "fewer than two parties edit, and one party's own terms are not opened"}
            if summed is not None:
                record = asdict(ValidityTerms(*summed))
            self.hooks.audit("validity of edits, summed over parties", {"attribute": attribute.name, **record})
            self.validity[attribute.name] = record

    @property
    def own_records(self) -> tuple[Party, ...]:
        """The training records of this process, without rows where a party has none."""
        return tuple(p.with_record for p in self.train.parties)

    # penalties

    def prepare(self, assignment: RoleAssignment, roles: Roles | None, phase: Phase, last: bool) -> Counterfactuals:
        """Generators and penalty for these roles and the tables of the state. `last`: no release follows."""
        assignment = assignment if roles is None else replace(assignment, roles=roles)
        with phase("counterfactuals"):
            if assignment.roles.dropped != self.dropped:
                self.drop(assignment.roles.dropped)
            checked, generators = self.generate(assignment, None if roles is None else roles.of)
            self.encode_with(checked)
            penalty, check, energy = self.penalties(checked, generators, last)
            reach = self.proxy_bound(self.proxy_directions(checked.roles))
            ranges = self.ranges(checked.roles)
            penalty = self.engine.with_ranges(penalty, ranges) if ranges else penalty
            return Counterfactuals(checked, generators, penalty, energy, reach, check, ranges)

    def encode_with(self, assignment: RoleAssignment) -> None:
        """Called once roles and tables are known, before counterfactuals are encoded, for encodings that use them."""

    def penalties(
        self, assignment: RoleAssignment, generators: Generators, last: bool = True
    ) -> tuple[Any, Any, Blocks]:
        """Consistency of training and validation records, and each owner's curvature bound of it.

        From tables no record enters, and both are equal except for the net penalty, which is not measured.
        A noisy Gram matrix of records' counterfactuals is released for the last tables only; the steps before a
        release take the penalty from tables.
        """
        config = self.config
        if config.consistency_from == "tables" or (config.releases_gram and not last):
            return self._penalties_of_tables(assignment, generators)
        if config.releases_gram:
            penalty, bound = self._penalty_of_released_gram(assignment, generators)
            return penalty, penalty, bound
        parts = [(self.train, self.encodings), (self.validation, self.check_encodings)]
        penalty, check, bound = self._penalties_of_records(assignment, generators, parts)
        return penalty, check, bound

    def _penalties_of_tables(self, assignment: RoleAssignment, generators: Generators) -> tuple[Any, Any, Blocks]:
        """The penalty under the released tables, with and without that on net flips; the diagonal of each part."""
        self.hooks.progress("counterfactuals", 0, 1)
        names = set(assignment.roles.edited) - set(assignment.roles.dropped)
        grams = [
            {
                p.rank: self.gram_of(p, generators[attribute.name][p.rank], names, len(attribute.groups))
                for p in self.train.parties
            }
            for attribute in self.train.protected
        ]
        directions, weight = self.proxy_directions(assignment.roles), self.config.net_weight
        held = [{rank: gram.with_net_penalty(weight) for rank, gram in by_rank.items()} for by_rank in grams]
        energy = {p.rank: np.max([gram[p.rank].energy for gram in held], axis=0) for p in self.train.parties}
        penalty = self.engine.table_penalty(held, directions)
        return penalty, self.engine.table_penalty(grams, directions) if weight else penalty, energy

    def gram_of(self, party: Party, generator: Generator, names: Collection[str], groups: int) -> TableGram:
        """Party step, local: its part of the expected Gram matrix of counterfactual changes of these features."""
        encoder = self.encoders[party.rank]
        if isinstance(encoder, FeatureEncoder):
            return sampled_gram(party.layout, generator, encoder, names, groups, self.seed)
        if not isinstance(encoder, PlainEncoder):
            raise TypeError(f"no counterfactuals from tables for encoder {type(encoder).__name__}")
        return table_gram(party.layout, generator, encoder, names, groups)

    def _penalty_of_released_gram(self, assignment: RoleAssignment, generators: Generators) -> tuple[Any, Blocks]:
        """The penalty under the noisy Gram matrix of records' counterfactuals, and the diagonal of each owner's part.

        The matrix is released once; a resumed run reads it from its checkpoint.
        """
        moving = self.moving(assignment.roles)
        if moving is None:
            raise ValueError("a noisy Gram matrix is for mode sealed and public layouts of all parties")
        if GRAM.name not in self.state.mode_arrays:
            self.update(
                mode_arrays={
                    **self.state.mode_arrays,
                    GRAM.name: self._noisy_gram(assignment.roles, generators, moving),
                }
            )
            self.hooks.keep(self.state)
        root = released_root(self.state.mode_arrays[GRAM.name])
        ends = np.cumsum([0, *(len(moving[rank]) for rank in sorted(moving))])
        parts = {
            p.rank: TableGram(root[:, ends[p.rank] : ends[p.rank + 1]], np.zeros((self.columns(p.rank),) * 2))
            for p in self.train.parties
        }
        directions = self.proxy_directions(assignment.roles)
        return self.engine.table_penalty([parts], directions), {rank: part.energy for rank, part in parts.items()}

    def _noisy_gram(self, roles: Roles, generators: Generators, moving: Mapping[int, np.ndarray]) -> np.ndarray:
        """Release the mean Gram matrix of the training records' counterfactuals, over all columns; 0 without any."""
        self.hooks.progress("counterfactuals", 0, 1)
        train, privacy, names = self.train, self.privacy, set(roles.edited) - set(roles.dropped)
        if privacy is None:
            raise ValueError("a noisy Gram matrix needs a ledger that charges it")
        radii = {rank: SHORTENED * edit_radius(layout, names) for rank, layout in self.layouts.items()}
        columns = sum(int(reach.sum()) for reach in moving.values())
        if not columns:
            return np.zeros((sum(map(len, moving.values())),) * 2)
        counterfactuals = [
            self.encoded(train, self.encodings, len(attribute.groups), generators[attribute.name], radii)
            for attribute in train.protected
        ]
        count = len(counterfactuals) * self._draws(train)
        moved = gram_sensitivity(radii.values(), columns, count, train.rows)
        codes = [attribute.codes for attribute in train.protected]
        summed = self.engine.noisy_gram(
            counterfactuals, codes, moving, train.membership, lambda: privacy.charge_gram(moved)
        )
        return summed / (count * train.count)

    def _draws(self, part: Part) -> int:
        return int(np.clip(EDITED_ROWS // part.rows, min(2, self.config.draws), self.config.draws))

    def _penalties_of_records(
        self, assignment: RoleAssignment, generators: Generators, parts: Sequence[tuple[Part, Blocks]]
    ) -> list[Any]:
        """The penalties over the records of these parts, and each owner's curvature bound of the training part's."""
        energy = {p.rank: np.zeros(self.columns(p.rank)) for p in self.train.parties}
        penalties: list[Any] = []
        for number, (part, encodings) in enumerate(parts):
            self.hooks.progress("counterfactuals", number, len(parts))
            selected = []
            for index, attribute in enumerate(part.protected):
                counterfactuals = self.encoded(part, encodings, len(attribute.groups), generators[attribute.name])
                moving = self.moving(assignment.roles)
                selected.append(
                    self.engine.counterfactuals(counterfactuals, attribute.codes, index, moving, part.membership)
                )
                if part is self.train:
                    share = part.rows / part.count
                    energy = {k: np.maximum(v, share * counterfactuals.energy[k]) for k, v in energy.items()}
            penalties.append(self.engine.join(selected, self.proxy_directions(assignment.roles)))
        return [*penalties, energy]

    def encoded(
        self,
        part: Part,
        encodings: Blocks,
        groups: int,
        generators: Mapping[int, Generator],
        radii: Mapping[int, float] | None = None,
    ) -> EncodedCounterfactuals:
        given = part.parties, groups, generators, self.encoders, encodings, self._draws(part), self.seed
        return EncodedCounterfactuals(*given, radii)

    def moving(self, roles: Roles) -> Mapping[int, np.ndarray] | None:
        """For every party, the columns of the head that counterfactuals may change; None if unknown."""
        if not self.layouts or not self.fitted_here:
            return None
        names = set(roles.edited) - set(roles.dropped)
        return {rank: reached(layout, names) for rank, layout in self.layouts.items()}

    def proxy_directions(self, roles: Roles) -> list[Blocks]:
        """Directions along which the proxies reveal s, one per protected attribute; none without a proxy."""
        if not roles.penalized:  # as all know
            return []
        directions: list[Blocks] = []
        for noisy_tables in self.state.noisy_tables:
            blocks = {}
            for party in self.train.parties:
                plain = shift_direction(party.layout, noisy_tables.tables, roles.penalized)
                blocks[party.rank] = np.concatenate([plain, np.zeros(self.columns(party.rank) - len(plain))])
            directions.append(blocks)
        return directions

    def proxy_bound(self, directions: Sequence[Blocks]) -> Blocks:
        """Each owner's curvature bound of the proxy penalty; opens the length of its directions."""
        reach = {p.rank: np.zeros(self.columns(p.rank)) for p in self.train.parties}
        for direction in directions:
            length = sum(float(np.abs(block).sum()) for block in direction.values())
            summed = self.engine.total(GUARD_LENGTH.name, [length])
            if summed is None:
                raise RuntimeError("every party must give its part of the length of a direction")
            reach = {k: v + np.abs(direction[k]) * summed[0] for k, v in reach.items()}
        return reach

    def ranges(self, roles: Roles) -> Blocks:
        """Each owner's part of the range penalty; none without kappa."""
        kappa = self.config.kappa
        if not kappa:
            return {}
        return {p.rank: kappa * range_gram(self.encoders[p.rank], roles.edited) for p in self.train.parties}

    def curvature_bound(self) -> Blocks:
        """Each owner's bound on the curvature of loss and ridge in its columns, which need not have a mean of 0."""
        steep = CURVATURE[self.task]
        return {
            rank: steep * self.largest_mean_square(block) + self.config.ridge
            for rank, block in self.encodings.items()
        }

    def largest_mean_square(self, block: Any) -> np.ndarray:
        """`largest_mean` of the squares of encodings; those that workers read are squared some at a time."""
        if not isinstance(block, RowSource):
            return self.largest_mean(block**2)
        chosen = sampled_rows(len(block))
        sums = np.zeros((2, block.shape[1]))
        for where, rows in block.unordered():
            sums += (rows**2).sum(axis=0), (rows[chosen[where]] ** 2).sum(axis=0)
        return np.maximum(sums[0], sums[1] / chosen.mean()) / self.train.count

    def largest_mean(self, squares: np.ndarray) -> np.ndarray:
        """The mean over all records, or over those that curvature is estimated on if it is larger there."""
        chosen = sampled_rows(len(squares))
        whole, part = self.train.mean(squares), self.train.mean(squares[chosen]) / chosen.mean()
        return np.maximum(whole, part)

    def largest_entries(self) -> Blocks:
        """The largest magnitude of each column, from public facts and released tables."""
        entries = {}
        for party in self.train.parties:
            encoder, plain = self.encoders[party.rank], public_reach(party.layout)
            radius = encoder.radius if isinstance(encoder, FeatureEncoder) else 0.0
            entries[party.rank] = np.concatenate([plain, np.full(encoder.columns - len(plain), radius)])
        return entries

    # training

    def _optimize(
        self,
        weights: Any,
        optimizer: Any,
        schedule: Iterable[Segment],
        total: int,
        name: str = "training",
        keep: bool = True,
    ) -> tuple[Any, Any]:
        """The training loop of all heads: weights and optimizer after the schedule.

        keep: the weights are the state after every segment. The number of steps never depends on the data.
        """
        taken = self.state.taken if keep else 0
        for segment in schedule:
            self.hooks.progress(name, taken, total)
            if segment.recompute:
                optimizer = self.engine.sharpen(weights, optimizer)
            weights = self.engine.steps(weights, optimizer, segment.steps, fine=segment.fine)
            taken += segment.steps
            if keep:
                self.update(head=weights, taken=taken)
                self.hooks.keep(self.state)
        return weights, optimizer

    def warm_up(self, counterfactuals: Counterfactuals) -> None:
        """A few steps under this penalty before a late release: joint training has begun.

        First-order steps need no inverse: about 17 rounds. In scaled columns the curvature has a trace of at most the
        number of columns, so at this rate every step goes down, whatever the data are (`grid`, Scale). The weights
        stay secret: no bit about them is opened, not even whether they are in range. They carry no noise and are
        never released; those of the grid start from them and end within the checked tolerance of their minimum
        wherever they started (`releases.mechanisms`). A module takes the first of its steps here.
        """
        self.hooks.progress("warm-up", 0, 1)
        config, weights = self.config, self.state.head
        lam = config.taken
        if config.module is None:
            flat, weight = counterfactuals.with_ranges(self.curvature_bound()), config.guard
            bound = {k: flat[k] + lam * counterfactuals.energy[k] + weight * counterfactuals.reach[k] for k in flat}
            step = Step(WARM_RATE / self.engine.width(weights), 0.0, lam, weight)
            optimizer = self.engine.first_order(self.batch, counterfactuals.penalty, step, bound)
        else:
            optimizer = self._module_optimizer(counterfactuals.penalty, lam)
        self.update(head=self.engine.steps(weights, optimizer, WARM_STEPS))

    def _module_optimizer(self, penalty: Any, lam: float) -> Any:
        step = Step(MODULE_RATE, MODULE_MOMENTUM, lam, self.config.guard)
        return self.engine.autograd(self.batch, penalty, step, self.config.ridge)

    def weights_of(self, counterfactuals: Counterfactuals, lambdas: Sequence[float]) -> tuple[Any, ...]:
        """Weights for each lambda: of a linear head all at once, of a module one lambda after another."""
        config = self.config
        if not config.second_order:
            return self._train_modules(counterfactuals.penalty, lambdas)
        each = tuple(lam for lam in lambdas for _ in range(self.outputs))
        sharpens = any(segment.recompute for segment in second_order_schedule(config, self.task))
        curvature = (PRIVATE_CURVATURE if config.private else CURVATURE)[self.task]
        held = (config.guard,) * len(each)
        grid = Grid(each, held, curvature, sharpens=sharpens)
        if config.private:
            return self.train_private(counterfactuals, grid)
        # A counterfactual of a record is one of those made for the groups: its square is at most the sum of theirs.
        groups = max(len(attribute.groups) for attribute in self.train.protected)
        groups = 1 if config.consistency_from == "tables" else groups
        most = {rank: groups * block for rank, block in counterfactuals.energy.items()}
        flat = counterfactuals.with_ranges(self.curvature_bound())
        return self.train_grid(counterfactuals.penalty, grid, Bounds(flat, most, counterfactuals.reach))

    def _start(self, grid: Grid) -> Any:
        """The weights of a grid where the warm-up ended, which is the same for all; zero where there was none."""
        return self.engine.copied(self.state.head, len(grid) // self.outputs)

    def train_grid(self, penalty: Any, grid: Grid, bounds: Bounds) -> tuple[Any, ...]:
        config = self.config
        if not self.state.taken:
            self.update(head=self._start(grid))
        if self.state.taken < config.newton_steps:  # a resumed run may have taken them all
            optimizer = self.engine.second_order(self.batch, penalty, grid, bounds)
            schedule = second_order_schedule(config, self.task, self.state.taken)
            self._optimize(self.state.head, optimizer, schedule, config.newton_steps)
        return self.engine.apart(self.state.head, self.outputs)

    def train_private(self, counterfactuals: Counterfactuals, grid: Grid) -> tuple[Any, ...]:
        """Private heads: charged, then trained without a checkpoint.

        The last steps have a precise sigmoid. Scales of columns follow from public bounds and released tables, so
        that rounding moves a row by nothing but its own record. A run that was interrupted starts here again: nothing
        followed from the weights that it had not finished, so new noise under the same charge reveals nothing more.
        """
        if self.privacy is None:
            raise ValueError("private heads need a ledger that charges them")
        noise = self.privacy.charge_heads(self.train.count)
        head = self._private_head(self.batch, counterfactuals, grid, noise)
        self.update(head=head, taken=self.config.grid_steps)
        return *self.engine.apart(head, self.outputs), *self._baselines(counterfactuals, grid, noise.baselines)

    def _baselines(self, counterfactuals: Counterfactuals, grid: Grid, noise: HeadNoise | None) -> Iterable[Any]:
        """Private heads to compare with: plain training, and the same without the mediators (`BASELINES`).

        Each has its own noise and no penalty. Without mediators their columns are blank in every row, and the weights
        of these, which only noise has moved, are 0 afterwards.
        """
        if noise is None:
            return
        none = {rank: np.zeros(self.columns(rank)) for rank in counterfactuals.energy}
        plain = replace(counterfactuals, penalty=None, energy=none, reach=none, ranges={})
        grid = replace(grid, lambdas=(0.0,) * self.outputs, proxy_penalties=(0.0,) * self.outputs)
        yield self._private_head(self.batch, plain, grid, noise)
        roles = counterfactuals.assignment.roles
        names, parties = [*roles.dropped, *roles.edited], self.train.parties
        kept = {p.rank: without(self.encoders[p.rank], names, p.with_record.inputs) for p in parties}
        rows = self.bind({p.rank: p.cleared(kept[p.rank](p.inputs)) for p in parties}, self.train, names)
        head = self._private_head(rows, plain, grid, replace(noise, seed=~noise.seed))
        yield self.engine.blanked(head, {rank: reached(of, names) for rank, of in self.layouts.items()})

    def _private_head(self, batch: Any, counterfactuals: Counterfactuals, grid: Grid, noise: HeadNoise) -> Any:
        """Heads of a grid with noise that was charged, finished and checked."""
        config, count = self.config, self.train.count
        groups = max(len(attribute.groups) for attribute in self.train.protected)
        least = least_curvature(noise.ridge / count / grid.curvature, config.kappa, groups, config.net_weight)
        grid = replace(grid, rate=PRIVATE_RATE, momentum=0.0, sharpens=True, separate=True, least=least)
        loss = {k: grid.curvature * most**2 + noise.ridge / count for k, most in self.largest_entries().items()}
        flat = counterfactuals.with_ranges(loss)
        for rank, curvature in flat.items():
            if (
                curvature.size
                and float(
                    (curvature + grid.weight * counterfactuals.energy[rank] + counterfactuals.reach[rank]).mean()
                )
                > LARGEST_CURVATURE
            ):
                raise RangeError("columns are scaled so far that rounding may make rows longer than the public bound")
        bounds = Bounds(flat, counterfactuals.energy, counterfactuals.reach)
        optimizer = self.engine.second_order(batch, counterfactuals.penalty, grid, bounds, noise)
        schedule = private_schedule(config, noise, self.train.rows, count, max(grid.lambdas), self.further_steps)
        total = sum(segment.steps for segment in schedule)
        weights, optimizer = self._optimize(self._start(grid), optimizer, schedule, total, keep=False)
        return self.engine.finish(weights, optimizer)

    def _train_modules(self, penalty: Any, lambdas: Sequence[float]) -> tuple[Any, ...]:
        """First-order steps of a module at each lambda, from the weights of the last one."""
        config = self.config
        for lam in lambdas[len(self.state.heads) :]:
            if self.state.taken < config.steps:  # a resumed run may have taken them all
                optimizer = self._module_optimizer(penalty, lam)
                starts = range(self.state.taken, config.steps, config.keep_every)
                schedule = [Segment(min(config.keep_every, config.steps - start)) for start in starts]
                name = f"training at lambda {lam:g}"
                self._optimize(self.state.head, optimizer, schedule, config.steps, name)
            self.update(heads=(*self.state.heads, self.state.head), taken=0)
            self.hooks.keep(self.state)
        return self.state.heads

    def fit(self, counterfactuals: Counterfactuals) -> None:
        """Train the whole grid of lambda, then check and measure all weights at once.

        All weights are kept if their measures are opened, else those that are taken.
        """
        config = self.config
        if len(self.state.trials) == len(config.lambdas):  # a resumed run may have done all of it
            return
        trained, number = self.weights_of(counterfactuals, config.lambdas), len(config.lambdas)
        heads, baselines = trained[:number], trained[number:]
        measures: Sequence[Measures | None] = [None] * len(heads)
        if not config.private:
            self.engine.check_range(heads, self.check)
        if config.evaluation == "noisy":
            heads = (heads[config.lambdas.index(config.taken)],)
        elif not (config.private and len(heads) == 1):
            measures = self.engine.measure(heads, self.check, counterfactuals.check)
        trials = tuple(
            Trial(lam, seen, config.steps_per_lambda) for lam, seen in zip(config.lambdas, measures, strict=True)
        )
        for trial in trials:
            self.hooks.audit("lambda tried", asdict(trial))
        self.update(trials=trials, taken=0, heads=(*heads, *baselines))
        self.hooks.keep(self.state)

    @property
    def heads(self) -> tuple[Any, ...]:
        """The trained heads without the baselines."""
        return self.state.heads[: -len(BASELINES)] if self.config.baselines else self.state.heads

    def chosen(self) -> Any:
        heads, lambdas = self.heads, self.config.lambdas
        return heads[lambdas.index(self.config.taken) if len(heads) == len(lambdas) else 0]

    @property
    def total_steps(self) -> int:
        """Steps of a run: the warm-up before each late release, and the grid."""
        return self.config.late_refreshes * WARM_STEPS + self.config.total_steps

    def frontier(self) -> tuple[tuple[float, Any], ...]:
        """Every lambda with its weights, unless the choice among them is secret."""
        if self.config.evaluation != "exact":
            return ()
        return tuple((trial.lam, head) for trial, head in zip(self.state.trials, self.heads, strict=True))

    # the whole method

    def run(
        self,
        roles: Roles | None = None,
        state: State | None = None,
        phase: Phase = lambda name: nullcontext(),
    ) -> Model:
        """All phases in order, or the rest of them from a checkpoint. `roles` fixes the roles for a comparison.

        Every process of a run calls this with what it holds; `phase` is entered around each phase.
        """
        if state is not None:
            self.begin(state)
        with phase("discovery and warm-up"):
            self.discover()
        assignment = self.state.assignment
        if assignment is None:
            raise RuntimeError("no table was released")
        left = range(self.state.refreshes - self.config.refreshes - 1, self.config.late_refreshes)
        counterfactuals = self.prepare(assignment, roles, phase, not left)
        for number in left:
            with phase("discovery and warm-up"):
                self.warm_up(counterfactuals)
            with phase("late refreshes"):
                later = self.release_again(number)
                self.hooks.keep(self.state)
            last = number == left[-1]
            if later is not None or (last and self.config.releases_gram):
                assignment = assignment if later is None else later
                counterfactuals = self.prepare(assignment, roles, phase, last)
        with phase("late refreshes" if self.config.late_refreshes else "discovery and warm-up"):
            assignment, generators = self.with_confidence(counterfactuals.assignment), counterfactuals.generators
        with phase("counterfactuals"):
            self.validate(assignment.roles, generators)
        with phase("training"):
            self.fit(counterfactuals)
            head, temperature = self.chosen(), 1.0
            if not self.config.private:  # a temperature would be chosen on records
                temperature = calibrated(self.engine, head, self.check, self.task)
        return Model(
            self.engine,
            self.encoders,
            head,
            self.task,
            temperature,
            self.config.taken,
            assignment,
            self.state.noisy_tables,
            generators,
            self.state.trials,
            self.frontier(),
            dict(zip(BASELINES, self.state.heads[len(self.heads) :], strict=False)),
            validity=with_leak(self.validity),
        )


def calibrated(engine: Engine, head: Any, batch: Any, task: Task) -> float:
    """The temperature, of a fixed grid, with the lowest log loss on a batch."""
    return 1.0 if task == "regression" else TEMPERATURES[engine.best_temperature(head, batch, TEMPERATURES)]


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

    `tabled`: roles that are taken as those of a card, where tables of s are released for the columns it names only.
    """
    whole = make_parties(data) if parties is None else parties
    parts = [part_of(data, rows, whole) for rows in (config.training_rows(split), split.validation)]
    layouts = {party.rank: party.layout for party in whole}
    decided = (None if card is None else card.roles) if tabled is None else tabled
    names = config.tabled(decided, data.owners) if driver.by_card else ()
    problem = Problem(data.task, data.outputs, parts[0], parts[1], data.owners, layouts, names)
    return driver(engine, statistics, problem, config, seed, card, privacy=privacy).run(roles)


class AwareTrainer(Trainer):
    """The trainer of mode `aware`: the model uses s, under MPC, at training and at every decision.

    Before: the holder of s has it per record; every other party has its own columns and its own noisy tables by
    group. After: shares of a head on encodings of which s has selected one for each record (`models.aware`).

    Each owner encodes its records for every group that they may be in. The one-hot of s selects one encoding per
    record under MPC (`Engine.select`), as it selects counterfactuals. A counterfactual changes s too: its
    displacement is the encoding of the changed record in its target group minus that of the record in its own. So the
    penalty asks for equal logits of a record and of its counterpart in the other group, each scored as a member of
    its group.

    Offsets come from the final tables, so records enter after discovery. It opens only what mode `sealed` opens:
    no value of s per record passes through this code. One protected attribute.
    """

    further_steps = 18
    """Rows are scaled to the public radius, so their curvature is small next to its bound and steps converge slowly.
    On acs12-gender 13 more sufficed on all of seeds 620 to 639; with none, none of seeds 620 to 627 settled."""
    by_card = False
    """Every party weighs its encodings by the sizes of groups, which it reads from a table."""

    def enter(self) -> None:
        if len(self.train.protected) != 1:
            raise ValueError(f"mode aware takes one protected attribute, not {len(self.train.protected)}")
        self.state = State(None)
        self.aware: AwareEncoders = {}

    def _read(self) -> None:
        """No encoding yet: records are encoded once their roles are known."""

    def encode_with(self, assignment: RoleAssignment) -> None:
        noisy_tables = self.state.noisy_tables[0]
        self.aware = {
            p.rank: make_aware(p.layout, self.encoders[p.rank], noisy_tables, assignment.roles, self.config.private)
            for p in self.train.parties
        }
        rows = [self._selected(part) for part in (self.train, self.validation)]
        self.batch, self.check = self.bind(rows[0], self.train), self.bind(rows[1], self.validation)
        nothing: Blocks = {}  # counterfactuals of mode aware encode the records themselves
        self.encodings = self.check_encodings = nothing
        if self.state.head is None:
            self.update(head=self.engine.head(self.batch, self.outputs, self.task))
            self.hooks.keep(self.state)

    def release_again(self, number: int) -> RoleAssignment | None:
        """The same; encodings follow from tables, so weights for the old ones are discarded: the next start at 0."""
        assignment = super().release_again(number)
        if assignment is not None:
            self.update(head=None)
        return assignment

    def _selected(self, part: Part) -> Any:
        """The encodings that s selects."""
        return self.engine.select(hypotheses(self.aware, part.parties), part.protected[0].codes)

    def curvature_bound(self) -> Blocks:
        """An owner does not know s, so it takes the largest square over groups."""
        largest: Blocks = {}
        for blocks in hypotheses(self.aware, self.train.parties):
            squares = {rank: block**2 for rank, block in blocks.items()}
            largest = {rank: np.maximum(largest.get(rank, square), square) for rank, square in squares.items()}
        steep = CURVATURE[self.task]
        return {rank: steep * self.largest_mean(square) + self.config.ridge for rank, square in largest.items()}

    def encoded(
        self,
        part: Part,
        encodings: Blocks,
        groups: int,
        generators: Mapping[int, Generator],
        radii: Mapping[int, float] | None = None,
    ) -> AwareCounterfactuals:
        return AwareCounterfactuals(part.parties, groups, generators, self.aware, self._draws(part), self.seed)

    def gram_of(self, party: Party, generator: Generator, names: Collection[str], groups: int) -> TableGram:
        return table_gram(party.layout, generator, self.aware[party.rank], names, groups)

    def largest_entries(self) -> Blocks:
        """Rows are scaled to their radius, so no entry is larger."""
        return {rank: np.full(encoder.columns, encoder.radius) for rank, encoder in self.aware.items()}

    def moving(self, roles: Roles) -> None:
        """Any column: encodings move with s itself."""

    def columns(self, rank: int) -> int:
        return self.aware[rank].columns

    def run(self, *arguments: Any, **named: Any) -> Model:
        return replace(super().run(*arguments, **named), aware=self.aware)
