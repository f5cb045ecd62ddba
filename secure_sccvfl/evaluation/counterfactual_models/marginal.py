"""The models `all` and `marg`: each feature moves from its distribution in one group to that in another.

Every group's distribution is shrunk towards the pooled one by its sampling noise, so a difference that chance
explains moves nobody. A category moves by the maximal coupling of the two distributions. A number keeps its rank.
Records that share a value, such as 40 hours a week, are ranked among themselves at random, also inside a bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from secure_sccvfl.data.layout import Block, one_hot
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.counterfactual_models import Case, Counterfactuals, Records
from secure_sccvfl.models.table_generator import maximal_coupling

DRAWS = 4
"""Copies of each record: what is drawn at random is averaged over them."""
MOST_LEVELS = 60
"""A number with more different values than this is cut into bins."""
BINS = 20


def shrunk(counts: np.ndarray) -> np.ndarray:
    """Distributions of groups (bins x groups) from counts, each drawn towards the pooled one.

    Positive-part James-Stein: a group keeps 1 - df / chi of its distance, where chi is Pearson's statistic of the
    group against the pool. Chi is df on average for a group that does not differ.
    """
    sizes = counts.sum(axis=0)
    pooled = counts.sum(axis=1) / sizes.sum()
    seen = pooled > 0
    out = np.tile(pooled[:, None], (1, len(sizes)))
    for group in np.flatnonzero(sizes > 0):
        distance = counts[:, group] / sizes[group] - pooled
        chi = sizes[group] * (distance[seen] ** 2 / pooled[seen]).sum() / max(1 - sizes[group] / sizes.sum(), 1e-9)
        out[:, group] += max(0.0, 1 - (seen.sum() - 1) / max(chi, 1e-9)) * distance
    return out


class Move(Protocol):
    """What records of one group would be in another, for one feature; `uniform` holds a draw per record."""

    def __call__(self, columns: np.ndarray, source: int, target: int, uniform: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class CategoryMove:
    shares: np.ndarray

    def __call__(self, columns: np.ndarray, source: int, target: int, uniform: np.ndarray) -> np.ndarray:
        steps = maximal_coupling(self.shares[:, source], self.shares[:, target]).cumsum(axis=1)
        chosen = (uniform[:, None] > steps[columns.argmax(axis=1)]).sum(axis=1)
        return one_hot(chosen.clip(0, len(self.shares) - 1), len(self.shares))


@dataclass(frozen=True)
class NumberMove:
    """By rank between distributions over bins of `values`, the sorted values of all groups.

    starts: where each bin begins among them, and the end of the last one. A rank stands for one of these values, and
    a value for all ranks that it has: of many records with one value some move and some stay.
    """

    shares: np.ndarray
    values: np.ndarray
    starts: np.ndarray

    def __call__(self, columns: np.ndarray, source: int, target: int, uniform: np.ndarray) -> np.ndarray:
        known = ~gaps(columns)
        first, end = (np.searchsorted(self.values, columns[known, 0], side=side) for side in ("left", "right"))
        ranks = np.vstack([np.zeros(self.shares.shape[1]), self.shares.cumsum(axis=0)])
        ranks /= ranks[-1]
        place = first + uniform[known] * (end - first)
        rank = np.interp(place, self.starts, ranks[:, source])
        bins = np.searchsorted(ranks[1:-1, target], rank, side="right")
        low, high = ranks[bins, target], ranks[bins + 1, target]
        within = np.clip((rank - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        wanted = self.starts[bins] + within * (self.starts[bins + 1] - self.starts[bins])
        out = columns.copy()
        out[known, 0] = self.values[np.clip(wanted.astype(int), 0, len(self.values) - 1)]
        return out


def gaps(columns: np.ndarray) -> np.ndarray:
    """Records in which this number is missing; a counterfactual leaves them as they are."""
    missing: np.ndarray = columns[:, 1] > 0.5 if columns.shape[1] > 1 else np.zeros(len(columns), bool)
    return missing


def fit(block: Block, known: Records, groups: int) -> Move | None:
    """The moves of one feature; None where it has a single value."""
    columns, members = known.inputs[:, block.columns], one_hot(known.codes, groups)
    if block.one_hot:
        return CategoryMove(shrunk(columns.T @ members))
    there = ~gaps(columns)
    values = columns[there, 0]
    levels = np.unique(values)
    if len(levels) < 2:
        return None
    if len(levels) > MOST_LEVELS:
        levels = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[:-1]))
    places = np.searchsorted(levels, values, side="right") - 1
    starts = np.searchsorted(np.sort(places), np.arange(len(levels) + 1))
    return NumberMove(shrunk(one_hot(places, len(levels)).T @ members[there]), np.sort(values), starts)


def edit(case: Case) -> Counterfactuals:
    source = case.movable
    old, origin, target = case.inputs[source], case.codes[source], case.target[source]
    moved = np.tile(old, (DRAWS, 1))
    pairs = [
        (a, b, np.flatnonzero((origin == a) & (target == b))) for a in np.unique(origin) for b in np.unique(target)
    ]
    for block in case.layout.blocks:
        move = fit(block, case.fitted_on, case.groups) if block.feature.name in case.edited else None
        if move is None:
            continue
        uniform = stream(case.seed, "judge-marginal", block.feature.name).random((DRAWS, len(source)))
        for draw in range(DRAWS):
            for a, b, rows in pairs:
                if len(rows):
                    new = move(old[rows][:, block.columns], int(a), int(b), uniform[draw, rows])
                    moved[draw * len(source) + rows, block.columns] = new
    weight = np.full(len(moved), 1 / DRAWS)
    return Counterfactuals("all", np.tile(source, DRAWS), moved, weight, np.tile(target, DRAWS))
