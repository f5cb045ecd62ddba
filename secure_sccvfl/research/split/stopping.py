"""Early stopping of mode `split` under MPC: one bit after each step, whether training goes on.

The objective is the paper's, with the weights of the plaintext letter: log loss, plus the mean size of the logit's
shift by edits, plus the share of flipped decisions, on the validation part and without dropout. Training stops when
it has not got better for as many steps as the patience, counted from the first one.

Before: each party holds its activations of the validation part, and how far every hypothesised edit moves them. The
holders hold label and s. The head is shares. After: shares of the objective's best value so far, and of whether each
of the last steps was better. All parties learn the bit "one of the last steps was better". It is 1 until training
stops, so the whole run reveals one number: the step at which it stopped.

| rounds | what |
|---|---|
| 2 | logits and hypothesised shifts: one product with the head, truncated |
| 1 | selection of shifts by s |
| 4 | log loss |
| 14 | flipped decisions, and the sign of each shift |
| 1 | both added up and divided |
| 13 | is it better than the best so far? is one of the last bits 1? |
| 2 | the bit |

Words to each peer: rows x (1 + directions) x columns for the product, and some tens for each row. Everything before
the bit is opened under fresh uniform masks only. The bit is an exact figure of validation records: this is for runs
whose evaluation is exact. Logits are checked against the range of the sigmoid in training; the series of the loss
here takes twice that range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import Part
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.ring import FRACTION_BITS, WIDE_BITS
from secure_sccvfl.protocols.session.runtime import crypten
from secure_sccvfl.protocols.session.saving import restore_share, save_share
from secure_sccvfl.protocols.steps import choice
from secure_sccvfl.protocols.steps.head import LOGIT_BOUND, RESIDUAL_BITS, Weights
from secure_sccvfl.protocols.steps.second_order import Shared
from secure_sccvfl.protocols.steps.split import ACTIVATION_BITS, ACTIVATION_LIMIT
from secure_sccvfl.releases.catalogue import EARLY_STOPPING
from secure_sccvfl.research.paper.settings import FLIP_WEIGHT, SCG_WEIGHT
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.secure_steps import mean_losses
from secure_sccvfl.training.shared import decisions, share_groups, share_label, side_by_side

_WORST = 1 << 20
"""The best objective before the first step."""


class EarlyStopping:
    """One party's end. `engine` has the widths of the activations."""

    def __init__(self, engine: SecureEngine, part: Part, task: Task, outputs: int, patience: int) -> None:
        self.session, self.widths, self.task, self.outputs = engine.session, engine.widths, task, outputs
        self.rows = part.rows
        self.label = share_label(self.session, part.label, engine.label_holder, (self.rows, outputs), RESIDUAL_BITS)
        self.groups = [
            share_groups(self.session, attribute.codes, holder, (self.rows, len(attribute.groups)))
            for holder, attribute in zip(engine.group_holders, part.protected, strict=True)
        ]
        self.best = self.session.public(np.array([_WORST]), WIDE_BITS)
        self.better = self.session.public(np.ones(patience, np.int64), 0)

    @property
    def directions(self) -> int:
        """Hypothesised edits of a record."""
        return sum(groups.size(1) for groups in self.groups)

    def state(self) -> dict[str, np.ndarray]:
        """This party's shares, for its checkpoints."""
        return {"best": save_share(self.best), "better": save_share(self.better)}

    def go_on(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self.best, self.better = restore_share(state["best"], WIDE_BITS), restore_share(state["better"], 0)

    def goes_on(self, weights: Weights, activations: np.ndarray, moved: np.ndarray | None, edits: bool) -> bool:
        """Look at the validation part after a step; opens the bit.

        moved: how far each hypothesised edit moves own activations (rows x directions x width), None if this party
        edits nothing. edits: whether some party edits, which is public.
        """
        with self.session.measure("early stopping"):
            value = self.objective(weights, activations, moved, edits)
            better = value - self.best < 0
            self.best = self.best + better * (value - self.best)
            self.better = crypten.cat([self.better[1:], better])
            opened = self.session.open(choice.some(self.better), self.session.declared(EARLY_STOPPING.name))
        if opened is None:
            raise ProtocolError(f"release {EARLY_STOPPING.name!r} must go to every party")
        return int(opened[0]) != 0

    def objective(self, weights: Weights, activations: np.ndarray, moved: np.ndarray | None, edits: bool) -> Shared:
        """The objective, WIDE_BITS, as a tensor of one."""
        logits, hypothesised = self._logits(weights, activations, moved, edits)
        value = mean_losses(self.session, logits[:, None], self.label, self.task, 2 * LOGIT_BOUND)
        if not edits:
            return value
        shifts = self._shifts(hypothesised)
        flat = crypten.cat(shifts)
        lengths = (flat - 2 * ((flat < 0) * flat)).reshape(-1).sum(0, keepdim=True)
        apart = (lengths * round(SCG_WEIGHT * 2 ** (WIDE_BITS - FRACTION_BITS))).with_fraction(WIDE_BITS)
        if self.task != "regression":
            flipped = flips(logits, shifts)
            apart = apart + (flipped * round(FLIP_WEIGHT * 2**WIDE_BITS)).with_fraction(WIDE_BITS)
        return value + apart / flat.size(0)

    def _logits(
        self, weights: Weights, activations: np.ndarray, moved: np.ndarray | None, edits: bool
    ) -> tuple[Shared, Shared]:
        """The logits (rows x outputs) and all hypothesised shifts (rows x directions x outputs), FRACTION_BITS."""
        rows, directions = self.rows, self.directions if edits else 0
        own = np.zeros((rows * (1 + directions), activations.shape[1]))
        own[:rows] = activations
        if moved is not None and edits:
            own[rows:] = moved.reshape(-1, activations.shape[1])
        fused = side_by_side(self.session, self.widths, own, ACTIVATION_BITS, ACTIVATION_LIMIT)
        products = (fused + self.session.zeros(fused.size(), ACTIVATION_BITS)) @ weights.weight
        both = crypten.cat([products[:rows] + weights.bias, products[rows:]]).rescale(FRACTION_BITS, sliced=True)
        return both[:rows], both[rows:].reshape(rows, directions, self.outputs)

    def _shifts(self, hypothesised: Shared) -> list[Shared]:
        """The shift of each record for each attribute, in the direction of its own group."""
        chosen = hypothesised * crypten.cat(self.groups, dim=1).unsqueeze(2)
        ends = np.cumsum([groups.size(1) for groups in self.groups]).tolist()
        return [chosen[:, start:end].sum(1) for start, end in pairwise([0, *ends])]


def flips(logits: Shared, shifts: Sequence[Shared]) -> Shared:
    """How many shifted copies (rows x outputs) have another decision than their record; a tensor of one."""
    rows, outputs = logits.size()
    decided = decisions(crypten.cat([logits, *(logits + shift for shift in shifts)]))
    before, after = decided[:rows].repeat(len(shifts), 1), decided[rows:]
    same = after * before
    each = (after + before - 2 * same).sum(1) if outputs == 1 else 1 - same.sum(1)
    return each.sum(0, keepdim=True)
