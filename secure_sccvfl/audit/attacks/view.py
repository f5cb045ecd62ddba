"""What an adversary holds after a run, what an attack reports, and the choice among attackers.

The strongest of several attackers decides. It is picked on one half of the records and reports its guesses on the
other, and then the other way round: picked on the records that it is tested on, the best of many useless attackers
would look better than chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from secure_sccvfl.data.layout import Block
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.metrics.rates import Z95, wilson

CHOSEN = "chosen"
RADII = (0.02, 0.05, 0.10, 0.20)
TorchLogits = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class View:
    """Per-record values that an adversary holds, for records whose secret it knows and for others.

    `known` is the attacker's training set (values, secret codes); `unknown` is what it is tested on.
    """

    holder: str
    known: tuple[np.ndarray, np.ndarray]
    unknown: tuple[np.ndarray, np.ndarray]

    def __post_init__(self) -> None:
        for values, codes in (self.known, self.unknown):
            if values.ndim != 2 or len(values) != len(codes):
                raise ValueError(f"view of {self.holder!r}: {values.shape} values for {len(codes)} records")


@dataclass(frozen=True)
class Columns:
    """A party's own columns and what it is shown (`holder` names it), of records with known targets and of others.

    targets: by name of a column of another party, its codes of the first and of the second.
    """

    holder: str
    own_columns: tuple[np.ndarray, np.ndarray]
    shown: tuple[np.ndarray, np.ndarray]
    targets: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def __post_init__(self) -> None:
        if not self.targets or self.holder == "own":
            raise ValueError(f"view of {self.holder!r}: there is no column to guess, or its name is taken")


@dataclass(frozen=True)
class WhiteBox:
    """A model that the adversary can differentiate, and records to perturb in some columns, up to a radius.

    features: which of these columns are one category, by their indices in `inputs`; without, all are numbers.
    """

    holder: str
    logits: TorchLogits
    inputs: np.ndarray
    columns: np.ndarray
    radii: tuple[float, ...] = RADII
    features: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A party's columns and what opened gradients showed of every record (`signals`: one column for each pass)."""

    holder: str
    own_columns: np.ndarray
    signals: np.ndarray
    targets: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Gradients:
    """What a party gets back from a server that returns gradients, and the labels that they may reveal.

    example: the gradient of each record (n x d). sums: gradients of its parameters summed over all records, by
    name. jacobian: the known factors of a record's residual in such a sum (n x parameters).
    """

    holder: str
    example: np.ndarray
    jacobian: np.ndarray
    sums: Mapping[str, np.ndarray]
    label: np.ndarray


@dataclass(frozen=True)
class Rate:
    """Success rate of one attack with a 95 % interval and what guessing would give."""

    attack: str
    view: str
    rate: float
    low: float
    high: float
    chance: float

    @classmethod
    def of_counts(cls, attack: str, view: str, hits: int, total: int, chance: float) -> Rate:
        return cls(attack, view, hits / total, *wilson(hits / total, total), chance)

    @classmethod
    def balanced(cls, attack: str, view: str, guess: np.ndarray, truth: np.ndarray, z: float = Z95) -> Rate:
        """Mean of the per-group hit rates. A `z` other than that of 95 % is for one of several joint intervals."""
        groups = np.unique(truth)
        hits = np.array([(guess[truth == g] == g).mean() for g in groups])
        sizes = np.array([(truth == g).sum() for g in groups])
        rate = float(hits.mean())
        half = z * math.sqrt(float((hits * (1 - hits) / sizes).sum())) / len(groups)
        return cls(attack, view, rate, max(rate - half, 0.0), min(rate + half, 1.0), 1 / len(groups))


def folds(truth: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Assign records at random to `count` parts, every group equally; returns the part of each."""
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
    half, chosen = folds(truth, 2, seed), np.zeros_like(truth)
    for part in (0, 1):
        fit, look = half == part, half != part
        best = max(guesses, key=lambda name: float(balanced(guesses[name][fit][None], truth[fit])[0]))
        chosen[look] = guesses[best][look]
    return chosen


def threshold(score: np.ndarray, truth: np.ndarray) -> float:
    """The cut with the highest balanced rate of `score > cut` for a truth of 0 and 1."""
    cuts = np.quantile(score, np.linspace(0.0, 1.0, 101))
    rates = balanced(score[None, :] > cuts[:, None], truth.astype(bool))
    return float(cuts[int(np.argmax(rates))])


def threshold_guesses(score: np.ndarray, truth: np.ndarray, seed: int) -> np.ndarray:
    """Guesses by a cut: that of each half is set on the other half, whose truth the attacker knows."""
    half, chosen = folds(truth, 2, seed), np.zeros_like(truth)
    for part in (0, 1):
        fit, look = half == part, half != part
        chosen[look] = score[look] > threshold(score[fit], truth[fit])
    return chosen


def mean_rate(name: str, holder: str, rates: list[Rate]) -> Rate:
    """Mean over columns. They are not independent, so half widths are averaged: no interval of the mean is wider."""
    rate, low, high, chance = (
        float(np.mean([getattr(r, f) for r in rates])) for f in ("rate", "low", "high", "chance")
    )
    return Rate(name, holder, rate, low, high, chance)
