"""What the secret engine hands to the driver: a party's own values in the clear, and shares of the rest.

None of them shows what it holds when it is printed. Masked values and the unscaled weight of a head are made by the
engine at their first use and kept in the handle for the later ones. All parties use a handle in the same order, so
these fields are filled at every party or at none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from protocols.dealing.tuples import Request
from protocols.ring import Words
from protocols.steps.head import BandedMatrix, Weights
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.training.engine import Step


@dataclass(repr=False, eq=False)
class SharedBatch:
    """Own encodings and ridge in the clear; shares of the label (one column per output).

    masked: the encodings of all parties as they are, under masks of their owners.
    """

    own: np.ndarray
    ridge: np.ndarray
    label: Words
    masked: BandedMatrix | None = None

    @property
    def rows(self) -> int:
        return len(self.own)


@dataclass(frozen=True, repr=False, eq=False)
class SharedEdits:
    """Shares of the selected displacements of every draw, and of their mean Gram matrix."""

    draws: tuple[Words, ...]
    gram: Words


@dataclass(repr=False, eq=False)
class SharedPenalty:
    """Edits of all attributes; own parts of the guard directions; the Gram matrix and all edits under masks."""

    draws: tuple[Words, ...]
    gram: Words
    guards: tuple[np.ndarray, ...]
    masked_gram: BandedMatrix | None = None
    masked_rows: BandedMatrix | None = None


@dataclass(repr=False, eq=False)
class SharedHead:
    """Shares of the head in scaled columns; `scale` is what the own columns were multiplied with.

    descent: number of the descent whose columns these are; None for a head of no descent of this session.
    last_logits: shares of what the last step saw. plain_weight: shares of the weight for columns as they are.
    """

    weights: Weights
    scale: np.ndarray
    task: Task
    descent: int | None = None
    last_logits: Words | None = None
    plain_weight: Words | None = None


@dataclass(frozen=True, repr=False, eq=False)
class SharedChoice:
    """Shares of the head to take so far, in unscaled columns, and of the bit that says whether it met the rule."""

    found: Words
    head: SharedHead


@dataclass(frozen=True, repr=False, eq=False)
class SharedDescent:
    """What all steps of a descent use: scaled encodings and penalty under masks, and what a step asks the dealer for.

    number: its place among the descents of an engine, the same at every party. pattern: filled by the first step.
    """

    number: int
    batch: SharedBatch
    step: Step
    scale: np.ndarray
    rows: BandedMatrix
    both: BandedMatrix
    edits: BandedMatrix | None
    scale_shares: Words
    pattern: list[Request] = field(default_factory=list)
