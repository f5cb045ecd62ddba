"""What an adversary holds after a run, and what an attack reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from secure_sccvfl.data.layout import Block
from secure_sccvfl.metrics.rates import Z95, wilson

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
    """What a party holds that wants others' columns: its own columns and what it is shown.

    Both for records whose columns it knows and for others. targets: by name of a column of another party, its codes
    of the first and of the second. holder: the name of what is shown.
    """

    holder: str
    own: tuple[np.ndarray, np.ndarray]
    shown: tuple[np.ndarray, np.ndarray]
    targets: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def __post_init__(self) -> None:
        if not self.targets or self.holder == "own":
            raise ValueError(f"view of {self.holder!r}: there is no column to guess, or its name is taken")


@dataclass(frozen=True)
class WhiteBox:
    """A model that the adversary can differentiate, and records to perturb in some columns, up to a radius.

    features: which of these columns are one category, by their places in `inputs`. Without them every column is a
    number.
    """

    holder: str
    logits: TorchLogits
    inputs: np.ndarray
    columns: np.ndarray
    radii: tuple[float, ...] = RADII
    features: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Shown:
    """What opened gradients showed a party of every record (`signals`: one column for each pass), beside its columns.

    targets: by name of a column of another party, its codes.
    """

    holder: str
    own: np.ndarray
    signals: np.ndarray
    targets: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Gradients:
    """What a party gets back from a server that returns gradients, and the labels that they may reveal.

    `example`: the gradient of each record (n x d). `sums`: gradients of the party's parameters summed over all
    records, by name. `jacobian`: the factors of a record's residual in such a sum (n x parameters); the party knows
    them.
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
        """Wilson interval of a plain proportion."""
        return cls(attack, view, hits / total, *wilson(hits / total, total), chance)

    @classmethod
    def balanced(cls, attack: str, view: str, guess: np.ndarray, truth: np.ndarray, z: float = Z95) -> Rate:
        """Mean of the per-group hit rates: the expected rate on a balanced test split.

        A `z` other than that of 95 % is for one of several intervals that hold together.
        """
        groups = np.unique(truth)
        hits = np.array([(guess[truth == g] == g).mean() for g in groups])
        sizes = np.array([(truth == g).sum() for g in groups])
        rate = float(hits.mean())
        half = z * math.sqrt(float((hits * (1 - hits) / sizes).sum())) / len(groups)
        return cls(attack, view, rate, max(rate - half, 0.0), min(rate + half, 1.0), 1 / len(groups))
