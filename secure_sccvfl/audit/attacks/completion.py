"""Label inference by model completion (Fu et al. 2022): a party puts a head of its own on its part of the model.

The party has the encodings of its own columns and the labels of a few records. It trains a classifier on these, also
with its most certain guesses as further labels (self-training), and keeps what does best on the known ones. If labels
took part in training the encoder, its encodings reveal more of them than the columns do. The control is the same
attack on the party's own columns.

The positive control is an encoder one of whose directions follows the label, as in split learning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from sklearn.linear_model import LogisticRegression

from secure_sccvfl.audit.attacks.view import Rate, balanced, folds
from secure_sccvfl.data.randomness import stream

LABELLED = 80
ROUNDS = 3
FOLDS = 4


@dataclass(frozen=True)
class Completion:
    """A party's own columns and encodings of all training records, and their labels; it knows `labelled` of these."""

    holder: str
    own: np.ndarray
    encodings: np.ndarray
    label: np.ndarray
    labelled: int = LABELLED


def known_labels(view: Completion, seed: int) -> np.ndarray:
    """Which records' labels the party knows: as many of each class."""
    rng, known = stream(seed, "completion labels"), np.zeros(len(view.label), bool)
    classes = np.unique(view.label)
    for k in classes:
        known[rng.permutation(np.flatnonzero(view.label == k))[: max(1, view.labelled // len(classes))]] = True
    return known


def complete(columns: np.ndarray, label: np.ndarray, known: np.ndarray, seed: int) -> np.ndarray:
    """Labels guessed for all records, by the way that does best on the known ones (cross-validated)."""
    scale = np.maximum(columns.std(axis=0), 1e-9)
    x = np.clip((columns - columns.mean(axis=0)) / scale, -5, 5)
    rows, part = np.flatnonzero(known), folds(label[known], FOLDS, seed)
    ways = [(strength, rounds) for strength in (0.003, 0.03, 0.3) for rounds in (0, ROUNDS)]
    rates = np.zeros(len(ways))
    for k in range(FOLDS):
        fit = np.zeros(len(x), bool)
        fit[rows[part != k]] = True
        look = rows[part == k]
        for place, way in enumerate(ways):
            rates[place] += balanced(_self_trained(x, label, fit, *way)[look][None], label[look])[0]
    return _self_trained(x, label, known, *ways[int(np.argmax(rates))])


def _self_trained(x: np.ndarray, label: np.ndarray, known: np.ndarray, strength: float, rounds: int) -> np.ndarray:
    """Logistic regression on known labels, then in every round also on its most certain guesses of each class."""
    used, target = known, label
    for number in range(rounds + 1):
        model = LogisticRegression(C=strength, max_iter=500, class_weight="balanced").fit(x[used], target[used])
        chance = model.predict_proba(x)
        used, target = known.copy(), np.where(known, label, -1)
        for place, k in enumerate(model.classes_):
            most = np.argsort(-np.where(known, -1.0, chance[:, place]))
            sure = most[: int(0.1 * (number + 1) * len(x) / len(model.classes_))]
            used[sure], target[sure] = True, k
        target[known] = label[known]
    return np.asarray(model.predict(x))


def completed(view: Completion, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Guesses from encodings, guesses from own columns alone, and the truth, of the records not known before."""
    known = known_labels(view, seed)
    found, control = (complete(columns, view.label, known, seed) for columns in (view.encodings, view.own))
    return found[~known], control[~known], view.label[~known]


def model_completion(view: Completion, seed: int) -> list[Rate]:
    """From own columns, which is the control, then from encodings."""
    found, control, truth = completed(view, seed)
    pairs = (("own columns", control), ("encodings", found))
    return [Rate.balanced(name, view.holder, guess, truth) for name, guess in pairs]


def trained_on_labels(view: Completion, seed: int) -> list[Rate]:
    """Positive control: one direction of the encodings follows the label, as in an encoder that learnt from it.

    Given the label it is a unit normal, its means two apart: the best possible balanced rate is .84 for two classes.
    """
    rng, classes = stream(seed, "completion control"), int(view.label.max()) + 1
    told = 2.0 * np.eye(classes)[view.label] / np.sqrt(2.0) + rng.normal(size=(len(view.label), classes))
    beside = rng.normal(size=(len(view.label), classes))
    turned = np.hstack([told, beside]) @ np.linalg.qr(rng.normal(size=(2 * classes, 2 * classes)))[0]
    return model_completion(replace(view, encodings=turned), seed)
