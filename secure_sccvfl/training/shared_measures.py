"""Sums over shared logits of several heads: losses, variance, decisions that flip. Nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocols.dealing.party import Party
from protocols.operations import arithmetic, series
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from protocols.steps.head import RESIDUAL_BITS
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.training.sharing import decisions


def variance(party: Party, logits: Words) -> Words:
    """Variance of the logits (rows x heads x outputs) of each head, summed over outputs, WIDE_BITS."""
    rows = len(logits)
    middle = arithmetic.divide(party, logits.sum(axis=0), rows)
    return arithmetic.divide(party, arithmetic.square(party, logits - middle).sum(axis=(0, 2)), rows)


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
