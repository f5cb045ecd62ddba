"""Evidence that columns follow s: scores and p-values from the noisy tables of one owner, and both redrawn.

A p-value compares a score with those of simulated tables in which s and the column are independent. A redraw is
what another run might have seen: other records of the same population, and fresh noise. Both treat the group sizes
as the observed score does: averaged over all tables of the owner, each with its noise. All of it is post-processing
of a release that was charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.scores import PARTS, TableScore, group_sizes, proper, score_tables, shrink
from secure_sccvfl.releases.catalogue import REDRAWS

if TYPE_CHECKING:
    from secure_sccvfl.discovery.decisions import DiscoveryConfig

Numbers = Mapping[str, Any]
"""A number of each feature, or an array with one entry for each redraw."""


@dataclass(frozen=True)
class Conditional:
    """How much each feature follows s beyond the other columns of its owner, by one measure, as all know it.

    `redrawn`: what the same records might give with other noise.
    """

    values: Mapping[str, float]
    redrawn: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Evidence:
    """Numbers per feature that go to all: they follow from noisy releases alone.

    `parts`: HSIC and probability gap of each table, whose sum is the score, where the rule ranks by each of them.
    """

    scores: Numbers
    p_values: Numbers
    parts: Sequence[Numbers] = ()


def combined(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One score per feature: the sum of all measures with values, each scaled to the largest value of the first."""
    present = [values for values in measures if values]
    unit = max(present[0].values()) or 1.0
    scales = [unit / (max(values.values()) or 1.0) for values in present]
    return {k: sum(scale * values[k] for scale, values in zip(scales, present, strict=True)) for k in present[0]}


def summed(parts: Sequence[Numbers]) -> dict[str, Any]:
    """The sum of all parts of a score."""
    return {name: sum(part[name] for part in parts) for name in parts[0]}


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
        return float(score_tables(self.kind, self.of[name], self.sizes, self.deviation))

    def independent_scores(self, name: str, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sorted scores of simulated tables in which s and the column are independent; none for an empty table."""
        table, sizes = self.of[name], np.clip(self.sizes, 0.0, None)
        pooled = proper(table.sum(axis=1, keepdims=True))[:, 0]
        total = round(sizes.sum())
        if total < 1 or pooled.sum() == 0:
            return np.zeros(0)
        cells = np.outer(pooled, sizes / sizes.sum()).ravel()
        counts = rng.multinomial(total, cells / cells.sum(), size=count).reshape(count, *table.shape)
        return np.sort(self._scored(counts, len(table), rng))

    def redrawn_scores(self, name: str, count: int, rng: np.random.Generator) -> np.ndarray:
        """Scores of tables that another run might have seen.

        What noise does not explain is drawn again, as uncertain as the table leaves it; then records and noise.
        """
        table, sizes = self.of[name], np.clip(np.round(self.sizes), 1, None).astype(int)
        seen = shrink(table, self.sizes, self.deviation)
        unsure = np.sqrt(seen.kept * seen.variance)
        truth = proper(seen.groups + unsure * rng.normal(size=(count, *table.shape)))
        counts = np.stack([rng.multinomial(n, truth[..., g]) for g, n in enumerate(sizes)], axis=-1)
        return self._scored(counts, len(table), rng)

    def _scored(self, counts: np.ndarray, bins: int, rng: np.random.Generator) -> np.ndarray:
        """Scores of exact tables after a release: noise in every cell, sizes averaged over the owner's tables."""
        noise = rng.normal(0, self.deviation, counts.shape)
        others = sum(len(table) for table in self.of.values()) - bins
        spread = rng.normal(0, self.deviation * others**0.5, (len(counts), counts.shape[-1]))
        sizes = counts.sum(axis=-2) + (noise.sum(axis=-2) + spread) / len(self.of)
        return score_tables(self.kind, counts + noise, sizes, self.deviation)


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
        pairs = [(noisy, own) for noisy in tables for own in owners]
        for noisy, own in pairs if kind not in ("hsic", "conditional") else ():
            owned = OwnTables({k: noisy.tables[k] for k in own}, noisy.deviation, kind)  # type: ignore[arg-type]
            for k in own:
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


def p_value(scores: np.ndarray, independent: np.ndarray) -> np.ndarray:
    """Monte-Carlo p-values: how many of the sorted independent scores are at least as large, and one more."""
    beyond = len(independent) - np.searchsorted(independent, scores, side="left")
    return (1 + beyond) / (1 + len(independent))


def packed(values: Mapping[str, np.ndarray] | Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Redrawn numbers under a name each, short enough to be announced; the last word of a name is the redraw."""
    return {f"{name} {at}": float(f"{v:.5g}") for name, drawn in values.items() for at, v in enumerate(drawn)}


def unpacked(values: Mapping[str, float]) -> dict[str, np.ndarray]:
    """The redrawn numbers of such names, in order."""
    values_of: dict[str, dict[int, float]] = {}
    for key, value in values.items():
        name, _, at = key.rpartition(" ")
        values_of.setdefault(name, {})[int(at)] = value
    return {name: np.array([drawn[at] for at in sorted(drawn)]) for name, drawn in values_of.items()}
