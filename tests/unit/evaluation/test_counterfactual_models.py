"""Counterfactual models: what they are fitted on and change, scores, permutation baseline and validity checks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_fits import CategoryMove, NumberMove, coupled, shrunk
from secure_sccvfl.evaluation.counterfactual_models import (
    COUNTERFACTUAL_MODELS,
    Case,
    CounterfactualError,
    CounterfactualModel,
    Counterfactuals,
    failed_checks,
    make_counterfactuals,
    shuffled,
)
from secure_sccvfl.evaluation.methods import erm, prepare
from secure_sccvfl.evaluation.scoring import (
    base_rate_cut,
    edit_quality,
    evaluate,
    fit_counterfactuals,
    flat,
    group_gaps,
    group_table,
    net_flips,
    stability,
    utility,
)
from secure_sccvfl.policy.card import Decision, PolicyCard
from secure_sccvfl.reports.tables import markdown
from tests.support.counterfactuals import MEDIATORS, World, simulate

GERMAN = load("german")
SPLIT = make_split(GERMAN, "iid", 0)
USED = GERMAN.ids[np.concatenate([SPLIT.train, SPLIT.validation])]
HELD_OUT = GERMAN.take(SPLIT.test)
EDITED = ("housing", "duration", "savings")
FIXED = ("credit_amount", "checking_status")
ON_ALL_ROWS = [name for name, each in COUNTERFACTUAL_MODELS.items() if each.fitted_on == "all rows"]
SEEN: list[Case] = []


def ask(kind, held_out=HELD_OUT, everyone=GERMAN, seed=0):
    return make_counterfactuals(kind, held_out, USED, EDITED, seed, everyone=everyone, fixed=FIXED)


def look(case):
    """A model that changes nothing and keeps what it was given."""
    SEEN.append(case)
    rows = case.movable
    return Counterfactuals("", rows, case.inputs[rows], np.ones(len(rows)), case.target[rows])


@pytest.mark.parametrize("kind", COUNTERFACTUAL_MODELS)
def test_a_model_refuses_training_records_among_those_to_change(kind):
    with pytest.raises(CounterfactualError, match="would see 1 training records"):
        ask(kind, GERMAN.take(np.append(SPLIT.test, SPLIT.train[0])))
    with pytest.raises(CounterfactualError, match="no feature"):
        make_counterfactuals(kind, HELD_OUT, USED, (), 0, everyone=GERMAN)


@pytest.mark.parametrize(("fitted_on", "rows"), [("held-out", HELD_OUT.n), ("all rows", GERMAN.n)])
def test_a_model_is_handed_the_rows_it_is_fitted_on_and_changes_held_out_ones(monkeypatch, fitted_on, rows):
    spy = CounterfactualModel(f"{__name__}:look", "spy", ("x", "cross"), "", fitted_on)
    monkeypatch.setitem(COUNTERFACTUAL_MODELS.entries, "spy", spy)
    ask("spy")
    case = SEEN.pop()
    assert len(case.fitted_on.inputs) == len(case.fitted_on.codes) == rows
    assert len(case.inputs) == len(case.codes) == HELD_OUT.n
    assert case.edited == EDITED and case.fixed == FIXED


@pytest.mark.parametrize("kind", ON_ALL_ROWS)
def test_a_model_of_all_rows_needs_them_with_the_held_out_ones_among_them(kind):
    with pytest.raises(CounterfactualError, match="pass them as"):
        ask(kind, everyone=None)
    with pytest.raises(CounterfactualError, match="missing among all rows"):
        ask(kind, everyone=GERMAN.take(SPLIT.train))


@pytest.mark.parametrize("kind", ["ot", "all", "kr_all", "marg"])
def test_a_model_knows_no_label_and_is_fixed_by_its_seed(kind):
    turned = replace(GERMAN, label=replace(GERMAN.label, values=1 - GERMAN.label.values))
    first, second = ask(kind), ask(kind, turned.take(SPLIT.test), turned)
    for name in ("source", "inputs", "weight", "target"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    if kind in ("all", "marg"):
        assert not np.array_equal(first.inputs, ask(kind, seed=1).inputs)


@pytest.mark.parametrize("kind", COUNTERFACTUAL_MODELS)
def test_a_model_changes_only_what_it_should_inside_the_public_range(kind):
    changed = ask(kind)
    inputs = np.hstack([p.inputs for p in make_parties(HELD_OUT)])
    layout = Layout.of(GERMAN.features)
    rest = np.setdiff1d(np.arange(layout.width), layout.columns(EDITED))
    assert (changed.inputs[:, rest] == inputs[changed.source][:, rest]).all()
    assert changed.inputs.min() >= 0 and changed.inputs.max() <= 1
    assert (changed.target != HELD_OUT.protected[0].codes[changed.source]).all()
    weight = np.bincount(changed.source, weights=changed.weight, minlength=HELD_OUT.n)
    assert np.allclose(weight, 1.0), "every record counts once"


def test_transport_gives_each_group_the_other_groups_mediators():
    changed = make_counterfactuals("ot", HELD_OUT, USED, EDITED, 0)
    inputs = np.hstack([p.inputs for p in make_parties(HELD_OUT)])
    columns = Layout.of(GERMAN.features).columns(EDITED)
    codes = HELD_OUT.protected[0].codes
    for group in (0, 1):
        rows = codes[changed.source] == group
        moved = np.average(changed.inputs[rows][:, columns], axis=0, weights=changed.weight[rows])
        assert np.allclose(moved, inputs[codes == 1 - group][:, columns].mean(axis=0))
    quality = edit_quality(inputs, codes, inputs, codes, changed, columns)
    assert quality["edit_auc"] > 0.65 > 0.35 > quality["edit_auc_unedited"]
    assert quality["edit_mmd_ratio"] < 0.05 < quality["edit_size"]


def test_several_groups_and_a_group_too_small_to_transport_to():
    data = load("acs12")
    split = make_split(data, "iid", 0)
    used = data.ids[np.concatenate([split.train, split.validation])]
    held_out = data.take(split.test)
    changed = make_counterfactuals("ot", held_out, used, ("age", "edu"), 0)
    assert len(np.unique(changed.target)) == 4
    few = np.flatnonzero(held_out.protected[0].codes == 2)[4:]
    small = held_out.take(np.setdiff1d(np.arange(held_out.n), few))
    assert 2 not in make_counterfactuals("ot", small, used, ("age", "edu"), 0).target


@pytest.mark.parametrize("kind", ["ot", "all", "kr_all", "marg"])
def test_the_model_does_not_depend_on_the_order_of_the_parties(kind):
    turned = replace(GERMAN, parties=tuple(reversed(GERMAN.parties)))
    a, b = ask(kind), ask(kind, turned.take(SPLIT.test), turned)
    assert (a.source == b.source).all()
    names = [f.name for f in GERMAN.features]
    layout, other = Layout.of(GERMAN.features), Layout.of(turned.features)
    for name in names:
        assert (a.inputs[:, layout.columns([name])] == b.inputs[:, other.columns([name])]).all()


def test_stability_counts_flips_by_weight():
    inputs = np.array([[0.0], [1.0], [2.0]])
    changed = Counterfactuals(
        "x", np.array([0, 1, 2]), np.array([[1.5], [1.0], [-1.0]]), np.array([2.0, 1.0, 1.0]), np.zeros(3)
    )
    scored = {s.metric: s.value for s in stability(lambda u: u - 0.5, inputs, changed, "binary", "x")}
    assert scored["fr"] == pytest.approx(0.75)
    assert scored["scg"] == pytest.approx((2 * 1.5 + 0 + 3) / 4)
    assert scored["scg_norm"] == pytest.approx(1.5 / np.std([0, 1, 2]))


def test_a_group_is_shrunk_by_what_chance_explains():
    assert np.allclose(shrunk(np.array([[30.0, 30.0], [70.0, 70.0]])), [[0.3, 0.3], [0.7, 0.7]])
    # Distance .1 of 100 records each: chi is 100 (.01 / .5 + .01 / .5) / (1 - 1/2) = 8 with one degree of freedom.
    assert np.allclose(
        shrunk(np.array([[60.0, 40.0], [40.0, 60.0]])), 0.5 + 0.1 * (1 - 1 / 8) * np.array([[1, -1], [-1, 1]])
    )
    assert np.allclose(shrunk(np.array([[52.0, 48.0], [48.0, 52.0]])), 0.5), "chi is .32: chance explains it"
    assert np.allclose(shrunk(np.array([[5.0, 0.0], [5.0, 0.0]]))[:, 1], 0.5), "an empty group is like the pool"


def test_moves_turn_one_distribution_into_the_other_and_move_no_more_than_they_must():
    shares, uniform = np.array([[0.5, 0.2], [0.3, 0.4], [0.2, 0.4]]), (np.arange(1000) + 0.5) / 1000
    member = np.repeat(np.eye(3), (500, 300, 200), axis=0)
    mixed = np.random.default_rng(0).permutation(uniform)
    moved = CategoryMove(shares)(member, 0, 1, mixed)
    assert np.allclose(moved.mean(axis=0), shares[:, 1], atol=0.02)
    assert (moved != member).any(axis=1).mean() == pytest.approx(0.3, abs=0.02), "the total variation"
    old, new = (np.tile(shares[:, group], (1000, 1)) for group in (0, 1))
    chosen = coupled(member.argmax(axis=1), old, new, mixed)
    assert np.allclose(np.bincount(chosen) / 1000, shares[:, 1], atol=0.02)
    assert (chosen != member.argmax(axis=1)).mean() == pytest.approx(0.3, abs=0.02)
    levels = np.array([0.0, 0.4, 1.0])
    numbers = np.repeat(levels, (500, 300, 200))[:, None]
    within = np.concatenate([(np.arange(n) + 0.5) / n for n in (500, 300, 200)])
    pooled = np.repeat(levels, (70, 70, 60))
    ranked = NumberMove(shares, pooled, np.array([0, 70, 140, 200]))(numbers, 0, 1, within)
    assert [float((ranked == level).mean()) for level in levels] == pytest.approx(shares[:, 1])
    assert (np.diff(ranked[:, 0]) >= 0).all(), "ranks are kept"


def test_a_number_in_bins_keeps_its_position_and_a_gap_stays():
    values = np.arange(100) / 100
    move = NumberMove(np.array([[0.5, 0.25], [0.5, 0.75]]), values, np.array([0, 50, 100]))
    columns, middle = np.array([[0.1, 0.0], [0.25, 0.0], [0.5, 0.0], [0.0, 1.0]]), np.full(4, 0.5)
    # Rank .105 is .42 of the first quarter; rank .255 is just in the other bin; rank .505 is .34 of it.
    assert np.allclose(move(columns, 0, 1, middle), [[0.21, 0.0], [0.5, 0.0], [0.67, 0.0], [0.0, 1.0]])
    assert np.allclose(move(columns, 0, 0, middle), columns)


def test_records_that_share_a_value_inside_a_bin_are_ordered_at_random():
    """Half of all work 40 hours. Only some of them move when the other group has fewer such weeks."""
    values = np.sort(np.concatenate([np.full(100, 0.4), np.linspace(0.41, 0.9, 100)]))
    move = NumberMove(np.array([[0.6, 0.3], [0.4, 0.7]]), values, np.array([0, 120, 200]))
    weeks, uniform = np.full((1000, 1), 0.4), (np.arange(1000) + 0.5) / 1000
    assert (move(weeks, 0, 0, uniform) == weeks).all(), "the same distribution moves no record"
    stayed = float((move(weeks, 0, 1, uniform) == 0.4).mean())
    assert stayed == pytest.approx(0.5, abs=0.01), "the bin holds half as much, so half of them leave it"


def test_net_flip_rates_cancel_within_a_pair_of_groups_only():
    def net(before, after, codes, target, task="binary", weight=None, min_group=1):
        rows = np.arange(len(before))
        weight = np.ones(len(before)) if weight is None else np.array(weight)
        changed = Counterfactuals("x", rows, np.array(after, float), weight, np.array(target))
        return net_flips(np.array(before, float), changed.inputs, np.array(codes), changed, task, min_group)

    up, down = [1.0], [-1.0]
    assert net([up, down], [down, up], [0, 0], [1, 1]) == 0.0, "one gains, one loses"
    assert net([up, down], [down, up], [0, 1], [1, 0]) == 1.0, "the same in two pairs of groups"
    assert net([up, up, up, up], [down, up, up, up], [0, 0, 0, 0], [1, 1, 1, 1]) == 0.25
    assert net([up, up], [down, up], [0, 0], [1, 1], weight=[3.0, 1.0]) == 0.75
    one, two, three = np.eye(3)
    assert net([one, two], [two, three], [0, 0], [1, 1], "multiclass") == 0.5
    assert net([up], [down], [0], [1], "regression") is None
    assert net([up, up, up], [down, down, up], [0, 0, 1], [1, 1, 0], min_group=2) == 1.0, (
        "a single record is left out"
    )
    assert net([up, up], [down, down], [0, 0], [1, 1], min_group=3) is None


def test_group_gaps_are_the_largest_pairwise_ones():
    logits = np.array([1, 1, -1, -1, 1, -1.0])[:, None]
    label, codes = np.array([1, 0, 1, 0, 1, 0]), np.array([0, 0, 1, 1, 2, 2])
    gaps = {s.metric: s.value for s in group_gaps(logits, label, codes, "binary", 1)}
    assert [s.metric for s in group_gaps(logits, label, codes, "binary")] == ["positive_rate"], "two records a group"
    assert gaps == {"positive_rate": 0.5, "dp_gap": 1.0, "eo_gap": 1.0}
    assert [row["acc"] for row in group_table(logits, label, codes, "binary")] == [0.5, 0.5, 1.0]


def test_utility_does_not_rise_because_a_class_is_frequent():
    label = np.array([1] * 8 + [0] * 2)
    constant = {s.metric: s.value for s in utility(np.ones((10, 1)), label, "binary")}
    assert (constant["acc"], constant["auc"], constant["bacc"]) == (0.8, 0.5, 0.5)
    logits = np.r_[np.full(8, 2.0), [1.0, 3.0]][:, None]
    ranked = {s.metric: s.value for s in utility(logits, label, "binary")}
    assert (ranked["acc"], ranked["auc"], ranked["bacc"]) == (0.8, 0.5, 0.5)
    assert {s.metric for s in utility(logits, np.ones(10, int), "binary")} == {"acc", "logloss"}, "one class alone"
    assert {s.metric for s in utility(np.eye(3), np.arange(3), "multiclass")} == {"acc", "logloss"}


def test_the_base_rate_threshold_gives_the_training_share_of_positives():
    logits, label = np.linspace(-3.0, -1.0, 200)[:, None], np.repeat([0, 1], [150, 50])
    cut = base_rate_cut(logits, label)
    assert (logits[:, 0] > cut).mean() == pytest.approx(0.25, abs=0.01) and (logits > 0).mean() == 0.0
    assert base_rate_cut(np.full((9, 1), -2.0), label[:9]) == 0.0, "who always says the same goes on doing so"
    copies = Counterfactuals("x", np.arange(200), logits + 0.5, np.ones(200), 1 - label)
    metrics = flat(evaluate(lambda u: u, logits, label, label, "binary", {"x": copies}, {"x": copies}, cut))
    assert metrics["fr_x"] == metrics["fr_null_x"] == 0.0
    assert metrics["fr_base_x"] == metrics["fr_base_null_x"] == pytest.approx(0.25, abs=0.01)
    assert metrics["acc"] == 0.75 and metrics["acc_base"] == pytest.approx(1.0, abs=0.01)
    assert not any("base" in name for name in flat(evaluate(lambda u: u, logits, label, label, "binary", {})))


def test_real_records_show_what_a_perfect_counterfactual_would_reach():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1], 200)
    inputs = (codes + rng.normal(0, 1, 400))[:, None]
    perfect = Counterfactuals("x", np.arange(400), inputs[::-1].copy(), np.ones(400), 1 - codes)
    nothing = replace(perfect, inputs=inputs)
    columns = np.array([0])
    best, none = (edit_quality(inputs, codes, inputs, codes, e, columns) for e in (perfect, nothing))
    assert best["edit_auc"] == pytest.approx(best["edit_auc_real"], abs=1e-9) and best["edit_auc_real"] > 0.7
    assert none["edit_auc"] == pytest.approx(none["edit_auc_unedited"]) and none["edit_auc"] < 0.3


SEEDS = range(3)


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["no effect", "real effect"])
def worlds(request):
    return request.param, [simulate(request.param, seed) for seed in SEEDS]


def flips(kind: str, world: World, seed: int) -> float:
    held_out = world.factual.take(world.split.test)
    given = (kind, held_out, world.used, MEDIATORS, seed)
    counterfactuals = make_counterfactuals(*given, everyone=world.factual, fixed=world.fixed)
    scored = stability(world.predict, world.inputs[world.split.test], counterfactuals, "binary", kind)
    return next(s.value for s in scored if s.metric == "fr")


# Root-mean-square error of the flip rate, by the effect of the group: how much a model may be off.
ERRORS = {
    "ot": {0.0: 0.15, 1.0: 0.11},
    "cvae": {0.0: 0.07, 1.0: 0.05},
    "all": {0.0: 0.02, 1.0: 0.05},
    "kr_all": {0.0: 0.02, 1.0: 0.05},
    "marg": {0.0: 0.03, 1.0: 0.05},
}


@pytest.mark.parametrize("kind", COUNTERFACTUAL_MODELS)
def test_a_model_is_near_the_true_flip_rate(kind, worlds):
    effect, generated = worlds
    truth = np.array([world.flip_rate for world in generated])
    assert (truth == 0).all() if effect == 0 else (truth > 0.05).all()
    errors = np.array([flips(kind, world, seed) for seed, world in zip(SEEDS, generated, strict=True)]) - truth
    assert np.sqrt((errors**2).mean()) <= ERRORS[kind][effect]


BASELINE_SEEDS = range(400, 404)
ROLES = {"employment": "M", "hrs_work": "M", "edu": "M", "time_to_work": "M", "married": "P"}
CARDS = {"german": None, "acs12-gender": ROLES}


def edit_at_random(case):
    """Every record takes the mediators of any other one."""
    rows, columns = case.movable, case.layout.columns(case.edited)
    moved = case.inputs[rows].copy()
    picked = stream(case.seed, "at random").permutation(len(case.inputs))[: len(rows)]
    moved[:, columns] = case.inputs[picked][:, columns]
    return Counterfactuals("", rows, moved, np.ones(len(rows)), case.target[rows])


@pytest.fixture(scope="module", params=CARDS)
def rates(request):
    """Mean flip rates of ERM by model, for true and permuted s. The autoencoder is left out: it is slow."""
    data, roles, patch = load(request.param), CARDS[request.param], pytest.MonkeyPatch()
    card = None
    if roles is not None:
        decisions = {f.name: Decision(roles.get(f.name, "N"), "fixed for a comparison") for f in data.features}
        card = PolicyCard(data.name, "1", ("tests",), decisions)
    rates_by_model = {}
    with patch.context() as patched:
        patched.delitem(COUNTERFACTUAL_MODELS.entries, "cvae")
        at_random = CounterfactualModel(f"{__name__}:edit_at_random", "random", ("x", "cross"), "")
        patched.setitem(COUNTERFACTUAL_MODELS.entries, "random", at_random)
        for seed in BASELINE_SEEDS:
            ready = prepare(data, make_split(data, "iid", seed), seed, card=card)
            scoring = fit_counterfactuals(data, ready.split, ready.roles, seed)
            scores = flat(scoring.score(erm(ready).predict))
            for kind in COUNTERFACTUAL_MODELS:
                pair = [scores[f"{fr}_{kind}"] for fr in ("fr", "fr_null")]
                rates_by_model.setdefault(kind, []).append(pair)
    return {
        kind: dict(zip(("edit_erm", "edit_erm_null"), np.mean(pairs, 0), strict=True))
        for kind, pairs in rates_by_model.items()
    }


@pytest.mark.parametrize("kind", ["all", "kr_all"])
def test_a_model_of_all_rows_passes_the_permutation_baseline(rates, kind):
    assert rates[kind]["edit_erm_null"] <= rates[kind]["edit_erm"] / 4
    assert failed_checks(rates[kind]) == ()


@pytest.mark.parametrize("kind", ["random", "ot"])
def test_a_model_that_moves_everybody_is_caught(rates, kind):
    assert rates[kind]["edit_erm_null"] > rates[kind]["edit_erm"] / 2
    assert failed_checks(rates[kind]) == ("null",)


def test_shuffling_moves_s_and_nothing_else():
    data = load("german")
    null = shuffled(data, 0)
    old, new = data.protected[0].codes, null.protected[0].codes
    assert np.array_equal(np.bincount(old), np.bincount(new)) and abs(np.corrcoef(old, new)[0, 1]) < 0.1
    assert np.array_equal(data.values, null.values) and data.label is null.label and data.ids is null.ids
    assert np.array_equal(new, shuffled(data, 0).protected[0].codes)
    assert not np.array_equal(new, shuffled(data, 1).protected[0].codes)


def test_each_check_fails_on_its_own():
    sound = {"edit_auc": 0.65, "edit_mmd_ratio": 0.7, "edit_erm": 0.04, "edit_erm_null": 0.01}
    assert failed_checks(sound) == failed_checks({}) == ()
    assert failed_checks({**sound, "edit_auc": 0.64}) == ("AUC",)
    assert failed_checks({**sound, "edit_mmd_ratio": 0.71}) == ("MMD",)
    assert failed_checks({**sound, "edit_erm_null": 0.011}) == ("null",)
    assert failed_checks({**sound, "edit_erm": 0.0}) == ("null",), "it moves decisions under shuffled s alone"
    assert failed_checks({**sound, "edit_auc": float("nan")}) == ()


def test_a_failing_model_is_marked_in_the_table():
    def row(method, model, metric, mean):
        return {"dataset": "d", "split": "iid", "method": method, "judge": model, "metric": metric} | {
            "mean": mean, "low": mean, "high": mean, "seeds": 3,
        }  # fmt: skip

    rows = []
    for model, null in (("ot", 0.09), ("all", 0.003)):
        rows += [row("erm", model, "fr", 0.1), row("erm", model, "fr_null", null), row("erm", model, "net", 0.02)]
        figures = {"edit_auc": 0.7, "edit_auc_unedited": 0.3, "edit_auc_real": 0.8}
        figures |= {"edit_mmd_ratio": 0.1, "edit_size": 1.0}
        figures |= {"edit_erm": 0.1, "edit_erm_null": null}
        rows += [row("(edits)", model, metric, value) for metric, value in figures.items()]
    text = markdown("main", rows)
    head = next(line for line in text.splitlines() if line.startswith("| method"))
    assert "fr [all] | fr_null [all] | net [all] | fr [ot] **fails** | fr_null [ot] | net [ot] **fails** |" in head
    assert "ERM 0.1000 with true s and 0.0900 with permuted s; **fails**: null" in text
    assert "0.0030 with permuted s; passes every check" in text
    assert "AUC of the target group 0.70 (unchanged 0.30, real records 0.80)" in text
    assert "| 10.00 % (10.00-10.00) | 9.00 % (9.00-9.00) | 2.00 %" in text
