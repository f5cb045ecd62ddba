"""HSIC of columns and s from noisy tables, computed under MPC: the default score, its p-values and its redraws.

With delta kernels HSIC is the sum over cells of (T_kg - T_k. q_g)^2 / n^2 for the table T of a column with s and the
shares q of the groups, that is |T P|^2 / n^2 with P = I - 1 q^T. For two groups it is 2 (q_1 q_2)^2 times the squared
length of the paper's probability gap, the vector of differences between the groups' probabilities of each bin.

| step | who holds what before | what each learns |
|---|---|---|
| group sizes | shares of the noisy tables N | all: the sum of all tables by group, which gives n and q |
| squares | the same; n, q | all: of each column |N P|^2 for each attribute, and |N 1|^2 |

Seven rounds: two to open the sizes, one each to lift, truncate and square, two to open. No request to the dealer
depends on q (`SecureStatistics.projected`).

Why it costs no budget. N is the table with the noise of a release that is charged; it exists as shares, and its rows
go to their owners as ever. Both openings are functions of N and public numbers alone: sizes are column sums of N, q
follows from them, and squares are |N P|^2 and |N 1|^2. No exact count enters: with an owner's exact T_k. in the place
of the sum over N_k., a record would move what is opened by e_g - q, which that noise does not hide. So whatever is
opened here is post-processing of the charged release. What is rounded is rounded after the noise, by masks of the
dealer. Everything below is computed from opened numbers by every party alike: no owner announces what others cannot
check.

E |Z P|^2 = K |P|^2 sigma^2 for noise Z in the K bins of a column, which is subtracted. A p-value compares the square
with what noise and sampling give where column and s are independent. |N 1|^2 / n^2 without its noise is 1 / m for m
equally frequent bins, and so tells how many bins a column has in effect. In each direction of a row that P leaves
there are K - m + 1 degrees with the variance of noise, an eigenvalue of sigma^2 P^T P, and m - 1 to which sampling
adds, an eigenvalue of sigma^2 P^T P + n / m (diag(q) - q q^T). A redraw is what another run might have seen: the part
of the square that noise and sampling do not explain, as uncertain as they leave it, then records and noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.evidence import p_value
from secure_sccvfl.discovery.statistics import Opened

DRAWS = 4000
"""Of squares where column and s are independent."""
_TINY = 1e-12


def projection(sizes: np.ndarray) -> np.ndarray:
    """P for groups of these sizes."""
    return np.eye(len(sizes)) - shares(sizes)


def shares(sizes: np.ndarray) -> np.ndarray:
    """q: noisy sizes as shares; none is negative."""
    counts = np.maximum(sizes, 1.0)
    share: np.ndarray = counts / counts.sum()
    return share


@dataclass(frozen=True)
class Projected:
    """What was opened about one attribute. bins: of each feature; public. deviation: of the noise in a cell of N."""

    attribute: str
    opened: Opened
    bins: Mapping[str, int]
    deviation: float

    @cached_property
    def _cells(self) -> tuple[float, np.ndarray, np.ndarray]:
        """n, the covariance of a row of groups under sampling, for n = 1, and P^T P."""
        sizes = self.opened.sizes
        q, projected = shares(sizes), projection(sizes)
        return float(np.maximum(sizes, 1.0).sum()), np.diag(q) - np.outer(q, q), projected.T @ projected

    def score(self, name: str, squares: np.ndarray | None = None) -> np.ndarray:
        """The root of HSIC without the noise, over that of s with itself: 0 to 1 for two groups."""
        n, sampled, projected = self._cells
        seen = np.asarray(self.opened.squares[name] if squares is None else squares)
        left = seen - self.bins[name] * np.trace(projected) * self.deviation**2
        scored: np.ndarray = np.sqrt(np.maximum(left, 0.0) / max(n**2 * (sampled**2).sum(), _TINY))
        return scored

    def _explained(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Variances of the directions that noise and sampling explain, and the degrees of each."""
        n, sampled, projected = self._cells
        bins, noise = self.bins[name], self.deviation**2 * projected
        concentration = (self.opened.marginals[name] - bins * len(sampled) * self.deviation**2) / n**2
        effective = float(np.clip(1 / max(concentration, _TINY), 1.0, bins))
        both = [np.linalg.eigvalsh(noise + n / effective * sampled), np.linalg.eigvalsh(noise)]
        degrees = np.repeat([effective - 1, bins - effective + 1], len(sampled))
        return np.clip(np.concatenate(both), 0.0, None), np.maximum(degrees, _TINY)

    def p_values(self, name: str, seed: int, squares: np.ndarray | None = None) -> np.ndarray:
        rng = stream(seed, "independent squares", self.attribute, name)
        variances, degrees = self._explained(name)
        independent = np.sort(rng.chisquare(degrees, (DRAWS, len(degrees))) @ variances)
        return p_value(np.asarray(self.opened.squares[name] if squares is None else squares), independent)

    def redrawn(self, name: str, count: int, seed: int) -> np.ndarray:
        """Squares that another run might have given."""
        rng = stream(seed, "redrawn squares", self.attribute, name)
        variances, degrees = self._explained(name)
        seen, free = max(self.opened.squares[name], _TINY), float(variances @ degrees)
        signal = max(0.0, 1.0 - free / seen)
        along = np.sqrt((1 + signal) * (variances**2 @ degrees) / max(free, _TINY))
        drawn = signal**2 * seen + 2 * signal * np.sqrt(seen) * along * rng.normal(size=count)
        again: np.ndarray = drawn + (1 + signal) * (rng.chisquare(degrees, (count, len(degrees))) @ variances)
        return np.maximum(again, 0.0)
