"""The risk gain of a feature: how much better s predicts it beyond the other columns of its owner.

The paper fits two predictors of x_j from the other columns, one with s and one without, and compares their risks.
In secret nobody can fit the one with s. But what s adds follows from sums by group. Let r be the residual of the
predictor without s, fitted on other records. Of all predictors "the one without s, plus an offset for each group"
the best one has the group means m_g of r as offsets. A constant offset (m, the mean of all) needs no s. With n_g
records in group g:

    R(with) - R(without) = -sum_g (n_g / n) (m_g - m)^2,      Delta_j = its absolute value, between 0 and 1.

*How it differs from two ridge predictors.* The one with s also moves the weights of the other columns. Fitted on
its own records, r is orthogonal to these columns. Then the part of s that they do not predict explains <r, s>^2 /
(|s|^2 (1 - R_s^2)) of a two-valued s, where R_s^2 is the share of s that they predict. So Delta_j is 1 - R_s^2
times what two predictors show: the same order of columns, unless they differ much in how well the others predict s.

*What is released.* r is cut to -1..1. A record adds (1 + r) / 2 and (1 - r) / 2 to two sums of its group: their sum
is n_g, their difference is n_g m_g. Both are at least 0 and sum to 1, so the row is no longer than 1. Over all
features and attributes the joint sensitivity is sqrt(features x attributes), that of tables of counts, on the same
kind of grid. A category enters by one number (its place in the public list), as in the conditional HSIC: a row for
each category would be longer and cost every feature more noise. Tables and HSIC see differences that have no order.

*Noise.* With deviation sigma in each sum, n_g m_g has variance t = 2 sigma^2. m_g - m has t (1 / n_g^2 - 2 / (n_g
n) + groups / n^2) more squared expectation than without noise. That is subtracted from each group's square, and
nothing below 0 is left: a group of a few records counts little. Group sizes are averaged over the owner's features.
What sampling alone adds, (groups - 1) var(r) / n at most, is the same for all but for var(r); it is not subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.party import MOMENT_GRID, Attribute, Party
from secure_sccvfl.discovery.scores import group_sizes
from secure_sccvfl.discovery.statistics import GroupSums, Statistics, joint_norm
from secure_sccvfl.releases.catalogue import RISK_GAINS

HALVES = 2


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


@dataclass(frozen=True)
class Halves:
    """Noisy sums of both halves of residuals by group of one attribute, at the owners of this process."""

    sums: Mapping[str, np.ndarray]
    deviation: float

    def gains(self, owners: Sequence[Sequence[str]]) -> dict[str, float]:
        """Of every own feature. A party's results use no other party's sums."""
        return {k: float(gains(self.sums[k], self._sizes(own), self.deviation)) for own in owners for k in own}

    def redrawn(self, owners: Sequence[Sequence[str]], draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same with noise added once more; `draws` has standard normal numbers (redraws x 2 x groups)."""
        return {
            k: gains(self.sums[k] + self.deviation * draws[k], self._sizes(own), self.deviation)
            for own in owners
            for k in own
        }

    def _sizes(self, own: Sequence[str]) -> np.ndarray:
        return group_sizes([self.sums[k] for k in own])


def release_halves(
    statistics: Statistics,
    parties: Sequence[Party],
    others: Sequence[Party],
    protected: Sequence[Attribute],
    features: int,
) -> tuple[Halves, ...]:
    """One release of the sums of all features with all protected attributes; each goes to its owner.

    `others` holds the same columns of other records, on which the residuals are fitted. `features` counts those of
    all parties.
    """
    columns: dict[str, np.ndarray] = {}
    for party, other in zip(parties, others, strict=True):
        columns.update(party.residual_halves(other.known.inputs))
    sensitivity = joint_norm(MOMENT_GRID, features, len(protected))
    counts, codes = [len(a.groups) for a in protected], [a.codes for a in protected]
    statistic = GroupSums(RISK_GAINS.charged_as(), sensitivity, HALVES)
    sums = statistics.release(statistic, columns, codes, counts).tables
    scale = statistics.deviation(sensitivity) / MOMENT_GRID
    return tuple(Halves({k: v / MOMENT_GRID for k, v in part.items()}, scale) for part in sums)
