"""What the secret engine hands to the driver: a party's own values in the clear, and CrypTen tensors of the rest.

No handle shows its content when it is printed. The engine makes masked values and the unscaled weight of a head at
their first use and keeps them in the handle. All parties use a handle in the same order, so these fields are filled
at every party or at none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from protocols.alignment.presence import Presence
from protocols.dealing.tuples import Request
from protocols.steps.head import Weights
from protocols.steps.second_order import Curved, Plan, Shared, Slope
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.modules import HeadSpec


@dataclass(frozen=True, repr=False, eq=False)
class SharedRows:
    """Encodings of all parties that s has selected, or presence; no party knows its own part of them.

    reach: the largest magnitude in each own column over all that could be selected. presence: the rows that count,
    if not all do; the others are zero.
    """

    words: Shared
    reach: np.ndarray
    presence: Presence | None = None


@dataclass(repr=False, eq=False)
class SharedBatch:
    """Own encodings in the clear, or rows that were selected; own ridge; shares of the label (a column per output).

    masked: the unscaled encodings of all parties, under masks of their owners, or of nobody. seen: heads, and shares
    of their logits, which are computed once. codes: shares of the label as whole numbers, of classes.
    """

    own: np.ndarray | SharedRows
    ridge: np.ndarray
    label: Shared
    masked: Shared | None = None
    seen: tuple[tuple[SharedHead | SharedModule, ...], Shared] | None = None
    codes: Shared | None = None

    @property
    def rows(self) -> int:
        return int(self.label.size(0))

    @property
    def presence(self) -> Presence | None:
        """Which rows count; None where all do."""
        return self.own.presence if isinstance(self.own, SharedRows) else None

    @property
    def count(self) -> int:
        """What sums over the rows are divided by."""
        return self.rows if self.presence is None else self.presence.count


@dataclass(frozen=True, repr=False, eq=False)
class SharedChoices:
    """Shares of the selected displacements of every draw, in the columns of the head that an edit may change."""

    draws: tuple[Shared, ...]
    columns: np.ndarray


@dataclass(frozen=True, repr=False, eq=False)
class SharedEdits:
    """Selected displacements, and shares of their mean Gram matrix over all columns."""

    chosen: SharedChoices
    gram: Shared


@dataclass(repr=False, eq=False)
class SharedPenalty:
    """Edits of all attributes; own parts of the guard directions; the Gram matrix under a mask."""

    chosen: SharedChoices
    gram: Shared
    guards: tuple[np.ndarray, ...]
    masked_gram: Shared | None = None


@dataclass(repr=False, eq=False)
class SharedHead:
    """Shares of the head in scaled columns; `scale` is the factor of the own columns.

    descent: number of the descent whose columns these are; None for a head of no descent of this session.
    last_logits: shares of the logits of the last step. plain_weight: shares of the weight for unscaled columns.
    slope: of the last second-order step, with its rate.
    """

    weights: Weights
    scale: np.ndarray
    task: Task
    descent: int | None = None
    last_logits: Shared | None = None
    plain_weight: Shared | None = None
    slope: Slope | None = None


@dataclass(frozen=True, repr=False, eq=False)
class SharedModule:
    """Shares of the weights of a module and of their velocities, by name, HEAD_BITS.

    last_logits: as of `SharedHead`, with counterfactuals below the records.
    """

    spec: HeadSpec
    weights: Mapping[str, Shared]
    velocity: Mapping[str, Shared]
    task: Task
    outputs: int
    last_logits: Shared | None = None


@dataclass(frozen=True, repr=False, eq=False)
class SharedModuleDescent:
    """What all steps of a module use: records under masks, with their moved copies below, each with its weight.

    number, pattern: as of `SharedDescent`.
    """

    number: int
    batch: SharedBatch
    step: Step
    ridge: float
    rows: Shared
    weights: tuple[float, ...]
    pattern: list[Request] = field(default_factory=list)


@dataclass(frozen=True, repr=False, eq=False)
class SharedDescent:
    """What all steps of a descent use: scaled encodings and penalty under masks, and requests to the dealer.

    number: its place among the descents of an engine, the same at every party. pattern: the requests of one step; the
    first step fills it.
    """

    number: int
    batch: SharedBatch
    step: Step
    scale: np.ndarray
    rows: Shared
    both: Shared
    pattern: list[Request] = field(default_factory=list)


@dataclass(frozen=True, repr=False, eq=False)
class SharedNoise:
    """Of private heads: public numbers of their noise; shares of it in the gradient, and of 1 / s and s (rows)."""

    noise: HeadNoise
    tilt: Shared
    scales: Shared


@dataclass(frozen=True, repr=False, eq=False)
class SharedGrid:
    """What all second-order steps of a grid use: encodings with the bias under masks, penalties and inverses too.

    number: as of `SharedDescent`. columns: number of the descent that has scaled them first. parts: ranges of heads
    that step together, each with the requests of one step. curved: what inverses are made of. private: the noise of
    private heads. begun: weights (None for heads of zero), and gradient and logits there, for the first step.
    """

    number: int
    columns: int
    batch: SharedBatch
    plan: Plan
    scale: np.ndarray
    rows: Shared
    stack: Shared
    parts: tuple[tuple[range, list[Request]], ...]
    curved: Curved
    private: SharedNoise | None = None
    begun: tuple[Weights | None, Shared, Shared] | None = None
