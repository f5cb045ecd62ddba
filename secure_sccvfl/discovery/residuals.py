"""Dependence of a feature on s given its owner's other columns: residual HSIC and risk gain, a charged release each.

Both start from the residual of a ridge prediction from the owner's other columns, fitted on other records
(`data.party`).

# Residual HSIC

A private scalar per feature. Record i has kernel features phi_i (norm at most 1) of a local residual, and the one-hot
s_i of its group. With the public number of records N:

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

# Risk gain

How much better s predicts a feature beyond the other columns of its owner. The paper fits two predictors of x_j from
the other columns, one with s and one without, and compares their risks. Under MPC nobody can fit the one with s. But
what s adds follows from sums by group. Let r be the residual of the predictor without s, fitted on other records. Of
all predictors "the one without s, plus an offset for each group" the best one has the group means m_g of r as
offsets. A constant offset (m, the mean of all) needs no s. With n_g records in group g:

    R(with) - R(without) = -sum_g (n_g / n) (m_g - m)^2,      Delta_j = its absolute value, between 0 and 1.

*How it differs from two ridge predictors.* The one with s also moves the weights of the other columns. Fitted on
its own records, r is orthogonal to these columns. Then the part of s that they do not predict explains <r, s>^2 /
(|s|^2 (1 - R_s^2)) of a two-valued s, where R_s^2 is the share of s that they predict. So Delta_j is 1 - R_s^2
times what two predictors show: the same order of columns, unless they differ much in how well the others predict s.

*What is released.* r is cut to -1..1. A record adds (1 + r) / 2 and (1 - r) / 2 to two sums of its group: their sum
is n_g, their difference is n_g m_g. Both are at least 0 and sum to 1, so the row is no longer than 1. Over all
features and attributes the joint sensitivity is sqrt(features x attributes), that of tables of counts, on the same
kind of grid. A category enters by one number (its index in the public list), as in the conditional HSIC: a row for
each category would be longer and cost every feature more noise. Tables and HSIC see differences that have no order.

*Noise.* With deviation sigma in each sum, n_g m_g has variance t = 2 sigma^2. m_g - m has t (1 / n_g^2 - 2 / (n_g
n) + groups / n^2) more squared expectation than without noise. That is subtracted from each group's square, and
nothing below 0 is left: a group of a few records counts little. Group sizes are averaged over the owner's features.
What sampling alone adds, (groups - 1) var(r) / n at most, differs only by var(r) and is not subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.data.party import KERNEL_FEATURES, MOMENT_GRID, Attribute, Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.scores import group_sizes
from secure_sccvfl.discovery.statistics import (
    Arrays,
    Columns,
    Counts,
    GroupSums,
    Secret,
    Shape,
    Statistic,
    Statistics,
    Tables,
    check_columns,
    column_slices,
    joint_norm,
)
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps.clipping import divided
from secure_sccvfl.releases.catalogue import REDRAWS, RESIDUALS, RISK_GAINS

HALVES = 2
UNIT_BITS = 28


@dataclass(frozen=True)
class Grid:
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
        return {rank: dict.fromkeys(features, self.width) for rank, features in bins.items()}

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
        return {rank: dict.fromkeys(features, 1) for rank, features in layout.items()}, [1] * len(counts)


def gains(halves: np.ndarray, sizes: np.ndarray, deviation: float) -> np.ndarray:
    """Delta_j from sums of both halves by group (... x 2 x groups). `deviation`: of the noise in a sum."""
    counts = np.maximum(sizes, 1.0)
    total = counts.sum()
    shares = counts / total
    means = np.clip((halves[..., 0, :] - halves[..., 1, :]) / counts, -1.0, 1.0)
    beyond = means - (shares * means).sum(axis=-1, keepdims=True)
    noise = 2 * deviation**2 * (counts**-2 - 2 / (counts * total) + len(counts) / total**2)
    gain: np.ndarray = (shares * np.clip(beyond**2 - noise, 0.0, None)).sum(axis=-1)
    return gain


Release = tuple[Tables, float]
"""Noisy results of own features for each attribute, and the deviation of their noise."""


def residual_scores(
    statistics: Statistics,
    parties: Sequence[Party],
    others: Sequence[Party],
    protected: Sequence[Attribute],
    features: int,
    seed: int,
) -> Release:
    """One release of the residual HSIC of all features with all attributes (1 x 1 each); each goes to its owner.

    `others` holds the same columns of other records, on which the residuals are fitted. `features` counts those of
    all parties.
    """
    columns: dict[str, np.ndarray] = {}
    for party, other in zip(parties, others, strict=True):
        columns.update(party.residual_features(seed, other.with_record.inputs))
    counts, codes = [len(a.groups) for a in protected], [a.codes for a in protected]
    statistic = ResidualDependence(RESIDUALS.charged_as(), KERNEL_FEATURES)
    moved = Grid(len(parties[0].inputs)).joint(KERNEL_FEATURES, counts, features)
    return statistics.release(statistic, columns, codes, counts).tables, statistics.deviation(moved)


def residual_sums(
    statistics: Statistics,
    parties: Sequence[Party],
    others: Sequence[Party],
    protected: Sequence[Attribute],
    features: int,
) -> Release:
    """One release of the sums of both halves of residuals by group (2 x groups each), like `residual_scores`."""
    columns: dict[str, np.ndarray] = {}
    for party, other in zip(parties, others, strict=True):
        columns.update(party.residual_halves(other.with_record.inputs))
    sensitivity = joint_norm(MOMENT_GRID, features, len(protected))
    counts, codes = [len(a.groups) for a in protected], [a.codes for a in protected]
    statistic = GroupSums(RISK_GAINS.charged_as(), sensitivity, HALVES)
    sums = statistics.release(statistic, columns, codes, counts).tables
    scaled = tuple({k: v / MOMENT_GRID for k, v in part.items()} for part in sums)
    return scaled, statistics.deviation(sensitivity) / MOMENT_GRID


@dataclass(frozen=True)
class Conditional:
    """How much each feature follows s beyond the other columns of its owner, by one measure.

    `redrawn`: what the same records might give with other noise.
    """

    values: Mapping[str, float]
    redrawn: Mapping[str, Sequence[float]]


def residual_hsic(
    release: Release, parties: Sequence[Party], protected: Sequence[Attribute], seed: int
) -> Conditional:
    """Party step, local: residual HSIC of own features, and the same with noise added once more."""
    return _largest(release, parties, protected, seed, "redrawn dependence", lambda scores, _: scores[..., 0, 0])


def risk_gains(release: Release, parties: Sequence[Party], protected: Sequence[Attribute], seed: int) -> Conditional:
    """Party step, local: risk gains of own features, and the same with noise added once more."""
    deviation = release[1]
    return _largest(
        release, parties, protected, seed, "redrawn gain", lambda sums, sizes: gains(sums, sizes, deviation)
    )


def _largest(
    release: Release,
    parties: Sequence[Party],
    protected: Sequence[Attribute],
    seed: int,
    label: str,
    measure: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Conditional:
    """The largest value over attributes of a measure of noisy results and group sizes, and its redraws.

    A party's results use no other party's release.
    """
    tables, deviation = release
    values: dict[str, float] = {}
    redrawn: dict[str, np.ndarray] = {}
    for attribute, part in zip(protected, tables, strict=True):
        for party in parties:
            sizes = group_sizes([part[k] for k in party.layout.names])
            for k in party.layout.names:
                noise = stream(seed, label, attribute.name, k).normal(size=(REDRAWS, *part[k].shape))
                values[k] = max(values.get(k, 0.0), float(measure(part[k], sizes)))
                again = measure(part[k] + deviation * noise, sizes)
                redrawn[k] = np.maximum(redrawn.get(k, 0.0), again)
    return Conditional(values, {k: v.tolist() for k, v in redrawn.items()})
