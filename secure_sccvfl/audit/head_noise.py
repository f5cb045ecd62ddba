"""Tests of a head that was made private by objective perturbation: the noise it carries, and a canary.

A private head w minimises

    sum_i l(z_i, y_i) + n/2 w'Pw + ridge/2 |w|^2 + b.w,    z = Xw,    b from N(0, sigma^2 I), drawn in secret.

At the minimum the gradient is zero, so whoever has the records can recompute the noise:

    b = -sum_i l'(z_i, y_i) x_i - (n P + ridge I) w.

*Noise* (`noise_checks`). Over K heads the squares of b / sigma add up to a chi-square with K d degrees of freedom.
This is much sharper than any lower bound on epsilon: 40 heads of 61 columns notice .9 sigma with power .99.
Heads must not share noise: neither pairs of heads nor all of them together may be correlated. Where noise was also
added to the finished weights, `standard_noise` allows for it.

*Canary* (`HeadCanary`). The bound on epsilon counts a change of the gradient by 2 c R, where a record of length R is
replaced by another one and the slope of the loss is c for both. Records u and -u alone cannot do that: where one is
misclassified the other is not, and their slopes add up to about c. The worst case has u' close to -u, both turned
slightly in the same direction, and very many short records that push the head so far the other way that both are
misclassified. The head's distribution then shifts by nearly 2 c R in terms of b, and the curvature hardly differs.
The adversary recomputes b under the first data set and projects it on u - u'. The two distributions are Gaussian to
e^-15, so bounds for Gaussian noise apply. All of this runs in the clear with Newton's method.

Everything here needs all records in one place: it is for public data and tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import expit

from secure_sccvfl.audit.bounds import CONFIDENCE, Audit, audit
from secure_sccvfl.audit.noise_tests import NoiseTest, correlation_test, scale_test
from secure_sccvfl.releases.kinds import Kind

Rows = np.ndarray
LEVEL = 1e-6
"""The probability that right noise of some heads raises an alarm, all tests together."""
TRAININGS = 2000
_STEPS, _HALVINGS, _SETTLED = 100, 40, 1e-10


@dataclass(frozen=True)
class Loss:
    """A convex loss of a logit and a label: its slope and curvature in the logit; `cap` bounds the slope."""

    slope: Callable[[np.ndarray, np.ndarray], np.ndarray]
    curvature: Callable[[np.ndarray, np.ndarray], np.ndarray]
    cap: float = 1.0


def _logistic_curvature(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rate: np.ndarray = expit(logits)
    return rate * (1 - rate)


LOGISTIC = Loss(lambda logits, labels: expit(logits) - labels, _logistic_curvature)
"""Log loss of labels 0 and 1."""


def capped(cap: float) -> Loss:
    """The loss with c tau log(1 + exp((t - m) / tau)) of a margin m, tau = 2 - 1/c, t = tau log(1 / (2c - 1))."""
    if not 0.5 < cap <= 1:
        raise ValueError(f"the cap of a slope must be above .5 and at most 1, got {cap}")
    width = 2 - 1 / cap
    shift = width * math.log(1 / (2 * cap - 1))

    def rate(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        made: np.ndarray = expit((shift - (2 * labels - 1) * logits) / width)
        return made

    def slope(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return -cap * (2 * labels - 1) * rate(logits, labels)

    def curvature(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        found = rate(logits, labels)
        return cap / width * found * (1 - found)

    return Loss(slope, curvature, cap)


def log_cosh(cap: float) -> Loss:
    """The loss c^2 log cosh(r / c) of a number with the residual r = z - y: its slope lies between -c and c."""
    if not cap > 0:
        raise ValueError(f"the cap of a slope must be above 0, got {cap}")

    def slope(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        made: np.ndarray = cap * np.tanh((logits - labels) / cap)
        return made

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


def head_noise(head: np.ndarray, records: Records, penalty: np.ndarray, ridge: float, loss: Loss = LOGISTIC) -> Rows:
    """The noise b that a head carries, or those of several heads (heads x columns). penalty: n P."""
    slopes = loss.slope(head @ records.rows.T, records.labels) * records.weights
    found: Rows = -(slopes @ records.rows) - head @ penalty - ridge * head
    return found


def standard_noise(
    head: np.ndarray,
    records: Records,
    penalty: np.ndarray,
    ridge: float,
    sigma: float,
    output: float,
    loss: Loss = LOGISTIC,
) -> Rows:
    """The noise of one head that also carries noise of deviation `output` on its weights, in units of its deviation.

    An error e of the weights shows as H e in the recomputed noise, where H is the curvature of the objective. So the
    noise has covariance sigma^2 I + output^2 H H, and is divided by a root of that. Its values are then independent
    with deviation 1, up to terms of second order in e.
    """
    bent = loss.curvature(records.rows @ head, records.labels) * records.weights
    curvature = (records.rows.T * bent) @ records.rows + penalty + ridge * np.eye(len(head))
    covariance = sigma**2 * np.eye(len(head)) + output**2 * curvature @ curvature
    found = head_noise(head, records, penalty, ridge, loss)
    return np.linalg.solve(np.linalg.cholesky(covariance), found)


def train(records: Records, penalty: np.ndarray, ridge: float, noise: np.ndarray, loss: Loss = LOGISTIC) -> Rows:
    """The heads with these noises (heads x columns), in the clear, by Newton's method with step halving.

    penalty: n P.
    """
    rows, labels, times = records.rows, records.labels, records.weights
    quadratic = penalty + ridge * np.eye(rows.shape[1])
    heads = -np.linalg.solve(quadratic, noise.T).T

    def gradient(of: Rows, which: np.ndarray) -> Rows:
        made: Rows = (loss.slope(of @ rows.T, labels) * times) @ rows + of @ quadratic + noise[which]
        return made

    scale = _SETTLED * (1 + np.abs(noise).max() + float(times @ np.linalg.norm(rows, axis=1)))
    every = np.arange(len(heads))
    for _ in range(_STEPS):
        first = gradient(heads, every)
        if np.abs(first).max() <= scale:
            return heads
        bent = loss.curvature(heads @ rows.T, labels) * times
        hessian = (rows.T * bent[:, None, :]) @ rows + quadratic
        step = np.linalg.solve(hessian, first[..., None])[..., 0]
        size = np.ones(len(heads))
        for _ in range(_HALVINGS):  # on a convex function: stop before the slope along the step changes its sign
            beyond = (gradient(heads - size[:, None] * step, every) * step).sum(axis=1) < -0.5 * (first * step).sum(
                axis=1
            )
            if not beyond.any():
                break
            size[beyond] /= 2
        heads = heads - size[:, None] * step
    raise RuntimeError(f"Newton's method has not settled after {_STEPS} steps")


def noise_checks(noises: Rows, sigma: float, level: float = LEVEL) -> dict[str, NoiseTest]:
    """Tests of the noises of several heads (heads x columns): their scale, and that no two share any.

    "scale": all values have deviation sigma. "pairs": the pair with the largest correlation. "together": the sum over
    heads, which a common part would make too large. The three together raise a false alarm with probability `level`.
    Nine tenths of it are the first one's, since a wrong scale may be a small fault and shared noise is a large one.
    """
    each, count = level / 20, len(noises)
    found = {"scale": scale_test(noises, sigma, level - 2 * each)}
    if count > 1:
        pairs = list(combinations(range(count), 2))
        tested = [correlation_test(noises[a], noises[b], each / len(pairs)) for a, b in pairs]
        found["pairs"] = min(tested, key=lambda test: test.p_value)
        found["together"] = scale_test(noises.sum(axis=0), sigma * math.sqrt(count), each)
    return found


def noise_is_right(checks: dict[str, NoiseTest]) -> bool:
    return all(test.holds for test in checks.values())


@dataclass(frozen=True)
class HeadCanary:
    """The worst case for a private head of these public settings, audited in the clear.

    sigma: of the noise. radius: R, the bound of a row. ridge: lambda. accounted: the epsilon of one head at delta, by
    the accountant. kind: the release.
    """

    kind: Kind
    sigma: float
    radius: float
    ridge: float
    delta: float
    accounted: float
    loss: Loss = LOGISTIC
    name: str = "head"
    turned: float = 0.05
    """The sine of the angle that both records are turned by."""

    def pair(self) -> tuple[Records, Records]:
        """The two data sets. All labels are 1; the first record is the canary."""
        radius, level = self.radius, math.sqrt(1 - self.turned**2)
        # Where noise is at eight deviations and the record pulls too, both logits must be far below zero.
        reach = (8 * self.sigma + self.loss.cap * radius) / self.ridge
        push = 2 * (reach + 15 / radius) / self.turned
        short = 0.01 / push
        slope = -float(self.loss.slope(np.array([0.01]), np.array([1.0]))[0])
        often = self.ridge * push / (short * slope)
        made = []
        for side in (1.0, -1.0):
            canary = [side * radius * level, radius * self.turned]
            rows = np.array([canary, [0.0, -short]])
            made.append(Records(rows, np.ones(2), np.array([1.0, math.ceil(often)])))
        return made[0], made[1]

    def _drawn(self, shape: tuple[int, int]) -> np.ndarray:
        return np.random.default_rng().normal(0.0, self.sigma, shape)

    def audit(
        self,
        trainings: int = TRAININGS,
        confidence: float = CONFIDENCE,
        draw: Callable[[tuple[int, int]], np.ndarray] | None = None,
    ) -> Audit:
        """Bounds from so many heads of each data set. draw: the noise, if it is not that of this canary."""
        draw = self._drawn if draw is None else draw
        pair, none = self.pair(), np.zeros((2, 2))
        moved = pair[0].rows[0] - pair[1].rows[0]
        statistics, noises = [], []
        for records in pair:
            heads = train(records, none, self.ridge, draw((trainings, 2)), self.loss)
            statistics.append(head_noise(heads, pair[0], none, self.ridge, self.loss) @ moved)
            noises.append(head_noise(heads, records, none, self.ridge, self.loss))
        length = self.loss.cap * float(moved @ moved)
        largest = 2 * self.loss.cap * self.radius
        return audit(
            statistics[0] / length,
            statistics[1] / length,
            self.sigma / largest,
            self.delta,
            confidence,
            self.loss.cap * float(np.linalg.norm(moved)) / largest,
            np.concatenate(noises) / self.sigma,
            accounted=self.accounted,
        )
