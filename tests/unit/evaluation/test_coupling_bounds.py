"""Bounds over couplings: against every coupling of a small case, and never below flips of counterfactual models."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import secure_sccvfl as scc
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.coupling_bounds import (
    Mediator,
    Shares,
    bound,
    confident_shares,
    coupling_scores,
    limits,
    mediators_of,
    point_shares,
)
from secure_sccvfl.evaluation.methods import METHODS, edited_rows, erm, prepare
from secure_sccvfl.evaluation.methods import scc as default
from secure_sccvfl.evaluation.scoring import fit_counterfactuals, one_thread
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training.config import TrainConfig
from tests.unit.evaluation.test_certified import prepared, with_gaps


def exactly(of):
    bins, groups = of.shape
    none = np.zeros((bins, groups, groups))
    return Shares(of, none, np.zeros((bins, groups)), none, np.zeros((groups, groups)))


def category(name, bins, levels):
    there = np.tile(levels, (len(bins), 1))
    return Mediator(name, np.array(bins), np.array(levels)[bins], there, there, 0)


# two categories with a quarter and a half of eight records to move: all couplings can be listed

BINS = {"a": [0, 0, 0, 0, 1, 1, 1, 1], "b": [0, 0, 1, 1, 0, 0, 1, 1]}
SHARES = {
    "a": exactly(np.array([[0.5, 0.25], [0.5, 0.75]])),
    "b": exactly(np.array([[0.5, 0.0], [0.5, 1.0]])),
}
MOVES = {"a": 2, "b": 4}
"""So many of the eight records leave the first value of each."""


def most_flips(logits, levels):
    """Over all ways to choose the records that move in each mediator."""
    from itertools import combinations

    best, certified = 0, np.ones(8, bool)
    ways = []
    for name, count in MOVES.items():
        first = [i for i in range(8) if BINS[name][i] == 0]
        ways.append([set(chosen) for chosen in combinations(first, count)])
    for choice in product(*ways):
        moved = np.zeros(8)
        for of, chosen in zip(levels.values(), choice, strict=True):
            moved[list(chosen)] += of[1] - of[0]
        flipped = (logits + moved > 0) != (logits > 0)
        best, certified = max(best, int(flipped.sum())), certified & ~flipped
    return best, certified


def bounded(logits, levels):
    mediators = [category(name, BINS[name], levels[name]) for name in BINS]
    return bound(logits, np.zeros(8, int), mediators, SHARES, 2)


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_is_never_below_any_coupling_of_a_small_case(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=8)
    levels = {name: rng.normal(0, 1.5, 2) for name in BINS}
    flips, safe = most_flips(logits, levels)
    found = bounded(logits, levels)
    assert flips <= 8 * found.flips + 1e-6 <= (~found.certified).sum() + 1e-5
    assert safe[found.certified].all(), "no coupling flips a certified decision"
    alone = {**levels, "b": np.zeros(2)}  # one mediator: a flip needs one move, and the bound is reached
    assert 8 * bounded(logits, alone).flips == pytest.approx(most_flips(logits, alone)[0], abs=1e-6)


def test_the_bound_is_reached_where_each_flip_needs_both_mediators():
    logits = np.full(8, -1.0)
    levels = {"a": np.array([0.0, 0.6]), "b": np.array([0.0, 0.6])}
    flips, _ = most_flips(logits, levels)
    found = bounded(logits, levels)
    assert flips == 2 and 8 * found.flips == pytest.approx(2.0)
    assert found.certified.tolist() == [i > 1 for i in range(8)], "only the first two can move both"


def test_capacities_of_a_number_that_may_be_missing():
    """Half of the missing values become present; three tenths of the present ones rise over the first cut."""
    of = np.array([[0.6, 0.48], [0.2, 0.42], [0.2, 0.1]])
    counts = np.array([6, 2, 2])
    given = limits(exactly(of), 0, 1, counts, 2)
    # present shares: .75, .25 and .533, .467
    assert given.allowed.tolist() == [[False, True, False], [False, False, False], [True, True, False]]
    most = {tuple(map(tuple, np.argwhere(mask))): cap for mask, cap in given.caps}
    assert most[((0, 1),)] == pytest.approx(8 * (0.75 - 0.48 / 0.9))
    assert most[((2, 0), (2, 1), (2, 2))] == pytest.approx(1.0)
    back = limits(exactly(of), 1, 0, counts, 2)
    assert back.allowed[0, 2] and back.allowed[1, 2] and not back.allowed[2].any()


@pytest.fixture(scope="module")
def runs():
    """Default models without noise on the model, of seeds on which nothing was chosen."""
    with one_thread():
        made = []
        for name, card, seed in (("german", "shipped", 1160), ("acs12-gender", "shipped", 1161)):
            data, config = scc.load(name).dataset, TrainConfig().only(3.0)
            split = make_split(data, "iid", seed)
            given = SpendingPlan(releases=config.charged), named_card(card, name)
            made.append(prepare(data, split, seed, config, *given))
        return made


def test_bounds_are_not_below_the_flips_of_any_counterfactual_model(runs):
    """`all` and `kr_all` see data without noise, so they are compared with the bounds at 95 %."""
    with one_thread():
        for ready in runs:
            scoring = fit_counterfactuals(ready.data, ready.split, ready.roles, ready.seed, ("all", "kr_all"))
            for method in (default, erm):
                fitted = method(ready)
                found = {one.metric: one.value for one in coupling_scores(ready, fitted)}
                flips = [one.value for one in scoring.score(fitted.predict) if one.metric == "fr"]
                assert len(flips) == 2 and max(flips) < found["fr_bound_95"] <= 1
                assert found["fr_bound"] < found["fr_bound_95"]
                assert found["certified_tables_95"] < found["certified_tables"]
                assert found["fr_bound"] <= 1 - found["certified_tables"] + 1e-9


def flips_of(ready, fitted, draws):
    """By the generator of the run, for each test record: the share of draws that flip it."""
    test = ready.split.test
    logits = fitted.predict(ready.inputs[test])[:, 0]
    moved = [edited_rows(ready, ready.roles, ready.config.generator, test, draw)[0] for draw in range(draws)]
    return np.mean([(fitted.predict(inputs)[:, 0] > 0) != (logits > 0) for inputs in moved], axis=0)


def test_the_generator_of_the_run_is_within_the_class_of_couplings(runs):
    """No draw flips a record that is certified within the tables; the expected flip rate is below the bound."""
    gaps = binary_with_gaps()
    with one_thread():
        for ready in (*runs, gaps):
            for method in (default, erm):
                fitted, test = method(ready), ready.split.test
                inputs, codes = ready.inputs[test], ready.data.protected[0].codes[test]
                logits, mediators = fitted.predict(inputs)[:, 0], mediators_of(ready, fitted, inputs)
                found = bound(logits, codes, mediators, point_shares(ready), 2)
                flips = flips_of(ready, fitted, 40)
                assert flips.any() and not flips[found.certified].any()
                assert flips.mean() < found.flips


def binary_with_gaps():
    data = with_gaps()
    label = replace(data.label, values=(data.label.values > 0).astype(int), classes=("0", "1"))
    data = replace(data, task="binary", label=label)
    with one_thread():
        return prepared(data, {"pay", "hours", "job"})


def test_the_contribution_of_a_record_is_that_of_its_prediction():
    """Numbers between cuts, missing values and categories: moving every mediator gives the logit of the record."""
    ready = binary_with_gaps()
    with one_thread():
        fitted = default(ready)
        inputs = ready.inputs[ready.split.test]
        mediators = mediators_of(ready, fitted, inputs)
    assert {m.name: m.steps for m in mediators} == {"pay": 3, "hours": 3, "job": 0}
    for mediator in mediators:
        own = mediator.low[np.arange(len(inputs)), mediator.bins]
        assert own == pytest.approx(mediator.now) and (mediator.low <= mediator.high).all()
    from secure_sccvfl.evaluation.certified import base_logits

    base = base_logits(fitted.predict, ready.parties, inputs, ready.roles.edited)[:, 0]
    assert base + sum(m.now for m in mediators) == pytest.approx(fitted.predict(inputs)[:, 0])


def test_allowances_cover_the_noise_of_the_tables(runs):
    """Over twenty draws of the noise all exact shares are within the allowances: jointly at least 95 %."""
    ready = runs[0]
    noisy, covered = ready.model.noisy_tables[0], 0
    rows = ready.config.training_rows(ready.split)
    groups = np.eye(2)[ready.data.protected[0].codes[rows]]
    exact = {n: b.T @ groups for p in ready.parties for n, b in p.take(rows).bins().items()}
    for draw in range(20):
        rng = np.random.default_rng(draw)
        tables = {name: exact[name] + rng.normal(0, noisy.deviation, exact[name].shape) for name in noisy.tables}
        model = replace(ready.model, noisy_tables=(replace(noisy, tables=tables),))
        shares = confident_shares(replace(ready, model=model))
        held = []
        for name, one in shares.items():
            true = exact[name] / exact[name].sum(axis=0)
            apart = np.abs((one.of[:, 0] - one.of[:, 1]) - (true[:, 0] - true[:, 1]))
            held.append((apart <= one.cell[:, 0, 1] + 1e-9).all())
            gap = abs(0.5 * np.abs(one.of[:, 0] - one.of[:, 1]).sum() - 0.5 * np.abs(true[:, 0] - true[:, 1]).sum())
            held.append(gap <= one.total[0, 1] + 1e-9)
        covered += all(held)
    assert covered >= 18


def test_methods_without_a_certificate_have_no_bound(runs):
    ready = runs[0]
    with one_thread():
        assert coupling_scores(ready, METHODS.get("aware")(ready)) == []
        none = replace(ready, model=replace(ready.model, assignment=replace(ready.model.assignment, roles=Roles({}))))
        assert coupling_scores(none, default(ready)) == []
        assert coupling_scores(prepared(with_gaps(), {"pay"}), default(prepared(with_gaps(), {"pay"}))) == []
