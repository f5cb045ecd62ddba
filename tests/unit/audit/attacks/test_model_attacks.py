"""Attacks find what is there and nothing elsewhere, agree with others' code, and a broken one is noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from secure_sccvfl.audit.attacks import attributes, columns, labels, perturbation, training_data, view
from secure_sccvfl.audit.attacks.attributes import attribute_inference, strongest
from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.audit.attacks.columns import feature_inference
from secure_sccvfl.audit.attacks.labels import label_inference
from secure_sccvfl.audit.attacks.perturbation import perturb, subspace_pgd, two_class
from secure_sccvfl.audit.attacks.training_data import fit_head
from secure_sccvfl.audit.attacks.view import (
    RADII,
    Columns,
    Rate,
    Shown,
    TorchLogits,
    View,
    WhiteBox,
    folds,
    strongest_guesses,
    threshold_guesses,
)
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Block
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.methods import METHODS, Prepared, prepare
from secure_sccvfl.evaluation.views import (
    LinearModel,
    codes_of,
    drawn_gram,
    feature_blocks,
    fitted_linear,
    model_views,
    retraining_view,
    views_of,
    white_box_view,
)

GERMAN = load("german")


@pytest.fixture(scope="module")
def ready() -> Prepared:
    return prepare(GERMAN, make_split(GERMAN, "iid", 0), 0)


@pytest.fixture(scope="module")
def model(ready: Prepared) -> LinearModel:
    return fitted_linear(ready, ready.model)


@pytest.fixture(scope="module")
def views(ready: Prepared, model: LinearModel) -> dict[str, Mapping[str, Any]]:
    """One view of each kind that the catalogue's attacks take."""
    by_kind = views_of(ready, METHODS.get("scc")(ready), brief=False)
    by_kind |= {"gradients": views_of(ready, METHODS.get("erm_network")(ready), brief=False)["gradients"]}
    rng = np.random.default_rng(0)
    party, others = ready.parties[0], ready.parties[1:]
    rows = ready.split.train
    targets = {b.feature.name: codes_of(b, p.inputs[rows]) for p in others for b in p.layout.blocks[:2]}
    noise = rng.normal(size=(len(rows), 40))
    by_kind |= {"opened gradients": {"party": Shown("party", party.inputs[rows], noise, targets)}}
    by_kind["shares"] = {"noise": View("noise", *((rng.normal(size=(400, 5)), np.arange(400) % 2) for _ in range(2)))}
    return {takes: view for takes, view in by_kind.items() if view}


def test_every_attack_has_a_view_and_its_positive_control_succeeds(views: dict[str, Mapping[str, Any]]) -> None:
    for name, attack in ATTACKS.items():
        held = next(iter(views[attack.takes].values()))
        rate = attack.control(held, 0)[-1]
        assert attack.succeeds(rate), (name, rate)
        assert 0 <= rate.low <= rate.rate <= rate.high <= 1
        for measured in attack.run(held, 0):
            assert 0 <= measured.low <= measured.rate <= measured.high <= 1 and 0 <= measured.chance < 1, (
                name,
                measured,
            )


def guesses_of_a_coin(*arguments: Any, **settings: Any) -> dict[str, np.ndarray]:
    view = arguments[0]
    rng = np.random.default_rng(7)
    return {"coin": rng.integers(0, int(view.unknown[1].max()) + 1, len(view.unknown[1]))}


def coin(like: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The same function with its result shuffled over the records."""
    return lambda *arguments, **settings: np.random.default_rng(7).permutation(like(*arguments, **settings))


BROKEN: dict[str, tuple[Any, str, Any]] = {
    "aia": (attributes, "guesses", guesses_of_a_coin),
    "label": (labels, "rate_of_residuals", lambda name, r, y: Rate.balanced(name, "", coin(lambda: y)(), y)),
    "features": (columns, "_guess", coin(columns._guess)),
    "shares": (attributes, "guesses", guesses_of_a_coin),
    "pgd": (perturbation, "perturb", lambda target, *rest: torch.tensor(target.inputs)),
    "pgd_paper": (perturbation, "perturb", lambda target, *rest: torch.tensor(target.inputs)),
    "membership": (training_data, "threshold_guesses", coin(threshold_guesses)),
    "retraining": (training_data, "_solve", coin(training_data._solve)),
    "completion": (labels, "complete", coin(labels.complete)),
    "inversion": (columns, "by_equations", coin(columns.by_equations)),
    "reconstruction": (columns, "solve_batch", coin(columns.solve_batch)),
    "property": (training_data, "separation", lambda view, attack: 0.0),
}
"""By attack, what breaks its attacker: it guesses as a coin would, or does nothing."""


@pytest.mark.parametrize("name", ATTACKS.names)
def test_the_control_notices_a_broken_attacker(
    name: str, views: dict[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = ATTACKS.get(name)
    held = next(iter(views[attack.takes].values()))
    where, what, broken = BROKEN[name]  # a new attack must be broken on purpose here
    monkeypatch.setattr(where, what, broken)
    assert not attack.succeeds(attack.control(held, 0)[-1])


def test_a_head_at_its_optimum_is_that_of_the_engine(ready: Prepared) -> None:
    """Where nothing but the ridge pulls, the engine's head and this one are the same up to its stated precision."""
    plain = METHODS.get("erm")(ready).model
    assert plain is not None
    linear = fitted_linear(ready, plain)
    rows = ready.split.train
    width = linear.weight.shape[0]
    head = fit_head(linear.encode(rows), GERMAN.label.values[rows].astype(float), ready.config.ridge * np.eye(width))
    answers = linear.encode(rows) @ head[:-1] + head[-1]
    assert np.abs(answers - linear.answers(rows)[:, 0]).max() < 0.01


def test_retraining_finds_all_where_the_penalty_is_built_from_records(model: LinearModel) -> None:
    few = training_data.retraining_attack(retraining_view(replace(model, consistency="records")), 0)
    assert [r.attack for r in few] == ["12 trainings", "48 trainings"] and few[-1].rate >= 0.99


def test_retraining_finds_nothing_where_the_penalty_is_built_from_tables(model: LinearModel) -> None:
    view = retraining_view(replace(model, consistency="tables"))
    (*_, rate) = training_data.retraining_attack(view, 0)
    assert rate.low <= 0.5 <= rate.high
    guess, baseline, truth = training_data.recovered(view, 0)
    assert (guess == truth).mean() < (baseline == truth).mean(), "what x and tables tell is more"


def test_heads_of_a_penalty_from_tables_do_not_depend_on_s(model: LinearModel) -> None:
    """The broken twin does: that is what the attack solves for."""
    view = retraining_view(replace(model, consistency="tables"))
    other = replace(view, groups=np.random.default_rng(0).permutation(view.groups))
    counterfactuals = np.array(view.counterfactuals(0))
    heads = [v.head(counterfactuals, np.random.default_rng(0)) for v in (view, other)]
    assert np.array_equal(heads[0], heads[1])
    exposed = [replace(v, tables=None).head(counterfactuals, np.random.default_rng(0)) for v in (view, other)]
    assert np.abs(exposed[0] - exposed[1]).max() > 1e-4


def test_the_gram_of_drawn_records_is_close_to_that_of_records_and_positive(model: LinearModel) -> None:
    view = retraining_view(model, records=len(model.ready.split.train))
    exact = training_data.gram_of_records(view.counterfactuals(0), view.groups)
    drawn = drawn_gram(model)
    assert np.linalg.eigvalsh(drawn).min() > -1e-9
    assert np.corrcoef(exact.ravel(), drawn.ravel())[0, 1] > 0.95


def test_noise_with_a_ridge_hides_s_and_noise_without_one_does_not(model: LinearModel) -> None:
    """The determinant of the curvature tells s where the ridge is small, however large the noise is.

    Groups are shuffled, so that x tells nothing of them: what is found is found in the heads.
    """
    view = retraining_view(replace(model, consistency="records"))
    groups = np.random.default_rng(0).permutation(view.groups)
    bare = replace(view, groups=groups, sigma=3.0, trainings=24)
    assert training_data.retraining_attack(bare, 0)[-1].low > 0.55
    (*_, covered) = training_data.retraining_attack(replace(bare, ridge=3.0, sigma=30.0), 0)
    assert covered.low <= 0.5 + 0.08 and covered.high < 0.75


def test_retraining_takes_more_than_two_groups() -> None:
    rng, n = np.random.default_rng(0), 60
    rows, groups = rng.normal(size=(n, 12)), np.arange(n) % 3

    def counterfactuals(seed: int) -> list[list[np.ndarray]]:
        draw = np.random.default_rng(seed)
        return [[draw.normal(size=(n, 12)) * (draw.random((n, 1)) < 0.5) for _ in range(3)] for _ in range(2)]

    label = (rng.random(n) < 0.5).astype(float)
    nothing = np.zeros((12, 12))
    view = training_data.Retraining(
        "x", rows, label, groups, groups * 0, counterfactuals, 3.0, 0.01, nothing, None, trainings=40
    )
    assert training_data.retraining_attack(view, 0)[-1].rate == 1.0


def members(trained_on_them: bool) -> training_data.Membership:
    rng, n, ridge = np.random.default_rng(0), 400, 1e-3
    rows, label = rng.normal(size=(3 * n, 60)), rng.integers(0, 2, 3 * n)
    used = slice(0, n) if trained_on_them else slice(2 * n, 3 * n)
    head = fit_head(rows[used], label[used].astype(float), ridge * np.eye(60))
    rows, label = rows[: 2 * n], label[: 2 * n]
    answers = (rows @ head[:-1] + head[-1])[:, None]
    parts = [(v[:n], v[n:]) for v in (rows, label, answers)]
    return training_data.Membership.of("x", parts[0], parts[1], parts[2], ridge)


def test_membership_is_found_in_a_model_that_overfits_and_not_in_a_model_of_other_records() -> None:
    rates = {r.attack: r for r in training_data.membership_inference(members(True), 0)}
    assert rates["chosen"].low > 0.55 and rates["chosen"].chance == 0.5
    assert rates["lira"].rate > 0.5
    calm = training_data.membership_inference(members(False), 0)[-1]
    assert calm.low <= 0.5 <= calm.high


def test_membership_of_several_classes() -> None:
    view = members(True)
    label = np.random.default_rng(1).integers(0, 3, len(view.label))
    answers = np.eye(3)[label] * np.where(view.member, 3.0, 1.0)[:, None]
    several = replace(view, label=label, answers=answers)
    assert training_data.membership_inference(several, 0)[-1].rate > 0.9


def test_completion_gains_nothing_from_encodings_of_own_columns(views: dict[str, Mapping[str, Any]]) -> None:
    for held in views["part of a model"].values():
        baseline, encodings = labels.model_completion(held, 0)
        assert abs(baseline.rate - encodings.rate) < 0.06


def test_one_answer_per_person_leaves_most_of_the_columns_open(views: dict[str, Mapping[str, Any]]) -> None:
    held = views["answers"]["scores"]
    one = columns.feature_inversion(held, 0)[-1]
    assert one.rate < 0.6 and columns.unmetered(held, 0)[-1].rate == 1.0
    assert held.weight.shape[1] == 1, "one answer for each person"


def test_both_ways_of_inversion_beat_chance_where_one_column_decides() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (500, 2))
    weight = np.array([[-3.0], [0.0], [3.0], [0.01], [-0.01], [0.0]])
    held = columns.Answers("x", rng.normal(size=(500, 2)), codes, (3, 3), weight, np.zeros((500, 1)))
    held = replace(held, answers=held.indicators @ weight)
    for guess in (columns.by_equations(held), columns.by_generator(held, 0, epochs=300)):
        assert Rate.balanced("x", "x", guess[:, 0], codes[:, 0]).low > 0.6
    with pytest.raises(ValueError, match="weights of 6 bins"):
        replace(held, bins=(3, 2))


def test_gradients_of_noise_add_nothing_and_those_that_follow_a_column_do(
    views: dict[str, Mapping[str, Any]],
) -> None:
    held = views["opened gradients"]["party"]
    baseline, shown = columns.gradient_reconstruction(held, 0)
    assert abs(baseline.rate - shown.rate) < 0.08
    name, codes = next(iter(held.targets.items()))
    telling = np.column_stack([held.signals, 4 * np.eye(codes.max() + 1)[codes]])
    both = columns.gradient_reconstruction(replace(held, signals=telling, targets={name: codes}), 0)
    assert both[1].low > both[0].high


def test_released_tables_stay_within_their_bound_and_halved_noise_does_not(
    views: dict[str, Mapping[str, Any]],
) -> None:
    held = views["tables"]["released tables"]
    for rate in training_data.property_inference(held, 0):
        assert rate.low <= training_data.allowed(held.mu, int(rate.attack.split()[-1]))
    halved = {name: (held.released[name] + table) / 2 for name, table in held.exact.items()}
    less = training_data.property_inference(replace(held, released=halved), 0)
    assert any(r.low > training_data.allowed(held.mu, int(r.attack.split()[-1])) for r in less)


def test_the_rate_of_property_inference_is_that_of_the_test_it_stands_for() -> None:
    rng, tables = np.random.default_rng(0), 6
    exact = {str(k): np.full((4, 2), 50.0) for k in range(tables)}
    released = {name: table + rng.normal(0, 3.0, table.shape) for name, table in exact.items()}
    held = training_data.Tables("x", exact, released, np.sqrt(2 * tables) / 3.0)
    rates = {r.attack: r for r in training_data.property_inference(held, 0)}
    draws = rng.normal(0, np.std(held.noise), (20000, tables))
    moved = np.sqrt(2.0)
    hits = ((draws + moved).sum(axis=1) > tables * moved / 2).mean()
    assert abs(rates["cells of 1"].rate - hits) < 0.015
    assert rates["share of 1"].rate == pytest.approx(
        norm.cdf(np.sqrt(2 * tables / 4) / 2 / np.sqrt((held.noise**2).mean()))
    )


def number(name: str, start: int, missing: bool = False) -> Block:
    return Block(Feature(name, "number", low=0, high=1, missing=missing), start, start + 1 + missing)


def test_pgd_reaches_feasible_records_only() -> None:
    """A number in its range, one category at most, a gap that stays one, and no column that is not a mediator."""
    rng, n = np.random.default_rng(0), 300
    category = Block(Feature("c", "category", categories=("a", "b", "c")), 0, 3)
    features = (category, number("x", 3), number("y", 4, missing=True))
    gap = rng.random(n) < 0.3
    inputs = np.column_stack(
        [np.eye(3)[rng.integers(0, 3, n)], rng.random(n), np.where(gap, 0.0, rng.random(n)), gap, rng.random((n, 2))]
    )
    weight = torch.tensor(rng.normal(size=(8, 1)))
    w = weight.numpy()[:, 0]
    middle = float(np.median(inputs @ w)) + 1e-6
    target = WhiteBox("x", lambda x: x @ weight - middle, inputs, np.arange(6), (0.1,), features)
    moved = perturbation.perturb(target, 0.1, 0).numpy()
    assert set(np.unique(moved[:, :3])) == {0.0, 1.0} and (moved[:, :3].sum(axis=1) == 1).all()
    assert moved[:, 3:5].min() >= 0 and moved[:, 3:5].max() <= 1
    assert np.abs(moved[:, 3:5] - inputs[:, 3:5]).max() <= 0.1 + 1e-12
    assert np.array_equal(moved[:, 5:], inputs[:, 5:]) and (moved[gap, 4] == 0).all()
    assert (moved[:, :3] != inputs[:, :3]).any()
    best = np.inf * np.ones(n)  # the exact optimum: linear, so every column moves on its own
    sign = np.where(inputs @ w > middle, 1.0, -1.0)
    fixed = inputs[:, 3:] @ w[3:] - middle
    for column in (3, 4):
        free = (column == 3) | ~gap
        low, high = np.clip(inputs[:, column] - 0.1, 0, 1), np.clip(inputs[:, column] + 0.1, 0, 1)
        gain = np.minimum(sign * w[column] * (low - inputs[:, column]), sign * w[column] * (high - inputs[:, column]))
        fixed = fixed + np.where(free, sign * gain, 0.0)
    for k in range(3):
        best = np.minimum(best, sign * (fixed + w[k]))
    assert perturbation.subspace_pgd(target, 0.1).rate == pytest.approx((best < 0).mean(), abs=2 / n)


@pytest.mark.parametrize(("part", "one_hot"), [("CATEGORY_MOVES", True), ("STEPS", False)])
def test_the_control_of_pgd_needs_every_kind_of_move(
    part: str, one_hot: bool, ready: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = ATTACKS.get("pgd")
    blocks = [whole for _, _, whole in feature_blocks(ready.parties) if whole.one_hot == one_hot]
    held = replace(
        white_box_view("model", METHODS.get("scc")(ready).white_box, ready, brief=True),
        features=tuple(blocks),
        columns=np.concatenate([np.arange(b.start, b.stop if one_hot else b.start + 1) for b in blocks]),
    )
    assert attack.succeeds(attack.control(held, 0)[-1])
    monkeypatch.setattr(perturbation, part, 0)
    assert not attack.succeeds(attack.control(held, 0)[-1])


def test_the_control_of_pgd_finds_records_to_flip_in_every_draw(ready: Prepared) -> None:
    """Weights of 1 and -1 left no record on the other side of the border in some draws."""
    attack = ATTACKS.get("pgd")
    held = white_box_view("model", METHODS.get("scc")(ready).white_box, ready, brief=True)
    for _, _, block in feature_blocks(ready.parties)[:4]:
        one = replace(held, features=(block,), columns=np.arange(block.start, block.stop))
        assert attack.succeeds(attack.control(one, 0)[-1]), block.feature.name
    assert all(attack.succeeds(attack.control(held, seed)[-1]) for seed in range(6))


def test_restarts_find_what_a_start_without_a_slope_does_not() -> None:
    """Every record lies on a plateau, and its decision flips a little further on either side."""
    inputs = np.full((200, 1), 0.5)
    flat = WhiteBox("x", lambda x: 0.2 - 10 * (torch.relu((x - 0.5).abs() - 0.05)), inputs, np.arange(1))
    assert perturbation.subspace_pgd(flat, 0.2, 0, restarts=1).rate == 0.0
    for attack in ATTACKS.get("pgd").run(replace(flat, radii=(0.2,)), 0):
        assert attack.rate > 0.8


def test_the_best_of_many_useless_attackers_is_at_chance() -> None:
    """Picked on the records it is evaluated on, it would not be."""
    rng, n = np.random.default_rng(0), 200
    chosen, picked = [], []
    for trial in range(40):
        truth = np.arange(n) % 2
        guesses = {str(k): rng.integers(0, 2, n) for k in range(20)}
        chosen.append((strongest_guesses(guesses, truth, trial) == truth).mean())
        picked.append(max((guess == truth).mean() for guess in guesses.values()))
    error = 0.5 / np.sqrt(40 * n)
    assert abs(np.mean(chosen) - 0.5) < 4 * error < np.mean(picked) - 0.5


def test_thresholds_are_set_on_the_other_half() -> None:
    truth = np.arange(40) % 2
    half = folds(truth, 2, 0)
    score = truth * 1.0
    assert (threshold_guesses(score, truth, 0) == truth).all()
    score[half == 0] += 10 * (1 - 2 * truth[half == 0])  # one half says the opposite: each misleads the other
    assert (threshold_guesses(score, truth, 0) == truth).mean() <= 0.5
    assert view.threshold(np.array([0.0, 1.0]), np.array([0, 1])) < 1.0


def test_a_model_without_consistency_has_no_retraining_view(ready: Prepared, model: LinearModel) -> None:
    assert not model_views(replace(model, lam=0.0))["retrained heads"]
    assert not model_views(replace(model, tables=None))["tables"]


def leaking_view(leak: float, n: int = 800, seed: int = 0) -> View:
    rng = np.random.default_rng(seed)
    s = (rng.random(2 * n) < 0.2).astype(int)
    values = np.column_stack([rng.normal(size=2 * n) + leak * s, rng.normal(size=2 * n)])
    return View("test", (values[:n], s[:n]), (values[n:], s[n:]))


def test_attribute_inference_finds_a_leak_and_only_a_leak() -> None:
    strongest_attack = strongest(attribute_inference(leaking_view(2.0), 0))
    best = 0.8413  # the optimal balanced rate for two unit normals two apart
    assert strongest_attack.low <= best <= strongest_attack.high + 0.02 and strongest_attack.chance == 0.5
    none = [attribute_inference(leaking_view(0.0, seed=seed), seed) for seed in range(5)]
    rates = np.array([[r.rate for r in rates] for rates in none])
    error = np.sqrt(0.25 / 160 + 0.25 / 640) / 2 / np.sqrt(5)
    assert np.abs(rates.mean(axis=0) - 0.5).max() < 4 * error
    assert {r.attack for r in none[0]} == {"mlp10", "mlp20", "mlp40", "mlp80", "logreg", "boosting"}


def columns_view(shows: bool, n: int = 2000) -> Columns:
    """Another party's column of three categories: the own column tells some of it, the view all or nothing."""
    rng = np.random.default_rng(0)
    target = rng.integers(0, 3, 2 * n)
    own_column = (target == 0) * 1.0 + rng.normal(size=2 * n)
    shown = np.eye(3)[target] if shows else rng.normal(size=(2 * n, 3))
    auxiliary, attacked = slice(0, n), slice(n, 2 * n)
    both = [(values[auxiliary], values[attacked]) for values in (own_column[:, None], shown, target)]
    return Columns("z", both[0], both[1], {"job": both[2], "copy": both[2]})


def test_feature_inference_finds_what_a_view_adds_to_own_columns() -> None:
    baseline, shown = feature_inference(columns_view(True), 0)
    assert (baseline.attack, shown.attack) == ("own", "z") and shown.rate == 1.0
    assert baseline.chance < baseline.low < baseline.high < shown.low, (
        "own columns tell some of it: that is the control"
    )
    baseline, shown = feature_inference(columns_view(False), 0)
    assert abs(shown.rate - baseline.rate) < baseline.high - baseline.low, "a view of noise adds nothing"


def linear(weight: np.ndarray, bias: float = 0.0) -> TorchLogits:
    w = torch.tensor(weight, dtype=torch.float64)[:, None]
    return lambda x: x @ w + bias


@pytest.mark.parametrize("radius", RADII)
def test_pgd_is_exact_on_a_linear_model(radius: float) -> None:
    rng = np.random.default_rng(1)
    inputs, weight = rng.random((400, 6)), rng.normal(size=6)
    movable = np.array([0, 2, 5])
    logits = inputs @ weight - weight.sum() / 2
    reach = radius * np.abs(weight[movable]).sum()
    exact = (np.abs(logits) < reach).mean()
    target = WhiteBox("x", linear(weight, -weight.sum() / 2), inputs, movable)
    assert subspace_pgd(target, radius).rate == pytest.approx(exact, abs=1 / 400)
    moved = perturb(target, radius).numpy() - inputs
    assert np.abs(moved).max() <= radius + 1e-12
    assert (moved[:, [1, 3, 4]] == 0).all()


@pytest.mark.filterwarnings("ignore")
def test_pgd_agrees_with_the_adversarial_robustness_toolbox(ready: Prepared) -> None:
    pytest.importorskip("art")
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    fitted = METHODS.get("erm_network")(ready)
    inputs = ready.inputs[ready.split.test]
    movable = ready.columns(ready.roles.named("M"))

    class Wrapped(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return two_class(fitted.white_box(x.double())).float()

    classifier = PyTorchClassifier(
        Wrapped(), torch.nn.CrossEntropyLoss(), (inputs.shape[1],), 2, clip_values=None, device_type="cpu"
    )
    mask = np.zeros(inputs.shape[1], np.float32)
    mask[movable] = 1
    x = inputs.astype(np.float32)
    before = classifier.predict(x).argmax(axis=1)
    for radius in (0.05, 0.20):
        attack = ProjectedGradientDescent(
            classifier,
            np.inf,
            radius,
            radius / 5,
            max_iter=20,
            num_random_init=0,
            verbose=False,
            batch_size=512,
        )
        after = classifier.predict(attack.generate(x, mask=mask)).argmax(axis=1)
        ours = subspace_pgd(WhiteBox("x", fitted.white_box, inputs, movable), radius, restarts=1).rate
        assert abs(ours - (before != after).mean()) <= 0.02


def test_gradients_returned_to_a_party_reveal_the_labels_unless_they_are_noised(ready: Prepared) -> None:
    net = METHODS.get("erm_network")(ready).predict
    rows = ready.split.train[:200]
    inputs, label = ready.inputs[rows], GERMAN.label.values[rows]
    exact, summed, noised = label_inference(net.returned_gradients(inputs, label, 0, noise=1.0, seed=0), 0)
    assert exact.rate == 1.0 and summed.rate > 0.95
    assert noised.attack == "batch-noise1" and noised.rate < noised.chance + 0.05
