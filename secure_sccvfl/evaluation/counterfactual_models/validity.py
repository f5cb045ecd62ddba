"""Gates: what the edits of a judge must pass on a data set before a claim may rest on it."""

from __future__ import annotations

import math
from collections.abc import Mapping

LEAST_AUC = 0.65
"""A classifier of s takes edited mediators for those of the target group."""
MOST_MMD = 0.70
"""Edited mediators are this much closer to the target group than unedited ones, or more."""
MOST_NULL = 0.25
"""Under shuffled s, plain training flips at most this share of what it flips under the true s."""


def failed_checks(edits: Mapping[str, float]) -> tuple[str, ...]:
    """Which gates a judge fails, by the figures of its edits. A gate whose figures are not there is not failed."""
    known = {name: value for name, value in edits.items() if math.isfinite(value)}
    failed = {
        "AUC": known.get("edit_auc", LEAST_AUC) < LEAST_AUC,
        "MMD": known.get("edit_mmd_ratio", MOST_MMD) > MOST_MMD,
        "null": known.get("edit_erm_null", 0.0) > MOST_NULL * known.get("edit_erm", math.inf),
    }
    return tuple(name for name, fails in failed.items() if fails)
