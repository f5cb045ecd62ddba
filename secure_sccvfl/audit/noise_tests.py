"""Tests of noise that was recomputed: has it the deviation that was charged, and is it drawn anew each time?

Noise is recomputed from a released value and the exact one, so these tests need the data; they are for audits on
public data and for the tests of this package. Both tests are exact for Gaussian noise, two-sided, and raise a false
alarm with probability `LEVEL`. Discrete Gaussian noise of two steps or more agrees with that to 1e-8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 1e-7
"""The probability of a false alarm of one test."""


@dataclass(frozen=True)
class NoiseTest:
    """ratio: what was found over what is right (a deviation, or a correlation, which should be 0)."""

    values: int
    ratio: float
    p_value: float
    level: float = LEVEL

    @property
    def holds(self) -> bool:
        return self.p_value >= self.level


def scale_test(noise: np.ndarray, deviation: float = 1.0, level: float = LEVEL) -> NoiseTest:
    """Whether independent values have this deviation: their squares add up to a chi-square."""
    if not noise.size or not deviation > 0:
        raise ValueError(f"a test of noise needs values and a deviation above 0, not {noise.size} and {deviation}")
    total = float(((noise / deviation) ** 2).sum())
    return NoiseTest(noise.size, math.sqrt(total / noise.size), _two_sided(total, noise.size), level)


def scale_power(values: int, ratio: float, level: float = LEVEL) -> float:
    """The probability that noise with this ratio to the right deviation raises an alarm."""
    low, high = stats.chi2.ppf(level / 2, values), stats.chi2.isf(level / 2, values)
    return float(stats.chi2.cdf(low / ratio**2, values) + stats.chi2.sf(high / ratio**2, values))


def scale_limit(values: int, level: float = LEVEL) -> float:
    """How far the found deviation may be from the right one, as a share of it, before there is an alarm."""
    ends = np.sqrt(np.array([stats.chi2.ppf(level / 2, values), stats.chi2.isf(level / 2, values)]) / values)
    return float(np.abs(ends - 1).max())


def correlation_test(one: np.ndarray, other: np.ndarray, level: float = LEVEL) -> NoiseTest:
    """Whether two noises of as many values are independent: by the correlation of their values, whose mean is 0."""
    one, other = one.reshape(-1), other.reshape(-1)
    if len(one) != len(other) or len(one) < 3:
        raise ValueError(f"two noises of the same length are needed, at least 3, not {len(one)} and {len(other)}")
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    found = float(one @ other) / length if length > 0 else 1.0
    # The square of the cosine between independent Gaussian vectors of n values is Beta(1/2, (n - 1) / 2).
    return NoiseTest(len(one), found, float(stats.beta.sf(min(found**2, 1.0), 0.5, (len(one) - 1) / 2)), level)


def _two_sided(total: float, values: int) -> float:
    return min(1.0, 2 * float(min(stats.chi2.cdf(total, values), stats.chi2.sf(total, values))))
