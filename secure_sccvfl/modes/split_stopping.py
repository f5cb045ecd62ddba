"""Early stopping of mode `split` in secret: one bit after each step, whether training goes on.

The objective is the paper's, with the weights of the plaintext letter: log loss, plus the mean size of the logit's
shift by edits, plus the share of flipped decisions, on the validation part and without dropout. Training stops when
it has not got better for as many steps as the patience, counted from the first one.

Before: each party holds its activations of the validation part, and how far every hypothesised edit moves them. The
holders hold label and s. The head is shares. After: shares of the objective's best value so far, and of whether each
of the last steps was better. All parties learn the bit "one of the last steps was better". It is 1 until training
stops, so the whole run tells one number: the step at which it stopped.

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

from collections.abc import Mapping

import numpy as np

from protocols.errors import ProtocolError
from protocols.operations import comparison
from protocols.operations.arithmetic import bilinear, divide, truncate
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import words_of
from protocols.steps import choice
from protocols.steps.head import LOGIT_BOUND, RESIDUAL_BITS, Weights
from protocols.steps.split import ACTIVATION_BITS, SPLIT_LOGIT_BITS, encode_activations
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import Part
from secure_sccvfl.privacy.releases import EARLY_STOPPING
from secure_sccvfl.training.paper_settings import FLIP_WEIGHT, SCG_WEIGHT
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared_measures import flips, mean_losses
from secure_sccvfl.training.sharing import share_groups, share_label

_WORST = 1 << 20
"""The best objective before the first step."""


class Stopping:
    """One party's end. `engine` has the widths of the activations."""

    def __init__(self, engine: SecureEngine, part: Part, task: Task, outputs: int, patience: int) -> None:
        self.session, self.widths, self.task, self.outputs = engine.session, engine.widths, task, outputs
        self.rows = part.rows
        self.label = share_label(self.session, part.label, engine.label_holder, (self.rows, outputs), RESIDUAL_BITS)
        self.groups = [
            words_of(share_groups(self.session, attribute.codes, holder, (self.rows, len(attribute.groups))))
            for holder, attribute in zip(engine.group_holders, part.protected, strict=True)
        ]
        first = 1 if self.session.rank == 0 else 0
        self.best: Words = np.full(1, first * _WORST << WIDE_BITS, np.int64)
        self.better: Words = np.full(patience, first, np.int64)

    @property
    def directions(self) -> int:
        """Hypothesised edits of a record."""
        return sum(groups.shape[1] for groups in self.groups)

    def state(self) -> dict[str, np.ndarray]:
        """Shares, to be kept on disk."""
        return {"best": self.best, "better": self.better}

    def go_on(self, kept: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self.best, self.better = kept["best"], kept["better"]

    def goes_on(self, weights: Weights, activations: np.ndarray, moved: np.ndarray | None, edits: bool) -> bool:
        """Look at the validation part after a step; opens the bit.

        moved: how far each hypothesised edit moves own activations (rows x directions x width), None if this party
        edits nothing. edits: whether some party edits, which is public.
        """
        party = self.session.party
        with self.session.measure("early stopping"):
            value = self.objective(weights, activations, moved, edits)
            better = comparison.negative(party, value - self.best)
            self.best = self.best + bilinear(party, "mul", better, value - self.best)
            self.better = np.concatenate([self.better[1:], better])
            bit = choice.some(self.session.wrap(self.better, 0))
            opened = self.session.open(bit, self.session.declared(EARLY_STOPPING.name))
        if opened is None:
            raise ProtocolError(f"release {EARLY_STOPPING.name!r} must go to every party")
        return int(opened[0]) != 0

    def objective(self, weights: Weights, activations: np.ndarray, moved: np.ndarray | None, edits: bool) -> Words:
        """Shares of the objective, WIDE_BITS, as an array of one."""
        party = self.session.party
        logits, hypothesised = self._logits(weights, activations, moved, edits)
        scored = self.session.wrap(logits[:, None], FRACTION_BITS)
        value = words_of(mean_losses(self.session, scored, self.label, self.task, 2 * LOGIT_BOUND))
        if not edits:
            return value
        shifts = self._shifts(hypothesised)
        flat = np.concatenate(shifts)
        falls = bilinear(party, "mul", comparison.negative(party, flat), flat)
        lengths = (flat - 2 * falls).reshape(-1).sum(keepdims=True)
        apart = lengths * round(SCG_WEIGHT * 2 ** (WIDE_BITS - FRACTION_BITS))
        if self.task != "regression":
            moved_by = [self.session.wrap(shift[:, None], FRACTION_BITS) for shift in shifts]
            flipped, _ = flips(self.session, scored, moved_by)
            apart = apart + words_of(flipped) * round(FLIP_WEIGHT * 2**WIDE_BITS)
        return value + divide(party, apart, len(flat))

    def _logits(
        self, weights: Weights, activations: np.ndarray, moved: np.ndarray | None, edits: bool
    ) -> tuple[Words, Words]:
        """Shares of the logits (rows x outputs) and of all hypothesised shifts (rows x directions x outputs)."""
        party, rank, width = self.session.party, self.session.rank, self.widths[self.session.rank]
        directions = self.directions if edits else 0
        at = sum(self.widths[:rank])
        shares = party.zero_share((self.rows * (1 + directions), sum(self.widths)))
        shares[: self.rows, at : at + width] += encode_activations(activations)
        if moved is not None and edits:
            shares[self.rows :, at : at + width] += encode_activations(moved).reshape(-1, width)
        wide = bilinear(party, "matmul", shares, weights.weight)
        wide[: self.rows] += weights.bias << ACTIVATION_BITS
        both = truncate(party, wide, SPLIT_LOGIT_BITS - FRACTION_BITS)
        return both[: self.rows], both[self.rows :].reshape(self.rows, directions, self.outputs)

    def _shifts(self, hypothesised: Words) -> list[Words]:
        """Shares of the shift of each record for each attribute, in the direction of its own group."""
        chosen = bilinear(self.session.party, "mul", hypothesised, np.concatenate(self.groups, axis=1)[:, :, None])
        ends = np.cumsum([groups.shape[1] for groups in self.groups])
        return [part.sum(axis=1) for part in np.split(chosen, ends[:-1], axis=1)]
