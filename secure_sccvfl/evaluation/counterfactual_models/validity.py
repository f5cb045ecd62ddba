"""Validity checks: what the counterfactuals of a model must pass on a data set before a claim may rest on them."""

from __future__ import annotations

import math
from collections.abc import Mapping

LEAST_AUC = 0.65
"""A classifier of s takes changed mediators for those of the target group."""
MOST_MMD = 0.70
"""Distance of changed mediators to the target group, as a share of the distance of unchanged ones."""
MOST_NULL = 0.25
"""Flip rate of plain training under permuted s, as a share of its flip rate under the true s."""


def failed_checks(figures: Mapping[str, float]) -> tuple[str, ...]:
    """The checks that a model fails, by the figures of its counterfactuals. A check without figures is passed."""
    known = {name: value for name, value in figures.items() if math.isfinite(value)}
    failed = {
        "AUC": known.get("edit_auc", LEAST_AUC) < LEAST_AUC,
        "MMD": known.get("edit_mmd_ratio", MOST_MMD) > MOST_MMD,
        "null": known.get("edit_erm_null", 0.0) > MOST_NULL * known.get("edit_erm", math.inf),
    }
    return tuple(name for name, fails in failed.items() if fails)
