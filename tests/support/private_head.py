"""A private head in a few lines, for tests that hold another implementation to it: objective perturbation.

The head minimises  sum of log(1 + exp(-u_i . w)) + ridge / 2 |w|^2 + b . w,  u_i = (2 y_i - 1) x_i, |x_i| <= R,
b normal with deviation sigma in every column. One record is replaced. With mu = 2 R / sigma, kappa = R^2 / ridge,
k0 = log(1 + kappa / 4) and e(s) = max over q of log(1 + kappa q (1 - q)) - q s, for any fixed s >= 0
    delta(eps) <= HS_mu(eps - e(s)) + HS_(mu/2)(eps - e(s)) + HS_(mu/2)(eps - s - k0) + HS_0(eps - s - k0)
where HS_m is the hockey-stick divergence of two unit normals m apart.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm


def hockey_stick(epsilon: float, mu: float) -> float:
    if mu <= 0:
        return max(0.0, 1 - math.exp(epsilon))
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def delta_of(epsilon: float, mu: float, kappa: float) -> float:
    """The bound above, at the best s of a grid."""
    top, q = math.log1p(kappa / 4), np.linspace(0, 1, 2001)
    deltas = []
    for s in np.linspace(0, max(epsilon - top, 0.0), 40):
        excess = float((np.log1p(kappa * q * (1 - q)) - q * s).max())
        parts = ((excess, mu), (excess, mu / 2), (s + top, mu / 2), (s + top, 0.0))
        deltas.append(sum(hockey_stick(epsilon - shift, width) for shift, width in parts))
    return min(1.0, *deltas)


def epsilon_of(mu: float, kappa: float, delta: float) -> float:
    """The smallest epsilon that the bound gives at this delta."""
    return float(brentq(lambda epsilon: delta_of(epsilon, mu, kappa) - delta, 1e-6, 60.0, xtol=1e-4))


def heads(rows: np.ndarray, label: np.ndarray, ridge: float, noise: np.ndarray, steps: int = 15) -> np.ndarray:
    """The minimiser for each row of noise, by Newton steps of all of them together; raises if one is not there."""
    signed, weights = (2 * label - 1)[:, None] * rows, np.zeros_like(noise)

    def value(w: np.ndarray) -> np.ndarray:
        return np.asarray(
            np.logaddexp(0, -w @ signed.T).sum(axis=1) + ridge / 2 * (w**2).sum(axis=1) + (noise * w).sum(axis=1)
        )

    for _ in range(steps):
        chance = expit(-weights @ signed.T)
        slope = -chance @ signed + ridge * weights + noise
        curve = np.einsum("mn,ni,nj->mij", chance * (1 - chance), signed, signed) + ridge * np.eye(rows.shape[1])
        step = np.linalg.solve(curve, slope[..., None])[..., 0]
        size, now = np.ones(len(weights)), value(weights)
        for _ in range(4):
            worse = value(weights - size[:, None] * step) > now + 1e-12 * np.abs(now)
            size[worse] /= 2
        weights = weights - size[:, None] * step
    left = -expit(-weights @ signed.T) @ signed + ridge * weights + noise
    assert np.abs(left).max() < 1e-6, "not at the optimum"
    return weights
