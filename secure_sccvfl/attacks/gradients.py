"""Label inference from exactly what a party was shown in a `split` or `dp` run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import numpy as np

from secure_sccvfl.attacks.labels import rate_of_residuals
from secure_sccvfl.attacks.view import Rate
from secure_sccvfl.modes.base import GRADIENTS
from secure_sccvfl.modes.dp import DpSeen
from secure_sccvfl.modes.split_state import Seen

Step = TypeVar("Step", Seen, DpSeen)


def labels_from_split(seen: Sequence[Seen], label: np.ndarray) -> Rate:
    """From gradients of one pass. Each is a record's signal times one direction, which moves little between steps."""
    rows, signals, direction = [], [], None
    for step in seen:
        found = np.linalg.svd(step.gradient, full_matrices=False)[2][0]
        direction = found if direction is None or found @ direction >= 0 else -found
        rows.append(step.rows)
        signals.append(step.gradient @ direction)
    return rate_of_residuals("labels-split", np.concatenate(signals), label[np.concatenate(rows)])


def labels_from_dp(seen: Sequence[DpSeen], label: np.ndarray) -> Rate:
    """From noisy sums: each is linear in the residuals, with factors that the party knows.

    It is solved from the first step alone and from all steps together (residuals change little); the better result
    counts.
    """
    found = []
    for steps in (seen[:1], seen):
        factors = np.concatenate([step.gradients.T for step in steps])
        totals = np.concatenate([step.total for step in steps])
        solved = np.linalg.lstsq(factors, totals, rcond=1e-6)[0]
        found.append(rate_of_residuals("labels-dp", solved, label))
    return max(found, key=lambda rate: rate.rate)


def labels_from_kept(folder: Path, label: np.ndarray) -> Rate | None:
    """How many training labels a party reads off the gradients that it kept; None if it was shown none."""
    path = folder / GRADIENTS
    if not path.exists():
        return None
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    if "gradient 0" in arrays:
        return labels_from_split(_steps(Seen, arrays), label)
    return labels_from_dp(_steps(DpSeen, arrays), label)


def _steps(kind: type[Step], arrays: Mapping[str, np.ndarray]) -> list[Step]:
    """Steps as `modes.base.keep_gradients` wrote them."""
    names = [field.name for field in fields(kind)]
    return [kind(*(arrays[f"{name} {k}"] for name in names)) for k in range(len(arrays) // len(names))]
