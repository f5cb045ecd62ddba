"""Figures from noisy sums, worked by hand; what one record can move; floors."""

import itertools
import math

import numpy as np
import pytest

from secure_sccvfl.metrics.noisy import Sums, figures_of, share_of_copies
from secure_sccvfl.metrics.rates import Copies

LAYOUT = Sums("binary", 2, ("own",))
ROWS = 1000


def exact_sums(codes, label, decision, flipped):
    """What a noisy evaluation opens, without noise."""
    cells = np.zeros((2, 2, 2))
    np.add.at(cells, (codes, label, decision), 1)
    return {
        "right": np.array([(label == decision).sum()], float),
        "cells": cells.reshape(-1),
        "flips own": np.array([flipped.sum()], float),
    }


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(3)
    codes, label = rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)
    decision = np.where(rng.random(ROWS) < 0.8, label, 1 - label)
    return codes, label, decision, (rng.random(ROWS) < 0.1).astype(int)


def test_without_noise_the_figures_are_the_plain_ones(people):
    codes, label, decision, flipped = people
    figures = figures_of(LAYOUT, exact_sums(*people), {"own": 1 / ROWS}, 1e-9, ROWS, 20)
    rate = [decision[codes == g].mean() for g in (0, 1)]
    hits = [decision[(codes == g) & (label == 1)].mean() for g in (0, 1)]
    alarms = [decision[(codes == g) & (label == 0)].mean() for g in (0, 1)]
    assert figures["metrics"]["acc"] == pytest.approx((label == decision).mean())
    assert figures["metrics"]["positive_rate"] == pytest.approx(decision.mean())
    assert figures["metrics"]["dp_gap"] == pytest.approx(abs(rate[0] - rate[1]))
    assert figures["metrics"]["eo_gap"] == pytest.approx(max(abs(hits[0] - hits[1]), abs(alarms[0] - alarms[1])))
    assert figures["metrics"]["fr_own"] == pytest.approx(flipped.mean())
    assert [g["rates"]["tpr"]["value"] for g in figures["groups"]] == pytest.approx(hits)
    assert all(not g["too_few"] for g in figures["groups"])


def test_the_stated_intervals_hold_the_exact_figures(people):
    """Seeded, so the outcome does not depend on chance: 95 % intervals hold in 93 to 97 % of 4,000 draws."""
    rng, deviation = np.random.default_rng(5), 8.0
    sums = exact_sums(*people)
    exact = figures_of(LAYOUT, sums, {"own": 1 / ROWS}, 1e-9, ROWS, 20)
    held: dict[str, list[bool]] = {}
    for _ in range(4000):
        noisy = {name: value + rng.normal(0, deviation, value.shape) for name, value in sums.items()}
        figures = figures_of(LAYOUT, noisy, {"own": 1 / ROWS}, deviation, ROWS, 20)
        for name in ("acc", "positive_rate", "fr_own"):
            inside = abs(figures["metrics"][name] - exact["metrics"][name]) <= figures["noise"][name]
            held.setdefault(name, []).append(inside)
        for seen, true in zip(figures["groups"], exact["groups"], strict=True):
            for name, rate in seen["rates"].items():
                held.setdefault(name, []).append(abs(rate["value"] - true["rates"][name]["value"]) <= rate["noise"])
    for name, inside in held.items():
        assert 0.93 <= np.mean(inside) <= 0.97, name


def test_no_record_moves_the_sums_by_more_than_the_sensitivity():
    """Every record there is: group, label, decision and weight of its flips, added or replaced by any other."""
    rows = [
        np.concatenate([list(part) for part in exact_sums(*(np.array([v]) for v in (g, y, d, f))).values()])
        for g in (0, 1)
        for y in (0, 1)
        for d in (0, 1)
        for f in (0, 1)
    ]
    assert max(np.linalg.norm(row) for row in rows) <= LAYOUT.sensitivity.added
    moved = max(np.linalg.norm(a - b) for a in rows for b in rows)
    assert LAYOUT.sensitivity.replaced == pytest.approx(moved, rel=1e-12), "the bound is reached"


def test_the_permutation_baseline_uses_the_group_of_another_record():
    """One more person, or another instead: with the same order of shuffled groups two terms of the control move."""
    layout = Sums("binary", 2, ("own", "null_own"), majority=True)

    def sums(people, order):
        """People: group, label, decision, whether it flips, and whether it would under each group of the control."""
        codes, label, decision, flipped, *null = np.array(people).T
        control = np.array(null)[codes[list(order)], np.arange(len(codes))].sum()
        return np.concatenate([*exact_sums(codes, label, decision, flipped).values(), [control]])

    first, second, other = (1, 1, 1, 1, 1, 1), (0, 0, 0, 0, 0, 1), (0, 1, 0, 0, 0, 0)
    added = np.linalg.norm(sums([first, second], (1, 0)) - sums([second], (0,)))
    assert added > math.sqrt(len(layout.widths)), "more than if every sum moved by one"
    people, rng, most = [first, second, other], np.random.default_rng(7), dict.fromkeys(("added", "replaced"), 0.0)
    people += [tuple(rng.integers(0, 2, 6)) for _ in range(12)]
    for one, another, third in itertools.product(people, repeat=3):
        joined = np.linalg.norm(sums([one, another], (1, 0)) - sums([another], (0,)))
        instead = np.linalg.norm(sums([one, third], (1, 0)) - sums([another, third], (1, 0)))
        most = {"added": max(most["added"], joined), "replaced": max(most["replaced"], instead)}
    assert 0.9 * layout.sensitivity.added < most["added"] <= layout.sensitivity.added
    assert 0.9 * layout.sensitivity.replaced < most["replaced"] <= layout.sensitivity.replaced


def test_rates_of_too_few_records_are_not_reported():
    codes = np.array([0] * 500 + [1] * 12)
    label = np.arange(512) % 2
    sums = exact_sums(codes, label, label, np.zeros(512))
    figures = figures_of(LAYOUT, sums, {"own": 1 / 512}, 1.0, 512, 20)
    assert figures["groups"][0]["too_few"] == []
    assert figures["groups"][1]["rates"] == {} and len(figures["groups"][1]["too_few"]) == 3
    assert "dp_gap" not in figures["metrics"] and "eo_gap" not in figures["metrics"]


def test_the_floor_allows_for_the_noise():
    """A noisy size of 25 does not make sure of 20 records when its deviation is 4."""
    cells = np.array([[[30.0, 30.0], [30.0, 30.0]], [[6.0, 6.0], [6.0, 7.0]]])
    sums = {"right": np.array([70.0]), "cells": cells.reshape(-1), "flips own": np.zeros(1)}
    assert "positive_rate" in figures_of(LAYOUT, sums, {"own": 0.01}, 2.0, 145, 20)["groups"][1]["too_few"]
    assert figures_of(LAYOUT, sums, {"own": 0.01}, 0.1, 145, 20)["groups"][1]["too_few"] == ["tpr", "fpr"]


def test_regression_and_several_classes_have_their_own_sums():
    assert list(Sums("regression", 2, ("own",)).widths) == ["error", "shift own"]
    assert list(Sums("multiclass", 3, ("own",)).widths) == ["right", "flips own"]
    figures = figures_of(
        Sums("regression", 2, ("own",)),
        {"error": np.array([40.0]), "shift own": np.array([10.0])},
        {"own": 0.001},
        5.0,
        1000,
        20,
    )
    assert figures["metrics"] == {"rmse": pytest.approx(0.2), "scg_own": pytest.approx(0.01)}
    assert figures["noise"]["rmse"] == pytest.approx(1.96 * 0.005 / (2 * 0.2), rel=1e-3)


def test_copies_of_a_record_weigh_one_together_at_most():
    of = Copies(np.array([0, 0, 1, 2, 2, 2]), np.array([0.5, 0.5, 1.0, 0.7, 0.7, 0.6]))
    assert share_of_copies(of) == pytest.approx(2.0 / 4.0)
    assert math.isclose(Sums("binary", 2, ("a", "b", "own")).sensitivity.added ** 2, 5, rel_tol=3e-3)
