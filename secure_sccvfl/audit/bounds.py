"""Lower bounds on epsilon from samples of a mechanism on two neighbouring data sets, and tests of its noise.

Counts at a threshold give Clopper-Pearson bounds on false and true positives. There are two thresholds. The first
lies half-way between the two means, where the sum of both errors is least. It gives `epsilon_low`: the epsilon at
delta of the weakest Gaussian mechanism that the counts allow (it uses that the noise is Gaussian, so few releases
suffice). The second lies further out, where it would serve best if the claim were true. Both give `epsilon_low_any`,
ln((tpr - delta) / fpr), for any mechanism. No threshold depends on the samples, and each has half of the error: all
bounds hold together with the stated confidence.

`scale_test` compares the deviation of recomputed noise with the charged one. It is exact for Gaussian noise,
two-sided, and raises a false alarm with probability `LEVEL`. Discrete Gaussian noise of two steps or more agrees with
that to 1e-8.

`head_noise` recomputes the noise of a private head w, which minimises

    sum_i l(z_i, y_i) + n/2 w'Pw + ridge/2 |w|^2 + b.w,    z = Xw,    b from N(0, sigma^2 I), drawn under MPC.

At the minimum the gradient is zero, so b = -sum_i l'(z_i, y_i) x_i - (n P + ridge I) w for whoever has all records:
it is for constructed or public data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize, stats
from scipy.special import expit

from secure_sccvfl.accounting.accountant import Epsilons, epsilons
from secure_sccvfl.accounting.events import Event

CONFIDENCE = 0.95
MIDDLE = 0.5
LEVEL = 1e-7
"""The probability of a false alarm of one test of noise."""
Rate = np.ndarray | float


@dataclass(frozen=True)
class NoiseTest:
    """ratio: the measured deviation over the right one."""

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
    tail = float(min(stats.chi2.cdf(total, noise.size), stats.chi2.sf(total, noise.size)))
    return NoiseTest(noise.size, math.sqrt(total / noise.size), min(1.0, 2 * tail), level)


def scale_limit(values: int, level: float = LEVEL) -> float:
    """How far the measured deviation may be from the right one, as a share of it, before there is an alarm."""
    ends = np.sqrt(np.array([stats.chi2.ppf(level / 2, values), stats.chi2.isf(level / 2, values)]) / values)
    return float(np.abs(ends - 1).max())


@dataclass(frozen=True)
class Audit:
    """Both bounds on the epsilon of one release at delta; `holds` says that they do not contradict each other.

    reach: how much of the charged movement the canary made. `mu_claimed` is for all of it. noise_ratio: deviation of
    the noise that was drawn over the charged one; noise_p: how likely a ratio so far from 1 is if the noise is
    right; noise_limit: how far it may be.
    """

    samples: int
    delta: float
    epsilon_low: float
    epsilon_low_any: float
    epsilon_high: float
    epsilon_high_tight: float
    mu_low: float
    mu_claimed: float
    false_positives: float
    true_positives: float
    confidence: float
    reach: float = 1.0
    noise_ratio: float = 1.0
    noise_p: float = 1.0
    noise_limit: float = 0.0

    @property
    def holds(self) -> bool:
        """The canary moves no more than is charged, and the samples show no larger epsilon than is accounted."""
        return self.reach <= 1 + 1e-9 and max(self.epsilon_low, self.epsilon_low_any) <= self.epsilon_high

    @property
    def noise_holds(self) -> bool:
        return self.noise_p >= LEVEL

    @property
    def ok(self) -> bool:
        return self.holds and self.noise_holds

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds, "noise_holds": self.noise_holds}


def audit(
    kept: np.ndarray,
    changed: np.ndarray,
    multiplier: float,
    delta: float,
    confidence: float = CONFIDENCE,
    reach: float = 1.0,
    noise: np.ndarray | None = None,
    accounted: float | None = None,
) -> Audit:
    """Bounds from one statistic per sample: around 0 if the canary was kept, around 1 if it was changed.

    multiplier: as claimed. The deviation of the statistic is that over `reach`. noise: all that was drawn, over its
    charged deviation; default: what the statistics have of it. accounted: epsilon of a release that is not Gaussian.
    """
    sizes = (len(kept), len(changed))
    claimed = _claimed(multiplier, delta) if accounted is None else Epsilons(accounted, accounted, accounted)
    error = (1 - confidence) / 2

    def rates(threshold: float) -> tuple[Rate, Rate]:
        return _rates((kept > threshold).sum(), (changed > threshold).sum(), *sizes, error)

    if noise is None:
        noise = np.concatenate([kept, changed - 1]) * reach / multiplier
    drawn = scale_test(noise)
    middle = rates(MIDDLE)
    mu = max(0.0, float(_mu_low(*middle)))
    far = rates(_far_place(multiplier / reach, delta, sizes, error))
    return Audit(
        samples=sum(sizes),
        delta=delta,
        epsilon_low=epsilon_of_mu(mu, delta),
        epsilon_low_any=max(0.0, *(float(_any_low(*counts, delta)) for counts in (middle, far))),
        epsilon_high=claimed.renyi,
        epsilon_high_tight=claimed.pld,
        mu_low=mu,
        mu_claimed=1 / multiplier,
        false_positives=float((kept > MIDDLE).mean()),
        true_positives=float((changed > MIDDLE).mean()),
        confidence=confidence,
        reach=reach,
        noise_ratio=drawn.ratio,
        noise_p=drawn.p_value,
        noise_limit=scale_limit(drawn.values),
    )


@lru_cache(maxsize=16)
def _claimed(multiplier: float, delta: float) -> Epsilons:
    return epsilons([Event("audited", 1.0, multiplier, "audit")], delta)


def _far_place(multiplier: float, delta: float, sizes: tuple[int, int], error: float) -> float:
    """The threshold, from the middle on, that would give the best bound for any mechanism if the claim were true."""
    thresholds = np.linspace(MIDDLE, 1 + 2 * multiplier, 41)
    false, true = stats.norm.sf(thresholds / multiplier), stats.norm.sf((thresholds - 1) / multiplier)
    promised = _any_low(*_rates(false * sizes[0], true * sizes[1], *sizes, error), delta)
    return float(thresholds[int(np.argmax(promised))])


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon at delta of a Gaussian mechanism whose means are mu deviations apart."""
    if mu <= 0:
        return 0.0

    def rest(epsilon: float) -> float:
        left = stats.norm.logcdf(-epsilon / mu + mu / 2)
        right = epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2)
        return float(math.exp(left) - math.exp(right) - delta)

    if rest(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(rest, 0.0, mu * mu + 20 * mu + 1))


def _rates(false: Rate, true: Rate, total: int, other: int, error: float) -> tuple[Rate, Rate]:
    """The largest false and the smallest true positive rate, each at half of the error."""
    half, tiny = error / 2, 1e-9
    high = np.where(false < total, stats.beta.ppf(1 - half, false + 1, np.maximum(total - false, tiny)), 1.0)
    low = np.where(true > 0, stats.beta.ppf(half, np.maximum(true, tiny), other - true + 1), 0.0)
    return high, low


def _mu_low(high: Rate, low: Rate) -> Rate:
    return np.asarray(stats.norm.ppf(low) - stats.norm.ppf(high))


def _any_low(high: Rate, low: Rate, delta: float) -> Rate:
    return np.where(low > delta, np.log(np.maximum(low - delta, 1e-300) / high), -np.inf)


Rows = np.ndarray
_STEPS, _HALVINGS, _SETTLED = 100, 40, 1e-10


@dataclass(frozen=True)
class Loss:
    """A convex loss of a logit and a label: its slope and curvature in the logit; `cap` bounds the slope."""

    slope: Callable[[np.ndarray, np.ndarray], np.ndarray]
    curvature: Callable[[np.ndarray, np.ndarray], np.ndarray]
    cap: float = 1.0


def capped(cap: float) -> Loss:
    """The loss c tau log(1 + exp((t - m) / tau)) of a margin m, tau = 2 - 1/c, t = tau log(1 / (2c - 1)).

    At c = 1 it is the logistic loss.
    """
    if not 0.5 < cap <= 1:
        raise ValueError(f"the cap of a slope must be above .5 and at most 1, got {cap}")
    width = 2 - 1 / cap
    shift = width * math.log(1 / (2 * cap - 1))

    def rate(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.asarray(expit((shift - (2 * labels - 1) * logits) / width))

    def slope(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return -cap * (2 * labels - 1) * rate(logits, labels)

    def curvature(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        q = rate(logits, labels)
        return cap / width * q * (1 - q)

    return Loss(slope, curvature, cap)


def log_cosh(cap: float) -> Loss:
    """The loss c^2 log cosh(r / c) of a number with the residual r = z - y: its slope lies between -c and c."""
    if not cap > 0:
        raise ValueError(f"the cap of a slope must be above 0, got {cap}")

    def slope(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.asarray(cap * np.tanh((logits - labels) / cap))

    def curvature(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return 1 - (slope(logits, labels) / cap) ** 2

    return Loss(slope, curvature, cap)


@dataclass(frozen=True)
class Records:
    """Rows (records x columns, with that of the bias), labels, and how often each record is there (once)."""

    rows: Rows
    labels: np.ndarray
    times: np.ndarray | None = None

    @property
    def weights(self) -> np.ndarray:
        return np.ones(len(self.rows)) if self.times is None else self.times


def head_noise(head: np.ndarray, records: Records, penalty: np.ndarray, ridge: float, loss: Loss) -> Rows:
    """The noise b that a head carries, or those of several heads (heads x columns). penalty: n P."""
    slopes = loss.slope(head @ records.rows.T, records.labels) * records.weights
    return np.asarray(-(slopes @ records.rows) - head @ penalty - ridge * head)


def train(records: Records, penalty: np.ndarray, ridge: float, noise: np.ndarray, loss: Loss) -> Rows:
    """The heads with these noises (heads x columns), in the clear, by Newton steps with halving. penalty: n P."""
    rows, labels, times = records.rows, records.labels, records.weights
    quadratic = penalty + ridge * np.eye(rows.shape[1])
    heads = -np.linalg.solve(quadratic, noise.T).T

    def gradient(of: Rows) -> Rows:
        return np.asarray((loss.slope(of @ rows.T, labels) * times) @ rows + of @ quadratic + noise)

    scale = _SETTLED * (1 + np.abs(noise).max() + float(times @ np.linalg.norm(rows, axis=1)))
    for _ in range(_STEPS):
        first = gradient(heads)
        if np.abs(first).max() <= scale:
            return heads
        bent = loss.curvature(heads @ rows.T, labels) * times
        hessian = (rows.T * bent[:, None, :]) @ rows + quadratic
        step = np.linalg.solve(hessian, first[..., None])[..., 0]
        size = np.ones(len(heads))
        for _ in range(_HALVINGS):  # on a convex function: stop before the slope along the step changes its sign
            along = (gradient(heads - size[:, None] * step) * step).sum(axis=1)
            beyond = along < -0.5 * (first * step).sum(axis=1)
            if not beyond.any():
                break
            size[beyond] /= 2
        heads = heads - size[:, None] * step
    raise RuntimeError(f"Newton's method has not settled after {_STEPS} steps")
