"""Private heads: events, prices compared with independent implementations, and the plan of one budget.

The implementations here share no code with `accounting`: maxima over slopes are taken by brute force, Gaussian
expectations by integration on a grid, and the corners of several heads by listing all of them.
"""

import json
import math
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit, logsumexp
from scipy.stats import norm

from secure_sccvfl.accounting.accountant import (
    epsilon_added,
    epsilon_against_dealer,
    epsilon_of,
    epsilon_with_batches_known,
    epsilons,
)
from secure_sccvfl.accounting.budget import Account, Charge, Terms
from secure_sccvfl.accounting.calibration import HeadShape, TargetError, split_budget
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.objective_bounds import Heads, closed_delta, divergences, excess
from secure_sccvfl.accounting.records import RecordSet

DELTA = 1e-5
RECORDS = RecordSet(np.arange(10, dtype=np.uint64))
HEAD = Event("head", 2.0, 4.0, RECORDS.digest, mechanism="objective", curvature=0.5)
TABLE = Event("sketch-0", 1.0, 8.0, RECORDS.digest)
KINDS = pytest.mark.parametrize("kind", ["objective", "objective-symmetric"])
SHAPE = HeadShape(3.0, 40)
SLOPES = np.linspace(0, 1, 2001)
ORDERS = np.concatenate([np.arange(1.1, 11, 0.1), np.arange(11, 64), [128.0, 256.0, 512.0, 1024.0]])


def head(mu, kappa, kind="objective", count=1, **more):
    return Event("head", 2.0, 2.0 / mu, RECORDS.digest, mechanism=kind, curvature=kappa, count=count, **more)


def largest(s, kappa):
    """e(s) by brute force over the slopes."""
    return (np.log1p(kappa * SLOPES * (1 - SLOPES)) - SLOPES * np.asarray(s)[..., None]).max(-1)


def integrated_curve(orders, mu, kappa, kind):
    """The Rényi bound with its two expectations integrated on a grid, over both signs of X and Y at once."""
    curve = []
    for t in np.asarray(orders) - 1:
        x, step = np.linspace(0, 6 * mu + t * mu**2 / 2, 8001, retstep=True)
        x = x[1:] - step / 2
        weight = norm.logpdf(x, 0, mu / 2) + math.log(step)
        knots = np.linspace(0, x[-1], 801) if kappa > x[-1] else np.append(np.linspace(0, kappa, 800), x[-1])
        if kind == "objective":
            above = np.interp(x, knots, largest(knots, kappa))
            ours = logsumexp(2 * t * np.array([x + above, above]) + weight)
            other = logsumexp(2 * t * np.array([x, 0 * x]) + weight)
        else:
            above = np.interp(x, knots, largest(2 * knots, kappa))
            ours, other = (math.log(2) + logsumexp(2 * t * y + weight) for y in (x + above, x))
        curve.append(mu**2 / 2 + (ours + other) / (2 * t))
    return np.array(curve)


@cache
def curve_of_head(mu, kappa, kind):
    """The same at the orders of an accountant."""
    return integrated_curve(ORDERS, mu, kappa, kind)


def to_epsilon(orders, curve, delta):
    """Canonne, Kamath and Steinke 2020, Prop. 12."""
    return float((curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)).min())


def stick(epsilon, mu):
    """The hockey-stick divergence of two Gaussians that are mu deviations apart, integrated."""
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    x = np.linspace(max(-12.0, epsilon / mu + mu / 2), mu + 12, 2001)  # from where the first density is larger
    if x[-1] <= x[0]:
        return 0.0
    gap = np.exp(-((x - mu) ** 2) / 2) - np.exp(epsilon - x**2 / 2)
    return float(np.trapezoid(np.maximum(gap, 0), x)) / math.sqrt(2 * math.pi)


CORNERS = {
    "objective": ((1, 0), (0.25, 0), (0.25, 1), (0, 1)),
    "objective-symmetric": ((1, 0), (1, 0), (0.5, 1), (0.5, 1)),
}


def listed_delta(epsilon, heads, other):
    """The closed form: every combination of corners of these (kind, mu, kappa), and the best of a few s."""
    best = 1.0
    for part in np.linspace(0, 1, 33):
        shifts = [(float(largest(part * k, k)), part * k + math.log1p(k / 4)) for _, _, k in heads]
        total = 0.0
        for corners in product(*(CORNERS[kind] for kind, _, _ in heads)):
            square = other**2 + sum(size * mu**2 for (size, _), (_, mu, _) in zip(corners, heads, strict=True))
            shift = sum(pair[far] for (_, far), pair in zip(corners, shifts, strict=True))
            total += stick(epsilon - shift, math.sqrt(square))
        best = min(best, total)
    return best


@pytest.mark.parametrize("kappa", [1e-3, 0.3, 2.0, 50.0])
def test_excess_is_the_largest_value_over_the_slopes(kappa):
    s = np.array([0, 1e-12, 1e-6, 0.01, 0.1, 0.5, 1.0, 1.9, 10.0, 60.0])
    values, tried = excess(s, kappa), largest(s, kappa)
    assert np.all(values >= tried - 1e-12), "never below what a slope reaches"
    assert values == pytest.approx(tried, abs=1e-5)


@KINDS
@pytest.mark.parametrize(("mu", "kappa"), [(0.2, 0.1), (0.5, 0.5), (1.5, 0.4), (1.5, 8.0), (5.0, 2.0)])
def test_the_curve_is_the_integral(kind, mu, kappa):
    orders = np.array([1.1, 1.5, 2.0, 3.0, 6.0, 20.0, 63.0])
    ours, integral = divergences(kind, mu, kappa, orders), integrated_curve(orders, mu, kappa, kind)
    assert np.all(ours >= integral * (1 - 1e-6)), "rounded up, never down"
    assert ours == pytest.approx(integral, rel=5e-3)


@KINDS
@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.3, 3.0, 60.0])
@pytest.mark.parametrize("kappa", [1e-6, 0.3, 300.0])
def test_the_curve_lies_between_a_gaussian_and_the_crude_bound(kind, mu, kappa):
    curve, gaussian = divergences(kind, mu, kappa, ORDERS), ORDERS * mu**2 / 2
    crude = math.log1p(kappa / 4) + math.log(4) / (ORDERS - 1) + gaussian
    assert np.all(np.isfinite(curve)) and np.all(curve <= crude * (1 + 1e-9))
    assert np.all(curve >= gaussian * (1 - 1e-9)), "a record that moves the gradient by all it can is a Gaussian"


@KINDS
@pytest.mark.parametrize(("count", "other"), [(1, 0.0), (1, 0.5), (2, 0.4), (3, 0.2)])
def test_two_implementations_agree_to_three_digits(kind, count, other):
    mu, kappa = 0.6, 0.4
    events = [head(mu, kappa, kind, count)] + ([Event("t", 1.0, 1 / other, RECORDS.digest)] if other else [])
    spent = epsilons(events, DELTA)
    curve = count * curve_of_head(mu, kappa, kind) + ORDERS * other**2 / 2
    assert spent.renyi == pytest.approx(to_epsilon(ORDERS, curve, DELTA), rel=1e-3)
    assert spent.opacus == pytest.approx(spent.renyi, rel=1e-3) and spent.agree
    heads = [(kind, mu, kappa)] * count
    around = 0.5 * spent.renyi, 1.5 * spent.renyi
    closed = brentq(lambda epsilon: listed_delta(epsilon, heads, other) - DELTA, *around, xtol=1e-4)
    assert spent.pld == pytest.approx(min(closed, spent.renyi), rel=1e-3)


def test_unequal_heads_are_listed_one_by_one():
    heads = [("objective", 0.5, 0.3), ("objective", 0.2, 0.6), ("objective-symmetric", 0.3, 0.4)]
    ours = tuple(Heads(kind, mu, kappa, 1) for kind, mu, kappa in heads)
    for epsilon in (1.0, 2.5):
        listed = listed_delta(epsilon, heads, 0.3)
        assert closed_delta(ours, 0.3, epsilon) == pytest.approx(listed, rel=0.02)
    spent = epsilons([head(mu, kappa, kind) for kind, mu, kappa in heads], DELTA)
    assert 0 < spent.pld <= spent.renyi and spent.agree


def test_many_heads_and_sampled_releases_are_read_by_renyi():
    many = epsilons([head(0.05, 0.2, count=60)], DELTA)
    assert many.pld == many.renyi
    sampled = epsilons([head(0.5, 0.2), Event("step", 2.0, 4.0, RECORDS.digest, sampling=0.1, added=1.0)], DELTA)
    assert sampled.pld == sampled.renyi and sampled.agree


def loss_of_one(kappa, mu):
    """Losses and probabilities of a head in one dimension: one record of length 1 against a row of zeros."""
    ridge, sigma = 1 / kappa, 2 / mu
    w = np.linspace(-(9 * sigma + 2) / ridge, (9 * sigma + 2) / ridge, 200_001)
    p = expit(-w)
    here = norm.logpdf(p - ridge * w, 0, sigma) + np.log(ridge + p * (1 - p))
    there = norm.logpdf(-ridge * w, 0, sigma) + math.log(ridge)
    return here - there, np.exp(here) * (w[1] - w[0])


def test_two_heads_are_not_a_head_and_a_gaussian():
    """Determinants of two heads add up. Pricing the second head as a Gaussian release undercuts the truth."""
    kappa, mu, epsilon, grid = 4.0, 0.02, 0.901, 1e-4
    losses, chances = loss_of_one(kappa, mu)
    assert chances.sum() == pytest.approx(1, abs=1e-6)
    cells = np.floor(losses / grid).astype(int)  # rounded down: a lower bound on what two heads cost
    masses = np.bincount(cells - cells.min(), weights=chances)
    twice = np.convolve(masses, masses)
    sums = (np.arange(len(twice)) + 2 * cells.min()) * grid
    exact = float((twice * np.maximum(-np.expm1(epsilon - sums), 0)).sum())
    assert 0.9e-5 < exact < 1.2e-5
    assert closed_delta((Heads("objective", mu, kappa, 2),), 0.0, epsilon) >= exact
    assert epsilons([head(mu, kappa, count=2)], exact).pld >= epsilon
    assert epsilon_of([head(mu, kappa, count=2)], exact) >= epsilon
    wrong = closed_delta((Heads("objective", mu, kappa, 1),), mu, epsilon)
    assert wrong < 1e-3 * exact, "one head and a Gaussian release: the check notices that this is too little"
    gaussian = epsilon_of([Event("x", 2.0, 2.0 / mu, "r", count=2)], exact)
    assert gaussian < epsilon, "and so is pricing both as Gaussian"


BAD_HEADS = (
    *({"curvature": value} for value in (0.0, -1.0, math.inf, math.nan)),
    *({"sampling": 0.5}, {"mechanism": "gaussian"}, {"mechanism": "paper"}),
)


@pytest.mark.parametrize("bad", BAD_HEADS)
def test_a_head_that_means_nothing_cannot_be_built(bad):
    with pytest.raises(ValueError, match=r"(curvature|sampling) must"):
        replace(HEAD, **bad)


@KINDS
def test_a_head_is_the_same_after_a_journey_as_json(kind):
    event = replace(HEAD, mechanism=kind, curvature=np.float64(1))
    assert Event.from_dict(json.loads(json.dumps(event.to_dict()))) == event
    with pytest.raises(ValueError, match="not an event"):
        Event.from_dict({k: v for k, v in event.to_dict().items() if k != "curvature"})


def test_lines_of_older_ledgers_are_read_and_written_as_they_were():
    line = (
        '{"name": "sketch-0", "sensitivity": 1.0, "sigma": 8.0, "records": "r", "refresh": 0, "count": 1, '
        '"sampling": 1.0, "mechanism": "gaussian", "added": 1.0, "copies": 1, "dealer_copies": 0}'
    )
    event = Event.from_dict(json.loads(line))
    assert json.dumps(event.to_dict()) == line
    with pytest.raises(ValueError, match="not an event"):
        Event.from_dict({**json.loads(line), "curvature": 0.0})


def test_copies_and_relations_of_a_head():
    two = replace(HEAD, copies=2, dealer_copies=1)
    assert epsilon_of([two], DELTA) == epsilon_of([replace(HEAD, sigma=HEAD.sigma * math.sqrt(2))], DELTA)
    assert epsilon_against_dealer([two], DELTA) == epsilon_of([HEAD], DELTA)
    assert epsilon_against_dealer([HEAD, replace(TABLE, dealer_copies=1)], DELTA) == math.inf
    assert epsilon_added([HEAD], DELTA) == epsilon_with_batches_known([HEAD], DELTA) == epsilon_of([HEAD], DELTA)
    assert epsilon_added([replace(HEAD, added=1.0)], DELTA) == epsilon_of([HEAD], DELTA), "no discount for half of it"


def test_curvature_and_mechanism_distinguish_histories():
    """Two sets of records with the same noise: the one with the sharper head has spent more."""
    first, second = (RecordSet(np.arange(n, n + 3, dtype=np.uint64)) for n in (0, 100))
    events = [replace(HEAD, records=first.digest), replace(HEAD, records=second.digest, curvature=5.0)]
    account = Account(
        Terms(8, DELTA),
        tuple(Charge(str(i), event) for i, event in enumerate(events)),
        {first.digest: first, second.digest: second},
    )
    assert len(account.histories()) == 2
    assert account.spent().renyi == epsilon_of([events[1]], DELTA) > epsilon_of([events[0]], DELTA)
    assert account.spent(first).renyi == epsilon_of([events[0]], DELTA)


def planned(budget, releases, heads, coarse=(), kind="objective"):
    moved = 2 * 3.0
    sigma = moved * budget.head_multiplier
    events = [Event("head", moved, sigma, "r", count=heads, mechanism=kind, curvature=budget.curvature)]
    if math.isfinite(budget.output_multiplier):
        events.append(Event("head output", 1.0, budget.output_multiplier, "r", count=heads))
    if releases:
        events.append(Event("sketch", 1.0, budget.table_multiplier, "r", count=releases))
    return events + [Event("first count", 1.0, times * budget.table_multiplier, "r") for times in coarse]


@settings(max_examples=15, deadline=None)
@given(
    epsilon=st.floats(0.3, 20),
    delta=st.sampled_from([1e-5, 1e-7]),
    releases=st.integers(0, 6),
    heads=st.integers(1, 4),
    kind=st.sampled_from(["objective", "objective-symmetric"]),
    share=st.floats(0.3, 0.9),
    coarse=st.sampled_from([(), (5.0,)]),
    baselines=st.sampled_from([(0, 0.0), (2, 0.35), (6, 0.1)]),
)
def test_tables_and_heads_fit_one_budget_exactly(epsilon, delta, releases, heads, kind, share, coarse, baselines):
    shape = HeadShape(3.0, 40, heads, kind, baselines=baselines[0], baseline_share=baselines[1])
    budget = split_budget(epsilon, delta, shape, releases=releases, share=share, coarse=coarse)
    events = planned(budget, releases, heads, coarse, kind)
    if baselines[0]:
        others = planned(shape.of_baselines(budget), 0, baselines[0], (), kind)
        events += [replace(event, name=f"{event.name} of baselines") for event in others]
    assert epsilon_of(events, delta) <= epsilon
    less = [replace(event, sigma=event.sigma * (1 - 1e-3)) for event in events]
    assert epsilon_of(less, delta) > epsilon, "a thousandth less noise does not fit"
    weights = {event.name: event.count / event.multiplier**2 for event in events}
    total = sum(weights.values())
    if releases:
        for_heads = share
        assert weights["sketch"] + weights.get("first count", 0) == pytest.approx((1 - share) * total, rel=1e-4)
    else:
        for_heads = share if coarse else 1.0
    for name, part in (("", 1 - baselines[1]), (" of baselines", baselines[1])):
        assert weights.get(f"head{name}", 0) == pytest.approx(0.99 * part * for_heads * total, rel=1e-4)
        assert weights.get(f"head output{name}", 0) == pytest.approx(0.01 * part * for_heads * total, rel=1e-4)
    ridge = max(2.8, 9 * math.sqrt(40) * budget.head_multiplier / 3)
    assert budget.ridge == pytest.approx(ridge, rel=1e-6)
    assert budget.curvature == pytest.approx((1 if kind == "objective" else 4) * 9 / ridge, rel=3e-6)


def test_the_ridge_has_a_floor_and_the_slope_counts():
    floor = split_budget(8, DELTA, HeadShape(1.0, 1), releases=0)
    assert floor.ridge == 2.8 and floor.curvature == pytest.approx(1 / 2.8) and floor.table_multiplier == math.inf
    plain = split_budget(4, DELTA, SHAPE, releases=4)
    capped = split_budget(4, DELTA, replace(SHAPE, slope=0.75, bend=1.125), releases=4)
    assert capped.ridge == pytest.approx(0.75 * plain.ridge, rel=1e-3)
    assert capped.curvature * capped.ridge == pytest.approx(1.125 * 9, rel=1e-5), "c / tau of the capped loss"
    assert split_budget(4, DELTA, SHAPE, releases=4, output_share=0.0).output_multiplier == math.inf


def test_a_plan_takes_what_was_spent_into_account():
    spent = (replace(TABLE, sigma=1.0), head(0.3, 0.1))
    before = epsilon_of(spent, DELTA)
    later = split_budget(before + 1, DELTA, SHAPE, releases=2, spent=spent)
    together = epsilon_of([*spent, *planned(later, 2, 1)], DELTA)
    assert before + 1 - 1e-3 < together <= before + 1
    for cap in (before, 0.5 * before):
        with pytest.raises(TargetError, match="the budget is too small for tables and head together"):
            split_budget(cap, DELTA, SHAPE, releases=2, spent=spent)
    with pytest.raises(TargetError, match="too small for tables and head together"):
        split_budget(1e-4, DELTA, SHAPE, releases=2)


def test_sampled_releases_are_planned_with_heads():
    budget = split_budget(4, DELTA, SHAPE, releases=2, sampled=((0.25, 10), (1.0, 1)))
    step = Event("step", 2.0, 2 * budget.table_multiplier, "r", count=10, sampling=0.25, added=1.0)
    epsilon = epsilon_of([*planned(budget, 3, 1), step], DELTA)
    assert 3.99 < epsilon <= 4


BAD_SPLITS = (
    *({"releases": -1}, {"heads": 0}, {"columns": 0}, {"radius": 0.0}, {"radius": math.inf}, {"slope": 0.0}),
    *({"bend": -1.0}, {"share": 0.0}, {"share": 1.0}, {"output_share": 1.0}, {"mechanism": "gaussian"}),
    *({"coarse": (0.5,)}, {"sampled": ((1.5, 2),)}, {"epsilon": -1.0}, {"delta": 0.0}),
)


@pytest.mark.parametrize("bad", BAD_SPLITS)
def test_a_split_that_means_nothing_is_refused(bad):
    plan = {"epsilon": 4.0, "delta": DELTA, "releases": 4}
    of_shape = {name: value for name, value in bad.items() if hasattr(SHAPE, name)}
    of_plan = {name: value for name, value in bad.items() if name not in of_shape}
    with pytest.raises(ValueError, match=r"must|need"):
        split_budget(**{**plan, **of_plan}, head=replace(SHAPE, **of_shape))
