"""Three readings of the same events: Rényi decides, privacy loss distributions are tight, Opacus cross-checks.

What is added up depends on (multiplier, sampling, count) alone and is put in a fixed order first, so the
result does not depend on the order of the releases, to the last bit. Rényi also bounds discrete Gaussian
noise on integers (Canonne, Kamath and Steinke 2020, Prop. 5: its divergence is at most the continuous one's),
which is why it decides; the tight figure is that of continuous noise of the same deviation. Sampled releases are
priced as continuous noise by all three: noise on a grid far finer than its deviation is that noise, rounded
(protocols/weighted_sums.py has the bound).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from accounting.events import Event

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# dp_accounting and opacus take seconds to import, so they are imported where something is added up.

GRID = 1e-4
"""Steps of a loss distribution, as a share of epsilon; absolute, if smaller, where many are convolved."""

Lines = tuple[tuple[float, float, int], ...]
"""Multiplier, sampling and count of each price, in a fixed order."""


class Accountant(Protocol):
    """Adds events up; `epsilon` is an upper bound of what they cost together at this delta."""

    def compose(self, event: Event) -> None: ...

    def epsilon(self, delta: float) -> float: ...


class _Tally:
    """Events by price, whatever their order."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[float, float]] = Counter()

    def compose(self, event: Event) -> None:
        self._counts[event.multiplier, event.sampling] += event.count

    def _lines(self) -> Lines:
        return tuple(sorted((multiplier, sampling, count) for (multiplier, sampling), count in self._counts.items()))


def _priced(multiplier: float, sampling: float, count: int) -> DpEvent:
    """One line in the words of dp_accounting."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event: DpEvent = GaussianDpEvent(multiplier)
    if sampling < 1:
        event = PoissonSampledDpEvent(sampling, event)
    return SelfComposedDpEvent(event, count)


class RenyiAccountant(_Tally):
    """dp_accounting's Rényi accountant: the one that decides."""

    def epsilon(self, delta: float) -> float:
        return _renyi(self._lines(), delta)


@lru_cache(maxsize=1024)
def _renyi(lines: Lines, delta: float) -> float:
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, compute_epsilon

    total = np.zeros(len(DEFAULT_RDP_ORDERS))
    for multiplier, sampling, count in lines:
        total += count * _divergences(multiplier, sampling)
    return float(compute_epsilon(np.array(DEFAULT_RDP_ORDERS), total, delta)[0])


@lru_cache(maxsize=64)
def _divergences(multiplier: float, sampling: float) -> npt.NDArray[np.float64]:
    """Rényi divergence of one release at every order: slow for sampled ones, and the same for each of them."""
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, RdpAccountant

    hush()
    accountant = RdpAccountant(DEFAULT_RDP_ORDERS)
    accountant.compose(_priced(multiplier, sampling, 1))
    found: npt.NDArray[np.float64] = accountant.rdp
    return found


def _not_about_orders(record: logging.LogRecord) -> bool:
    return "_compute_log_a_frac failed to converge" not in str(record.msg)


def hush() -> None:
    """dp_accounting says each time which orders it leaves out: the bound is looser for it, not wrong."""
    logging.getLogger("absl").addFilter(_not_about_orders)


class LossDistributionAccountant(_Tally):
    """dp_accounting's privacy loss distributions, rounded up: tight to a thousandth and better.

    Unsampled Gaussian releases are one Gaussian release (their inverse variances add), which is exact. Grid
    steps grow with epsilon, so that a large one does not need a large memory.
    """

    def epsilon(self, delta: float) -> float:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.pld import PLDAccountant

        lines = self._lines()
        if not lines:
            return 0.0
        share = _renyi(lines, delta)
        if any(sampling < 1 for _, sampling, _ in lines):
            share = min(1.0, share)
        if share == 0:
            return 0.0
        accountant = PLDAccountant(value_discretization_interval=GRID * share)
        plain = math.fsum(count / multiplier**2 for multiplier, sampling, count in lines if sampling == 1)
        if plain > 0:
            accountant.compose(GaussianDpEvent(1 / math.sqrt(plain)))
        for multiplier, sampling, count in lines:
            if sampling < 1:
                accountant.compose(_priced(multiplier, sampling, count))
        return float(accountant.get_epsilon(delta))


class OpacusAccountant(_Tally):
    """Opacus' Rényi accountant, another code for the same bound."""

    def epsilon(self, delta: float) -> float:
        from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
        from opacus.accountants import RDPAccountant

        lines = self._lines()
        if not lines:
            return 0.0
        accountant = RDPAccountant()
        accountant.history = list(lines)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Optimal order is the")  # a looser bound, not a wrong one
            return max(0.0, float(accountant.get_epsilon(delta, alphas=list(DEFAULT_RDP_ORDERS))))


@dataclass(frozen=True)
class Epsilons:
    """One set of events, three readings."""

    renyi: float
    pld: float
    opacus: float
    sampled: bool = False

    @property
    def agree(self) -> bool:
        """Whether two codes for one bound give one figure (to .01 where next to nothing is spent), and the tight
        figure is no larger.

        For sampled releases the two agree at whole orders; between them dp_accounting adds up absolute values,
        which is an upper bound and up to 2 % above Opacus.
        """
        slack = max(0.01, 1e-3 * self.renyi)
        above = max(slack, 0.02 * self.renyi) if self.sampled else slack
        return -slack <= self.renyi - self.opacus <= above and self.pld <= self.renyi + slack


def epsilon_of(events: Iterable[Event], delta: float) -> float:
    """What events cost together by the accountant that decides."""
    return _read(RenyiAccountant(), events, delta)


def epsilon_with_batches_known(events: Iterable[Event], delta: float) -> float:
    """The same against one who knows who took part in each sampled release: nothing is gained by sampling."""
    return epsilon_of([replace(event, sampling=1.0) for event in events], delta)


def epsilons(events: Iterable[Event], delta: float) -> Epsilons:
    """What events cost together, read three ways."""
    listed = list(events)
    return Epsilons(
        renyi=epsilon_of(listed, delta),
        pld=_read(LossDistributionAccountant(), listed, delta),
        opacus=_read(OpacusAccountant(), listed, delta),
        sampled=any(event.sampling < 1 for event in listed),
    )


def _read(accountant: Accountant, events: Iterable[Event], delta: float) -> float:
    for event in events:
        accountant.compose(event)
    return accountant.epsilon(delta)
