"""Moves between missing and present: whether a value is missing may depend on s as much as the value does.

Two groups with missing shares p and q are coupled so that as few records as possible move (maximal coupling): a
present value becomes missing with chance (q - p)+ / (1 - p), a missing one becomes present with chance (p - q)+ / p.
One uniform number decides both the move and what follows from it. Given the move it is uniform again after rescaling,
so a counterfactual remains a function of the value and one uniform number. Where the shares are equal, nothing moves
and the uniform number is unchanged.
"""

from __future__ import annotations

import numpy as np

TINY = 1e-12


def move_chances(missing: np.ndarray, old: np.ndarray | float, new: np.ndarray | float) -> np.ndarray:
    """The chance that each record changes between missing and present.

    old, new: the share of missing values in the group that it leaves and in the one that it moves to; one for all
    records, or one for each.
    """
    old, new = np.asarray(old), np.asarray(new)
    to_missing = np.clip(new - old, 0.0, None) / np.maximum(1 - old, TINY)
    to_present = np.clip(old - new, 0.0, None) / np.maximum(old, TINY)
    return np.clip(np.where(missing, to_present, to_missing), 0.0, 1.0)


def moved_missing(
    missing: np.ndarray, old: np.ndarray | float, new: np.ndarray | float, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which records are missing afterwards, and the uniform number that each has left. Arguments: `move_chances`."""
    chance = move_chances(missing, old, new)
    moves = uniform < chance
    left = np.where(moves, uniform / np.maximum(chance, TINY), (uniform - chance) / np.maximum(1 - chance, TINY))
    return missing ^ moves, left


def gaps(columns: np.ndarray) -> np.ndarray:
    """Records in which this number is missing."""
    missing: np.ndarray = columns[:, 1] > 0.5 if columns.shape[1] > 1 else np.zeros(len(columns), bool)
    return missing


def with_missing(columns: np.ndarray, before: np.ndarray, after: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Columns of a number after moves between missing and present. values: of those that become present."""
    arrives, leaves = before & ~after, ~before & after
    columns[arrives, 0], columns[arrives, 1:] = values, 0.0
    columns[leaves, 0], columns[leaves, 1:] = 0.0, 1.0
    return columns
