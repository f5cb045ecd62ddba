"""Three readings of the same events: Rényi decides, privacy loss distributions are tight, Opacus cross-checks.

A sum depends on the prices and their counts alone, and these are put in a fixed order first. So the result does not
depend on the order of the releases, to the last bit. Rényi also bounds discrete Gaussian noise on integers
(Canonne, Kamath and Steinke 2020, Prop. 5: its divergence is at most the continuous one's), which is why it
decides. The tight figure is that of continuous noise of the same deviation. All three price sampled releases as
continuous noise: noise on a grid far finer than its deviation is that noise, rounded
(protocols/steps/weighted_sums.py has the bound).

*Copies.* Several copies count as one, of the root of their number times the deviation. For discrete noise that is
true up to the factor exp(tau) on every probability, tau <= 10 (copies - 1) exp(-pi^2 sigma^2), sigma in steps of
the grid (Kairouz, Liu and Steinke 2021, Theorem 1): 8e-17 for two copies at 2 steps, so a million cells add less
than 1e-10 to epsilon. Below that only one copy is counted (`FINE`).

*Replacing a record in a sampled release.* Let P be the output with the record, R the output with another in its
place, and Q the output without either. P and Q differ by an added record, and so do Q and R. dp_accounting and
Opacus price that (the larger direction of the two). The weak triangle inequality (Mironov 2017, Prop. 11, p = q =
2) gives
D_a(P|R) <= (a - 1/2) / (a - 1) D_2a(P|Q) + D_2a-1(Q|R).
The divergence is also never more than without sampling: it is quasi-convex, and with the same coin for both the
outputs differ by a replaced record or not at all. At each order the smaller of the two bounds counts. Loss
distributions have the pair itself: shifts to opposite sides, with chance q each.

*Heads.* A head with objective perturbation has a separate Rényi curve (`accounting.objective_bounds`), which is
added to those of the other releases; Opacus' reading uses the same curve.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from secure_sccvfl.accounting import objective_bounds
from secure_sccvfl.accounting.events import OBJECTIVE, Event, Mechanism

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# dp_accounting and opacus take seconds to import, so they are imported where they are used.

GRID = 1e-4
"""Step of a loss distribution, as a share of epsilon; absolute, if smaller, where many are convolved."""

FINE = 2.0
"""Copies of discrete noise count together if a copy's deviation is at least this many steps of the grid."""
Relation = Literal["replaced", "added"]
Floats = npt.NDArray[np.float64]


class Price(NamedTuple):
    """Everything that the cost of a release depends on.

    multiplier: deviation over what a neighbour moves. around: deviation over what an added record moves; a
    replacement in a sampled release is priced through it. It is 0 elsewhere. mechanism and curvature: of a head with
    objective perturbation; everything else is priced as Gaussian noise.
    """

    multiplier: float
    sampling: float = 1.0
    around: float = 0.0
    mechanism: Mechanism = "gaussian"
    curvature: float = 0.0

    @property
    def of_head(self) -> bool:
        return self.mechanism in OBJECTIVE


Lines = tuple[tuple[Price, int], ...]
"""Each price and its count, in a fixed order."""


def price_of(event: Event, relation: Relation = "replaced") -> Price:
    """The price of one release. A head has one price for both relations."""
    if event.mechanism in OBJECTIVE:
        return Price(event.multiplier, mechanism=event.mechanism, curvature=event.curvature)
    if relation == "added":
        return Price(event.multiplier_added, event.sampling)
    if event.sampling == 1:
        return Price(event.multiplier)
    return Price(event.multiplier, event.sampling, event.multiplier_added)


def tally(events: Iterable[Event], relation: Relation = "replaced") -> Lines:
    """Events by price, whatever their order."""
    counts: Counter[Price] = Counter()
    for event in events:
        counts[price_of(event, relation)] += event.count
    return tuple(sorted(counts.items()))


def _priced(multiplier: float, sampling: float, count: int) -> DpEvent:
    """Releases that differ by an added record, as events of dp_accounting."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event: DpEvent = GaussianDpEvent(multiplier)
    if sampling < 1:
        event = PoissonSampledDpEvent(sampling, event)
    return SelfComposedDpEvent(event, count)


@lru_cache(maxsize=4096)
def renyi(lines: Lines, delta: float) -> float:
    """Epsilon by dp_accounting's Rényi divergences: the accountant that decides."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders = _orders()
    total = np.zeros(len(orders))
    for price, count in lines:
        total += count * _divergences(price)
    return float(compute_epsilon(orders, total, delta)[0])


@lru_cache(maxsize=1)
def _orders() -> Floats:
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    return np.array(DEFAULT_RDP_ORDERS, float)


@lru_cache(maxsize=256)
def _divergences(price: Price) -> Floats:
    """Rényi divergence of one release at every order; cached, since it is slow for sampled releases and heads."""
    return _of_neighbours(price, _added_divergences)


def _of_neighbours(price: Price, added: Callable[[float, float, Sequence[float]], Floats]) -> Floats:
    """Divergences of a price at every order, from a library that knows those of an added record; heads are ours."""
    orders = _orders()
    if price.of_head:
        return objective_bounds.divergences(price.mechanism, 1 / price.multiplier, price.curvature, orders)
    if not price.around:
        return added(price.multiplier, price.sampling, orders.tolist())
    apart = np.unique(np.concatenate([2 * orders, 2 * orders - 1]))
    curve = added(price.around, price.sampling, apart.tolist())
    out, back = (curve[np.searchsorted(apart, of)] for of in (2 * orders, 2 * orders - 1))
    through = (orders - 0.5) / (orders - 1) * out + back
    return np.minimum(through, added(price.multiplier, 1.0, orders.tolist()))


def _added_divergences(multiplier: float, sampling: float, orders: Sequence[float]) -> Floats:
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    # Silence notes on orders that are left out: they make the bound looser, not wrong.
    logging.getLogger("absl").addFilter(_not_about_orders)
    accountant = RdpAccountant(list(orders))
    accountant.compose(_priced(multiplier, sampling, 1))
    curve: Floats = accountant.rdp
    return curve


def _not_about_orders(record: logging.LogRecord) -> bool:
    return "_compute_log_a_frac failed to converge" not in str(record.msg)


@lru_cache(maxsize=4096)
def loss_distribution(lines: Lines, delta: float) -> float:
    """Epsilon by dp_accounting's privacy loss distributions, rounded up: tight to a thousandth and better.

    Unsampled Gaussian releases are one Gaussian release (their inverse variances add), which is exact. Grid steps
    grow with epsilon, so that a large epsilon does not need much memory. Heads have no such distribution. With
    unsampled releases alone they are read by their closed form, with sampled ones by Rényi.
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    if not lines:
        return 0.0
    share = renyi(lines, delta)
    if any(price.of_head for price, _ in lines):
        return _with_heads(lines, delta, share)
    if any(price.sampling < 1 for price, _ in lines):
        share = min(1.0, share)
    if share == 0:
        return 0.0
    replaced = any(price.around for price, _ in lines)
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=GRID * share)
    plain = math.fsum(count / price.multiplier**2 for price, count in lines if price.sampling == 1)
    if plain > 0:  # in dp_accounting a replaced record moves a sum by twice the sensitivity
        accountant.compose(GaussianDpEvent((2 if replaced else 1) / math.sqrt(plain)))
    for price, count in lines:
        if price.sampling < 1:
            accountant.compose(_priced(price.around or price.multiplier, price.sampling, count))
    return float(accountant.get_epsilon(delta))


def _with_heads(lines: Lines, delta: float, most: float) -> float:
    """The closed form of heads and unsampled releases, or `most`, the Rényi figure, where that is smaller."""
    if any(price.sampling < 1 for price, _ in lines):
        return most
    gaussian = math.fsum(count / price.multiplier**2 for price, count in lines if not price.of_head)
    heads = tuple(
        objective_bounds.Heads(price.mechanism, 1 / price.multiplier, price.curvature, count)
        for price, count in lines
        if price.of_head
    )
    return min(most, objective_bounds.closed_epsilon(heads, math.sqrt(gaussian), delta, most))


@lru_cache(maxsize=4096)
def opacus(lines: Lines, delta: float) -> float:
    """Epsilon by Opacus' Rényi divergences: another implementation of the same bound."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    if not lines:
        return 0.0
    orders = _orders()
    total = np.zeros(len(orders))
    for price, count in lines:
        total += count * _of_neighbours(price, _opacus_divergences)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")  # a looser bound, not a wrong one
        return max(0.0, float(get_privacy_spent(orders=orders.tolist(), rdp=total, delta=delta)[0]))


def _opacus_divergences(multiplier: float, sampling: float, orders: Sequence[float]) -> Floats:
    from opacus.accountants.analysis.rdp import compute_rdp

    return np.asarray(compute_rdp(q=sampling, noise_multiplier=multiplier, steps=1, orders=list(orders)), float)


@dataclass(frozen=True)
class Epsilons:
    """One set of events, three readings."""

    renyi: float
    pld: float
    opacus: float
    sampled: bool = False

    @property
    def agree(self) -> bool:
        """Whether two implementations of one bound give one figure, and the tight figure is no larger.

        They may differ by .01 where next to nothing is spent. For sampled releases they agree at whole orders.
        Between whole orders dp_accounting adds up absolute values, which is an upper bound and up to 2 % above
        Opacus.
        """
        slack = max(0.01, 1e-3 * self.renyi)
        above = max(slack, 0.02 * self.renyi) if self.sampled else slack
        return -slack <= self.renyi - self.opacus <= above and self.pld <= self.renyi + slack


def epsilon_of(events: Iterable[Event], delta: float, relation: Relation = "replaced") -> float:
    """What events cost together, by the accountant that decides."""
    return renyi(tally(events, relation), delta)


def tight_epsilon(events: Iterable[Event], delta: float, relation: Relation = "replaced") -> float:
    """What events cost together, by privacy loss distributions."""
    return loss_distribution(tally(events, relation), delta)


def epsilon_added(events: Iterable[Event], delta: float) -> float:
    """What events cost together for adding or removing a record instead of replacing it."""
    return epsilon_of(events, delta, "added")


def epsilon_with_batches_known(events: Iterable[Event], delta: float) -> float:
    """What events cost together against an adversary who knows every sampled batch: sampling gains nothing."""
    return epsilon_of([replace(event, sampling=1.0) for event in events], delta)


def epsilon_against_dealer(events: Iterable[Event], delta: float) -> float:
    """What events cost together against a dealer who reads what was opened and knows its noise and the batches.

    Infinite if nothing is left.
    """
    listed = list(events)
    if any(event.dealer_copies == 0 for event in listed):
        return math.inf
    return epsilon_with_batches_known([replace(event, copies=event.dealer_copies) for event in listed], delta)


def finite(epsilon: float) -> float | None:
    """An epsilon for JSON, which has no infinity: None where no epsilon holds."""
    return epsilon if math.isfinite(epsilon) else None


def epsilons(events: Iterable[Event], delta: float) -> Epsilons:
    """What events cost together, read three ways."""
    listed = list(events)
    return Epsilons(
        renyi=epsilon_of(listed, delta),
        pld=tight_epsilon(listed, delta),
        opacus=opacus(tally(listed), delta),
        sampled=any(event.sampling < 1 for event in listed),
    )
