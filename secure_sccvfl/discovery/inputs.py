"""Checks of the inputs to a statistic of s, before anything is charged or released, on both sides of the seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from accounting.events import Sensitivity
from accounting.paper import clipped
from protocols.errors import RangeError
from protocols.steps.clipping import Clipping
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Party
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import PolicyError


def as_sensitivity(sensitivity: float | Sensitivity) -> Sensitivity:
    """What one record moves; a number is that of counts."""
    return sensitivity if isinstance(sensitivity, Sensitivity) else Sensitivity.of_counts(sensitivity)


def clipping_of(bins: Sequence[int], counts: Sequence[int], rows: int, length: float) -> Clipping:
    """How tables with these bins are scaled to a length."""
    try:
        return Clipping(rows, max(bins), tuple(counts), length)
    except RangeError as error:
        raise DataError(f"sketch clipped: {error}") from None


def clipped_sensitivity(clipping: Clipping, features: int) -> Sensitivity:
    """What one record moves in the scaled tables of all features."""
    joint = joint_norm(1.0, features, len(clipping.groups))
    return clipped(joint, clipping.length, joint_norm(clipping.distance, features, 1), clipping.unit)


def joint_norm(row: float, features: int, attributes: int) -> float:
    """What one record adds to all sums (l2 norm), if its row of every feature is no longer than `row`."""
    return row * float(np.sqrt(features * attributes))


def row_bound(sensitivity: float, features: int, attributes: int) -> float:
    """The largest norm of one feature's row: with this bound for all rows, the joint l2 norm is the sensitivity."""
    return sensitivity / float(np.sqrt(features * attributes))


def check_columns(columns: Mapping[str, np.ndarray], rows: int, bound: float, whole: bool = True) -> None:
    """Check each feature: one row per record, no gap, no row longer than `bound`.

    If `whole`, entries must be whole and not negative. Without negative numbers a replaced record moves sums by
    sqrt(2) times the bound, not twice (`Sensitivity`).
    """
    for name, block in columns.items():
        if block.ndim != 2 or len(block) != rows:
            raise DataError(f"{name}: {rows} records are needed, the columns are {block.shape}")
        real = np.issubdtype(block.dtype, np.floating)
        if real and not np.isfinite(block).all():
            raise DataError(f"{name}: NaN or infinite values; a gap must have a bin of its own")
        if whole and real and not (block == np.rint(block)).all():
            raise DataError(f"{name}: a statistic of s is summed over whole numbers (bins, or a public grid)")
        if whole and block.min(initial=0) < 0:
            raise DataError(f"{name}: a statistic of s has no negative numbers; is a value outside the public range?")
        longest = float(np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64).max(initial=0.0)))
        if longest > bound * (1 + 1e-9):
            raise DataError(
                f"{name}: a record adds {longest:.3g} where the charged sensitivity allows {bound:.3g}; "
                "is a value outside the public range?"
            )


def check_groups(codes: AtHolder, count: int, rows: int) -> np.ndarray:
    """Check group codes of a protected attribute at its holder: one per record, among the public groups.

    A group may have no record. All are told of a refusal, so it depends on malformed input only, not on the values
    of s.
    """
    if codes is None:
        raise DataError("the holder of a protected attribute gave no values of it")
    values = np.asarray(codes)
    if values.shape != (rows,) or not np.issubdtype(values.dtype, np.integer):
        raise DataError(f"a protected attribute needs one whole number for each of {rows} records")
    if count < 2 or rows == 0 or values.min() < 0 or values.max() >= count:
        raise DataError(f"group codes must lie between 0 and {count - 1}, and there must be two groups")
    return values


def indicators(codes: Sequence[np.ndarray], counts: Sequence[int], rows: slice) -> np.ndarray:
    """One-hot groups of several attributes side by side, for these rows."""
    return np.hstack([one_hot(part[rows], count, np.int8) for part, count in zip(codes, counts, strict=True)])


def check_support(card: PolicyCard, parties: Sequence[Party]) -> None:
    """Raise if the card lets a column follow from s whose records all have one value: none supports that role.

    Each owner checks its own columns, before anything is opened.
    """
    followers = set(card.roles.descendants)
    for party in parties:
        for name, block in party.bins().items():
            if name in followers and (block.sum(axis=0) > 0).sum() < 2:
                raise PolicyError(
                    f"the policy card gives {name!r} role {card.roles.of[name]}, but no record of {party.name} "
                    "supports that: all have the same value there; give it role N"
                )
