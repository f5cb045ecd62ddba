"""Every accountant keeps the same promises."""

import math

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from accounting.accountant import (
    Epsilons,
    LossDistributionAccountant,
    OpacusAccountant,
    RenyiAccountant,
    _priced,
    epsilon_with_batches_known,
    epsilons,
)
from accounting.events import Event

DELTA = 1e-5
KINDS = pytest.mark.parametrize("kind", [RenyiAccountant, LossDistributionAccountant, OpacusAccountant])


def event(multiplier, count=1, sampling=1.0):
    return Event("x", 2.0, 2.0 * multiplier, "records", count=count, sampling=sampling)


def read(kind, events):
    accountant = kind()
    for one in events:
        accountant.compose(one)
    return accountant.epsilon(DELTA)


def analytic_epsilon(multiplier, delta):
    """Exact epsilon of one Gaussian release (Balle and Wang 2018, Theorem 8), by root finding."""

    def gap(epsilon):
        a, b = 1 / (2 * multiplier), epsilon * multiplier
        return norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b)) - delta

    return brentq(gap, 0, 2 / multiplier**2 + 40 / multiplier)


@KINDS
def test_nothing_costs_nothing(kind):
    assert read(kind, []) == 0.0


@KINDS
@pytest.mark.parametrize("multiplier", [0.2, 0.5, 1, 2, 5, 20])
def test_never_below_the_analytic_value(kind, multiplier):
    found, exact = read(kind, [event(multiplier)]), analytic_epsilon(multiplier, DELTA)
    assert exact <= found <= 1.15 * exact


@KINDS
def test_a_count_is_that_many_releases(kind):
    assert read(kind, [event(3.0, count=4)]) == read(kind, [event(3.0)] * 4)


@KINDS
def test_sampling_makes_it_cheaper(kind):
    sampled = read(kind, [event(1.0, count=20, sampling=0.02)])
    assert 0 < sampled < 0.25 * read(kind, [event(1.0, count=20)])


@pytest.mark.parametrize(("sampling", "multiplier", "count"), [(0.02, 1.0, 200), (0.25, 1.8, 40), (0.5, 2.1, 20)])
def test_sampled_releases_are_those_of_dp_accounting_and_opacus(sampling, multiplier, count):
    mixed = [event(multiplier, 5), event(multiplier, count, sampling)]
    alone = RdpAccountant()
    alone.compose(GaussianDpEvent(multiplier), 5)
    alone.compose(PoissonSampledDpEvent(sampling, GaussianDpEvent(multiplier)), count)
    assert read(RenyiAccountant, mixed) == pytest.approx(alone.get_epsilon(DELTA), rel=1e-9)
    opacus = RDPAccountant()
    opacus.history = [(multiplier, 1.0, 5), (multiplier, sampling, count)]
    whole = [float(order) for order in range(2, 64)]  # at whole orders the two codes have one formula
    ours = RdpAccountant(whole)
    ours.compose(ComposedDpEvent([_priced(multiplier, 1.0, 5), _priced(multiplier, sampling, count)]))
    assert opacus.get_epsilon(DELTA, alphas=whole) == pytest.approx(ours.get_epsilon(DELTA), rel=1e-9)
    assert epsilons(mixed, DELTA).agree
    assert read(RenyiAccountant, mixed) < 0.9 * epsilon_with_batches_known(mixed, DELTA)


def test_whoever_knows_the_batches_gets_the_price_without_sampling():
    sampled, full = (event(2.0, 20, sampling) for sampling in (0.1, 1.0))
    assert epsilon_with_batches_known([sampled], DELTA) == read(RenyiAccountant, [full])


PRICES = st.tuples(st.floats(0.8, 30), st.integers(1, 20), st.sampled_from([1.0, 1.0, 1.0, 0.05]))


@KINDS
@settings(max_examples=8, deadline=None)
@given(data=st.data(), prices=st.lists(PRICES, min_size=1, max_size=5))
def test_order_does_not_matter_and_more_never_costs_less(kind, data, prices):
    events = [event(*price) for price in prices]
    whole = read(kind, events)
    assert read(kind, data.draw(st.permutations(events))) == whole, "to the last bit"
    assert read(kind, events[:-1]) <= whole + 1e-12


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
