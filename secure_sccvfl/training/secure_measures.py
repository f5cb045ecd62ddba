"""Sums over logits of several heads: losses, variance, decisions that flip. CrypTen tensors; nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from protocols.ring import FRACTION_BITS, WIDE_BITS
from protocols.session.runtime import Session, crypten
from protocols.steps.head import HEAD_BITS, LOGIT_BOUND, RESIDUAL_BITS
from protocols.steps.second_order import Shared, bounded_slope
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.training.shared import SharedPenalty

_TEMPERED_ROWS = 1 << 14
"""How many logits are tried at several temperatures at a time."""


def variance(logits: Shared) -> Shared:
    """Variance of the logits (rows x heads x outputs) of each head, summed over outputs, WIDE_BITS."""
    rows = logits.size(0)
    middle = logits.sum(0) / rows
    return (logits - middle).exact().square().sum((0, 2)) / rows


def residual_of_private(logits: Shared, label: Shared, task: Task, fine: bool) -> Shared:
    """The slope of the loss of a private head in each logit, RESIDUAL_BITS; logits have LOGIT_BITS.

    label: whole numbers of classes, RESIDUAL_BITS of a regression.
    """
    if task == "regression":
        return bounded_slope(logits, label, fine=fine)
    return logits.capped_slope(label, fine=fine)


def residual_of(logits: Shared, label: Shared, task: Task) -> Shared:
    """The slope of the loss in each logit, RESIDUAL_BITS as the label; logits have LOGIT_BITS."""
    if task == "regression":
        return logits.rescale(RESIDUAL_BITS, sliced=True) - label
    return logits.sigmoid(bound=LOGIT_BOUND) - label


def gap_squared(session: Session, penalty: SharedPenalty | None, weight: Shared, heads: int) -> Shared:
    """Mean squared shift of the logits of each head under counterfactuals, WIDE_BITS: w^T G w; 0 without any."""
    if penalty is None:
        return session.public(np.zeros(heads), WIDE_BITS)
    if penalty.masked_gram is None:
        penalty.masked_gram = penalty.gram.pinned()
    pulled = (penalty.masked_gram @ weight).rescale(HEAD_BITS, sliced=True)
    return (pulled * weight).rescale(WIDE_BITS).reshape(weight.size(0), heads, -1).sum((0, 2))


def mean_square(shifts: Sequence[Shared], heads: int) -> Shared:
    """Mean squared shift of the logits of each head, over records and draws; WIDE_BITS. shifts: rows x heads."""
    rows = len(shifts) * shifts[0].size(0)
    every = crypten.cat(list(shifts))
    return every.exact().square().reshape(rows, heads, -1).sum((0, 2)) / rows


def loss_sums(session: Session, logits: Shared, label: Shared, task: Task, bound: float) -> Shared:
    """Summed loss, WIDE_BITS, of each of several sets of logits with FRACTION_BITS. The label has RESIDUAL_BITS."""
    if task == "regression":
        return (logits - label.rescale(FRACTION_BITS, sliced=True)).exact().square().sum((1, 2))
    even = session.log_cosh(logits, bound)
    return (even - ((label - 0.5) * logits).rescale(WIDE_BITS)).sum((1, 2))


def mean_losses(session: Session, logits: Shared, label: Shared, task: Task, bound: float) -> Shared:
    """Mean loss, WIDE_BITS, of each head; logits are rows x heads x outputs."""
    return loss_sums(session, logits.permute(1, 0, 2), label, task, bound) / logits.size(0)


def losses_at(
    session: Session, logits: Shared, label: Shared, task: Task, temperatures: Sequence[float], bound: float
) -> Shared:
    """Summed loss, WIDE_BITS, of the logits (rows x outputs) over each temperature."""
    inverse = torch.tensor([round(2**FRACTION_BITS / t) for t in temperatures])[:, None, None]
    each = max(1, _TEMPERED_ROWS // logits.size(0))
    parts = []
    for start in range(0, len(temperatures), each):
        tempered = logits[None] * inverse[start : start + each] / (1 << FRACTION_BITS)
        parts.append(loss_sums(session, tempered, label, task, bound))
    return crypten.cat(parts)


def rising(
    session: Session, logits: Shared, label: Shared, task: Task, temperatures: Sequence[float], bound: float
) -> Shared:
    """The bits that say whether the loss rises from each temperature to the next. `bound`: of the logits."""
    losses = losses_at(session, logits, label, task, temperatures, 2 * bound)
    return losses[:-1] - losses[1:] < 0
