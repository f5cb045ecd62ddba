"""Inference from gradients: labels from gradients that a server returns, and labels and s from those of a run.

A residual is negative exactly where the label is 1. Every gradient is a residual times something that the party
knows or can find. Sealed runs return no gradient, so there is nothing to attack.

A gradient of `split` is one number (for several classes: one for each) of every record times a direction. In the
warm-up the number is the residual, so its sign is the label. With consistency it also holds lambda times the shift of
the record's logit by the counterfactual change of its own group, which reveals s once steps are combined.
`signals_of` gives the numbers of all passes side by side, for an attacker that learns the combination from records
whose s it knows (`audit/inference.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from secure_sccvfl.audit.attacks.view import Gradients, Rate
from secure_sccvfl.training.modes.base import GRADIENTS, Seen
from secure_sccvfl.training.modes.dp import DpSeen

MOST_PASSES = 120
"""An attacker uses at most so many passes, spread evenly over all."""

Step = TypeVar("Step", Seen, DpSeen)


def rate_of_residuals(name: str, residual: np.ndarray, label: np.ndarray) -> Rate:
    """Success of the better sign convention, which the party can find out, next to the majority rate."""
    guess = residual < 0
    hits = int(max((guess == label).sum(), (guess != label).sum()))
    chance = float(max(label.mean(), 1 - label.mean()))
    return Rate.of_counts(name, "feature party", hits, len(label), chance)


def from_example_gradients(gradients: np.ndarray, label: np.ndarray) -> Rate:
    """Per-record activation gradients (n x d): multiples of one direction whose sign is the label."""
    _, _, directions = np.linalg.svd(gradients, full_matrices=False)
    return rate_of_residuals("example", gradients @ directions[0], label)


def from_batch_gradient(name: str, jacobian: np.ndarray, total: np.ndarray, label: np.ndarray) -> Rate:
    """From one gradient of the party's parameters, summed over a batch.

    The sum is linear in the residuals, and with at least as many parameters as records it can be solved.
    """
    solved = np.linalg.lstsq(jacobian.T, total, rcond=1e-6)[0]
    return rate_of_residuals(name, solved, label)


def label_inference(seen: Gradients, seed: int) -> list[Rate]:
    """From the gradients of single records, then from every sum. Nothing is random, so the seed has no effect."""
    sums = [from_batch_gradient(name, seen.jacobian, total, seen.label) for name, total in seen.sums.items()]
    return [from_example_gradients(seen.example, seen.label), *sums]


def opened_gradients(seen: Gradients, seed: int) -> list[Rate]:
    """Positive control: the gradients of single records, opened without noise."""
    return [from_example_gradients(seen.example, seen.label)]


def aligned(seen: Sequence[Seen]) -> list[Seen]:
    """The same steps with factors that fit those of the step before: a decomposition leaves signs and turns open."""
    made: list[Seen] = []
    for step in seen:
        before = made[-1].direction if made else step.direction
        u, _, v = np.linalg.svd(before @ step.direction.T)
        made.append(replace(step, signal=step.signal @ (u @ v).T, direction=u @ v @ step.direction))
    return made


def passes_of(seen: Sequence[Seen]) -> list[list[Seen]]:
    """Steps in order, in groups in which no record comes twice."""
    made: list[list[Seen]] = []
    met: set[int] = set()
    for step in seen:
        rows = set(step.rows.tolist())
        if not made or rows & met:
            made.append([])
            met = set()
        made[-1].append(step)
        met |= rows
    return made


def signals_of(seen: Sequence[Seen], records: int) -> np.ndarray:
    """Signals of all records (records x columns), those of each pass side by side.

    A record that is not in a pass has the mean of the others.
    """
    passes = passes_of(aligned(seen))
    kept = np.unique(np.linspace(0, len(passes) - 1, min(len(passes), MOST_PASSES)).round().astype(int))
    columns = []
    for steps in (passes[place] for place in kept):
        rows, signal = (np.concatenate([getattr(step, name) for step in steps]) for name in ("rows", "signal"))
        whole = np.tile(signal.mean(axis=0), (records, 1))
        whole[rows] = signal
        columns.append(whole)
    return np.hstack([np.zeros((records, 0)), *columns])


def labels_from_split(seen: Sequence[Seen], label: np.ndarray) -> Rate:
    """From gradients of the first pass. Each is a record's signal times a direction that moves little in a step."""
    first = passes_of(aligned(seen))[0]
    rows, signal = (np.concatenate([getattr(step, name) for step in first]) for name in ("rows", "signal"))
    return rate_of_residuals("labels-split", signal[:, 0], label[rows])


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
    arrays = _kept(folder)
    if arrays is None:
        return None
    if "signal 0" in arrays:
        return labels_from_split(_steps(Seen, arrays), label)
    return labels_from_dp(_steps(DpSeen, arrays), label)


def kept_of_split(folder: Path) -> list[Seen]:
    """The gradients of all steps that a party of a `split` run kept; none if it kept no step, or older ones."""
    arrays = _kept(folder) or {}
    return _steps(Seen, arrays) if "signal 0" in arrays else []


def _kept(folder: Path) -> Mapping[str, np.ndarray] | None:
    path = folder / GRADIENTS
    if not path.exists():
        return None
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _steps(kind: type[Step], arrays: Mapping[str, np.ndarray]) -> list[Step]:
    """Steps as `training.modes.base.keep_gradients` wrote them."""
    names = [field.name for field in fields(kind)]
    return [kind(*(arrays[f"{name} {k}"] for name in names)) for k in range(len(arrays) // len(names))]
