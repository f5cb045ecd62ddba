"""Inference of labels: from gradients (of a server, or of a run, which also reveal s), and by model completion.

A residual is negative exactly where the label is 1. Every gradient is a residual times something that the party knows
or can find. Sealed runs return no gradient, so there is nothing to attack. A gradient of `split` is one number (for
several classes: one for each) of every record times a direction. In the warm-up the number is the residual, so its
sign is the label. With consistency it also holds lambda times the shift of the record's logit by the counterfactual
change of its own group, which reveals s once steps are combined: `signals_of` gives the numbers of all passes side by
side, for an attacker that learns the combination from records whose s it knows (`audit/inference.py`).

*Completion* (Fu et al. 2022): a party has the encodings of its own columns and the labels of a few records. It trains
a classifier on these, also with its most certain guesses as further labels (self-training), and keeps what does best
on the known ones. If labels took part in training the encoder, its encodings reveal more of them than the columns do:
the control is the same attack on the party's own columns. In the positive control, one direction follows the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from sklearn.linear_model import LogisticRegression

from secure_sccvfl.audit.attacks.view import Gradients, Rate, balanced, folds
from secure_sccvfl.data.randomness import stream
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
    """From one gradient of the party's parameters, summed over a batch: linear in the residuals."""
    solved = np.linalg.lstsq(jacobian.T, total, rcond=1e-6)[0]
    return rate_of_residuals(name, solved, label)


def label_inference(seen: Gradients, seed: int) -> list[Rate]:
    """From the gradients of single records, then from every sum."""
    sums = [from_batch_gradient(name, seen.jacobian, total, seen.label) for name, total in seen.sums.items()]
    return [from_example_gradients(seen.example, seen.label), *sums]


def opened_gradients(seen: Gradients, seed: int) -> list[Rate]:
    """Positive control: the gradients of single records, opened without noise."""
    return [from_example_gradients(seen.example, seen.label)]


def aligned(seen: Sequence[Seen]) -> list[Seen]:
    """The same steps with factors that fit those of the step before: a decomposition leaves signs and turns open."""
    steps_aligned: list[Seen] = []
    for step in seen:
        before = steps_aligned[-1].direction if steps_aligned else step.direction
        u, _, v = np.linalg.svd(before @ step.direction.T)
        steps_aligned.append(replace(step, signal=step.signal @ (u @ v).T, direction=u @ v @ step.direction))
    return steps_aligned


def passes_of(seen: Sequence[Seen]) -> list[list[Seen]]:
    """Steps in order, in groups in which no record comes twice."""
    passes: list[list[Seen]] = []
    rows_met: set[int] = set()
    for step in seen:
        rows = set(step.rows.tolist())
        if not passes or rows & rows_met:
            passes.append([])
            rows_met = set()
        passes[-1].append(step)
        rows_met |= rows
    return passes


def signals_of(seen: Sequence[Seen], records: int) -> np.ndarray:
    """Signals (records x columns), pass by pass; a record that is not in a pass has the mean of the others."""
    passes = passes_of(aligned(seen))
    kept = np.unique(np.linspace(0, len(passes) - 1, min(len(passes), MOST_PASSES)).round().astype(int))
    columns = []
    for steps in (passes[number] for number in kept):
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
    """From noisy sums, each linear in the residuals: the first step alone or all steps (residuals change little)."""
    rates = []
    for steps in (seen[:1], seen):
        factors = np.concatenate([step.gradients.T for step in steps])
        totals = np.concatenate([step.total for step in steps])
        solved = np.linalg.lstsq(factors, totals, rcond=1e-6)[0]
        rates.append(rate_of_residuals("labels-dp", solved, label))
    return max(rates, key=lambda rate: rate.rate)


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


LABELLED = 80
ROUNDS = 3
FOLDS = 4


@dataclass(frozen=True)
class Completion:
    """A party's own columns and encodings of all training records, and their labels; it knows `labelled` of these."""

    holder: str
    own_columns: np.ndarray
    encodings: np.ndarray
    label: np.ndarray
    labelled: int = LABELLED


def known_labels(view: Completion, seed: int) -> np.ndarray:
    """Which records' labels the party knows: as many of each class."""
    rng, labelled = stream(seed, "completion labels"), np.zeros(len(view.label), bool)
    classes = np.unique(view.label)
    for k in classes:
        labelled[rng.permutation(np.flatnonzero(view.label == k))[: max(1, view.labelled // len(classes))]] = True
    return labelled


def complete(columns: np.ndarray, label: np.ndarray, labelled: np.ndarray, seed: int) -> np.ndarray:
    """Labels guessed for all records, by the way that does best on the known ones (cross-validated)."""
    scale = np.maximum(columns.std(axis=0), 1e-9)
    x = np.clip((columns - columns.mean(axis=0)) / scale, -5, 5)
    rows, part = np.flatnonzero(labelled), folds(label[labelled], FOLDS, seed)
    ways = [(strength, rounds) for strength in (0.003, 0.03, 0.3) for rounds in (0, ROUNDS)]
    rates = np.zeros(len(ways))
    for k in range(FOLDS):
        fit = np.zeros(len(x), bool)
        fit[rows[part != k]] = True
        look = rows[part == k]
        for number, way in enumerate(ways):
            rates[number] += balanced(_self_trained(x, label, fit, *way)[look][None], label[look])[0]
    return _self_trained(x, label, labelled, *ways[int(np.argmax(rates))])


def _self_trained(x: np.ndarray, label: np.ndarray, labelled: np.ndarray, strength: float, rounds: int) -> np.ndarray:
    """Logistic regression on known labels, then in every round also on its most certain guesses of each class."""
    used, target = labelled, label
    for number in range(rounds + 1):
        model = LogisticRegression(C=strength, max_iter=500, class_weight="balanced").fit(x[used], target[used])
        chance = model.predict_proba(x)
        used, target = labelled.copy(), np.where(labelled, label, -1)
        for column, k in enumerate(model.classes_):
            most = np.argsort(-np.where(labelled, -1.0, chance[:, column]))
            sure = most[: int(0.1 * (number + 1) * len(x) / len(model.classes_))]
            used[sure], target[sure] = True, k
        target[labelled] = label[labelled]
    return np.asarray(model.predict(x))


def completed(view: Completion, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Guesses from encodings, guesses from own columns alone, and the truth, of the records not known before."""
    labelled = known_labels(view, seed)
    guess, control = (complete(columns, view.label, labelled, seed) for columns in (view.encodings, view.own_columns))
    return guess[~labelled], control[~labelled], view.label[~labelled]


def model_completion(view: Completion, seed: int) -> list[Rate]:
    """From own columns, which is the control, then from encodings."""
    completion, control, truth = completed(view, seed)
    pairs = (("own columns", control), ("encodings", completion))
    return [Rate.balanced(name, view.holder, guess, truth) for name, guess in pairs]


def trained_on_labels(view: Completion, seed: int) -> list[Rate]:
    """Positive control: given the label, a direction is a unit normal, means two apart: .84 is the best rate."""
    rng, classes = stream(seed, "completion control"), int(view.label.max()) + 1
    informative = 2.0 * np.eye(classes)[view.label] / np.sqrt(2.0) + rng.normal(size=(len(view.label), classes))
    irrelevant = rng.normal(size=(len(view.label), classes))
    turned = np.hstack([informative, irrelevant]) @ np.linalg.qr(rng.normal(size=(2 * classes, 2 * classes)))[0]
    return model_completion(replace(view, encodings=turned), seed)
