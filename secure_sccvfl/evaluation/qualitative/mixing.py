"""Representations in two dimensions, and how well s can be read from them.

A picture of two principal components shows little of a representation, and an eye finds groups where there are none.
So each comes with numbers: the area under the ROC curve (AUC) of a linear classifier of s, fitted on training records
and tested on held-out ones, on the two components and on the whole representation. 0.5 is chance. The control is the
same with s shuffled over all records. A representation is scaled as a whole, not column by column: what the decision
takes little from counts little.

There are two representations. `fused` is what a method's encoders give to its head. A sealed run leaves it as it is:
plain training and SCC-VFL have the same one, and nobody sees it. `used` is what the decision takes from each column:
by how much the logit changes when the column is replaced by its mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_sccvfl.data.layout import Layout, one_hot
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.metrics import Predictor, logits_of
from secure_sccvfl.evaluation.qualitative.information import ranks

SHUFFLES = 100
MOST_ROWS = 1000
RIDGE = 0.01
MOST_POINTS = 400
SPREAD = 1e-9


@dataclass(frozen=True)
class Represented:
    """Training and held-out records in one representation, and their groups."""

    train: np.ndarray
    test: np.ndarray
    train_codes: np.ndarray
    test_codes: np.ndarray


def used_by(
    predict: Predictor, layout: Layout, inputs: np.ndarray, codes: np.ndarray, mean: np.ndarray
) -> np.ndarray:
    """What each column adds to the logits of each record, against the column's mean: records x (columns, outputs).

    Exact where columns add up, as in the sealed model.
    """
    whole = logits_of(predict, inputs, codes)
    found = []
    for block in layout.blocks:
        without = inputs.copy()
        without[:, block.columns] = mean[block.columns]
        found.append(whole - logits_of(predict, without, codes))
    return np.hstack(found)


def components(z: np.ndarray, at: np.ndarray, count: int = 2) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Both on the first principal components of z, and the share of z's variance that each of these has."""
    mean = z.mean(axis=0)
    _, size, directions = np.linalg.svd(z - mean, full_matrices=False)
    energy = float((size**2).sum())
    shares = [float(s**2 / energy) if energy > SPREAD else 0.0 for s in size[:count]]
    axes = directions[:count].T
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])  # one sign, run after run
    return (z - mean) @ axes, (at - mean) @ axes, shares


def read_s(seen: Represented, seed: int) -> dict[str, float]:
    """AUC of a linear classifier of s (ridge regression on indicators) on held-out records, with its 95 % interval.

    null, null_high: its mean and 95 % quantile with s shuffled over all records.
    """
    mean, spread = seen.train.mean(axis=0), float(np.sqrt(seen.train.var(axis=0).mean()))
    if spread <= SPREAD or len(np.unique(seen.train_codes)) < 2:
        return dict.fromkeys(("auc", "low", "high", "null", "null_high"), 0.5)
    train, test = ((z - mean) / spread for z in (seen.train, seen.test))
    count = int(max(seen.train_codes.max(), seen.test_codes.max())) + 1
    penalty = RIDGE * len(train) * np.eye(train.shape[1])
    readers = test @ np.linalg.solve(train.T @ train + penalty, train.T)  # from targets of training records to scores

    def auc(known: np.ndarray, asked: np.ndarray) -> float:
        return _auc(readers @ one_hot(known, count), asked)

    rng = stream(seed, "mixing")
    value = auc(seen.train_codes, seen.test_codes)
    half = 1.96 * _deviation(value, seen.test_codes)
    null = [auc(rng.permutation(seen.train_codes), rng.permutation(seen.test_codes)) for _ in range(SHUFFLES)]
    return {
        "auc": value,
        "low": max(0.0, value - half),
        "high": min(1.0, value + half),
        "null": float(np.mean(null)),
        "null_high": float(np.quantile(null, 0.95)),
    }


def at_most(rows: np.ndarray, seed: int) -> np.ndarray:
    """These rows, or as many of them at random as a representation is judged by."""
    return stream(seed, "mixing-rows").permutation(rows)[:MOST_ROWS]


def mixing(seen: Represented, seed: int) -> dict[str, Any]:
    """Points of held-out records on two components, and what a classifier reads of s there and from the whole."""
    known, shown, shares = components(seen.train, seen.test)
    flat = Represented(known, shown, seen.train_codes, seen.test_codes)
    return {
        "width": seen.train.shape[1],
        "shares": shares,
        "two": read_s(flat, seed),
        "whole": read_s(seen, seed),
        "points": np.round(shown[:MOST_POINTS], 4).tolist(),
        "groups": [int(code) for code in seen.test_codes[:MOST_POINTS]],
    }


def _auc(scores: np.ndarray, codes: np.ndarray) -> float:
    """Two groups: of the second. More: the mean over groups, each against the others."""
    found = []
    for group in range(scores.shape[1])[-1 if scores.shape[1] == 2 else 0 :]:
        own = codes == group
        if 0 < own.sum() < len(own):
            above = ranks(scores[:, group])[own].sum() - own.sum() * (own.sum() + 1) / 2
            found.append(float(above / (own.sum() * (~own).sum())))
    return float(np.mean(found)) if found else 0.5


def _deviation(auc: float, codes: np.ndarray) -> float:
    """Standard deviation of an AUC by Hanley and McNeil; for several groups, of the smallest against the others."""
    counts = np.bincount(codes)
    few = int(counts[counts > 0].min())
    many = len(codes) - few
    if many == 0:
        return 0.0
    one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (few - 1) * (one - auc**2) + (many - 1) * (two - auc**2)
    return float(np.sqrt(max(variance, 0.0) / (few * many)))
