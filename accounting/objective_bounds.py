"""What a head trained with objective perturbation costs: its Rényi curve, and delta(epsilon) in closed form.

The head minimises sum_i l(u_i . w) + r(w) + ridge/2 |w|^2 + b . w with noise b ~ N(0, sigma^2 I). Every row is at
most R long, and r is convex and known from earlier releases. Neighbours differ in one replaced record, u against u'.
mu = 2 c R / sigma, where c bounds the slope of l. docs/privacy-accounting.md ("The head") has the derivation.

1. For given data w and b determine each other, so the privacy loss at w is log det H - log det H' + G(v). H and H'
   are the Hessians, v is the difference of the two gradients, and G(v) = (2 b.v + |v|^2) / (2 sigma^2) is the loss of
   a Gaussian release that moves by v.
2. Let q in (0, 1) be the relative slope of u's record (its slope is q c or, in the symmetric case, (2 q - 1) c). The
   determinants contribute at most log(1 + kappa q (1 - q)), where kappa is the event's curvature.
3. v lies in the parallelogram that the two records' extreme gradients span, and |v| <= 2 c R.

*Rényi.* Let X and Y be the parts of b.v / sigma^2 that u and u' can reach: Gaussian, with deviation at most mu / 2.
Let e(s) = max over q of log(1 + kappa q (1 - q)) - q s. For every b, maximising over the slopes gives

    objective:            loss <= mu^2 / 2 + max(X, 0) + e(|X|) + max(Y, 0)
    objective-symmetric:  loss <= mu^2 / 2 + |X| + e(2 |X|) + |Y|

X and Y may be dependent, so the Cauchy-Schwarz inequality separates them in E exp((alpha - 1) loss). The integral
over X is bounded from above by replacing e, which falls, with a step function.

*Closed form.* An edge of the parallelogram joins two corners A and B, and for every s >= 0 the loss on it is at most
max(G(B) + e(s), G(A) + s + log(1 + kappa / 4)). So delta is at most a sum over four corners. Their squared lengths,
relative to (2 c R)^2, are in `_NEAR` and `_FAR`. In the symmetric case the corners are +-u +-u', and |u - u'|^2 +
|u + u'|^2 <= 4 R^2, so that the shorter of the two has at most half of it. For several heads the sum is over every
combination of their corners.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from secure_sccvfl.accounting.events import Mechanism

Floats = npt.NDArray[np.float64]

STEPS = np.linspace(0, 1, 193) ** 2
"""Values of s over kappa at which e(s) is taken; they are denser where it changes fastest."""
FEW_STEPS = STEPS[::4]
MOST_TERMS = 4096
"""Combinations of corners that the closed form adds up; beyond that Rényi alone gives the figure."""

_NEAR: dict[Mechanism, tuple[float, float]] = {"objective": (1.0, 0.25), "objective-symmetric": (1.0, 1.0)}
_FAR: dict[Mechanism, tuple[float, float]] = {"objective": (0.25, 0.0), "objective-symmetric": (0.5, 0.5)}
"""Squared length of each corner, relative to the longest: those with shift e(s), and those with s + log(1 + kappa/4).
"""


@dataclass(frozen=True)
class Heads:
    """Heads of equal noise, each with a separate noise vector. mu: of one of them."""

    mechanism: Mechanism
    mu: float
    curvature: float
    count: int


def excess(s: Floats, curvature: float) -> Floats:
    """max over q in [0, 1] of log(1 + curvature q (1 - q)) - q s, for s >= 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        q = (2 + s - np.sqrt((2 + s) ** 2 - 4 * s * (1 - s / curvature))) / (2 * s)
    q = np.where(s >= curvature, 0.0, np.where(s < 1e-9, 0.5, q))
    best: Floats = np.where(s < 1e-9, np.log1p(curvature / 4), np.log1p(curvature * q * (1 - q)) - q * s)
    return best


def divergences(mechanism: Mechanism, mu: float, curvature: float, orders: Floats) -> Floats:
    """Upper bound on the Rényi divergence of one head at each order (each above 1)."""
    from scipy.special import log_ndtr, logsumexp  # slow to import

    symmetric = mechanism == "objective-symmetric"
    tilt, deviation = 2 * (orders[:, None] - 1), mu / 2
    moved = (tilt * deviation) ** 2 / 2  # log E exp(tilt X)
    s = curvature * STEPS
    above = excess(s, curvature)
    start = s / 2 if symmetric else s  # the |X| from which e is at most this
    end = np.append(start[1:], np.inf)
    right = moved + _log_chance(start, end, tilt * deviation**2, deviation)  # X > 0, weighted with exp(tilt X)
    left = right if symmetric else _log_chance(start, end, np.zeros_like(tilt), deviation)
    ours = logsumexp(tilt * above + np.logaddexp(right, left), axis=1)
    right = moved + log_ndtr(tilt * deviation)
    other = np.logaddexp(right, right if symmetric else math.log(0.5))[:, 0]
    curve: Floats = mu**2 / 2 + (ours + other) / tilt[:, 0]
    return curve


def _log_chance(start: Floats, end: Floats, mean: Floats, deviation: float) -> Floats:
    """Log of the probability that a Gaussian lies between start and end, accurate in both tails."""
    from scipy.special import log_ndtr

    low, high = (start - mean) / deviation, (end - mean) / deviation
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    less, more = log_ndtr(low), log_ndtr(high)
    with np.errstate(divide="ignore", invalid="ignore"):
        chance: Floats = more + np.log(-np.expm1(less - more))
    return np.where(np.isneginf(more) | (less >= more), -np.inf, chance)


@lru_cache(maxsize=1024)
def closed_epsilon(heads: tuple[Heads, ...], other: float, delta: float, most: float) -> float:
    """Smallest epsilon for which the closed form is at most delta, or infinity if that is above `most`.

    other: mu of all Gaussian releases that are composed with the heads.
    """
    from scipy.optimize import brentq

    if math.prod(math.comb(head.count + 3, 3) for head in heads) > MOST_TERMS:
        return math.inf

    def over(epsilon: float) -> float:
        return closed_delta(heads, other, epsilon) - delta

    if over(most) > 0:
        return math.inf
    if over(0.0) <= 0:
        return 0.0
    epsilon_found = float(brentq(over, 0.0, most, xtol=1e-9, rtol=1e-9))
    while over(epsilon_found) > 0:
        epsilon_found = min(most, epsilon_found * (1 + 1e-8))
    return epsilon_found


def closed_delta(heads: tuple[Heads, ...], other: float, epsilon: float) -> float:
    """Delta of heads, and of Gaussian releases of joint mu `other`, at this epsilon."""
    squares, chances, shifts = [other**2], [1.0], [np.zeros(len(FEW_STEPS))]
    for head in heads:
        s = FEW_STEPS * head.curvature
        near, far = excess(s, head.curvature), s + math.log1p(head.curvature / 4)
        corners = list(_combinations(head))
        pairs = list(product(range(len(squares)), corners))
        squares, chances, shifts = (
            [squares[i] + one.square for i, one in pairs],
            [chances[i] * one.ways for i, one in pairs],
            [shifts[i] + one.near * near + (head.count - one.near) * far for i, one in pairs],
        )
    deltas = np.array(chances)[:, None] * hockey_stick(epsilon - np.array(shifts), np.sqrt(squares)[:, None])
    return min(1.0, float(deltas.sum(axis=0).min()))


class _Combination(NamedTuple):
    """Corners of several equal heads: joint mu^2, how many of them are near, and in how many ways they come so."""

    square: float
    near: int
    ways: float


def _combinations(head: Heads) -> Iterator[_Combination]:
    lengths = (*_NEAR[head.mechanism], *_FAR[head.mechanism])
    for first, second, third in product(range(head.count + 1), repeat=3):
        if (rest := head.count - first - second - third) >= 0:
            counts = (first, second, third, rest)
            ways = math.factorial(head.count) / math.prod(math.factorial(count) for count in counts)
            square = head.mu**2 * sum(map(operator.mul, counts, lengths))
            yield _Combination(square, first + second, ways)


def hockey_stick(epsilon: Floats, mu: Floats) -> Floats:
    """Delta of a Gaussian release whose records differ by mu deviations; for any real epsilon."""
    from scipy.special import log_ndtr, ndtr

    with np.errstate(divide="ignore", invalid="ignore"):
        apart = epsilon / mu
        delta = ndtr(mu / 2 - apart) - np.exp(np.minimum(epsilon + log_ndtr(-mu / 2 - apart), 0.0))
    delta = np.where(mu > 0, delta, -np.expm1(np.minimum(epsilon, 0.0)))
    return np.maximum(delta, 0.0)
