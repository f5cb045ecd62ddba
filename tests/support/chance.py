"""Tests at a stated level, for what is drawn afresh: `@pytest.mark.chance(rate)` says how often a right code fails.

Rates are bounds that follow from the level of each check, how many checks a test makes, and how surely a fault that
it must see is seen; a test adds up those of the whole suite. What is rarer than 1e-12 (a word of 64 bits that is
guessed) is left out. A test without the marker has fixed randomness (tests/support/randomness.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import stats

LEVEL = 1e-12
"""How often one check is wrong about what it is made for."""
ENOUGH = 720
"""So many values of noise tell its scale from 2/3 and 3/2 of it but for one time in 1e10 (`passing`)."""


def fits(drawn: np.ndarray, deviation: float) -> bool:
    """The noise test: whether values have this deviation and no drift. False for right ones: twice LEVEL.

    Over the deviation, the squares of n Gaussian values add up to chi-square with n degrees of freedom, and their
    mean times the root of n is normal; a discrete Gaussian of deviation 1 or more agrees to 1e-8 of that.
    """
    low, high = _bounds(drawn.size, LEVEL)
    drift = abs(drawn.mean()) / deviation * np.sqrt(drawn.size)
    return bool(low < ((drawn / deviation) ** 2).sum() < high and 2 * stats.norm.sf(drift) > LEVEL)


@lru_cache
def _bounds(size: int, level: float) -> tuple[float, float]:
    return float(stats.chi2.ppf(level / 2, size)), float(stats.chi2.isf(level / 2, size))


def passing(size: int, ratio: float) -> float:
    """How often noise with this ratio to the deviation asked for would still fit, at most."""
    low, high = (bound / ratio**2 for bound in _bounds(size, LEVEL))
    return float(stats.chi2.sf(low, size) if ratio < 1 else stats.chi2.cdf(high, size))


def fits_alone(drawn: np.ndarray, deviation: float) -> bool:
    """Whether values fit this deviation, and neither 2/3 nor 3/2 of it: that the test would have noticed those.

    Wrong about right ones: less than 1e-10, twice LEVEL and twice `passing`.
    """
    assert drawn.size >= ENOUGH, "too few values to tell scales apart"
    return fits(drawn, deviation) and not any(fits(drawn, deviation * wrong) for wrong in (2 / 3, 3 / 2))


def uniform(seen: np.ndarray) -> bool:
    """Whether bytes are as often each of 256 as chance has it; False for uniform ones: LEVEL."""
    return bool(stats.chisquare(np.bincount(seen.ravel(), minlength=256)).pvalue > LEVEL)


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two sets of bytes may have one distribution; False for such: LEVEL."""
    counts = np.array([np.bincount(seen.ravel(), minlength=256) for seen in (one, other)])
    return bool(stats.chi2_contingency(counts + 1).pvalue > LEVEL)


def of_rate(hits: int, total: int, rate: float) -> bool:
    """Whether so many hits may come from this rate, by the exact binomial test; False for such: LEVEL."""
    return bool(stats.binomtest(hits, total, rate).pvalue > LEVEL)


def confirmed(trial: Callable[[], bool], times: int) -> bool:
    """Whether every one of so many independent trials finds something; the first that does not ends it.

    For finds whose own level is high: each trial draws afresh, so all are wrong together at the product of the rates.
    """
    return all(trial() for _ in range(times))
