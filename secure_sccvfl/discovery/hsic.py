"""Conditional HSIC of residuals as a private scalar: the released statistic, its grid, its sensitivity and the proof.

Record i has kernel features phi_i (norm at most 1) of a local residual, and the one-hot s_i of its group. With the
public number of records N:

    C = (1/N) sum_i (phi_i - mean phi) s_i^T        H = |C|_F^2      (HSIC, between 0 and 1/2)

*Whole numbers.* The owner cuts phi to f bits towards zero (so the norm stays at most 1) and centres it: psi_i = N
phi_i - sum phi, exact. sum_i psi_i s_i^T = N^2 2^f C is below 2^62 since f = min(20, 60 - 2 log2 N). It is divided
under MPC by the public d = ceil(N^2 2^f / 2^28). So C is known to the unit t = d / (N^2 2^f), about 2^-28, and H to
t^2: |H| < 2^55 units, which leaves room for noise up to 2^61.

*Sensitivity* (one record added or removed; N is a public upper bound; a removed record is phi = 0, s = 0). Let q be
group shares, m the mean of phi, mu_g group means, and remove (phi, g):
N (C - C') = (phi - m) e_g^T - phi q^T + phi e_g^T / N, and H' - H = -2 <C, C - C'> + |C - C'|^2.
- Column g of C is q_g (1 - q_g) (mu_g - mu_rest). With p = q_g (1 - q_g), |mu_g - mu_rest| = 2x and unit
  means |m|^2 = 1 - 4 p x^2 at most, so |(phi - m)^T C e_g| <= (1 + sqrt(1 - y^2)) y sqrt(p), y = 2 x sqrt(p),
  at most 3 sqrt(3) / 8 < .6496.
- C 1 = 0, so |C q| = |sum_h q_h (q_h - k)(mu_h - m)| <= sqrt(sum q_h (q_h - k)^2) for every k (Cauchy-Schwarz,
  sum q_h |mu_h - m|^2 <= 1). With k = sum q^2 that is sqrt(sum q^3 - (sum q^2)^2) <= sqrt(27/256) < .3248.
- |C e_g| <= 1/2 for the term in 1/N, and |C - C'| <= (sqrt(5) + 1/N) / N.
Together |H - H'| <= 1.949 / N + (1 + (sqrt(5) + 1/N)^2) / N^2.

*Rounding.* Division is off by at most 2 units in each of K G entries: |error of C| <= r = 2 t sqrt(K G). So H moves
by at most 2 |C| r + r^2 <= 1.5 r (r < .05, |C| < .71) on either side; 3 r is added.

*Replacing* a record means removing it and adding another with the same N: at most twice that
(`Sensitivity.of_any`).

*What is left of it.* For d features the joint sensitivity is sqrt(d) times that. At N = 560, 19 features and a
noise multiplier of 2 the deviation is .06, while strong features have H of about .01: useless. At 30,000 records it
is 1.1e-3, at a million 3.4e-5. The tables are the better statistic for small data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from accounting.events import Sensitivity
from protocols.session.runtime import Session, crypten
from protocols.steps.clipping import divided
from secure_sccvfl.discovery.statistics import (
    Arrays,
    Columns,
    Counts,
    Secret,
    Shape,
    Statistic,
    check_columns,
    column_slices,
)

UNIT_BITS = 28


@dataclass(frozen=True)
class Grid:
    """Public scales for a number of records."""

    rows: int

    def __post_init__(self) -> None:
        if not 2 <= self.rows < 1 << 26:
            raise ValueError(f"HSIC under MPC needs between 2 and 2^26 records, got {self.rows}")

    @property
    def fraction(self) -> int:
        """Bits of a kernel feature."""
        return min(20, 60 - 2 * math.ceil(math.log2(self.rows)))

    @property
    def divisor(self) -> int:
        return -(-(self.rows**2 << self.fraction) >> UNIT_BITS)

    @property
    def unit(self) -> float:
        """The value of one unit of the divided cross-covariance; H counts its squares."""
        return self.divisor / (self.rows**2 << self.fraction)

    def features(self, phi: np.ndarray) -> np.ndarray:
        """Owner, local: kernel features as whole numbers, rounded towards zero."""
        return np.trunc(phi * 2.0**self.fraction).astype(np.int64)

    def centred(self, whole: np.ndarray) -> np.ndarray:
        """Owner, local: N phi - sum phi."""
        return self.rows * whole - whole.sum(axis=0)

    def sensitivity(self, width: int, groups: int) -> float:
        """Largest change of H by one record added or removed, in real units; `width` kernel features."""
        n = self.rows
        exact = 1.949 / n + (1 + (math.sqrt(5) + 1 / n) ** 2) / n**2
        return exact + 3 * 2 * self.unit * math.sqrt(width * groups)

    def joint_sensitivity(self, width: int, counts: Sequence[int], features: int) -> float:
        """l2 norm of that change over all features, with attributes of these numbers of groups."""
        return math.sqrt(features * sum(self.sensitivity(width, count) ** 2 for count in counts))

    def joint(self, width: int, counts: Sequence[int], features: int) -> Sensitivity:
        """What one record moves in a release of all features."""
        return Sensitivity.of_any(self.joint_sensitivity(width, counts, features), self.unit**2)


def dependence(whole: np.ndarray, one_hot: np.ndarray, grid: Grid) -> float:
    """H in plaintext, equal to the computation under MPC up to its rounding."""
    cross = grid.centred(whole).astype(float).T @ one_hot / (grid.rows**2 * 2.0**grid.fraction)
    return float((cross**2).sum())


@dataclass(frozen=True)
class ResidualDependence(Statistic):
    """Noisy HSIC of each feature's kernel features (rows of norm at most 1) with each attribute: a number each."""

    width: int
    refused_hidden: ClassVar[str] = "conditional scores"

    def layout(self, bins: Columns) -> Columns:
        return {rank: dict.fromkeys(own, self.width) for rank, own in bins.items()}

    def sensitivity(self, shape: Shape) -> Sensitivity:
        return Grid(shape.rows).joint(self.width, shape.counts, shape.features)

    def exact(self, columns: np.ndarray, groups: np.ndarray, shape: Shape) -> np.ndarray:
        grid = Grid(shape.rows)
        return np.array([[dependence(grid.features(columns), groups[:, part], grid) for part in shape.parts]])

    def unit(self, shape: Shape) -> float:
        return Grid(shape.rows).unit ** 2

    def whole(self, columns: Arrays, shape: Shape) -> dict[str, np.ndarray]:
        grid, sound = Grid(shape.rows), check_columns(columns, shape.rows, 1.0, whole=False)
        return {k: grid.centred(grid.features(v)) for k, v in sound.items()}

    def of_table(self, session: Session, table: Secret, shape: Shape) -> Secret:
        squares = divided(table, Grid(shape.rows).divisor).square()
        pieces = [(rows, part) for rows in column_slices(shape.widths) for part in shape.parts]
        return crypten.stack([squares[piece].sum() for piece in pieces]).reshape(shape.features, len(shape.counts))

    def results(self, layout: Columns, counts: Counts) -> tuple[Columns, Counts]:
        return {rank: dict.fromkeys(own, 1) for rank, own in layout.items()}, [1] * len(counts)
