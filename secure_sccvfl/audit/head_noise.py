"""The noise that a private head carries, recomputed in the clear, and the trainer that its canary uses.

A private head w minimises

    sum_i l(z_i, y_i) + n/2 w'Pw + ridge/2 |w|^2 + b.w,    z = Xw,    b from N(0, sigma^2 I), drawn under MPC.

At the minimum the gradient is zero, so whoever has the records can recompute the noise:

    b = -sum_i l'(z_i, y_i) x_i - (n P + ridge I) w.

This needs all records in one place: it is for constructed or public data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

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
    """The heads with these noises (heads x columns), in the clear, by Newton's method with step halving.

    penalty: n P.
    """
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
