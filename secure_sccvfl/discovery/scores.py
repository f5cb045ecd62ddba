"""Scores of columns from noisy tables of s, their p-values and their redraws. Post-processing of charged releases.

Two ways lead to a score. With the default, HSIC, squares of the noisy tables are computed under MPC and opened to all
(`OpenedSquares`). With the others each owner scores its own tables (`OwnTables`) and announces the results.

**Scores of owners.** A table of a few hundred records shows differences between groups that are sampling and release
noise alone. Each group's distribution is therefore shrunk towards the pooled one (positive-part James-Stein), by as
much as its noise explains. With bins k, group g of n_g records out of n, its share pi_g of all records, its
distribution p_g, the pooled distribution q, G groups and the deviation sigma of the release:

    v_k    = q_k (1 - q_k) (1 - pi_g) / n_g + sigma^2 [(1 - pi_g)^2 / n_g^2 + (G - 1) / n^2]
    chi_g  = (K - 1) / K * sum_k (p_gk - q_k)^2 / v_k
    p~_g   = q + max(0, 1 - (K - 1) / chi_g) (p_g - q)

Where the second term of v_k is above 1/16, noise alone moves a share by a quarter or more, and the group gets q.

A p-value compares a score with those of simulated tables in which s and the column are independent. A redraw is what
another run might have seen: other records of the same population, and fresh noise. Both treat the group sizes as the
observed score does: averaged over all tables of the owner, each with its noise.

**HSIC under MPC.** With delta kernels HSIC is the sum over cells of (T_kg - T_k. q_g)^2 / n^2 for the table T of a
column with s and the shares q of the groups, that is |T P|^2 / n^2 with P = I - 1 q^T. For two groups it is
2 (q_1 q_2)^2 times the squared length of the paper's probability gap, the vector of differences between the groups'
probabilities of each bin.

| step | who holds what before | what each learns |
|---|---|---|
| group sizes | shares of the noisy tables N | all: the sum of all tables by group, which gives n and q |
| squares | the same; n, q | all: of each column |N P|^2 for each attribute, and |N 1|^2 |

Seven rounds: two to open the sizes, one each to lift, truncate and square, two to open. No request to the dealer
depends on q (`SecureStatistics.projected`).

Why it costs no budget. N is the table with the noise of a release that is charged; it exists as shares, and its rows
go to their owners as ever. Both openings are functions of N and public numbers only: sizes are column sums of N, q
follows from them, and squares are |N P|^2 and |N 1|^2. No exact count enters: with an owner's exact T_k. instead of
the sum over N_k., a record would move what is opened by e_g - q, which that noise does not hide. So whatever is
opened here is post-processing of the charged release. What is rounded is rounded after the noise, by masks of the
dealer. Every party computes everything else from opened numbers: no owner announces what others cannot check.

E |Z P|^2 = K |P|^2 sigma^2 for noise Z in the K bins of a column, which is subtracted. A p-value compares the square
with what noise and sampling give where column and s are independent. |N 1|^2 / n^2 without its noise is 1 / m for m
equally frequent bins, and so measures the effective number of bins of a column. In each direction of a row that P
leaves there are K - m + 1 degrees with the variance of noise, an eigenvalue of sigma^2 P^T P, and m - 1 to which
sampling adds, an eigenvalue of sigma^2 P^T P + n / m (diag(q) - q q^T). A redraw adds to the part of the square that
noise and sampling do not explain, as uncertain as they leave it, other records and noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.stats import chi2

from secure_sccvfl.data.groups import Structure
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.structured import LIMIT, structured_shares
from secure_sccvfl.releases.catalogue import REDRAWS

if TYPE_CHECKING:
    from secure_sccvfl.discovery.decisions import DiscoveryConfig
    from secure_sccvfl.discovery.noisy_tables import NoisyTables

TINY = 1e-12
DRAWS = 4000
"""Simulated squares where column and s are independent."""
TableScore = Literal["stable", "paper", "table hsic", "probability gap"]
ScoreKind = Literal["hsic", "stable", "paper", "conditional"]
"""How tables are scored: under MPC, or by their owners, or "conditional": tables are not scored, and conditional
evidence alone decides."""
PARTS: tuple[TableScore, ...] = ("table hsic", "probability gap")
"""HSIC_j and |Delta P_j|, whose sum is the score `paper`: the paper ranks mediators by the first, proxies by the
second."""
Numbers = Mapping[str, Any]
"""A number of each feature, or an array with one entry for each redraw."""


@dataclass(frozen=True)
class Evidence:
    """Numbers per feature that go to all: they follow from noisy releases only.

    `parts`: HSIC and probability gap of each table, whose sum is the score, where the rule ranks by each of them.
    """

    scores: Numbers
    p_values: Numbers
    parts: Sequence[Numbers] = ()


class Opened(NamedTuple):
    """What is opened to all about one attribute for the default score, of the mean table N.

    squares: |N P|^2 of every feature. marginals: |N 1|^2. sizes: noisy records of each group.
    """

    squares: Mapping[str, float]
    marginals: Mapping[str, float]
    sizes: np.ndarray


def group_sizes(tables: Iterable[np.ndarray]) -> np.ndarray:
    """Records of each group: every table of an owner has the same ones, so their noisy sums are averaged."""
    sizes: np.ndarray = np.mean([table.sum(axis=0) for table in tables], axis=0)
    return sizes


def shares(sizes: np.ndarray) -> np.ndarray:
    """q: noisy sizes as shares; none is negative."""
    counts = np.maximum(sizes, 1.0)
    share: np.ndarray = counts / counts.sum()
    return share


def projection(sizes: np.ndarray) -> np.ndarray:
    return np.eye(len(sizes)) - shares(sizes)


@dataclass(frozen=True)
class Shrunken:
    """Distributions of the bins in each group (... x bins x groups) between what was seen and the pooled one.

    `pooled`: ... x bins. `kept`: the share of each group's difference that noise does not explain (... x groups).
    `variance`: of what was seen in each cell.
    """

    groups: np.ndarray
    pooled: np.ndarray
    shares: np.ndarray
    kept: np.ndarray
    variance: np.ndarray


def shrink(tables: np.ndarray, sizes: np.ndarray, deviation: float) -> Shrunken:
    """Shrink one table or a stack of them. `sizes`: records of each group. `deviation`: of the noise in a cell."""
    bins, counts = tables.shape[-2], np.maximum(sizes, 1.0)
    total = counts.sum(axis=-1, keepdims=True)
    shares = counts / total
    observed = tables / counts[..., None, :]
    pooled = (observed * shares[..., None, :]).sum(axis=-1)
    spread = np.clip(pooled * (1 - pooled), 0.0, None)
    noise = deviation**2 * (((1 - shares) / counts) ** 2 + (counts.shape[-1] - 1) / total**2)
    variance = spread[..., :, None] * ((1 - shares) / counts)[..., None, :] + noise[..., None, :]
    beyond = observed - pooled[..., :, None]
    chi = (bins - 1) / bins * (beyond**2 / np.maximum(variance, TINY)).sum(axis=-2)
    kept = np.where(noise > LIMIT**2, 0.0, np.clip(1 - (bins - 1) / np.maximum(chi, TINY), 0.0, None))
    shrunken_groups = proper(pooled[..., :, None] + kept[..., None, :] * beyond)
    return Shrunken(shrunken_groups, proper(pooled[..., :, None])[..., 0], shares, kept, variance)


def shrunken(table: np.ndarray, sizes: np.ndarray, deviation: float, structure: Structure = ()) -> np.ndarray:
    """Distributions of the bins in each group; of ordered or crossed groups effect by effect (`structured`)."""
    if structure:
        return proper(structured_shares(table, sizes, deviation, structure))
    return shrink(table, sizes, deviation).groups


def proper(shares: np.ndarray) -> np.ndarray:
    """Shares of bins (... x bins x groups) without negative ones, that sum to 1 in each group."""
    positive = np.clip(shares, 0.0, None)
    return positive / np.maximum(positive.sum(axis=-2, keepdims=True), TINY)


def probabilities(table: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Group-conditional bin probabilities (bins x groups) of a noisy table; negative counts are cut."""
    counts = np.clip(table, floor, None)
    total = counts.sum(axis=-2, keepdims=True)
    return np.where(total > 0, counts / np.where(total > 0, total, 1.0), 1.0 / table.shape[-2])


def probability_gap(tables: np.ndarray) -> np.ndarray:
    """The paper's |Delta P_j|: the largest difference between two groups' probabilities of one bin, 0..1.

    The paper has a "signed probability gap" and no formula for more than two bins. Of two readings this one is nearer
    to its figure of scores than total variation, over all 19 columns of German without noise: correlation .56 and
    mean distance .057, against .48 and .062. Neither reproduces it: housing has .33 here and .15 there.
    """
    p = probabilities(tables)
    gap: np.ndarray = (p.max(axis=-1) - p.min(axis=-1)).max(axis=-1)
    return gap


def table_hsic(tables: np.ndarray) -> np.ndarray:
    """HSIC of bin and group with delta kernels, as its definition has it, without a scale: at most 1/4."""
    joint = np.clip(tables, 0, None)
    total = joint.sum(axis=(-2, -1), keepdims=True)
    joint = joint / np.where(total > 0, total, 1.0)
    bins, groups = joint.sum(axis=-1), joint.sum(axis=-2)
    cross: np.ndarray = ((joint - bins[..., :, None] * groups[..., None, :]) ** 2).sum(axis=(-2, -1))
    return cross


def paper_scores(tables: np.ndarray) -> np.ndarray:
    """The score `paper`: S_j = |Delta P_j| + HSIC_j of the noisy table, as the paper's figure of scores has it."""
    return probability_gap(tables) + table_hsic(tables)


def stable_scores(tables: np.ndarray, sizes: np.ndarray, deviation: float) -> np.ndarray:
    """The score `stable`: sum over groups of their share times their distance to the pooled records.

    The distance is the total variation between the shrunken distribution of a group and the pooled one. So a group
    of a few records has little weight, and a difference that noise explains has none.
    """
    seen = shrink(tables, sizes, deviation)
    far = 0.5 * np.abs(seen.groups - seen.pooled[..., :, None]).sum(axis=-2)
    score: np.ndarray = (seen.shares * far).sum(axis=-1)
    return score


_OF_TABLES: Mapping[TableScore, Callable[[np.ndarray], np.ndarray]] = {
    "paper": paper_scores,
    "table hsic": table_hsic,
    "probability gap": probability_gap,
}
"""Scores that follow from a table only."""


@dataclass(frozen=True)
class OwnTables:
    """Noisy tables of one owner with one protected attribute. `deviation`: of the noise in a cell."""

    of: Mapping[str, np.ndarray]
    deviation: float
    kind: TableScore

    @cached_property
    def sizes(self) -> np.ndarray:
        return group_sizes(self.of.values())

    def score(self, name: str) -> float:
        return float(self._scores(self.of[name], self.sizes))

    def _scores(self, tables: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        if self.kind == "stable":
            return stable_scores(tables, sizes, self.deviation)
        return _OF_TABLES[self.kind](tables)

    def independent_scores(self, name: str, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sorted scores of simulated tables in which s and the column are independent; none for an empty table."""
        table, sizes = self.of[name], np.clip(self.sizes, 0.0, None)
        pooled = proper(table.sum(axis=1, keepdims=True))[:, 0]
        total = round(sizes.sum())
        if total < 1 or pooled.sum() == 0:
            return np.zeros(0)
        cells = np.outer(pooled, sizes / sizes.sum()).ravel()
        counts = rng.multinomial(total, cells / cells.sum(), size=count).reshape(count, *table.shape)
        return np.sort(self._released_scores(counts, len(table), rng))

    def redrawn_scores(self, name: str, count: int, rng: np.random.Generator) -> np.ndarray:
        """Scores of tables that another run might have seen.

        What noise does not explain is drawn again, as uncertain as the table leaves it; then records and noise.
        """
        table, sizes = self.of[name], np.clip(np.round(self.sizes), 1, None).astype(int)
        seen = shrink(table, self.sizes, self.deviation)
        unsure = np.sqrt(seen.kept * seen.variance)
        truth = proper(seen.groups + unsure * rng.normal(size=(count, *table.shape)))
        counts = np.stack([rng.multinomial(n, truth[..., g]) for g, n in enumerate(sizes)], axis=-1)
        return self._released_scores(counts, len(table), rng)

    def _released_scores(self, counts: np.ndarray, bins: int, rng: np.random.Generator) -> np.ndarray:
        """Scores of exact tables after a release: noise in every cell, sizes averaged over the owner's tables."""
        noise = rng.normal(0, self.deviation, counts.shape)
        others = sum(len(table) for table in self.of.values()) - bins
        spread = rng.normal(0, self.deviation * others**0.5, (len(counts), counts.shape[-1]))
        sizes = counts.sum(axis=-2) + (noise.sum(axis=-2) + spread) / len(self.of)
        return self._scores(counts + noise, sizes)


def weigh(
    tables: Sequence[NoisyTables],
    config: DiscoveryConfig,
    seed: int,
    owners: Sequence[Sequence[str]],
    redrawn: bool = False,
) -> Evidence:
    """Party step, local: scores and p-values of the features whose tables this process holds.

    `owners`: the features of each party of this process. A party's results use no other party's tables. `redrawn`:
    what REDRAWS other runs might have given; with the rule "tri-partition" both parts are of the same tables.
    """
    parts: list[dict[str, Any]] = []
    p_values: dict[str, Any] = {}
    for kind in PARTS if config.rule == "tri-partition" else (config.score,):
        scores: dict[str, Any] = {}
        pairs = [(noisy, party_features) for noisy in tables for party_features in owners]
        for noisy, party_features in pairs if kind not in ("hsic", "conditional") else ():
            owned = OwnTables({k: noisy.tables[k] for k in party_features}, noisy.deviation, kind)  # type: ignore[arg-type]
            for k in party_features:
                rng = stream(seed, "redrawn role", noisy.attribute, k)
                score = owned.redrawn_scores(k, REDRAWS, rng) if redrawn else np.array(owned.score(k))
                scores[k] = np.maximum(scores.get(k, 0.0), score)
                if config.rule == "fdr":
                    rng = stream(seed, "p", noisy.attribute, k)
                    independent = owned.independent_scores(k, config.simulations, rng)
                    p_values[k] = np.minimum(p_values.get(k, 1.0), len(tables) * p_value(score, independent))
        parts.append(scores)
    if not redrawn:
        parts = [{k: float(v) for k, v in part.items()} for part in parts]
        p_values = {k: float(v) for k, v in p_values.items()}
    return Evidence(summed(parts), p_values, parts if len(parts) > 1 else ())


def summed(parts: Sequence[Numbers]) -> dict[str, Any]:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def p_value(scores: np.ndarray, independent: np.ndarray) -> np.ndarray:
    """Monte-Carlo p-values: how many of the sorted independent scores are at least as large, and one more."""
    beyond = len(independent) - np.searchsorted(independent, scores, side="left")
    return (1 + beyond) / (1 + len(independent))


def missing_p_value(name: str, tables: Mapping[str, np.ndarray], deviation: float) -> float:
    """Party step, local: the p-value of "whether this column's value is missing does not depend on s".

    tables: all noisy tables of the owner with one attribute, whose last row counts missing values if the column may
    have any. With T the row of missing values, n_g the noisy group sizes, q_g their shares and m the share of missing
    values, d = T P = T - n m q has under independence the covariance

        n m (1 - m) (diag(q) - q q^T) + sigma^2 v P^T P,   v = (1 - m / F)^2 + m^2 (B - 1) / F^2

    for F tables with B rows in all, over which the sizes are averaged. d^T C^+ d is compared with the chi-squared
    distribution of G - 1 degrees.
    """
    counts, sizes = tables[name][-1], np.maximum(group_sizes(tables.values()), 1.0)
    total, q, projected = sizes.sum(), shares(sizes), projection(sizes)
    m = float(np.clip(counts.sum() / total, 0.0, 1.0))
    rows, columns = sum(len(table) for table in tables.values()), len(tables)
    noise = deviation**2 * ((1 - m / columns) ** 2 + m**2 * (rows - 1) / columns**2)
    covariance = total * m * (1 - m) * (np.diag(q) - np.outer(q, q)) + noise * projected.T @ projected
    if not covariance.any():
        return 1.0
    beyond = counts @ projected
    return float(chi2.sf(beyond @ np.linalg.pinv(covariance, rcond=1e-9, hermitian=True) @ beyond, len(sizes) - 1))


def packed(values: Mapping[str, np.ndarray] | Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Redrawn numbers under a name each, short enough to be announced; the last word of a name is the redraw."""
    return {f"{name} {at}": float(f"{v:.5g}") for name, drawn in values.items() for at, v in enumerate(drawn)}


def unpacked(values: Mapping[str, float]) -> dict[str, np.ndarray]:
    values_of: dict[str, dict[int, float]] = {}
    for key, value in values.items():
        name, _, at = key.rpartition(" ")
        values_of.setdefault(name, {})[int(at)] = value
    return {name: np.array([drawn[at] for at in sorted(drawn)]) for name, drawn in values_of.items()}


@dataclass(frozen=True)
class OpenedSquares:
    """HSIC of columns with one attribute, from what was opened. bins: of each feature; public.

    deviation: of the noise in a cell of N.
    """

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
        scored: np.ndarray = np.sqrt(np.maximum(left, 0.0) / max(n**2 * (sampled**2).sum(), TINY))
        return scored

    def _explained(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Variances of the directions that noise and sampling explain, and the degrees of each."""
        n, sampled, projected = self._cells
        bins, noise = self.bins[name], self.deviation**2 * projected
        concentration = (self.opened.marginals[name] - bins * len(sampled) * self.deviation**2) / n**2
        effective = float(np.clip(1 / max(concentration, TINY), 1.0, bins))
        both = [np.linalg.eigvalsh(noise + n / effective * sampled), np.linalg.eigvalsh(noise)]
        degrees = np.repeat([effective - 1, bins - effective + 1], len(sampled))
        return np.clip(np.concatenate(both), 0.0, None), np.maximum(degrees, TINY)

    def p_values(self, name: str, seed: int, squares: np.ndarray | None = None) -> np.ndarray:
        rng = stream(seed, "independent squares", self.attribute, name)
        variances, degrees = self._explained(name)
        independent = np.sort(rng.chisquare(degrees, (DRAWS, len(degrees))) @ variances)
        return p_value(np.asarray(self.opened.squares[name] if squares is None else squares), independent)

    def redrawn(self, name: str, count: int, seed: int) -> np.ndarray:
        """Squares that another run might have given."""
        rng = stream(seed, "redrawn squares", self.attribute, name)
        variances, degrees = self._explained(name)
        seen, free = max(self.opened.squares[name], TINY), float(variances @ degrees)
        signal = max(0.0, 1.0 - free / seen)
        along = np.sqrt((1 + signal) * (variances**2 @ degrees) / max(free, TINY))
        drawn = signal**2 * seen + 2 * signal * np.sqrt(seen) * along * rng.normal(size=count)
        again: np.ndarray = drawn + (1 + signal) * (rng.chisquare(degrees, (count, len(degrees))) @ variances)
        return np.maximum(again, 0.0)
