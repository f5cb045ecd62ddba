"""Sums over shared logits: losses, variance, and decisions that flip. Shares in, shares out, nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocols.dealing.party import Party
from protocols.operations import arithmetic, series
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from protocols.steps.head import RESIDUAL_BITS
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.training.leak import group_weights
from secure_sccvfl.training.sharing import decisions, share_groups, share_held


def total(words: Words) -> Words:
    """The sum as an array of one: numpy scalars warn where the ring wraps."""
    found: Words = words.reshape(-1).sum(keepdims=True)
    return found


def variance(party: Party, logits: Words) -> Words:
    """Variance of the logits, summed over outputs, WIDE_BITS."""
    rows = len(logits)
    middle = arithmetic.divide(party, logits.sum(axis=0), rows)
    return arithmetic.divide(party, total(arithmetic.square(party, logits - middle)), rows)


def loss_sums(session: Session, logits: Words, label: Words, task: Task, bound: float) -> Words:
    """Summed loss, WIDE_BITS, of each of several sets of logits with FRACTION_BITS. The label has RESIDUAL_BITS."""
    party = session.party
    if task == "regression":
        target = arithmetic.truncate(party, label, RESIDUAL_BITS - FRACTION_BITS)
        return arithmetic.square(party, logits - target).sum(axis=(1, 2))
    if task == "binary":
        factor = label - (1 << (RESIDUAL_BITS - 1) if session.rank == 0 else 0)
        even, odd = series.evaluate(party, "log_cosh", logits, bound), logits
    else:
        factor, even = label, np.zeros_like(logits)
        odd = words_of(session.wrap(logits, FRACTION_BITS).log_softmax(dim=2))
    unit = 1 << (RESIDUAL_BITS + FRACTION_BITS - WIDE_BITS)
    return (even - arithmetic.scaled_bilinear(party, "mul", factor, odd, unit)).sum(axis=(1, 2))


def flips(session: Session, logits: Words, shifts: Sequence[Words]) -> tuple[Words, int]:
    """The number of shifted copies whose decision differs from its record's, and how many copies there are."""
    if not shifts:
        return np.zeros(1, np.int64), 1
    copies = np.concatenate([logits + shift for shift in shifts])
    before, after = np.split(decisions(session, np.concatenate([logits, copies])), [len(logits)])
    before = np.tile(before, (len(shifts), 1))
    same = arithmetic.bilinear(session.party, "mul", after, before)
    if logits.shape[1] == 1:
        return total(after + before - 2 * same), len(copies)
    return (len(copies) if session.rank == 0 else 0) - total(same), len(copies)


def recovered(session: Session, logits: Words, groups: AtHolder, holder: int, count: int, floor: int) -> Words:
    """The figures of `Leak.of`, WIDE_BITS, of logits that guess the group. The holder weighs groups by size."""
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
    balanced = total(
        arithmetic.bilinear(party, "mul", right, share_held(session, weights, holder, (count,), WIDE_BITS))
    )
    whole = arithmetic.divide(party, np.left_shift(total(right), WIDE_BITS), rows)
    return np.concatenate([balanced, whole, share_held(session, known, holder, (2,), WIDE_BITS)])
