"""One first-order step on shares: the head in the columns of a descent, one lambda at a time."""

from __future__ import annotations

import numpy as np

from protocols.dealing.party import Party
from protocols.operations import arithmetic, banded
from protocols.operations.banded import BandedMatrix
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from protocols.steps import head
from protocols.steps.head import HEAD_BITS, LOGIT_BITS, RESIDUAL_BITS, Pace, Weights
from protocols.steps.second_order import MATRIX_BITS
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.training import shared_measures
from secure_sccvfl.training.engine import SIGN_WIDTH
from secure_sccvfl.training.handles import SharedDescent

SCALE_BITS = 20
ROOT_BITS = 18


def stepped(
    session: Session, weights: Weights, descent: SharedDescent, pace: Pace, task: Task
) -> tuple[Weights, Words]:
    """The weights after one step, and the logits that it saw; five rounds, whether rows are counted in secret or not.

    Where they are, the bias is the weight of a last column, which is 1 where a row counts.
    """
    party, batch, columns = session.party, descent.batch, len(weights.weight)
    counts = batch.presence is not None
    whole = np.concatenate([weights.weight, weights.bias[None]]) if counts else weights.weight
    both = banded.product(party, descent.both, whole)
    logits = both[: batch.rows] if counts else head.logits_of(both[: batch.rows], weights.bias)
    pull = both[batch.rows : batch.rows + columns]
    residual = shared_measures.residual_of(session, logits, batch.label, task)
    gradients = banded.transposed_products(party, descent.rows, residual)
    slopes, bits = residual.sum(axis=0, keepdims=True), RESIDUAL_BITS
    if counts:
        slopes, bits = gradients[:, columns], RESIDUAL_BITS + FRACTION_BITS
        gradients = np.ascontiguousarray(gradients[:, :columns])
    if descent.edits is not None:
        pull = pull + _smooth_sign_pull(session, weights, descent, descent.edits)
    return head.descend(party, weights, gradients, pull, slopes, bits, pace, batch.count), logits


def _smooth_sign_pull(session: Session, weights: Weights, descent: SharedDescent, edits: BandedMatrix) -> Words:
    """The l1 consistency gradient in scaled columns, 2 HEAD_BITS: D^T tanh(D w / width) / records."""
    party, batch = session.party, descent.batch
    plain = times(party, weights.weight, descent.scale_shares)
    reached = plain[descent.reached]
    shift = arithmetic.truncate(party, banded.product(party, edits, reached), LOGIT_BITS - FRACTION_BITS)
    steep = session.wrap(shift * round(1 / SIGN_WIDTH), FRACTION_BITS)
    sign = words_of(session.tanh(steep))
    narrow = arithmetic.truncate(party, sign, WIDE_BITS - RESIDUAL_BITS)
    pulls = banded.transposed_products(party, edits, narrow)
    records = batch.count * (edits.rows // batch.rows)
    unit = round(records * 2 ** (FRACTION_BITS + RESIDUAL_BITS - HEAD_BITS) / descent.step.lam)
    mean = np.zeros_like(weights.weight)
    mean[descent.reached] = arithmetic.divide(party, pulls, unit).sum(axis=0)
    return np.left_shift(times(party, mean, descent.scale_shares), HEAD_BITS)


def consistency(party: Party, gram: Words, root: Words) -> Words:
    """Shares of the Gram matrix of the edits times roots on both sides (ROOT_BITS), HEAD_BITS."""
    half = arithmetic.scaled_bilinear(party, "mul", gram, root[:, None], 1 << ROOT_BITS)
    unit = 1 << (MATRIX_BITS + ROOT_BITS - HEAD_BITS)
    return arithmetic.scaled_bilinear(party, "mul", half, root[None, :], unit)


def times(party: Party, values: Words, factors: Words) -> Words:
    """Columns of shares times a shared vector with SCALE_BITS."""
    return arithmetic.scaled_bilinear(party, "mul", values, factors[:, None], 1 << SCALE_BITS)
