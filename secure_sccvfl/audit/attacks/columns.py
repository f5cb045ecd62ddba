"""Inference of another party's columns: from what a view shows, and from opened gradients.

The attacker is a party. It knows its own columns of every record, and the others' columns of some (a leaked file). Of
the other records it holds what the view shows. It guesses each column by regression on its categories or bins. The
control is the same attacker without the view: columns of different parties depend on each other anyway.

*Opened gradients* (as CAFE, Jin et al. 2021). A party of a `split` run is shown the gradient in its own activations,
a number for each record and step. These follow from the scores of the joint model, so they depend on the others'
columns. The positive control is what CAFE is about: a server that is also sent the gradient of another party's first
layer, summed over a batch. With the numbers of each record known, these sums are linear in the records, and as many
steps as records in the batch give every value.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import RidgeClassifier

from secure_sccvfl.audit.attacks.view import Columns, Rate, Shown, folds, mean_rate

BATCH = 32


def _guess(known: np.ndarray, codes: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    mean, scale = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-9)
    model = RidgeClassifier(class_weight="balanced").fit((known - mean) / scale, codes)
    return np.asarray(model.predict((unknown - mean) / scale))


def feature_inference(view: Columns, seed: int) -> list[Rate]:
    """Balanced hit rate, averaged over the others' columns: of own columns alone, then with the view.

    A ridge has nothing random in it, so the seed has no effect.
    """
    found: dict[str, list[Rate]] = {"own": [], view.holder: []}
    for known_codes, truth in view.targets.values():
        for name, rates in found.items():
            sides = [np.hstack([o, s]) if name != "own" else o for o, s in zip(view.own, view.shown, strict=True)]
            rates.append(Rate.balanced(name, view.holder, _guess(sides[0], known_codes, sides[1]), truth))
    return [mean_rate(name, view.holder, rates) for name, rates in found.items()]


def shown_columns(view: Columns, seed: int) -> list[Rate]:
    """Positive control: the view shows the first of the others' columns, one indicator for each value."""
    name, (known, unknown) = next(iter(view.targets.items()))
    values = int(max(known.max(), unknown.max())) + 1
    shown = (np.eye(values)[known], np.eye(values)[unknown])
    return feature_inference(Columns(view.holder, view.own, shown, {name: (known, unknown)}), seed)


def halves_of(view: Shown, seed: int) -> tuple[Columns, Columns]:
    """The view with the others' columns of either half known."""
    half = folds(np.zeros(len(view.own), int), 2, seed)
    made = []
    for known in (half == 0, half == 1):
        targets = {name: (codes[known], codes[~known]) for name, codes in view.targets.items()}
        own, shown = ((part[known], part[~known]) for part in (view.own, view.signals))
        made.append(Columns(view.holder, own, shown, targets))
    return made[0], made[1]


def gradient_reconstruction(view: Shown, seed: int) -> list[Rate]:
    """Own columns alone, then with the gradients of all steps: each record guessed once."""
    first, second = (feature_inference(part, seed) for part in halves_of(view, seed))
    return [mean_rate(one.attack, view.holder, [one, other]) for one, other in zip(first, second, strict=True)]


def solve_batch(factors: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The records of a batch from sums of them with known factors (equations x records)."""
    scale = np.maximum(np.linalg.norm(factors, axis=1, keepdims=True), 1e-300)
    return np.asarray(np.linalg.lstsq(factors / scale, sums / scale, rcond=1e-13)[0])


def summed_gradients(view: Shown, seed: int) -> list[Rate]:
    """Positive control: gradients of the others' first layer are opened as sums over batches, one for each step."""
    names, rates = list(view.targets), []
    bins = [int(view.targets[name].max()) + 1 for name in names]
    whole = np.hstack([np.eye(k)[view.targets[name]] for name, k in zip(names, bins, strict=True)])
    size = min(BATCH, view.signals.shape[1])
    if size < 2:
        return []
    count = len(whole) // size
    found = np.zeros_like(whole[: count * size])
    for k in range(count):
        rows = slice(k * size, (k + 1) * size)
        factors = view.signals[rows].T
        found[rows] = solve_batch(factors, factors @ whole[rows])
    for name, piece in zip(names, np.split(found, np.cumsum(bins)[:-1], axis=1), strict=True):
        rates.append(Rate.balanced(name, view.holder, piece.argmax(axis=1), view.targets[name][: len(found)]))
    return [mean_rate("sums of a batch", view.holder, rates)]
