"""Steps of a module head under MPC, by CrypTen's autograd on pinned inputs.

Before: owners know their encodings, nobody knows the selected counterfactuals; both are under masks that were opened
once. Weights and velocities are shared. After: shares of the next weights, and of the logits that the step started
from. Nothing is opened but values under uniform masks that are used once, inside CrypTen's operators.

All rows go through the module together: the n records, below them each of their counterfactuals, and a copy for each
direction of the guard. The derivative of the objective in each logit z(x), with moved copies x' of weight w, is

    sigmoid(z(x)) - y - sum of w (z(x') - z(x))     for a record, and     w (z(x') - z(x))     for a copy.

The derivative is handed to `backward`, so the loss itself is never computed, and sums are divided by n only where
weights move, where that costs no precision. Weights, velocities and activations have HEAD_BITS, and the sigmoid is
the precise one: a ReLU that rounding switches at one record moves the next step, so small errors grow on the way,
where a linear head ends at its one optimum.

Rounds of a step of head `mlp`: first layer 2, comparison 6, ReLU 1, second layer 2; sigmoid 2, slopes 1; backward 5;
weights 1: 20 in all. A regression has no sigmoid: 18. Bytes to each peer: about 100 for every row and hidden unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from protocols.operations.sigmoid import FINE_BOUND
from protocols.ring import FRACTION_BITS
from protocols.session.runtime import Session, crypten
from protocols.steps.head import HEAD_BITS, RESIDUAL_BITS
from protocols.steps.second_order import Shared
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.training.handles import SharedChoices, SharedModule, SharedModuleDescent
from secure_sccvfl.training.modules import HeadSpec, decays, with_weights

_GRADIENT_BITS, _FEW_ROWS = 20, 1 << 15
"""Fractional bits of gradients over at most so many rows; over more they have the usual fraction.

A sum over rows of activations (24 bits) times gradients must stay below 2^62.
"""
_DIVIDED_BITS = 34
"""Of gradients and weights before they are divided by a public number: the divisor is then precise to 2^-14."""


def first_module(session: Session, spec: HeadSpec, columns: int, outputs: int, task: Task, seed: int) -> SharedModule:
    """The module at its public first weights."""
    start = spec.first_weights(columns, outputs, seed)
    weights = {name: session.public(value, HEAD_BITS) for name, value in start.items()}
    still = {name: session.public(np.zeros(value.shape), HEAD_BITS) for name, value in start.items()}
    return SharedModule(spec, weights, still, task, outputs)


def forward(module: SharedModule, rows: Shared) -> Shared:
    """Logits of pinned rows, FRACTION_BITS, outside of training."""
    with crypten.no_grad():
        return _applied(module, rows, {name: one.rescale(FRACTION_BITS) for name, one in module.weights.items()})


def _applied(module: SharedModule, rows: Shared, weights: Mapping[str, Shared]) -> Shared:
    return with_weights(module.spec.build(rows.size(1), module.outputs), weights, encrypted=True)(rows)


def moved_rows(session: Session, whole: Shared, chosen: SharedChoices) -> list[Shared]:
    """The encodings of all parties, moved by each draw and pinned: one round each. whole: not pinned."""
    found = []
    for draw in chosen.draws:
        wide = session.public(np.zeros((draw.size(0), whole.size(1))))
        wide[:, torch.from_numpy(chosen.columns)] = draw
        found.append((whole + wide).pinned())
    return found


def stepped(session: Session, module: SharedModule, descent: SharedModuleDescent) -> SharedModule:
    """One full-batch step with momentum."""
    step, count = descent.step, descent.batch.rows
    used = {name: one.shallow_copy() for name, one in module.weights.items()}
    for one in used.values():
        one.requires_grad = True
    logits = _applied(module, descent.rows, used)
    with crypten.no_grad():
        slope = _slopes(session, logits, descent, module.task)
    logits.backward(slope)
    with crypten.no_grad():
        change = {}
        for name, one in used.items():
            summed = one.grad.rescale(_DIVIDED_BITS) / (count / step.rate)
            change[name] = module.velocity[name] * step.momentum - summed
            if decays(one):
                decay = module.weights[name].rescale(_DIVIDED_BITS) / (1 / (step.rate * descent.ridge))
                change[name] = change[name] - decay
        velocity = {name: one.rescale(HEAD_BITS) for name, one in change.items()}
        session.flush()
        weights = {name: module.weights[name] + one for name, one in velocity.items()}
    return replace(module, weights=weights, velocity=velocity, last_logits=logits.detach())


def _slopes(session: Session, logits: Shared, descent: SharedModuleDescent, task: Task) -> Shared:
    """The derivative of the summed objective in every logit; its fraction is that of all gradients."""
    batch, wide = descent.batch, logits.rescale(HEAD_BITS)
    count = batch.rows
    first = wide[:count]
    if task == "regression":
        residual = first.rescale(RESIDUAL_BITS) - batch.label
    else:
        residual = session.sigmoid(first, FINE_BOUND) - batch.label
    gaps = [wide[at * count : (at + 1) * count] - first for at in range(1, len(descent.weights) + 1)]
    pulls = [gap * weight for gap, weight in zip(gaps, descent.weights, strict=True)]
    for pull in pulls:
        residual = residual - pull
    bits = _GRADIENT_BITS if wide.size(0) <= _FEW_ROWS else FRACTION_BITS
    return crypten.cat([one.rescale(bits) for one in (residual, *pulls)])


def gap_squared(shifts: Sequence[Shared], heads: int) -> Shared:
    """Mean squared shift of the logits of each head, over records and draws; WIDE_BITS. shifts: rows x heads."""
    rows = len(shifts) * shifts[0].size(0)
    every = crypten.cat(list(shifts))
    return every.exact().square().reshape(rows, heads, -1).sum((0, 2)) / rows
