"""Sums over shared logits of several heads: losses, variance, decisions that flip. Nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import numpy as np

from protocols.alignment.presence import RATIO_BITS, Presence
from protocols.dealing.party import Party
from protocols.operations import arithmetic, comparison, series
from protocols.operations.banded import mask_square, product
from protocols.operations.sigmoid import capped_slope
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from protocols.steps.head import HEAD_BITS, LOGIT_BITS, RESIDUAL_BITS, residual_of_sigmoid
from protocols.steps.second_order import MATRIX_BITS, bounded_slope
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.training.handles import SharedPenalty
from secure_sccvfl.training.leak import group_weights
from secure_sccvfl.training.sharing import decisions, share_groups, share_held

_TEMPERED_ROWS = 1 << 14
"""How many logits are tried at several temperatures at a time."""


def total(words: Words) -> Words:
    """The sum as an array of one: numpy scalars warn where the ring wraps."""
    found: Words = words.reshape(-1).sum(keepdims=True)
    return found


def variance(party: Party, logits: Words) -> Words:
    """Variance of the logits (rows x heads x outputs) of each head, summed over outputs, WIDE_BITS."""
    rows = len(logits)
    middle = arithmetic.divide(party, logits.sum(axis=0), rows)
    return arithmetic.divide(party, arithmetic.square(party, logits - middle).sum(axis=(0, 2)), rows)


def gap_and_spread(party: Party, gap: Words, logits: Words, presence: Presence | None) -> tuple[Words, Words]:
    """A mean squared gap and the variance of the logits, WIDE_BITS: only their ratio means something.

    Where rows are counted in secret, both are over all rows, and times the square of the share of those that count.
    Logits and edits of the others are zero.
    """
    if presence is None:
        return gap, variance(party, logits)
    middle = arithmetic.divide(party, logits.sum(axis=0), presence.count)
    squares = arithmetic.divide(party, arithmetic.square(party, logits).sum(axis=(0, 2)), presence.count)
    both = np.stack([gap, squares])
    weighted = arithmetic.scaled_bilinear(party, "mul", both, presence.ratio(party), 1 << RATIO_BITS)
    return weighted[0], weighted[1] - arithmetic.square(party, middle).sum(axis=1)


def room_for_flips(party: Party, flipped: Words, copies: int, most: float, presence: Presence | None) -> Words:
    """Shares of what is not negative if at most this share of copies flipped. `copies`: of all rows."""
    if presence is None:
        return (floor(most * copies) if party.rank == 0 else 0) - flipped
    each = np.int64(floor(most * copies / len(presence.bits) * 2**FRACTION_BITS))
    return presence.bits.sum(keepdims=True) * each - np.left_shift(flipped, FRACTION_BITS)


def residual_of_private(session: Session, logits: Words, label: Words, task: Task, fine: bool) -> Words:
    """The slope of the loss of a private head in each logit, RESIDUAL_BITS; logits have LOGIT_BITS.

    label: whole numbers of classes, RESIDUAL_BITS of a regression.
    """
    if task == "regression":
        return bounded_slope(session.party, logits, label, fine=fine)
    return capped_slope(session.party, logits, label, LOGIT_BITS, fine=fine)


def residual_of(session: Session, logits: Words, label: Words, task: Task) -> Words:
    """The slope of the loss in each logit, RESIDUAL_BITS as the label; logits have LOGIT_BITS."""
    party = session.party
    if task == "regression":
        return arithmetic.truncate(party, logits, LOGIT_BITS - RESIDUAL_BITS) - label
    return residual_of_sigmoid(party, logits, label)


def gap_squared(party: Party, penalty: SharedPenalty | None, weight: Words, heads: int) -> Words:
    """Mean squared shift of the logits of each head under the edits, WIDE_BITS: w^T G w; 0 without edits."""
    if penalty is None:
        return np.zeros(heads, np.int64)
    if penalty.masked_gram is None:
        penalty.masked_gram = mask_square(party, penalty.gram)
    pulled = arithmetic.truncate(party, product(party, penalty.masked_gram, weight), MATRIX_BITS)
    whole = arithmetic.scaled_bilinear(party, "mul", pulled, weight, 1 << (2 * HEAD_BITS - WIDE_BITS))
    return whole.reshape(len(weight), heads, -1).sum(axis=(0, 2))


def loss_sums(session: Session, logits: Words, label: Words, task: Task, bound: float) -> Words:
    """Summed loss, WIDE_BITS, of each of several sets of logits with FRACTION_BITS. The label has RESIDUAL_BITS."""
    party = session.party
    if task == "regression":
        target = arithmetic.truncate(party, label, RESIDUAL_BITS - FRACTION_BITS)
        return arithmetic.square(party, logits - target).sum(axis=(1, 2))
    factor = label - (1 << (RESIDUAL_BITS - 1) if session.rank == 0 else 0)
    even = series.evaluate(party, "log_cosh", logits, bound)
    unit = 1 << (RESIDUAL_BITS + FRACTION_BITS - WIDE_BITS)
    return (even - arithmetic.scaled_bilinear(party, "mul", factor, logits, unit)).sum(axis=(1, 2))


def mean_losses(session: Session, logits: Words, label: Words, task: Task, bound: float) -> Words:
    """Mean loss, WIDE_BITS, of each head; logits are rows x heads x outputs."""
    sets = np.ascontiguousarray(logits.transpose(1, 0, 2))
    return arithmetic.divide(session.party, loss_sums(session, sets, label, task, bound), len(logits))


def losses_at(
    session: Session, logits: Words, label: Words, task: Task, temperatures: Sequence[float], bound: float
) -> Words:
    """Summed loss, WIDE_BITS, of the logits (rows x outputs) over each temperature."""
    inverse = np.array([round(2**FRACTION_BITS / t) for t in temperatures], np.int64)
    each = max(1, _TEMPERED_ROWS // len(logits))
    parts = []
    for start in range(0, len(temperatures), each):
        scaled = inverse[start : start + each, None, None] * logits
        tempered = arithmetic.truncate(session.party, scaled, FRACTION_BITS)
        parts.append(loss_sums(session, tempered, label, task, bound))
    return np.concatenate(parts)


def rising(
    session: Session,
    logits: Words,
    label: Words,
    task: Task,
    temperatures: Sequence[float],
    bound: float,
    clamped: bool,
) -> Words:
    """Shares of the bits that say whether the loss rises from each temperature to the next.

    `bound`: of the logits; `clamped`: they are clamped to it.
    """
    if clamped:
        logits = words_of(session.clamp(session.wrap(logits, FRACTION_BITS), bound))
    losses = losses_at(session, logits, label, task, temperatures, 2 * bound)
    return comparison.negative(session.party, losses[:-1] - losses[1:])


def flips(session: Session, logits: Words, shifts: Sequence[Words]) -> tuple[Words, int]:
    """Of each head, how many shifted copies have another decision than their record; and how many copies there are.

    All are rows x heads x outputs.
    """
    rows, heads, outputs = logits.shape
    if not shifts:
        return np.zeros(heads, np.int64), 1
    copies = np.concatenate([logits + shift for shift in shifts])
    decided = decisions(session, np.concatenate([logits, copies]).reshape(-1, outputs))
    before, after = np.split(decided.reshape(-1, heads, decided.shape[1]), [rows])
    before = np.tile(before, (len(shifts), 1, 1))
    same = arithmetic.bilinear(session.party, "mul", after, before)
    if outputs == 1:
        return (after + before - 2 * same).sum(axis=(0, 2)), len(copies)
    return (len(copies) if session.rank == 0 else 0) - same.sum(axis=(0, 2)), len(copies)


def recovered(session: Session, logits: Words, groups: AtHolder, holder: int, count: int, floor: int) -> Words:
    """The figures of `Leak.of`, WIDE_BITS, of logits that guess the group. The holder weighs groups."""
    party, rows = session.party, len(logits)
    shown = decisions(session, logits)
    if count == 2:
        other = (1 if session.rank == 0 else 0) - shown
        shown = np.concatenate([other, shown], axis=1)
    truth = share_groups(session, groups, holder, (rows, count))
    right = arithmetic.bilinear(party, "mul", shown, truth).sum(axis=0)
    weights, known = None, None
    if session.rank == holder and groups is not None:
        weights, largest, counted = group_weights(groups, count, floor)
        known = np.array([largest, float(counted)])
    shared = share_held(session, weights, holder, (2, count), WIDE_BITS)
    means = arithmetic.bilinear(party, "mul", np.stack([right, right]), shared).sum(axis=1)
    return np.concatenate([means, share_held(session, known, holder, (2,), WIDE_BITS)])
