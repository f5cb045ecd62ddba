"""Have a party's own columns shifted since a run? A check that a party makes alone, on its own files.

Before: the party's columns of the old and of the new records. After: the party knows, for each column, how far the
shares of its public bins moved (total variation), and whether that is more than chance. Nothing leaves: no message,
no file, no entry of a log. What people then write into a review is theirs to decide.

Control: records are dealt again into an old and a new part of the same sizes, which is what they would be without a
shift. A column raises an alarm if its distance is beyond all but LEVEL / columns of such draws. So a party without a
shift, whose records are independent, gets any alarm at all with probability LEVEL at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.dataset import PartyTable
from secure_sccvfl.data.features import DataError, Feature

LEVEL = 0.05
"""Probability of any alarm of a party whose columns did not shift."""
DRAWS = 40
"""Draws of the control for each column: a multiple of what the level needs at least."""


@dataclass(frozen=True)
class Shift:
    """How far a column moved, how far chance alone moves it (all but a share LEVEL / columns), and the verdict."""

    column: str
    distance: float
    by_chance: float
    p_value: float
    alarm: bool


def column_shifts(
    features: Sequence[Feature], old: np.ndarray, new: np.ndarray, rng: np.random.Generator
) -> list[Shift]:
    """How far the distribution of each column moved from the old to the new records, the largest move first."""
    draws = max(1999, round(DRAWS * len(features) / LEVEL))
    moves = [
        _shift(f, f.bin_index(old[:, k]), f.bin_index(new[:, k]), draws, LEVEL / len(features), rng)
        for k, f in enumerate(features)
    ]
    return sorted(moves, key=lambda s: -s.distance)


def _shift(
    feature: Feature, old: np.ndarray, new: np.ndarray, draws: int, level: float, rng: np.random.Generator
) -> Shift:
    before, after = (np.bincount(codes, minlength=feature.bins) for codes in (old, new))
    both = before + after
    drawn = rng.multivariate_hypergeometric(both, len(new), size=draws, method="marginals")
    distance = float(_distance(before, after[None, :])[0])
    chance = _distance(both - drawn, drawn)
    # A distance counts as reached also where rounding alone sets it apart.
    p_value = float((1 + np.sum(chance >= distance - 1e-12)) / (1 + draws))
    return Shift(feature.name, distance, float(np.quantile(chance, 1 - level)), p_value, p_value <= level)


def _distance(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Total variation between shares of bins, for each line."""
    a, b = (counts / counts.sum(axis=-1, keepdims=True) for counts in (before, after))
    return np.asarray(0.5 * np.abs(a - b).sum(axis=-1))


def new_records(old: PartyTable, new: PartyTable, old_ids: np.ndarray, new_ids: np.ndarray) -> np.ndarray:
    """Columns of the new table, in the order of the old one, of records that the old one does not have."""
    names = [f.name for f in new.features]
    if [f for f in old.features if f.name not in names or new.features[names.index(f.name)].bins != f.bins]:
        raise DataError("columns or their bins differ: that is a changed schema, and is reviewed as one")
    fresh = ~np.isin(new_ids, old_ids)
    if not fresh.any():
        raise DataError("the new table has no record that the old one does not have")
    order = [names.index(f.name) for f in old.features]
    return new.values[fresh][:, order]
