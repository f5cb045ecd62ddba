"""Method `paper` in mode `split`: what a party trains alone, what weighs what, that it never sees s, and resuming."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from secure_sccvfl.audit.attacks.labels import signals_of
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import Part
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.models.generators import Generator, GeneratorConfig, make_generator
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.research.paper.generators import MaskedGenerator, group_posterior, restored
from secure_sccvfl.research.paper.networks import code_columns, dropout_factors, make_mlp
from secure_sccvfl.research.paper.settings import SETTINGS
from secure_sccvfl.research.split.local import OwnTraining, ValidityWeights
from secure_sccvfl.research.split.mode import SplitConfig, SplitModel, SplitTrainer, split_config, split_releases
from secure_sccvfl.runs.checkpoints import Checkpoints
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import Hooks, Problem, State
from tests.support.gradient_modes import GROUP_HOLDERS, LABEL_HOLDER, PARTIES, german, parts, predictions
from tests.support.sessions import LONG, run_session

HOLDER = GROUP_HOLDERS[0]
MASKED = GeneratorConfig("masked", scale=0.2)
WEIGHTS = ValidityWeights(0.01, 0.01, 0.03)


@cache
def part(rank: int) -> Part:
    return parts(german(), rank)[0]


@cache
def tables_of(rank: int) -> NoisyTables:
    """The noisy tables that this party was given."""
    whole, names = german().model.noisy_tables[0], part(rank).parties[0].layout.names
    return NoisyTables(whole.attribute, {name: whole.tables[name] for name in names}, whole.deviation, whole.releases)


def late_roles() -> Roles:
    """Other roles, as a late refresh may propose: one mediator less, and another is a proxy that is not seen."""
    first, second, *_ = german().roles.edited
    return replace(german().roles.with_role("N", (first,)).with_role("P", (second,)), proxies="drop")


@cache
def pretrained(rank: int, late: bool = False) -> dict[str, np.ndarray]:
    """The generator after the party's training alone, as arrays."""
    party, tables, roles = part(rank).parties[0], tables_of(rank), late_roles() if late else german().roles
    trained = make_generator(party.layout, tables.tables, tables.deviation, roles, MASKED, 0, party.inputs)
    assert isinstance(trained, MaskedGenerator)
    return trained.arrays()


def generator(rank: int, late: bool = False) -> MaskedGenerator:
    layout, roles = part(rank).parties[0].layout, late_roles() if late else german().roles
    edited, guarded = ([n for n in layout.names if n in names] for names in (roles.edited, roles.penalized))
    return restored(layout, edited, guarded, MASKED, pretrained(rank, late))


def own_training(weights: ValidityWeights, rank: int = HOLDER, dropout: float = 0.0) -> OwnTraining:
    party = part(rank).parties[0]
    encoder = make_mlp(party.inputs, 6, 0, code_columns(party.layout))
    training = OwnTraining(encoder, (0.01, 0.0), party, weights, 0, dropout)
    training.take_up([tables_of(rank)], {"s": generator(rank)})
    return training


def learned(local: OwnTraining, steps: int, first: int = 0) -> OwnTraining:
    """Steps from a gradient that is known: it stands for what a session opens."""
    rows = np.arange(0, len(local.inputs), 2)
    signal = np.random.default_rng(1).normal(size=(len(rows), 6)) / len(rows)
    for number in range(first, first + steps):
        local.begin(local.inputs.numpy()[rows], number)
        local.step(signal, rows, number)
    return local


def moved(one: OwnTraining, other: OwnTraining, name: str) -> bool:
    """Whether the network of this name ('encoder', 'generator') differs between two trainings."""
    if name == "generator":
        nets = [training.generators[0].net for training in (one, other)]
    else:
        nets = [training.encoder.net for training in (one, other)]
    states = [net.state_dict() for net in nets]
    return any(not torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    ("weights", "changed"),
    [
        (ValidityWeights(), ()),
        (ValidityWeights(leak=0.5), ("encoder",)),
        (ValidityWeights(support=0.5), ("generator",)),
        (ValidityWeights(identity=0.5), ()),
        (WEIGHTS, ("encoder", "generator")),
    ],
)
def test_each_weight_moves_what_it_weighs_and_nothing_else(
    weights: ValidityWeights, changed: tuple[str, ...]
) -> None:
    """Identity is 0 by construction, so its weight moves nothing. Without weights the encoder learns as before."""
    plain, weighted = learned(own_training(ValidityWeights()), 3), learned(own_training(weights), 3)
    assert {name for name in ("encoder", "generator") if moved(plain, weighted, name)} == set(changed)
    assert moved(own_training(weights), weighted, "encoder"), "the opened gradient teaches it in any case"


def test_the_encoder_moves_against_its_adversary() -> None:
    """One step with nothing opened: the adversary as it was guesses worse from the new activations."""
    local = own_training(ValidityWeights(leak=1.0))
    (before,) = (copy.deepcopy(net) for net in local.adversaries)
    inputs = local.inputs.numpy()

    def loss() -> float:
        return before.loss(torch.tensor(local.encoder(inputs), dtype=torch.float32), local.z_s[0]).item()

    first = loss()
    local.begin(inputs, 0)
    local.step(np.zeros((len(inputs), 6)), np.arange(len(inputs)), 0)
    assert loss() > first


def test_dropout_is_in_steps_alone_and_the_same_for_a_record_and_its_edits() -> None:
    """It follows from seed and step, so a resumed run has the same. An edit that moves nothing shifts nothing."""
    local = own_training(WEIGHTS, dropout=0.5)
    inputs = local.inputs.numpy()
    whole, other, first = local.encoder(inputs), local.begin(inputs, 1), local.begin(inputs, 0)
    assert not np.array_equal(first, whole) and not np.array_equal(first, other)
    assert np.array_equal(local.edited(inputs), first) and np.array_equal(local.begin(inputs, 0), first)
    assert np.array_equal(local.encoder(inputs), whole), "predictions have none"
    plain = own_training(WEIGHTS)
    assert np.array_equal(plain.begin(inputs, 0), plain.encoder(inputs))
    factors = dropout_factors(3000, 6, 0.25, torch.Generator().manual_seed(0))
    assert np.allclose(np.unique(factors), [0, 4 / 3]) and abs(factors.mean().item() - 1) < 0.02


def test_targets_are_posteriors_of_noisy_tables_even_at_the_holder_of_s() -> None:
    local, party = own_training(WEIGHTS), part(HOLDER).parties[0]
    expected = group_posterior(party.layout, party.inputs, tables_of(HOLDER).tables)
    assert np.allclose(local.z_s[0].numpy(), expected, atol=1e-6)
    codes = part(HOLDER).protected[0].codes
    assert codes is not None and not np.allclose(expected, one_hot(codes, 2), atol=0.3)


def test_it_continues_only_with_generators_and_adversaries() -> None:
    whole, half = learned(own_training(WEIGHTS), 6), learned(own_training(WEIGHTS), 3)
    kept = half.state()
    assert {name.split("/")[0] for name in kept} == {"encoder", "generator 0", "adversary 0", "guard 0"} - (
        set() if german().roles.penalized or len(generator(HOLDER).net.guarded) else {"guard 0"}
    )
    resumed, forgetful = own_training(WEIGHTS), own_training(WEIGHTS)
    resumed.go_on(kept)
    assert not moved(whole, learned(resumed, 3, first=3), "encoder")
    assert not moved(whole, resumed, "generator")
    fresh = forgetful.state()
    forgetful.go_on({**fresh, **{k: v for k, v in kept.items() if k.startswith("encoder/")}})
    assert moved(whole, learned(forgetful, 3, first=3), "encoder")


class Fault(Exception):
    pass


class Again:
    """A late refresh: the next tables with other roles, or a refusal. Stands for a `Trainer`."""

    def __init__(self, rank: int, state: State, granted: bool = True) -> None:
        self.rank, self.state, self.granted, self.asked = rank, state, granted, 0

    def release_again(self, number: int) -> RoleAssignment | None:
        self.asked += 1
        self.state = replace(self.state, refreshes=2 + number)
        if not self.granted:
            return None
        tables = tuple(replace(s, releases=s.releases + 1) for s in self.state.noisy_tables)
        self.state = replace(
            self.state, noisy_tables=tables, assignment=replace(german().model.assignment, roles=late_roles())
        )
        return self.state.assignment

    def generate(self, finding: RoleAssignment) -> tuple[RoleAssignment, dict[str, dict[int, Generator]]]:
        return finding, {"s": {self.rank: generator(self.rank, late=True)}}


@dataclass(frozen=True)
class Outcome:
    """What a party has after a session. asked: how many late refreshes it asked for."""

    model: SplitModel
    logits: np.ndarray
    released: Counter[str]
    asked: int
    state: State

    @property
    def generator(self) -> MaskedGenerator:
        (generator,) = self.model.generators["s"].values()
        assert isinstance(generator, MaskedGenerator)
        return generator


QUICK = SplitConfig(
    hidden=6, warmup=4, steps=8, keep_every=4, encoder_rate=0.002, head_rate=0.02, dropout=0.1, columns="codes",
    weights=WEIGHTS,
)  # fmt: skip
LATE = replace(QUICK, late_refreshes=1)
LONGER = replace(QUICK, hidden=16, warmup=6, steps=24, keep_every=24, encoder_rate=0.01, head_rate=0.015)
HASTY = replace(QUICK, steps=40, encoder_rate=0.02, head_rate=0.2, patience=3)
"""Its validation objective is worst for three steps in a row long before the last step."""


def in_secret(
    config: SplitConfig,
    folder: Path | None = None,
    stop: int | None = None,
    resume: bool = False,
    granted: bool = True,
) -> list[Outcome]:
    """Split training of the paper in a session: with a folder it keeps checkpoints, and ends after `stop` of them."""
    ready, together = german(), threading.Barrier(PARTIES)

    def job(session: Any) -> Outcome:
        rank = session.rank
        train, validation, test = parts(ready, rank)
        kept = None if folder is None else Checkpoints(folder / str(rank), "ab" * 32)
        state = State(None, noisy_tables=(tables_of(rank),), refreshes=1, assignment=ready.model.assignment)
        if kept is not None and resume:
            state = kept.resume(session, "binary")
        states = [state]

        def keep(state: State) -> None:
            states.append(state)
            if kept is not None:
                kept.keep(state)
                if kept.number == stop:
                    together.wait(LONG)
                    raise Fault

        refreshing = Again(rank, state, granted)
        assignment = state.assignment
        assert assignment is not None
        trainer = SplitTrainer(
            SecureEngine(session, LABEL_HOLDER, GROUP_HOLDERS),
            Problem("binary", 1, train, validation),
            assignment.roles,
            {"s": {rank: generator(rank, late=assignment.roles == late_roles())}},
            config,
            0,
            Hooks(keep=keep),
            state,
        )
        model = trainer.run(refreshing)
        logits = model.engine.logits(model.head, {rank: model.encoder(test.parties[0].inputs)})
        released = Counter(entry["release"] for entry in session.released)
        return Outcome(model, logits, released, refreshing.asked, states[-1])

    return run_session(job, PARTIES, ReleasePlan([predictions(), *split_releases(PARTIES, config)]))


def same_model(one: Outcome, other: Outcome) -> None:
    """Undisturbed runs differ in the last places of fixed point."""
    for name, value in one.generator.arrays().items():
        assert np.allclose(value, other.generator.arrays()[name], atol=1e-5), name
    assert np.abs(one.logits - other.logits).max() < 0.02


@cache
def undisturbed(config: SplitConfig) -> list[Outcome]:
    return in_secret(config)


def declared(config: SplitConfig) -> dict[str, int]:
    """What training opens, as often as it is declared; the last range check is about validation records."""
    return {
        release.name: release.times - (release.name == "range check") for release in split_releases(PARTIES, config)
    }


def test_the_paper_trains_under_mpc_opens_no_more_and_continues_after_a_fault(tmp_path: Path) -> None:
    """Stopped after the warm-up and four steps."""
    with pytest.raises(ExceptionGroup):
        in_secret(QUICK, tmp_path, stop=2)
    resumed = in_secret(QUICK, tmp_path, resume=True)
    for rank, (before, after) in enumerate(zip(undisturbed(QUICK), resumed, strict=True)):
        assert before.released == {**declared(QUICK), "predictions": 1}
        same_model(before, after)
        start = pretrained(rank)
        if before.generator.net is not None:
            assert any(not np.allclose(start[n], value) for n, value in before.generator.arrays().items())


def guessed(columns: np.ndarray, groups: np.ndarray) -> float:
    """AUC of a linear guess of s on records that it was not fitted on; it knows s of the others."""
    guess = make_pipeline(StandardScaler(), LogisticRegression(C=0.1))
    return float(cross_val_score(guess, columns, groups, cv=4, scoring="roc_auc").mean())


def test_gradients_of_steps_with_consistency_reveal_s_and_those_of_the_warm_up_do_not() -> None:
    """To a party that knows s of other records, beside its own columns. SECURITY.md says so of `split`."""
    groups = part(HOLDER).protected[0].codes
    assert groups is not None
    other = np.random.default_rng(0).permutation(groups)
    outcomes = in_secret(LONGER)
    for rank in set(range(PARTIES)) - {HOLDER}:
        shown, inputs = signals_of(outcomes[rank].model.seen, len(groups)), part(rank).parties[0].inputs
        assert shown.shape[1] == LONGER.most
        alone, before, whole = (
            guessed(np.hstack([inputs, more]), groups) for more in (inputs[:, :0], shown[:, : LONGER.warmup], shown)
        )
        assert before < alone + 0.08 < alone + 0.15 < whole, (alone, before, whole)
        assert guessed(np.hstack([inputs, shown]), other) < 0.6, "the guess itself has nothing to go on"


def test_training_that_stops_early_opens_no_more_and_stays_stopped_when_resumed(tmp_path: Path) -> None:
    ended, resumed = in_secret(HASTY, tmp_path), in_secret(HASTY, tmp_path, resume=True)
    (steps,) = {outcome.model.steps for outcome in (*ended, *resumed)}
    assert HASTY.patience < steps < HASTY.most
    for before, after in zip(ended, resumed, strict=True):
        assert [before.released[name] for name in ("gradient 0", "early stopping")] == [steps, steps]
        assert [after.released[name] for name in ("gradient 0", "early stopping")] == [0, 0]
        assert np.abs(before.logits - after.logits).max() < 1e-3


def test_a_late_refresh_changes_roles_and_generators_and_is_not_made_twice_after_a_fault(tmp_path: Path) -> None:
    """Stopped when the release was kept, before generators were made from it. It opens all that is declared."""
    with pytest.raises(ExceptionGroup):
        in_secret(LATE, tmp_path, stop=2)
    with np.load(tmp_path / "0" / "2.npz") as kept:
        assert kept["own taken"] == LATE.warmup + LATE.refreshed_at[0], "the steps after it are not taken yet"
    resumed = in_secret(LATE, tmp_path, resume=True)
    for rank, (before, after) in enumerate(zip(undisturbed(LATE), resumed, strict=True)):
        assert before.released == {**declared(LATE), "predictions": 1} and declared(LATE)["editing parties"] == 2
        assert (before.asked, after.asked) == (1, 0)
        same_model(before, after)
        assert before.model.assignment is not None and before.model.assignment.roles == late_roles()
        for outcome in (before, after):
            state, inputs = outcome.state, part(rank).parties[0].inputs
            assert state.mode_arrays and state.refreshes == 2 and state.assignment is not None
            assert state.assignment.roles == late_roles()
            assert [s.releases for s in state.noisy_tables] == [tables_of(rank).releases + 1]
            hidden = part(rank).parties[0].layout.columns(late_roles().dropped)
            assert np.array_equal(np.flatnonzero(outcome.model.encoder.shown.numpy() == 0), hidden)
            moved = outcome.generator(inputs, 0, np.ones(len(inputs), int), 0) != inputs
            edited = part(rank).parties[0].layout.columns(late_roles().edited)
            assert set(np.flatnonzero(moved.any(axis=0))) <= set(edited)


@pytest.mark.parametrize(
    ("late", "steps", "refreshed", "kept"),
    [
        (0, 25, (), (0, 10, 20, 25)),
        (1, 10, (5,), (0, 5, 10)),
        (1, 20, (10,), (0, 10, 20)),
        (2, 30, (10, 20), (0, 10, 20, 30)),
        (3, 4, (1, 2, 3), (0, 1, 2, 3, 4)),
    ],
)
def test_late_refreshes_are_spread_evenly(
    late: int, steps: int, refreshed: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    config = SplitConfig(steps=steps, late_refreshes=late)
    assert (config.refreshed_at, config.kept_at) == (refreshed, kept)


def test_where_training_may_stop_early_a_late_refresh_comes_within_the_patience() -> None:
    assert SplitConfig(steps=260, late_refreshes=1, patience=35).refreshed_at == (17,)
    assert SplitConfig(steps=10, late_refreshes=1, patience=35).refreshed_at == (5,)


def test_the_paper_has_the_column_of_its_table() -> None:
    for name, column in SETTINGS.items():
        config = split_config(RunOptions.of({"dataset": name, "method": "paper", "mode": "split"}))
        for setting in ("hidden", "dropout", "columns", "warmup", "patience"):
            assert getattr(config, setting) == getattr(column, setting), setting
        assert (config.encoder_rate, config.head_rate, config.most) == (column.rate, column.rate, column.epochs)
        assert config.lam == column.lambda_cons and config.weights.generator_rate == column.generator_rate


def test_every_late_refresh_has_steps_before_and_after_it() -> None:
    with pytest.raises(ValueError, match="too few for 4 late_refreshes"):
        SplitConfig(steps=4, late_refreshes=4)
