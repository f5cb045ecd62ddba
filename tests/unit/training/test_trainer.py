"""The sealed method end to end, on every kind of task it says it handles."""

from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset, Label, PartyTable, Protected
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.party import make_parties, part_of
from secure_sccvfl.data.splits import Split, make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.models.encoders import fit_encoder
from secure_sccvfl.models.generators import make_generator
from secure_sccvfl.policy.card import Decision, PolicyCard, shipped_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.training import trainer
from secure_sccvfl.training.config import SMALLEST_RIDGE, WEAK_STEPS, TrainConfig, second_order_schedule
from secure_sccvfl.training.engine import CURVATURE
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import Problem, Trainer, train

GERMAN = load("german")


def fit(data, seed=0, config=None, split=None, charges=None, **more):
    """`charges`: a list that takes what the run pays for."""
    config = TrainConfig() if config is None else config
    split = make_split(data, "iid", seed) if split is None else split
    noise = GaussianNoise(SpendingPlan(releases=config.charged), seed, charges=[] if charges is None else charges)
    return train(PlainEngine(), PlainStatistics(noise), data, split, config, seed, **more), split


def scores(model, data, rows):
    return model.logits(part_of(data, rows).parties)


def synthetic(task, n=600, parties=3, attributes=1, seed=0):
    """A mediator that follows s and the label, noise columns, and a column that depends on nothing."""
    rng = np.random.default_rng(seed)
    s = [rng.integers(0, 2 + a, n) for a in range(attributes)]
    drive = rng.normal(size=n) + 1.5 * (s[0] > 0)
    other = rng.normal(size=n)
    signal = drive + other
    if task == "binary":
        label = Label("p0", (signal > np.median(signal)).astype(int), ("no", "yes"))
    elif task == "multiclass":
        label = Label("p0", np.digitize(signal, np.quantile(signal, [0.33, 0.66])), ("a", "b", "c"))
    else:
        label = Label("p0", np.clip(0.5 + signal / 10, 0, 1))
    columns = [drive, other] + [rng.normal(size=n) for _ in range(max(4, parties))]
    tables = []
    for p in range(parties):
        party_columns = columns[p::parties]
        features = tuple(Feature(f"x{p}_{j}", "number", -8, 8) for j in range(len(party_columns)))
        tables.append(PartyTable(f"p{p}", features, np.clip(np.column_stack(party_columns), -8, 8)))
    protected = tuple(
        Protected(f"s{a}", "p1", tuple(str(g) for g in range(2 + a)), codes) for a, codes in enumerate(s)
    )
    return Dataset("toy", task, np.array([f"{i:05d}" for i in range(n)]), tuple(tables), label, protected)


def test_the_lambda_nearest_to_the_named_one_is_taken_and_all_are_kept():
    config = replace(TrainConfig(), lambdas=(0.5, 4.0, 64.0))
    model, _ = fit(GERMAN, config=config)
    assert model.lam == 4.0 and [t.lam for t in model.trials] == list(dict(model.frontier)) == [0.5, 4.0, 64.0]
    assert dict(model.frontier)[4.0] is model.head


def test_more_steps_change_next_to_nothing():
    """Why a fixed number is enough: the objective is convex, and these steps reach its minimum."""
    (few, split), (many, _) = (fit(GERMAN, config=replace(TrainConfig(), grid_steps=steps)) for steps in (9, 60))
    assert few.lam == many.lam
    first, *others = [
        abs(a.validation.loss - b.validation.loss) for a, b in zip(few.trials, many.trials, strict=True)
    ]
    assert first < 2e-3 and max(others) < 5e-4
    assert np.abs(scores(few, GERMAN, split.test) - scores(many, GERMAN, split.test)).max() < 0.05


def test_the_same_seed_gives_the_same_model_and_another_seed_another():
    a, split = fit(GERMAN, 1)
    b, _ = fit(GERMAN, 1)
    assert (scores(a, GERMAN, split.test) == scores(b, GERMAN, split.test)).all()
    c, _ = fit(GERMAN, 2, split=split)
    assert not np.allclose(scores(a, GERMAN, split.test), scores(c, GERMAN, split.test))


def test_permuting_parties_changes_nothing_but_order():
    a, split = fit(GERMAN)
    turned = replace(GERMAN, parties=tuple(reversed(GERMAN.parties)))
    b, _ = fit(turned, split=split)
    assert a.roles.of == b.roles.of and a.lam == b.lam
    assert np.allclose(scores(a, GERMAN, split.test), scores(b, turned, split.test), atol=1e-8)


def test_roles_follow_the_policy_card():
    card = shipped_card("german")
    model, _ = fit(GERMAN, card=card)
    assert all(model.roles.of[name] == d.role for name, d in card.decisions.items() if d.role != "M")
    assert any("by card" in line for line in model.assignment.log)


def idle_mediator():
    """Mediators of which one has the same table in both groups of the training rows: no edit can move it."""
    rng, row = np.random.default_rng(0), np.arange(600)
    s, idle = row % 2, row // 2 % 2
    values = np.clip(rng.normal(size=(600, 2)) + 2 * s[:, None], -8, 8)
    tables = (
        PartyTable("p0", (Feature("moves", "number", -8, 8),), values[:, :1]),
        PartyTable(
            "p1",
            (Feature("idle", "category", categories=("a", "b")), Feature("other", "number", -8, 8)),
            np.column_stack([idle, values[:, 1]]),
        ),
    )
    label = Label("p0", (values.sum(axis=1) > 2).astype(int), ("no", "yes"))
    protected = (Protected("s", "p1", ("0", "1"), s),)
    data = Dataset("toy", "binary", np.array([f"{i:05d}" for i in row]), tables, label, protected)
    return data, Split(row[:400], row[400:500], row[500:])


EXACT = replace(TrainConfig(), lambdas=(1.0,))
ROLES = Roles({"moves": "M", "idle": "M", "other": "N"})


def test_a_run_acts_on_the_interventional_check():
    """A mediator that no edit moves is trained and reported as N, with the reason; the others keep their roles."""
    data, split = idle_mediator()
    parts = [part_of(data, rows) for rows in (split.train, split.validation)]
    run = Trainer(PlainEngine(), PlainStatistics(NoNoise()), Problem("binary", 1, *parts), EXACT, 0)
    run.discover()
    assignment, generators = run.generate(replace(run.state.assignment, roles=ROLES))
    assert assignment.roles.of == {"moves": "M", "idle": "N", "other": "N"}
    assert assignment.log[-1] == "idle: M -> N, does not respond to a change of s"
    assert [generators["s"][rank].material.edited for rank in (0, 1)] == [{"moves"}, frozenset()]


def test_a_role_that_people_decided_stays_although_no_counterfactual_moves_its_column():
    data, split = idle_mediator()
    card = PolicyCard("toy", "1", ("board",), {name: Decision(role, "decided") for name, role in ROLES.of.items()})
    model = train(PlainEngine(), PlainStatistics(NoNoise()), data, split, EXACT, 0, card=card)
    assert model.roles == ROLES
    assert model.assignment.log[-1] == "idle: M by card, kept, does not respond to a change of s"


def test_a_run_with_a_generator_that_changes_what_must_stay_is_stopped(monkeypatch):
    data, split = idle_mediator()

    def careless(layout, tables, deviation, roles, *rest):
        return make_generator(layout, tables, deviation, Roles(dict.fromkeys(roles.of, "M")), *rest)

    monkeypatch.setattr(trainer, "make_generator", careless)
    records = replace(
        EXACT, consistency_from="records"
    )  # counterfactuals from tables touch nothing else by construction
    with pytest.raises(RuntimeError, match=r"must stay fixed: \['other'\]"):
        train(PlainEngine(), PlainStatistics(NoNoise()), data, split, records, 0, roles=ROLES)


def test_the_budget_is_spent_by_the_refreshes_and_by_nothing_else():
    charges, more = [], []
    fit(GERMAN, charges=charges)
    assert [c.name for c in charges] == [f"sketch-{i}" for i in range(2)]
    assert charges[-1].epsilon_after == pytest.approx(8.0, abs=0.02)
    conditional = replace(TrainConfig(), discovery=replace(TrainConfig().discovery, conditional=True))
    fit(GERMAN, config=conditional, charges=more)
    assert more[0].name == "residuals"


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_every_task_learns_and_becomes_consistent(task):
    data = synthetic(task)
    config = replace(TrainConfig(), discovery=replace(TrainConfig().discovery, rho_p=0.0))
    plain, split = fit(data, config=replace(config, lambdas=(0.0,)))
    model, _ = fit(data, config=config, split=split)
    assert model.roles.of["x0_0"] == "M"
    assert model.trials[-1].validation.relative_gap < 0.3 * plain.trials[-1].validation.relative_gap
    label = data.label.values[split.test]
    logits = scores(plain, data, split.test)
    assert logits.shape == (len(split.test), 3 if task == "multiclass" else 1)
    if task == "regression":
        assert ((logits[:, 0] - label) ** 2).mean() < 0.3 * label.var()
    elif task == "multiclass":
        assert (logits.argmax(axis=1) == label).mean() > 0.75
    else:
        assert ((logits[:, 0] > 0) == label).mean() > 0.85


def test_several_protected_attributes_share_one_release_and_are_all_made_consistent():
    data = synthetic("binary", attributes=2)
    charges = []
    model, _ = fit(data, charges=charges)
    assert {s.attribute for s in model.noisy_tables} == {"s0", "s1"}
    assert set(model.generators) == {"s0", "s1"}
    assert len(charges) == 2
    assert charges[0].sensitivity == pytest.approx(np.sqrt(2 * len(data.features) * 2))


@pytest.mark.parametrize("parties", [2, 5])
def test_two_and_five_parties_even_with_one_feature_each(parties):
    data = synthetic("binary", parties=parties)
    assert min(len(p.features) for p in data.parties) == 1 or parties == 2
    model, split = fit(data)
    assert np.isfinite(scores(model, data, split.test)).all()


def test_encoders_are_centred():
    party = make_parties(GERMAN)[0]
    encoder = fit_encoder(party.layout, party.inputs)
    assert np.allclose(encoder(party.inputs).mean(axis=0), 0, atol=1e-9)
    assert encoder(party.inputs).shape[1] == encoder.columns


@pytest.mark.parametrize(
    "bad",
    [
        {"lambdas": ()},
        {"lambdas": (2.0, 1.0)},
        {"take_lambda": -1.0},
        {"evaluation": "loud"},
        {"keep_every": 0},
        {"steps": 0},
        {"refreshes": -1},
        {"ridge": -1.0},
        {"ridge": 0, "head": "mlp", "consistency_from": "records"},
    ],
)
def test_a_bad_configuration_is_refused(bad):
    with pytest.raises(ValueError, match=r"must|bad"):
        TrainConfig(**bad)


def test_the_ridge_may_follow_from_the_public_number_of_training_records():
    assert TrainConfig().with_ridge(560).ridge == pytest.approx(2.8 / 560)
    assert (
        TrainConfig().with_ridge(10**6).ridge == SMALLEST_RIDGE
        and TrainConfig(ridge=1e-3).with_ridge(9).ridge == 1e-3
    )
    rows = len(make_split(GERMAN, "iid", 0).train)
    by_rule, given = (fit(GERMAN, config=TrainConfig(ridge=ridge))[0] for ridge in (0, 2.8 / rows))
    assert np.array_equal(by_rule.head.weight, given.head.weight)


def test_a_small_ridge_takes_more_steps_of_heads_that_are_not_private():
    usual, weak = TrainConfig(ridge=5e-3), TrainConfig(ridge=SMALLEST_RIDGE)
    assert weak.total_steps == usual.total_steps + WEAK_STEPS == replace(weak, private=True).total_steps + WEAK_STEPS
    assert sum(one.steps for one in second_order_schedule(weak, "binary")) == weak.total_steps
    model, _ = fit(GERMAN, config=weak)
    assert {trial.steps for trial in model.trials} == {weak.total_steps}


class _Bounded(Trainer):
    """Sees that what owners bound without knowing s is at least what it turns out to be."""

    def train_grid(self, penalty, grid, bounds):
        energy = np.diag(penalty.gram)
        assert energy.max() > 0
        assert (whole(bounds.energy) >= energy - 1e-12).all()
        assert (whole(bounds.reach) >= np.diag(penalty.proxy_gram) - 1e-12).all()
        steep = CURVATURE[self.task] * (self.batch.rows**2).mean(axis=0) + self.config.ridge
        assert np.allclose(whole(bounds.flat), steep)
        return super().train_grid(penalty, grid, bounds)


def whole(blocks):
    return np.concatenate([blocks[rank] for rank in sorted(blocks)])


@pytest.mark.parametrize("data", [GERMAN, synthetic("regression", attributes=2)], ids=["German", "two attributes"])
@pytest.mark.parametrize("source", ["tables", "records"])
def test_bounds_of_the_grid_hold_whatever_s_is(data, source):
    fit(data, config=TrainConfig(consistency_from=source), driver=_Bounded)
