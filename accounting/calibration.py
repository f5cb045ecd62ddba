"""From a budget to noise, and from noise to the rest of a budget; always by the Rényi accountant."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from decimal import ROUND_CEILING, Context
from functools import lru_cache

from accounting.accountant import Price, epsilon_of, price_of, renyi
from accounting.events import Event

UPWARDS = Context(prec=7, rounding=ROUND_CEILING)
"""Multipliers are rounded up to seven digits: the planned releases always fit, and all hosts find the same."""
MOST_RELEASES = 2**20
LEAST, MOST = 2.0**-20, 2.0**20
"""The least and the most noise over sensitivity, for any budget."""
Sampled = tuple[tuple[float, int], ...]
"""A record's chance to take part, and how many releases are made at it."""
Coarse = tuple[float, ...]
"""For each release that carries more noise than the others: how many times as much."""


class TargetError(ValueError):
    """A budget that promises nothing, or cannot be kept."""

    for_operator = True


def check_target(epsilon: float, delta: float, records: int | None = None) -> None:
    """Refuse a budget that promises nothing. A delta above 1/n would allow publishing a record outright."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise TargetError(f"epsilon must be finite and positive, got {epsilon}")
    if not 0 < delta < 1:
        raise TargetError(f"delta must lie between 0 and 1, got {delta}")
    if records is not None and delta * records > 1:
        raise TargetError(f"delta must be at most 1/n = {1 / records:.2g} for {records} records, got {delta}")


@lru_cache(maxsize=256)
def noise_multiplier(
    epsilon: float,
    delta: float,
    releases: int,
    sampled: Sampled = (),
    spent: tuple[Event, ...] = (),
    coarse: Coarse = (),
) -> float:
    """Hidden noise over sensitivity at which all planned releases together just fit the budget, never more.

    spent: what a record has paid for before; the planned releases share what is left. Infinite if nothing is left.

    It is `Event.multiplier`: sigma is this times the sensitivity to a replaced record, over the root of the copies.
    releases: how many are about every record. sampled: how many more are about a secret Poisson sample, of
    contributions with any sign (`Sensitivity.of_any`). coarse: those with a multiple of this noise.
    """
    check_target(epsilon, delta)
    if not all(1 <= times < math.inf for times in coarse):
        raise ValueError(f"a coarse release has at least the noise of the others, got {coarse}")
    releases += sum(count for sampling, count in sampled if sampling == 1)
    parts = [(sampling, count) for sampling, count in sampled if sampling != 1 and count]
    if min((releases, *(count for _, count in sampled))) < 0 or releases + len(parts) < 1:
        raise ValueError(f"releases must be at least 1, got {releases} and {sampled}")
    if not all(0 < sampling < 1 for sampling, _ in parts):
        raise ValueError(f"sampling must lie in (0, 1], got {sampled}")

    from scipy.optimize import brentq  # slow to import

    before = tuple((price_of(event), event.count) for event in spent)

    def cost(multiplier: float) -> float:
        whole = [(Price(multiplier), releases)] if releases else []
        steps = [(Price(multiplier, sampling, 2 * multiplier), count) for sampling, count in parts]
        few = [(Price(times * multiplier), 1) for times in coarse]
        return renyi((*before, *whole, *steps, *few), delta)

    low = high = 1.0
    if spent and cost(MOST) > epsilon:
        return math.inf
    while cost(high) > epsilon:
        low, high = high, 2 * high
    while cost(low) < epsilon and low > LEAST:
        low, high = low / 2, low
    found = brentq(lambda z: cost(z) - epsilon, low, high, xtol=1e-10, rtol=1e-10) if low > LEAST else low
    multiplier = UPWARDS.create_decimal_from_float(found)
    while cost(float(multiplier)) > epsilon:
        multiplier = multiplier.next_plus(UPWARDS)
    return float(multiplier)


def releases_left(spent: Iterable[Event], event: Event, cap: float, delta: float) -> int:
    """How many more releases like this one fit; MOST_RELEASES means that many or more."""
    listed = list(spent)

    def fits(count: int) -> bool:
        return epsilon_of([*listed, replace(event, count=count * event.count)], delta) <= cap

    low, high = 0, 1
    while high <= MOST_RELEASES and fits(high):
        low, high = high, 2 * high
    if low == MOST_RELEASES:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
