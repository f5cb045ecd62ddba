"""Parts of records, and the choice among attackers on one part so that they are judged on another.

The strongest of several attackers decides. If it were picked on the records it is judged on, the best of many
useless attackers would look better than chance. So it is picked on one half and reports its guesses on the other,
and then the other way round: every record is guessed once, by an attacker that was chosen without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secure_sccvfl.audit.attacks.view import Rate
from secure_sccvfl.data.randomness import stream

CHOSEN = "chosen"


def folds(truth: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Assign records at random to `count` parts, every group alike; returns the part of each."""
    rng = stream(seed, "security folds", count)
    part = np.zeros(len(truth), int)
    for group in np.unique(truth):
        rows = rng.permutation(np.flatnonzero(truth == group))
        part[rows] = np.arange(len(rows)) % count
    return part


def balanced(guess: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Mean over groups of the hit rate, for each row of guesses."""
    return np.mean([(guess[:, truth == g] == g).mean(axis=1) for g in np.unique(truth)], axis=0)


def strongest_guesses(guesses: Mapping[str, np.ndarray], truth: np.ndarray, seed: int) -> np.ndarray:
    """For each half of the records, the guesses of the attacker that does best on the other half."""
    half, found = folds(truth, 2, seed), np.zeros_like(truth)
    for part in (0, 1):
        fit, look = half == part, half != part
        best = max(guesses, key=lambda name: float(balanced(guesses[name][fit][None], truth[fit])[0]))
        found[look] = guesses[best][look]
    return found


def threshold(score: np.ndarray, truth: np.ndarray) -> float:
    """The cut with the highest balanced rate of `score > cut` for a truth of 0 and 1."""
    cuts = np.quantile(score, np.linspace(0.0, 1.0, 101))
    rates = balanced(score[None, :] > cuts[:, None], truth.astype(bool))
    return float(cuts[int(np.argmax(rates))])


def threshold_guesses(score: np.ndarray, truth: np.ndarray, seed: int) -> np.ndarray:
    """Guesses by a cut: that of each half is set on the other half, whose truth the attacker knows."""
    half, found = folds(truth, 2, seed), np.zeros_like(truth)
    for part in (0, 1):
        fit, look = half == part, half != part
        found[look] = score[look] > threshold(score[fit], truth[fit])
    return found


def mean_rate(name: str, holder: str, rates: list[Rate]) -> Rate:
    """Mean over columns. They are not independent, so half widths are averaged: no interval of the mean is wider."""
    rate, low, high, chance = (
        float(np.mean([getattr(r, f) for r in rates])) for f in ("rate", "low", "high", "chance")
    )
    return Rate(name, holder, rate, low, high, chance)
