"""Repeated releases of tables during joint training: roles may change, and what is trained then follows them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.policy.card import shipped_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.steps.second_order import TOLERANCE
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.training import trainer as trainer_module
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import AwareTrainer, Hooks, Problem, State, Trainer

DATA = load("german")
SPLIT = make_split(DATA, "iid", 0)
PARTS = [part_of(DATA, rows) for rows in (SPLIT.train, SPLIT.validation)]
TEST = part_of(DATA, SPLIT.test)
LATE = TrainConfig(
    refreshes=1,
    late_refreshes=2,
    lambdas=(1.0, 3.0, 8.0),
    generator=GeneratorConfig(draws=2),
)


class Blind(NoNoise):
    """Exact tables from a certain release on; before, tables in which s and every column are independent."""

    def __init__(self, first: int) -> None:
        self.first = first

    def release(self, sums, name, sensitivity, mechanism="gaussian"):
        exact = super().release(sums, name, sensitivity, mechanism)
        if int(name.rpartition("-")[2]) >= self.first:
            return exact
        return {k: np.outer(v.sum(axis=1), v.sum(axis=0)) / v.sum() for k, v in exact.items()}


def run(noise, config=LATE, state: State | None = None, roles: Roles | None = None, driver=Trainer, card=None):
    """The model, the states that were kept, and the log."""
    kept, log = [], []
    hooks = Hooks(audit=lambda event, numbers: log.append((event, dict(numbers))), keep=kept.append)
    problem = Problem(DATA.task, DATA.outputs, *PARTS, owners=DATA.owners)
    trainer = driver(PlainEngine(), PlainStatistics(noise), problem, config, 0, card, hooks)
    return trainer.run(roles, state), kept, log


def logits(model) -> np.ndarray:
    return model.logits(TEST.parties)


def gaussian(config=LATE, releases: int | None = None) -> GaussianNoise:
    return GaussianNoise(SpendingPlan(releases=releases or config.charged), 0)


def test_late_releases_are_planned_charged_and_averaged():
    noise = gaussian()
    model, _, log = run(noise)
    assert LATE.charged == 4 and [c.name for c in noise.charges] == [f"sketch-{k}" for k in range(4)]
    assert model.noisy_tables[0].releases == 4
    assert noise.charges[-1].epsilon_after <= noise.plan.epsilon
    masks = [numbers["mask"] for event, numbers in log if event == "roles"]
    assert len(masks) == 4, "every version of the mask is in the log"
    assert set(model.assignment.confidence) == set(DATA.owners)


def test_roles_that_change_late_are_those_of_the_model_and_of_every_point_of_the_frontier():
    """Nothing follows s in the tables of the warm-up and of the first late release; the last one shows the truth."""
    late, _, log = run(Blind(3))
    seen = [set(numbers["roles"].values()) for event, numbers in log if event == "roles"]
    assert seen[:3] == [{"N"}] * 3 and "M" in seen[3]
    reference, _, _ = run(Blind(0), replace(LATE, late_refreshes=0))
    assert late.roles == reference.roles and late.roles.edited
    assert [t.lam for t in late.trials] == [t.lam for t in reference.trials] == list(LATE.lambdas)
    plain, _, _ = run(Blind(9), replace(LATE, late_refreshes=0))
    for here, there in zip(late.trials, reference.trials, strict=True):
        assert here.validation.relative_gap == pytest.approx(there.validation.relative_gap, rel=0.1)
    assert np.abs(logits(late) - logits(reference)).max() < 0.1 < np.abs(logits(late) - logits(plain)).max()


def test_a_late_release_without_budget_leaves_the_masks_and_the_tables():
    noise = gaussian(releases=2)
    model, kept, log = run(noise)
    assert len(noise.charges) == 2 and model.noisy_tables[0].releases == 2
    assert [numbers["refresh"] for event, numbers in log if event == "refresh refused"] == [2, 3]
    other, _, _ = run(gaussian(releases=2), replace(LATE, late_refreshes=0))
    assert model.roles == other.roles
    assert np.abs(logits(model) - logits(other)).max() < 0.1
    assert kept[-1].refreshes == 4, "a resumed run does not ask again"


def test_a_run_continues_from_every_state_to_the_same_model():
    model, kept, _ = run(gaussian())
    moments = {(state.refreshes, len(state.trials), state.taken) for state in kept}
    assert {(2, 0, 0), (3, 0, 0), (4, 0, 0), (4, 0, 9)} <= moments, "before and after each late release"
    for state in kept:
        again, _, _ = run(gaussian(), state=state)
        assert again.roles == model.roles and np.allclose(logits(again), logits(model), atol=1e-9)


def test_roles_that_are_given_stay():
    fixed = Roles({name: "M" if name == "housing" else "N" for name in DATA.owners})
    model, _, _ = run(Blind(2), roles=fixed)
    assert model.roles == fixed


def test_a_proxy_that_is_found_late_is_dropped_then():
    card = replace(shipped_card("german"), proxies="drop")
    some = replace(card, decisions={k: d for k, d in card.decisions.items() if d.role == "N"})
    config = replace(LATE, discovery=replace(LATE.discovery, rho_p=0.5))
    model, _, _ = run(Blind(2), config, card=some)
    assert model.roles.dropped
    party = next(p for p in TEST.parties if model.roles.dropped[0] in p.layout.names)
    assert set(model.encoders[party.rank].dropped) == set(model.roles.dropped)


def test_a_model_that_uses_s_is_encoded_again():
    """Offsets follow from the tables of the last release, and so do the columns of roles that are not decided."""
    card = shipped_card("german")
    late, _, _ = run(Blind(2), driver=AwareTrainer, card=card)
    reference, _, _ = run(Blind(0), replace(LATE, late_refreshes=0), driver=AwareTrainer, card=card)
    codes = TEST.protected[0].codes
    assert np.abs(late.logits(TEST.parties, codes) - reference.logits(TEST.parties, codes)).max() < 0.1


class Watched(PlainEngine):
    """Keeps the order of all that leaves an engine, and of what is prepared."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def publish(self, name, values):
        self.seen.append(name)
        return super().publish(name, values)

    def total(self, name, values, present=True):
        self.seen.append(name)
        return super().total(name, values, present)

    def first_order(self, *given):
        self.seen.append("steps before a refresh")
        return super().first_order(*given)

    def second_order(self, batch, penalty, grid, bounds, noise=None):
        self.seen.append("noise" if noise is not None else "no noise")
        return super().second_order(batch, penalty, grid, bounds, noise)

    def finish(self, head, descent):
        self.seen.append("finished head")
        return super().finish(head, descent)

    def check_range(self, heads, batch):
        self.seen.append("range check")
        return super().check_range(heads, batch)

    def measure(self, *given):
        self.seen.append("measure")
        return super().measure(*given)


class Ledger:
    """Charges a private head on paper."""

    def __init__(self, seen: list[str], seed: int = 0) -> None:
        self.seen, self.seed = seen, seed

    def charge_heads(self, count):
        self.seen.append("head charged")
        return HeadNoise(sigma=4.0, ridge=30.0, output=1e-5, radius=5.0, seed=self.seed)


class Listed(GaussianNoise):
    """Noise of the tables, each release in the same list."""

    seen: list[str]

    def release(self, sums, name, sensitivity, mechanism="gaussian"):
        self.seen.append(name)
        return super().release(sums, name, sensitivity, mechanism)


PRIVATE = TrainConfig(private=True, lambdas=(3.0,))
FOLLOWS = {"moved-fixed", "moved-edited", "guard-length"}
"""What follows from tables, whatever the records are."""


def private_run(state: State | None = None):
    """The private model of the default settings, the order of what left, and the states that were kept."""
    seen: list[str] = []
    noise = Listed(SpendingPlan(releases=PRIVATE.charged), 0)
    noise.seen = seen
    kept: list[State] = []
    problem = Problem(DATA.task, DATA.outputs, *PARTS, owners=DATA.owners)
    trainer = Trainer(
        *(Watched(seen), PlainStatistics(noise), problem, PRIVATE, 0),
        hooks=Hooks(keep=kept.append),
        privacy=Ledger(seen),
    )
    return trainer.run(None, state), seen, kept


def test_a_private_head_is_one_release_after_the_last_tables():
    """Between the tables and the finished head nothing of a record leaves, and noise of a head is drawn once."""
    _, seen, _ = private_run()
    first, second, charged = seen.index("sketch-0"), seen.index("sketch-1"), seen.index("head charged")
    assert PRIVATE.charged == 2 and first < second < charged
    between = seen[first + 1 : second]
    assert between.count("steps before a refresh") == 1, "joint training has begun"
    assert set(between) - {"steps before a refresh"} <= FOLLOWS
    assert set(seen[second + 1 : charged]) <= {*FOLLOWS, "validity"}
    assert seen[charged:] == ["head charged", "noise", "finished head"]


def test_a_private_head_is_the_same_from_any_start(monkeypatch):
    """The minimum under the last penalty, as precise as is checked, also without steps before the refresh."""
    warm, _, kept = private_run()
    assert np.abs(kept[-2].head.weight).max() > 0.01, "the steps before the refresh moved the head"
    monkeypatch.setattr(trainer_module, "WARM_STEPS", 0)
    cold, _, before = private_run()
    assert not np.any(before[-2].head.weight)
    far = np.sqrt(((warm.head.weight - cold.head.weight) ** 2).sum())
    assert far <= 2 * TOLERANCE * len(SPLIT.train) / 30.0


def test_a_private_run_continues_from_every_state_without_a_second_release():
    model, _, kept = private_run()
    for state in kept:
        again, seen, _ = private_run(state)
        assert again.roles == model.roles and np.allclose(logits(again), logits(model), atol=1e-5)
        assert seen.count("sketch-0") == (state.refreshes < 1) and seen.count("sketch-1") == (state.refreshes < 2)
        assert seen.count("noise") == (not state.trials)


def test_a_late_refresh_comes_after_discovery():
    problem = Problem(DATA.task, DATA.outputs, *PARTS, owners=DATA.owners)
    trainer = Trainer(PlainEngine(), PlainStatistics(gaussian()), problem, LATE, 0)
    with pytest.raises(RuntimeError, match="after discovery"):
        trainer.release_again(0)


class Penalised(PlainEngine):
    """Keeps the penalty of every descent, and the head before and after the steps of each."""

    def __init__(self) -> None:
        super().__init__()
        self.penalties: list[tuple[str, object]] = []
        self.moved: list[float] = []

    def first_order(self, batch, penalty, step, bounds):
        self.penalties.append(("warm-up", penalty))
        return super().first_order(batch, penalty, step, bounds)

    def second_order(self, batch, penalty, grid, bounds, noise=None):
        self.penalties.append(("joint training", penalty))
        return super().second_order(batch, penalty, grid, bounds, noise)

    def steps(self, head, descent, count, **named):
        after = super().steps(head, descent, count, **named)
        self.moved.append(float(np.abs(after.weight - head.weight).max()))
        return after


def test_by_default_roles_counterfactuals_and_penalty_follow_the_refresh():
    """The default settings. The first tables show nothing and the second the truth: all that is trained follows."""
    config, engine, log = replace(PRIVATE), Penalised(), []
    problem = Problem(DATA.task, DATA.outputs, *PARTS, owners=DATA.owners)
    hooks = Hooks(audit=lambda event, numbers: log.append((event, dict(numbers))))
    model = Trainer(engine, PlainStatistics(Blind(1)), problem, config, 0, None, hooks, privacy=Ledger([])).run()
    before, after = (numbers for event, numbers in log if event == "roles")
    assert set(before["roles"].values()) == {"N"} and "M" in after["roles"].values()
    assert dict(model.roles.of) == after["roles"] and any(change.endswith("N -> M") for change in after["changes"])
    (first, _), *_, (last, _) = engine.penalties
    assert (first, last) == ("warm-up", "joint training")
    blind, seen = (np.abs(engine.penalties[at][1].gram).max() for at in (0, -1))
    assert blind == 0.0 < seen, (
        "no counterfactual moves before the refresh; afterwards the penalty is of those that do"
    )
    assert engine.moved[0] > 0.0, "the warm-up takes real steps"
