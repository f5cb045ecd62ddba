"""Training steps under MPC: first-order and second-order steps of linear heads, and steps of a module by autograd.

Only values under uniform masks that are used once are opened, inside CrypTen's operators.

**Linear heads.** A party knows the scales of its own columns; they become tensors over all columns without
communication. Second-order steps are the protocol of protocols/steps/second_order.py.

**Modules.** Owners know their encodings, nobody knows the selected counterfactuals; both are under masks that were
opened once. Weights and velocities are shared. All rows go through the module together: the n records, below them
each of their counterfactuals, and a copy for each direction of the proxy penalty. The derivative of the objective in
each logit z(x), with moved copies x' of weight w, is

    sigmoid(z(x)) - y - sum of w (z(x') - z(x))     for a record, and     w (z(x') - z(x))     for a copy.

The derivative is passed to `backward`, so the loss itself is never computed, and sums are divided by n only where
weights move, where that costs no precision. Weights, velocities and activations have HEAD_BITS, and the sigmoid is
the precise one: a ReLU that rounding switches at one record moves the next step, so small errors grow on the way,
where a linear head ends at its one optimum. Rounds of a step of head `mlp`: first layer 2, comparison 6, ReLU 1,
second layer 2; sigmoid 2, slopes 1; backward 5; weights 1: 20 in all. A regression has no sigmoid: 18. Bytes to each
peer: about 100 for every row and hidden unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.errors import ProtocolError, RangeError
from secure_sccvfl.protocols.operations.sigmoid import FINE_BOUND
from secure_sccvfl.protocols.ring import FRACTION_BITS, WIDE_BITS
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps import second_order
from secure_sccvfl.protocols.steps.head import (
    HEAD_BITS,
    LOGIT_BITS,
    LOGIT_BOUND,
    RESIDUAL_BITS,
    Pace,
    Weights,
    check_reach,
    scaled_columns,
)
from secure_sccvfl.protocols.steps.second_order import (
    INVERSE_LIMIT,
    MATRIX_BITS,
    RIDGE_BITS,
    VECTOR_BITS,
    Gradients,
    Moving,
    Plan,
    Scales,
    Shared,
    Slope,
    bounded_slope,
)
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.grid import (
    PRIVATE_SAMPLED,
    SAMPLED,
    SHARP_MOMENTUM,
    SHARP_RATE,
    Bounds,
    Grid,
    sampled_rows,
    scales,
)
from secure_sccvfl.training.modules import HeadSpec, decays, with_weights
from secure_sccvfl.training.proven import proven_numbers
from secure_sccvfl.training.shared import (
    Scaled,
    SharedBatch,
    SharedDraws,
    SharedGrid,
    SharedHead,
    SharedModule,
    SharedModuleOptimizer,
    SharedNoise,
    SharedOptimizer,
    SharedPenalty,
    SharedRows,
    on_diagonal,
    side_by_side,
    with_bias,
)

SCALE_BITS, ROOT_BITS = 20, 18
Residuals = Callable[[slice], Callable[[Shared], Shared]]
"""For some weights of a grid: from their logits to the slope of their loss."""
_TOGETHER = 3 << 18
"""How many logits go through the sigmoid at once: the dealer makes 26 words of 4 bytes for each."""
_GRADIENT_BITS, _FEW_ROWS = 20, 1 << 15
"""Fractional bits of a module's gradients over at most so many rows; over more they have the usual fraction.

A sum over rows of activations (24 bits) times gradients must stay below 2^62.
"""
_REACH = 10
"""With active security owners prove that scales and directions are below 2^10 in magnitude."""
_INVERSE_ERROR = 2.0**-8
"""How far 1 / s of an owner times its s may be below 1, with active security."""
_DIVIDED_BITS = 34
"""Of gradients and weights before they are divided by a public number: the divisor is then precise to 2^-14."""


def times(values: Shared, factors: Shared) -> Shared:
    """Columns with HEAD_BITS times a shared vector with SCALE_BITS."""
    return (values * factors[:, None]).rescale(HEAD_BITS)


# first order


def first_order_step(
    session: Session, weights: Weights, optimizer: SharedOptimizer, pace: Pace, task: Task
) -> tuple[Weights, Shared]:
    """The weights after one step, and the logits that it saw; five rounds, whether rows are counted or not.

    Where they are, the bias is the weight of a last column, which is 1 where a row counts. `optimizer.square` is the
    penalty H, with another fraction. The step is velocity = momentum * velocity - rate * (X^T r / records + H w),
    weight += velocity.
    """
    batch, columns = optimizer.batch, weights.weight.size(0)
    counts = batch.membership is not None
    whole = weights.whole if counts else weights.weight
    if session.shards is None:  # together, so that the weights are opened once
        both = crypten.cat([optimizer.rows, optimizer.square]) @ whole
        product, pulled = both[: batch.rows], both[batch.rows :]
    else:
        product, pulled = optimizer.rows @ whole, optimizer.square @ whole
    logits = product if counts else product + weights.bias
    pull = pulled[:columns].with_fraction(2 * HEAD_BITS)
    residual = residual_of(logits, batch.label, task)
    sums = optimizer.rows.t() @ residual
    session.flush()
    slope, gradients = (sums[columns], sums[:columns]) if counts else (residual.sum(0), sums)
    size, shape = weights.weight.nelement(), weights.weight.size()
    flat = crypten.cat([weights.velocity.reshape(-1), weights.bias_velocity.reshape(-1)])
    kept = (pace.momentum * flat).rescale(HEAD_BITS)
    gradient = (pace.rate * gradients / batch.count).rescale(HEAD_BITS)
    pulled = (pace.rate * pull).rescale(HEAD_BITS)
    drift = (slope / (batch.count * pace.bias_curvature / pace.rate)).rescale(HEAD_BITS)
    velocity = kept[:size].reshape(shape) - gradient - pulled
    bias_velocity = kept[size:] - drift
    return Weights(weights.weight + velocity, weights.bias + bias_velocity, velocity, bias_velocity), logits


def consistency(gram: Shared, root: Shared) -> Shared:
    """The Gram matrix of counterfactuals times roots on both sides (ROOT_BITS), HEAD_BITS."""
    half = (gram * root[:, None]).rescale(gram.encoder._precision_bits)
    return (half * root[None]).rescale(HEAD_BITS)


# second order


def _plan(grid: Grid, columns: int) -> Plan:
    """The public numbers of a grid; `columns` includes the bias."""
    return Plan(
        grid.heads,
        grid.inverted,
        grid.matrix_of,
        *(grid.curvature, grid.span(columns), grid.doublings(columns), grid.rate, grid.momentum),
        grid.sharp_doublings(columns),
    )


def _over_all(session: Session, widths: Sequence[int], own_values: np.ndarray, bias: np.ndarray, bits: int) -> Shared:
    """Vectors (rows) over the columns of all parties, and public values for the bias."""
    if session.active:
        values = proven_numbers(session, own_values, widths, bits, _REACH)
    else:
        values = side_by_side(session, widths, own_values, bits)
    return crypten.cat([values, session.public(bias[:, None], bits)], dim=1)


def _vectors(
    session: Session,
    widths: Sequence[int],
    scale: np.ndarray,
    ridge: np.ndarray,
    penalty: SharedPenalty | None,
    bias_ridge: float,
) -> Scales:
    """All vectors that second-order steps need; no communication. Raises where the inverse might leave its range."""
    if scale.size and float((1.0 / (ridge * scale**2)).max()) > INVERSE_LIMIT:
        raise RangeError(
            f"the curvature of a column is more than {INVERSE_LIMIT:g} times its ridge: scale the columns, or raise "
            "the ridge"
        )

    def spread(rows: np.ndarray, bias: np.ndarray, bits: int) -> Shared:
        return _over_all(session, widths, rows.reshape(len(bias), len(scale)), bias, bits)

    directions = () if penalty is None else penalty.directions
    scaled = np.array([direction * scale for direction in directions])
    if session.active:
        return _proven_vectors(spread, scale, scaled, penalty, bias_ridge)
    held = spread(ridge * scale**2, np.full(1, bias_ridge), RIDGE_BITS)[0]
    if penalty is not None and penalty.ranges is not None:
        block = on_diagonal(session, widths, penalty.ranges * np.outer(scale, scale), RIDGE_BITS)
        held = held * torch.eye(held.size(0), dtype=torch.int64) + block.pad((0, 1, 0, 1))
    return Scales(
        spread(scale, np.ones(1), VECTOR_BITS)[0],
        spread(scaled, np.zeros(len(directions)), VECTOR_BITS) if directions else None,
        held,
    )


def _proven_vectors(
    spread: Callable[[np.ndarray, np.ndarray, int], Shared],
    scale: np.ndarray,
    directions: np.ndarray,
    penalty: SharedPenalty | None,
    ridge: float,
) -> Scales:
    """`_vectors` of a private head, with ranges proven by owners; ridge s^2 is computed from s."""
    if penalty is not None and penalty.ranges is not None:
        raise ProtocolError("active security does not cover the range penalty: leave out kappa")
    scales_of_all = spread(scale, np.ones(1), VECTOR_BITS)[0]
    rows = spread(directions, np.zeros(len(directions)), VECTOR_BITS) if len(directions) else None
    return Scales(scales_of_all, rows, (scales_of_all.square() * ridge).rescale(RIDGE_BITS))


def _with_ones(
    session: Session,
    batch: SharedBatch,
    scale: np.ndarray,
    factors: Shared,
    widths: Sequence[int],
    bound: float | None,
) -> Shared:
    """The scaled encodings, pinned, with a last column of ones, or of zeros where a row does not count."""
    encodings, rows, last = batch.encodings, batch.rows, session.parties - 1
    if isinstance(encodings, SharedRows):
        check_reach(encodings.reach * scale)
        return with_bias(session, encodings, scaled_columns(encodings.tensor, factors[:-1])).pinned(bound)
    ones = session.tall.owned(np.broadcast_to(np.ones(1), (rows, 1)), owner=last, shape=(rows, 1))
    return crypten.cat([side_by_side(session.tall, widths, Scaled(encodings, scale)), ones], dim=1).pinned(bound)


def prepared(
    session: Session,
    widths: Sequence[int],
    batch: SharedBatch,
    penalty: SharedPenalty | None,
    grid: Grid,
    bounds: Bounds,
    number: int,
    noise: HeadNoise | None = None,
) -> SharedGrid:
    """What the steps of a grid share; `number`: of the optimizer."""
    columns = sum(widths)
    plan = _plan(grid, columns + 1)
    ridge, of_bias = batch.ridge, 0.0
    if noise is not None:
        of_bias = noise.ridge / batch.count
        ridge = np.full(len(ridge), of_bias)
    scale = scales(grid, *(blocks[session.rank] for blocks in bounds))
    vectors = _vectors(session, widths, scale, ridge, penalty, of_bias)
    # Sums are over the records, and divided by another number where that of records is secret. Then the penalties are
    # too, except those of a private head, whose objective is a sum with a public number of records.
    if batch.membership is not None and noise is None:
        vectors = replace(vectors, weight=batch.membership.ratio(session))
    with session.measure("mask encodings"):
        bound = None if noise is None else second_order.SHORT_ROWS
        rows = _with_ones(session, batch, scale, vectors.scale, widths, bound)
    drawn = slope = None
    if noise is not None:
        shape = (columns + 1, len(grid))
        drawn = second_order.noise_of_heads(
            session, noise.kind, noise.sigma / batch.count, shape, second_order.NOISE_BITS
        )
        if batch.codes is not None:  # the slope of the capped loss at logits of 0, RESIDUAL_BITS: 1/2 or -1/2
            slope = 0.5 - _tiled(batch.label, len(grid))
    with session.measure("inverse curvature"):
        gram = session.public(np.zeros((columns, columns)), MATRIX_BITS) if penalty is None else penalty.gram
        curvatures = second_order.inverse_curvatures(session, rows, gram, vectors, plan, batch.count, drawn, slope)
    each = max(1, _TOGETHER // batch.rows)
    ranges = [range(start, min(start + each, len(grid))) for start in range(0, len(grid), each)]
    private = begun = None
    if noise is not None and curvatures.tilt is not None:
        unscale = _over_all(session, widths, 1.0 / scale[None], np.ones(1), VECTOR_BITS)[0]
        private = SharedNoise(noise, curvatures.tilt, crypten.stack([unscale, vectors.scale]))
        if session.active:
            inverse = (unscale * vectors.scale).rescale(VECTOR_BITS)
            private = replace(private, inverse=(inverse - (1 - _INVERSE_ERROR)).with_fraction(0))
    if curvatures.gradient is not None:
        still = np.broadcast_to(np.zeros(1), (batch.rows, len(grid)))
        begun = (None, curvatures.gradient, session.tall.public(still, LOGIT_BITS))
    parts = tuple((part, list[Request]()) for part in ranges)
    return SharedGrid(
        number, number, batch, plan, scale, rows, curvatures.stack, parts, curvatures.curved, private, begun
    )


def sharpened(session: Session, grid: SharedGrid, before: Weights, number: int) -> SharedGrid:
    """The same with inverses of the curvature at these weights, estimated on SAMPLED bands of rows."""
    batch, private, heads = grid.batch, grid.private, before.whole
    most = SAMPLED if private is None else PRIVATE_SAMPLED
    sample, chosen = grid.rows.sampled(most), torch.from_numpy(sampled_rows(batch.rows, most))
    plan = grid.plan.refined(SHARP_RATE, SHARP_MOMENTUM if private is None else 0.0)
    slopes: second_order.Slopes = second_order.slopes_of
    if private is not None:
        slopes = second_order.slopes_of_bounded if batch.codes is None else second_order.slopes_of_capped
    together = len(grid.parts) == 1  # then the gradient of the next step comes with it
    label = labels_of(batch, heads.size(1), private is not None)
    with session.measure("inverse curvature"):
        seen = grid.rows if together else sample
        logits, pulls = second_order.look(seen, grid.stack, heads, 0)
        slope, steep = slopes(logits, label if together else label[chosen])
        steep = steep[chosen] if together else steep
        fitted, sums = second_order.curvature_at(sample, steep, plan, seen, slope if together else None)
        gradients = None if sums is None else _gradients(grid, sums, pulls, 0)
        share = batch.count * sample.size(0) / batch.rows
        curvatures = second_order.refined(session, grid.curved, fitted, share, plan, gradients)
    parts = tuple((part, list[Request]()) for part, _ in grid.parts)
    begun = None if curvatures.gradient is None else (before, curvatures.gradient, logits)
    return replace(grid, number=number, plan=plan, stack=curvatures.stack, parts=parts, begun=begun)


def labels_of(batch: SharedBatch, heads: int, private: bool) -> Shared:
    """The label for each column of weights: whole numbers of a class for private heads, else RESIDUAL_BITS."""
    return _tiled(batch.label if batch.codes is None or not private else batch.codes, heads)


def _tiled(label: Shared, heads: int) -> Shared:
    """The columns of a label, again for each lambda."""
    return label.repeat(1, heads // label.size(1))


def gradient_at(
    grid: SharedGrid, heads: Shared, start: int, residual: Callable[[Shared], Shared]
) -> tuple[Shared, Shared]:
    """The gradient of the mean objective of some weights of a grid, from number `start` on, and their logits."""
    logits, pulls = second_order.look(grid.rows, grid.stack, heads, start)
    sums = grid.rows.t() @ residual(logits)
    return _gradients(grid, sums, pulls, start).mean(grid.plan), logits


def _gradients(grid: SharedGrid, sums: Shared, pulls: Shared, start: int) -> Gradients:
    """Gradients from X^T r and the result of `look`."""
    return Gradients(sums, pulls, start, grid.batch.count, None if grid.private is None else grid.private.tilt)


def second_order_steps(
    session: Session, before: Weights, grid: SharedGrid, count: int, residuals: Residuals
) -> tuple[Weights, Shared | None, Slope | None]:
    """Weights after these steps, and logits and slope of the last one."""
    states, seen = list[Moving](), []
    heads, velocity = before.whole, crypten.cat([before.velocity, before.bias_velocity[None]])
    first = None
    if count and grid.begun is not None:  # gradient and logits may be known at the first weights
        there, gradient, logits = grid.begun
        first = (gradient, logits) if before is there or (there is None and before.zero) else None
    left = count if first is None else count - 1
    for part, pattern in grid.parts:
        here = slice(part.start, part.stop)
        residual = residuals(here)
        at = Moving(heads[:, here], velocity[:, here], part.start)
        if first is not None:
            at = second_order.move(at, first[0][:, here], grid.stack, grid.plan)
            if not left:
                seen.append(first[1][:, here])
        for step in session.repeat(left, pattern):
            gradient, logits = gradient_at(grid, at.heads, at.start, residual)
            at = second_order.move(at, gradient, grid.stack, grid.plan)
            if step == left - 1:
                seen.append(logits)
        states.append(at)
    after, moved = (crypten.cat([getattr(at, name) for at in states], dim=1) for name in ("heads", "velocity"))
    weights = Weights.of(after, moved)
    if not seen:
        return weights, None, None
    slopes = [at.slope for at in states if at.slope is not None]
    gradient, along = (crypten.cat([getattr(s, name) for s in slopes], dim=1) for name in ("gradient", "step"))
    return weights, crypten.cat(seen, dim=1), Slope(gradient, along, grid.plan.rate)


def separate(trained: SharedHead, plain: Shared, outputs: int) -> tuple[SharedHead, ...]:
    """The weights of each lambda. `plain`: weights for unscaled columns, of all of them."""
    last, end = trained.last_logits, trained.slope

    def column(at: int) -> SharedHead:
        here, every = slice(at, at + outputs), trained.weights
        parts = (every.weight, every.bias, every.velocity, every.bias_velocity)
        weights = Weights(*(one[..., here] for one in parts))
        seen = None if last is None else last[:, here]
        slope = None if end is None else Slope(end.gradient[:, here], end.step[:, here], end.rate)
        return SharedHead(weights, trained.scale, trained.task, trained.optimizer, seen, plain[:, here], slope)

    return tuple(column(at) for at in range(0, trained.weights.bias.size(0), outputs))


# modules


def first_module(session: Session, spec: HeadSpec, columns: int, outputs: int, task: Task, seed: int) -> SharedModule:
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


def moved_rows(session: Session, whole: Shared, chosen: SharedDraws) -> list[Shared]:
    """The encodings of all parties, moved by each draw and pinned: one round each. whole: not pinned."""
    moved = []
    for draw in chosen.draws:
        wide = session.public(np.zeros((draw.size(0), whole.size(1))))
        moved.append((whole + wide.index_add(1, torch.from_numpy(chosen.columns), draw)).pinned())
    return moved


def module_step(session: Session, module: SharedModule, optimizer: SharedModuleOptimizer) -> SharedModule:
    step, count = optimizer.step, optimizer.batch.rows
    used = {name: one.shallow_copy() for name, one in module.weights.items()}
    for one in used.values():
        one.requires_grad = True
    logits = _applied(module, optimizer.rows, used)
    with crypten.no_grad():
        slope = _slopes(session, logits, optimizer, module.task)
    logits.backward(slope)
    with crypten.no_grad():
        change = {}
        for name, one in used.items():
            summed = one.grad.rescale(_DIVIDED_BITS) / (count / step.rate)
            change[name] = module.velocity[name] * step.momentum - summed
            if decays(one):
                decay = module.weights[name].rescale(_DIVIDED_BITS) / (1 / (step.rate * optimizer.ridge))
                change[name] = change[name] - decay
        velocity = {name: one.rescale(HEAD_BITS) for name, one in change.items()}
        session.flush()
        weights = {name: module.weights[name] + one for name, one in velocity.items()}
    return replace(module, weights=weights, velocity=velocity, last_logits=logits.detach())


def _slopes(session: Session, logits: Shared, optimizer: SharedModuleOptimizer, task: Task) -> Shared:
    """The derivative of the summed objective in every logit; its fraction is that of all gradients."""
    batch, wide = optimizer.batch, logits.rescale(HEAD_BITS)
    count = batch.rows
    first = wide[:count]
    if task == "regression":
        residual = first.rescale(RESIDUAL_BITS) - batch.label
    else:
        residual = session.sigmoid(first, FINE_BOUND) - batch.label
    gaps = [wide[at * count : (at + 1) * count] - first for at in range(1, len(optimizer.weights) + 1)]
    pulls = [gap * weight for gap, weight in zip(gaps, optimizer.weights, strict=True)]
    for pull in pulls:
        residual = residual - pull
    bits = _GRADIENT_BITS if wide.size(0) <= _FEW_ROWS else FRACTION_BITS
    return crypten.cat([one.rescale(bits) for one in (residual, *pulls)])


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
