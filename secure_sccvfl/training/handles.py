"""What the secret engine hands to the driver: a party's own values in the clear, and shares of the rest.

None of them shows what it holds when it is printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from protocols.dealing.tuples import Request
from protocols.ring import Words
from protocols.steps.head import Tall, Weights
from secure_sccvfl.data.dataset import Task


@dataclass(frozen=True, repr=False)
class Batch:
    """Own encodings and ridge in the clear; shares of the label (one column per output)."""

    own: np.ndarray
    ridge: np.ndarray
    label: Words
    made: dict[str, Tall] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.own)


@dataclass(frozen=True, repr=False)
class Edits:
    """Shares of the selected displacements of every draw, and of their mean Gram matrix."""

    draws: tuple[Words, ...]
    gram: Words


@dataclass(frozen=True, repr=False)
class Penalty:
    """Edits of all attributes; own parts of the guard directions."""

    draws: tuple[Words, ...]
    gram: Words
    guards: tuple[np.ndarray, ...]
    made: dict[str, Tall] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Head:
    """Shares of the head in scaled columns; `scale` is what the own columns were multiplied with."""

    weights: Weights
    scale: np.ndarray
    task: Task
    made: dict[str, Words] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Choice:
    """Shares of the head to take so far, in unscaled columns, and of the bit that says whether it met the rule."""

    found: Words
    head: Head


@dataclass(repr=False)
class Descent:
    """What steps at one lambda share: scaled encodings and penalty under masks, and what a step asks for."""

    key: tuple[object, ...]
    scale: np.ndarray
    rows: Tall
    both: Tall
    edits: Tall | None
    scale_shares: Words
    pattern: list[Request] = field(default_factory=list)
    logits: Words | None = None
