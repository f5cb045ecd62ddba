"""The judges `all` and `marg`: each feature moves from its distribution in one group to that in another.

Every group's distribution is shrunk towards the pooled one by its sampling noise, so a difference that chance
explains moves nobody. A category moves by the maximal coupling of the two distributions. A number keeps its rank.
Records that share a value, such as 40 hours a week, are ranked among themselves at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from secure_sccvfl.data.layout import Block, one_hot
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.judges import Case, EditedRecords, Records
from secure_sccvfl.model.quantile_generator import maximal_coupling

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
    """By rank between distributions over `levels`: single values, or the edges of bins where `binned`."""

    shares: np.ndarray
    levels: np.ndarray
    binned: bool

    def __call__(self, columns: np.ndarray, source: int, target: int, uniform: np.ndarray) -> np.ndarray:
        known = ~gaps(columns)
        value = columns[known, 0]
        place = places(value, self.levels, self.binned)
        within = uniform[known]
        if self.binned:
            within = np.clip((value - self.levels[place]) / np.diff(self.levels)[place], 0.0, 1.0)
        ranks = np.vstack([np.zeros(self.shares.shape[1]), self.shares.cumsum(axis=0)])
        ranks /= ranks[-1]
        rank = ranks[place, source] + within * (ranks[place + 1, source] - ranks[place, source])
        out = columns.copy()
        if self.binned:
            out[known, 0] = np.interp(rank, ranks[:, target], self.levels)
        else:
            out[known, 0] = self.levels[np.searchsorted(ranks[1:-1, target], rank)]
        return out


def gaps(columns: np.ndarray) -> np.ndarray:
    """Records in which this number is missing; an edit leaves them as they are."""
    missing: np.ndarray = columns[:, 1] > 0.5 if columns.shape[1] > 1 else np.zeros(len(columns), bool)
    return missing


def places(values: np.ndarray, levels: np.ndarray, binned: bool) -> np.ndarray:
    """Number of the level, or of the bin, that each value is in."""
    if binned:
        return np.clip(np.searchsorted(levels, values, side="right") - 1, 0, len(levels) - 2)
    # Held-out records are among those that the judge is fitted on, so each value is one of the levels.
    return np.searchsorted(levels, values)


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
    binned = len(levels) > MOST_LEVELS
    if binned:
        levels = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)))
    bins = len(levels) - binned
    counts = one_hot(places(values, levels, binned), bins).T @ members[there]
    return NumberMove(shrunk(counts), levels, binned)


def edit(case: Case) -> EditedRecords:
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
    return EditedRecords("all", np.tile(source, DRAWS), moved, weight, np.tile(target, DRAWS))
