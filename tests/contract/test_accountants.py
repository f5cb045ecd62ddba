"""Every accountant keeps the same promises."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from secure_sccvfl.accounting.accountant import (
    FINE,
    Epsilons,
    Price,
    _divergences,
    _orders,
    _priced,
    epsilon_added,
    epsilon_against_dealer,
    epsilon_with_batches_known,
    epsilons,
    loss_distribution,
    opacus,
    renyi,
    tally,
)
from secure_sccvfl.accounting.events import Event

DELTA = 1e-5
KINDS = pytest.mark.parametrize("kind", [renyi, loss_distribution, opacus])


def event(multiplier, count=1, sampling=1.0, **more):
    """Hidden noise of `multiplier` times what a replaced record moves, which is twice what an added one does."""
    return Event("x", 2.0, 2.0 * multiplier, "records", count=count, sampling=sampling, added=1.0, **more)


def read(kind, events):
    return kind(tally(events), DELTA)


def replayed(events):
    """Rényi and tight epsilon of releases in which a record is replaced, by dp_accounting alone."""
    orders = np.array(DEFAULT_RDP_ORDERS)
    total, pld = np.zeros(len(orders)), PLDAccountant(NeighboringRelation.REPLACE_ONE)
    for one in events:
        noise = one.sigma * one.copies**0.5
        full = orders / (2 * (noise / one.sensitivity) ** 2)
        if one.sampling == 1:
            total += one.count * full
            pld.compose(GaussianDpEvent(2 * noise / one.sensitivity), one.count)
            continue
        sampled = PoissonSampledDpEvent(one.sampling, GaussianDpEvent(noise / one.added))
        pld.compose(sampled, one.count)
        far, near = RdpAccountant(list(2 * orders)), RdpAccountant(list(2 * orders - 1))
        far.compose(sampled)
        near.compose(sampled)
        through = (orders - 0.5) / (orders - 1) * far.rdp + near.rdp
        total += one.count * np.minimum(full, through)
    return float(compute_epsilon(orders, total, DELTA)[0]), float(pld.get_epsilon(DELTA))


def analytic_epsilon(multiplier, delta):
    """Exact epsilon of one Gaussian release (Balle and Wang 2018, Theorem 8), by root finding."""

    def gap(epsilon):
        a, b = 1 / (2 * multiplier), epsilon * multiplier
        return norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b)) - delta

    return brentq(gap, 0, 2 / multiplier**2 + 40 / multiplier)


@KINDS
@pytest.mark.parametrize("multiplier", [0.2, 0.5, 1, 2, 5, 20])
def test_never_below_the_analytic_value(kind, multiplier):
    epsilon, exact = read(kind, [event(multiplier)]), analytic_epsilon(multiplier, DELTA)
    assert exact <= epsilon <= 1.15 * exact


@pytest.mark.parametrize(("sampling", "multiplier", "count"), [(0.02, 1.0, 200), (0.25, 1.8, 40), (0.5, 2.1, 20)])
def test_sampled_releases_are_those_of_dp_accounting_and_opacus(sampling, multiplier, count):
    mixed = [event(multiplier, 5), event(multiplier, count, sampling)]
    assert read(renyi, mixed) == pytest.approx(replayed(mixed)[0], rel=1e-9)
    assert read(loss_distribution, mixed) == pytest.approx(replayed(mixed)[1], rel=1e-3)
    alone = RdpAccountant()
    alone.compose(GaussianDpEvent(2 * multiplier), 5)
    alone.compose(PoissonSampledDpEvent(sampling, GaussianDpEvent(2 * multiplier)), count)
    assert epsilon_added(mixed, DELTA) == pytest.approx(alone.get_epsilon(DELTA), rel=1e-9)
    other = RDPAccountant()
    other.history = [(multiplier, 1.0, 5), (multiplier, sampling, count)]
    whole = [float(order) for order in range(2, 64)]  # at whole orders the two codes have one formula
    ours = RdpAccountant(whole)
    ours.compose(ComposedDpEvent([_priced(multiplier, 1.0, 5), _priced(multiplier, sampling, count)]))
    assert other.get_epsilon(DELTA, alphas=whole) == pytest.approx(ours.get_epsilon(DELTA), rel=1e-9)
    assert epsilons(mixed, DELTA).agree
    assert read(renyi, mixed) < 0.9 * epsilon_with_batches_known(mixed, DELTA)


def test_a_replaced_record_in_a_sample_is_priced_between_the_exact_divergence_and_no_sampling():
    """The pair itself, integrated: shifts to opposite sides with chance q."""
    sampling, around = 0.25, 3.0
    x = np.linspace(-200, 200, 80_001)
    here, there = (
        np.logaddexp(
            math.log(1 - sampling) + norm.logpdf(x, 0, around), math.log(sampling) + norm.logpdf(x, at, around)
        )
        for at in (1, -1)
    )
    price = Price(around / 2, sampling, around)
    for order, bound in zip(_orders(), _divergences(price), strict=True):
        if 1.5 <= order <= 60:
            exact = (logsumexp(order * here + (1 - order) * there) + math.log(x[1] - x[0])) / (order - 1)
            assert exact <= bound * (1 + 1e-9) <= order / (2 * (around / 2) ** 2) * (1 + 2e-9)
            assert not 2 <= order <= 5 or bound <= 1.35 * exact, "and not far above it where it matters"


@pytest.mark.parametrize(("copies", "dealer"), [(2, 1), (1, 0), (1, 5)])
def test_copies_count_for_whom_they_are_hidden_from(copies, dealer):
    release = event(1.5, count=3, copies=copies, dealer_copies=dealer)
    assert read(renyi, [release]) == read(renyi, [event(1.5 * math.sqrt(copies), count=3)])
    assert epsilon_added([release], DELTA) == read(renyi, [event(3 * math.sqrt(copies), count=3)])
    if dealer == 0:
        assert epsilon_against_dealer([event(9.0, dealer_copies=1), release], DELTA) == math.inf
    else:
        alone = read(renyi, [event(1.5 * math.sqrt(dealer), count=3)])
        assert epsilon_against_dealer([release], DELTA) == pytest.approx(alone, rel=1e-12)
        assert epsilon_against_dealer([replace(release, sampling=0.1)], DELTA) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("sigma", [0.6, 0.8, 1.0, 1.3, FINE])
def test_two_copies_of_discrete_noise_are_one_of_the_root_of_two_times_the_deviation(sigma):
    """Kairouz, Liu and Steinke 2021: every probability is off by a factor of at most exp(tau)."""
    reach = np.arange(-60, 61)

    def masses(deviation):
        density = np.exp(-(reach**2) / (2 * deviation**2))
        return density / density.sum()

    both, one = np.convolve(masses(sigma), masses(sigma), "same"), masses(sigma * math.sqrt(2))
    seen = np.abs(reach) <= 5 * sigma
    off = np.abs(np.log(both[seen] / one[seen])).max()
    tau = 10 * math.exp(-((math.pi * sigma) ** 2))
    assert off <= tau + 1e-12
    assert sigma < FINE or tau < 1e-16


def test_whoever_knows_the_batches_gets_the_price_without_sampling():
    sampled, full = (event(2.0, 20, sampling) for sampling in (0.1, 1.0))
    assert epsilon_with_batches_known([sampled], DELTA) == read(renyi, [full])


PRICES = st.tuples(st.floats(0.8, 30), st.integers(1, 20), st.sampled_from([1.0, 1.0, 1.0, 0.05]))


@KINDS
@settings(max_examples=5, deadline=None)
@given(data=st.data(), prices=st.lists(PRICES, min_size=1, max_size=5))
def test_order_does_not_matter_and_more_never_costs_less(kind, data, prices):
    events = [event(*price) for price in prices]
    whole = read(kind, events)
    assert read(kind, data.draw(st.permutations(events))) == whole, "to the last bit"
    assert read(kind, events[:-1]) <= whole + 1e-12


HEADS = st.tuples(
    st.floats(1.5, 30), st.integers(1, 3), st.floats(0.01, 3), st.sampled_from(["objective", "objective-symmetric"])
)


@KINDS
@settings(max_examples=4, deadline=None)
@given(data=st.data(), heads=st.lists(HEADS, min_size=1, max_size=2), prices=st.lists(PRICES, max_size=2))
def test_heads_keep_the_same_promises(kind, data, heads, prices):
    """Any order, more never costs less, a count is that many, and a sharper head or less noise never costs less."""
    head_events = [event(z, count, mechanism=mechanism, curvature=k) for z, count, k, mechanism in heads]
    events = [*(event(*price) for price in prices), *head_events]
    whole = read(kind, events)
    assert read(kind, data.draw(st.permutations(events))) == whole, "to the last bit"
    assert read(kind, events[:-1]) <= whole + 1e-6
    last = events.pop()
    assert read(kind, [*events, *[replace(last, count=1)] * last.count]) == whole
    assert read(kind, [*events, replace(last, sigma=0.9 * last.sigma)]) >= whole
    assert read(kind, [*events, replace(last, curvature=1.3 * last.curvature)]) >= whole * (1 - 1e-3)
    gaussian = replace(last, mechanism="gaussian", curvature=0.0)
    assert whole >= read(kind, [*events, gaussian]) * (1 - 1e-3), "never cheaper than a Gaussian release"
    assert epsilons([*events, last], DELTA).agree


@pytest.mark.parametrize(
    ("multiplier", "sampling"), [(0.02, 1), (0.3, 1), (1, 1), (10, 1), (1e3, 1), (1e6, 1), (1, 0.02), (1e3, 0.02)]
)
def test_the_three_agree_from_the_smallest_noise_to_the_largest(multiplier, sampling):
    assert epsilons([event(multiplier, count=3, sampling=sampling)], DELTA).agree


@pytest.mark.parametrize(
    "wrong",
    [
        Epsilons(8, 7, 4),
        Epsilons(8, 9, 8),
        Epsilons(8, 7, 8.1),
        Epsilons(8, 7, 8.1, sampled=True),
        Epsilons(8, 7, 7.8, sampled=True),
    ],
)
def test_a_disagreement_is_seen(wrong):
    assert not wrong.agree
