"""Label inference from exactly what a party was shown in a `split` or `dp` run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from secure_sccvfl.attacks.labels import rate_of_residuals
from secure_sccvfl.attacks.view import Rate
from secure_sccvfl.modes.dp import DpSeen
from secure_sccvfl.modes.gradient_modes import DP_FIELDS, SPLIT_FIELDS
from secure_sccvfl.modes.split import Seen


def labels_from_split(seen: Sequence[Seen], label: np.ndarray) -> Rate:
    """Gradients of one pass. Each is a record's signal times one direction, which moves little between steps."""
    rows, signals, direction = [], [], None
    for step in seen:
        found = np.linalg.svd(step.gradient, full_matrices=False)[2][0]
        direction = found if direction is None or found @ direction >= 0 else -found
        rows.append(step.rows)
        signals.append(step.gradient @ direction)
    return rate_of_residuals("labels-split", np.concatenate(signals), label[np.concatenate(rows)])


def labels_from_dp(seen: Sequence[DpSeen], label: np.ndarray) -> Rate:
    """Noisy sums: each is linear in the residuals, with factors that the party knows.

    Solved from the first step alone and from all steps together (residuals change little); the better one counts.
    """
    found = []
    for steps in (seen[:1], seen):
        factors = np.concatenate([step.gradients.T for step in steps])
        totals = np.concatenate([step.total for step in steps])
        solved = np.linalg.lstsq(factors, totals, rcond=1e-6)[0]
        found.append(rate_of_residuals("labels-dp", solved, label))
    return max(found, key=lambda rate: rate.rate)


def labels_from_kept(folder: Path, label: np.ndarray) -> Rate | None:
    """How many training labels a party reads off the gradients that it kept; None where it was shown none."""
    path = folder / "gradients.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    split = "gradient 0" in arrays
    names = SPLIT_FIELDS if split else DP_FIELDS
    steps = [[arrays[f"{name} {number}"] for name in names] for number in range(len(arrays) // len(names))]
    if split:
        return labels_from_split([Seen(*step) for step in steps], label)
    return labels_from_dp([DpSeen(*step) for step in steps], label)
