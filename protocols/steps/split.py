"""One step of split learning under MPC: encoders at the parties; head, labels and s are secret-shared.

Before: party p holds its activations h_p of the rows of this step. If it has mediators, it also holds how far every
hypothesised counterfactual moves them (`deltas`, one for each group a record may be in). The holder of each protected
attribute holds its one-hot s. Head, velocity and label are shares. After: shares of the new head and velocity, and of
what is opened to each party about its own activations. Activations change in every step, so every step masks them
again.

| round | opened | ring elements to each peer |
|---|---|---|
| 1 | h - A and deltas - D by their owner, s - S by its holder, w - b | rows x width x (1 + groups), columns |
| 2 | logits u + t modulo the period, shifts v - b_v: then residuals r and y = s v | rows x (1 + groups) |
| 3 | r - b_r, y - b_y: head gradients; c = r - lam * shift is truncated | rows x (2 + groups) |
| 4 | truncation of the update with rate and momentum as divisors; c - b_c | columns x 3 + 2, rows |
| 5, 6 | what precedes every release; to each owner only: its gradient (see below) | (rows + width) x probes |

The first four rounds reveal nothing: each opened value is a secret plus a uniform tuple value used once.

What round 6 reveals. The gradient of the loss in h_p is G = c w_p^T, of rank `outputs`. Its owner gets G V and Q^T G
for public sign matrices V and Q with a few columns more than the rank, and computes G = (G V) (Q^T G V)^+ (Q^T G). So
it gets a few vectors instead of a matrix, and both are functions of G. They carry a uniform dither of one unit in the
last place (2^-16): the exact integers would reveal more, since their common divisors are the head's weights. G itself
reveals every label of the step (attacks/gradients.py) and the direction of w_p; that is the leakage of mode `split`.

What round 6 does not reveal. The consistency gradient in the *edited* activations is zero in every direction but the
record's own: it would reveal s to every party. So the counterfactual logit is a target: c pulls the original towards
it, and edited activations get no gradient. The head is trained on the whole loss, under MPC. c still holds one number
for each record that depends on s where counterfactuals shift the logit. Over many steps that reveals s to a party
that knows it of other records (tests/contract/test_split_paper.py measures it). So `split` does not keep s private.

Fractions: activations 12 bits, head 18, logits 30, residual 28, c 20. With |h| <= 16, |u| and |v| <= 22 and 2^11 rows
all sums stay below 2^62, where truncation is exact. The products come from one tuple (protocols/session/products.py),
so that the masks of activations and of the head serve every product of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.session.products import SplitLayout, SplitProducts
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps.head import Weights

Shared = Any
"""A CrypTen tensor."""
Probes = tuple[Array, Array]
"""Public sign matrices: V for the columns of all parties, Q for the rows."""

ACTIVATION_BITS = 12
SPLIT_HEAD_BITS = 18
SPLIT_LOGIT_BITS = ACTIVATION_BITS + SPLIT_HEAD_BITS
RESIDUAL_BITS = 28
SIGNAL_BITS = 20
PRODUCT_BITS = SIGNAL_BITS + SPLIT_HEAD_BITS
DITHER_BITS = PRODUCT_BITS - 16
ACTIVATION_LIMIT = 16.0
_LAMBDA_BITS = 8
_PACE_BITS = 16


@dataclass(frozen=True, repr=False)
class Inputs:
    """The inputs of a step, as tensors that their owners know.

    Activations (rows x columns), how far each edit moves those of the parties that edit (rows x directions x their
    columns; None if nobody does), and the one-hot rows of each attribute.
    """

    activations: Shared
    deltas: Shared | None
    one_hot: tuple[Shared, ...]


@dataclass(frozen=True)
class SplitPace:
    """Public numbers of a step."""

    rate: float
    momentum: float
    decay: float
    lam: float


@dataclass(frozen=True, repr=False)
class Stepped:
    """The new head, the step's logits and shifts, and what is opened to each party: tensors."""

    weights: Weights
    logits: Shared
    shifts: Shared
    projections: tuple[Shared, ...]


def inputs_of(
    session: Session,
    layout: SplitLayout,
    activations: Array,
    deltas: Array | None = None,
    one_hot: Mapping[int, Array] | None = None,
) -> Inputs:
    """Party step, local: this party's inputs, and the shapes of the others'. Nothing is sent.

    deltas: rows x directions x own columns, if this party edits. one_hot: of the attributes that it holds, by number.
    """
    rows, directions, held = layout.rows, layout.directions, one_hot or {}

    def block(values: Array | None, owner: int, *lead: int) -> Shared:
        shape = (*lead, layout.widths[owner])
        return session.owned(values, owner=owner, shape=shape, bits=ACTIVATION_BITS, limit=ACTIVATION_LIMIT)

    blocks = [block(activations, rank, rows) for rank in range(session.parties)]
    if not directions:
        return Inputs(crypten.cat(blocks, dim=1), None, ())
    moved = [block(deltas, rank, rows, directions) for rank in layout.editing]
    groups = [
        session.owned(held.get(number), owner=holder, shape=(rows, count), bits=0)
        for number, (holder, count) in enumerate(layout.attributes)
    ]
    return Inputs(crypten.cat(blocks, dim=1), crypten.cat(moved, dim=2), tuple(groups))


def split_step(
    layout: SplitLayout,
    weights: Weights,
    inputs: Inputs,
    pace: SplitPace,
    residual: Callable[[Shared], Shared],
    probe: Probes,
) -> Stepped:
    """All rounds but the last. `residual` is prediction minus label of logits, RESIDUAL_BITS: one round."""
    left, right = (torch.from_numpy(signs) for signs in probe)
    slices = [layout.of(rank) for rank in range(len(layout.widths))]
    probed = crypten.cat([weights.weight[s].t() @ left[s] for s in slices], dim=1)
    blocks = inputs.activations, inputs.deltas, inputs.one_hot
    products = SplitProducts(layout, DITHER_BITS, *blocks, weights.weight, probed)  # round 1

    logits = products.logits + weights.bias
    chosen = products.selected()
    r = residual(logits)  # round 2 opens what both need
    shift = chosen.sum(1)

    task, pull = products.task(r), products.pull(chosen)
    pulled = shift.with_fraction(0) * round(pace.lam * 2**_LAMBDA_BITS)
    c = (r - pulled.with_fraction(SPLIT_LOGIT_BITS + _LAMBDA_BITS)).rescale(SIGNAL_BITS)
    q = (c.t() @ right).t()  # round 3: c, and what gradients of the head need

    projections = products.projections(c, q)
    following = _descended(weights, task, pull if layout.directions and pace.lam > 0 else None, r, pace)
    middle = 2.0 ** (DITHER_BITS - 1 - PRODUCT_BITS)  # the mean of the dither, which is uniform from 0 on
    shown = tuple(
        projections[start:end] - middle for start, end in pairwise([0, *accumulate(layout.projection_sizes)])
    )
    return Stepped(following, logits, shift, shown)


def _descended(weights: Weights, task: Shared, pull: Shared | None, r: Shared, pace: SplitPace) -> Weights:
    """The head after the step; round 4. Rate and lambda are in the divisors of truncations, which are exact."""
    kept, decay = round(pace.momentum * 2**_PACE_BITS), round(pace.rate * pace.decay * 2**_PACE_BITS)
    unit = r.size(0) / pace.rate
    still = crypten.cat([weights.velocity * kept - weights.weight * decay, weights.bias_velocity[None] * kept])
    moved = still.with_fraction(SPLIT_HEAD_BITS + _PACE_BITS).rescale(SPLIT_HEAD_BITS)
    steps = [(task / unit).rescale(SPLIT_HEAD_BITS), (r.sum(0) / unit).rescale(SPLIT_HEAD_BITS)]
    if pull is not None:
        steps.append((pull / (unit / pace.lam)).rescale(SPLIT_HEAD_BITS))
    by_task, by_bias, *by_pull = steps
    velocity, bias_velocity = moved[:-1] - by_task, moved[-1] - by_bias
    for step in by_pull:
        velocity = velocity - step
    return Weights(weights.weight + velocity, weights.bias + bias_velocity, velocity, bias_velocity)


def gradient_of(projection: Array, layout: SplitLayout, rank: int, probe: Probes) -> Array:
    """Party step, local: the gradient (rows x width) of the summed loss, from what was opened."""
    cut = layout.rows * layout.probes
    tall, wide = projection[:cut].reshape(layout.rows, -1), projection[cut:].reshape(layout.probes, -1)
    left, right = probe[0][layout.of(rank)], probe[1]
    core = (right.T @ tall + wide @ left) / 2
    u, values, v = np.linalg.svd(core)
    kept = np.where(values[: layout.outputs] > 2.0**-10, 1 / np.maximum(values[: layout.outputs], 2.0**-10), 0)
    gradient: Array = (tall @ v[: layout.outputs].T * kept) @ (u[:, : layout.outputs].T @ wide)
    return gradient
