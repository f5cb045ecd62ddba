"""Second-order steps under MPC: what a party brings to them, their preparation, and the heads that they make.

A party knows the scales of its own columns. They become tensors over all columns without communication. The protocol
is protocols/steps/second_order.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from protocols.dealing.tuples import Request
from protocols.errors import RangeError
from protocols.session.runtime import Session, crypten
from protocols.steps import second_order
from protocols.steps.head import LOGIT_BITS, check_reach, scaled_columns
from protocols.steps.second_order import (
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
from secure_sccvfl.training.handles import (
    SharedBatch,
    SharedGrid,
    SharedHead,
    SharedNoise,
    SharedPenalty,
    SharedRows,
    Weights,
)
from secure_sccvfl.training.sharing import side_by_side, with_bias

Residuals = Callable[[slice], Callable[[Shared], Shared]]
"""For some heads of a grid: from their logits to the slope of their loss."""
_TOGETHER = 3 << 18
"""How many logits go through the sigmoid at once: the dealer makes 26 words of 4 bytes for each."""


def plan_of(grid: Grid, columns: int) -> Plan:
    """The public numbers of a grid; `columns` includes the bias."""
    return Plan(
        grid.heads,
        grid.inverted,
        grid.places,
        *(grid.curvature, grid.span(columns), grid.doublings(columns), grid.rate, grid.momentum),
        *(grid.sharp_doublings(columns), grid.guessing if grid.guesses else None),
        None if grid.without is None else grid.used(columns)[np.triu_indices(columns)],
    )


def parts_of(rows: int, heads: int) -> list[range]:
    """Heads that step together: all, unless there are many rows."""
    each = max(1, _TOGETHER // rows)
    return [range(start, min(start + each, heads)) for start in range(0, heads, each)]


def own_scales(grid: Grid, bounds: Bounds, rank: int, ridge: np.ndarray) -> np.ndarray:
    """The factor of each own column; raises where the inverse might leave its range."""
    own = scales(grid, *(blocks[rank] for blocks in bounds))
    if own.size and float((1.0 / (ridge * own**2)).max()) > INVERSE_LIMIT:
        raise RangeError(
            f"the curvature of a column is more than {INVERSE_LIMIT:g} times its ridge: scale the columns, or raise "
            "the ridge"
        )
    return own


def shared_scales(
    session: Session,
    widths: Sequence[int],
    grid: Grid,
    bounds: Bounds,
    ridge: np.ndarray,
    guards: Sequence[np.ndarray],
    bias_ridge: float = 0.0,
) -> Scales:
    """All vectors that second-order steps need. No communication."""
    own = own_scales(grid, bounds, session.rank, ridge)

    def spread(rows: np.ndarray, bias: np.ndarray, bits: int) -> Shared:
        return _over_all(session, widths, rows.reshape(len(bias), len(own)), bias, bits)

    directions = np.array([guard * own for guard in guards])
    return Scales(
        spread(own, np.ones(1), VECTOR_BITS)[0],
        spread(directions, np.zeros(len(guards)), VECTOR_BITS) if guards else None,
        spread(ridge * own**2, np.full(1, bias_ridge), RIDGE_BITS)[0],
    )


def _over_all(session: Session, widths: Sequence[int], own: np.ndarray, bias: np.ndarray, bits: int) -> Shared:
    """Vectors (rows) over the columns of all parties, and public values for the bias."""
    return crypten.cat([side_by_side(session, widths, own, bits), session.public(bias[:, None], bits)], dim=1)


def with_ones(
    session: Session,
    batch: SharedBatch,
    scale: np.ndarray,
    factors: Shared,
    widths: Sequence[int],
    bound: float | None,
) -> Shared:
    """The scaled encodings, pinned, with a last column of ones, or of zeros where a row does not count."""
    own, rows, last = batch.own, batch.rows, session.parties - 1
    if isinstance(own, SharedRows):
        check_reach(own.reach * scale)
        return with_bias(session, own, scaled_columns(own.words, factors[:-1])).pinned(bound)
    ones = session.own(np.ones((rows, 1)), owner=last, shape=(rows, 1))
    return crypten.cat([side_by_side(session, widths, own * scale), ones], dim=1).pinned(bound)


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
    """Everything that the steps of a grid have in common; `number`: of the descent."""
    columns = sum(widths)
    plan = plan_of(grid, columns + 1)
    guards = () if penalty is None else penalty.guards
    ridge, of_bias = batch.ridge, 0.0
    if noise is not None:
        of_bias = noise.ridge / batch.count
        ridge = np.full(len(ridge), of_bias)
    vectors = shared_scales(session, widths, grid, bounds, ridge, guards, of_bias)
    # Sums are over the records, and divided by another number where that of records is secret. Then the penalties are
    # too, except those of a private head, whose objective is a sum with a public number of records.
    if batch.presence is not None and noise is None:
        vectors = replace(vectors, weight=batch.presence.ratio(session))
    scale = scales(grid, *(blocks[session.rank] for blocks in bounds))
    with session.measure("mask encodings"):
        rows = with_ones(
            session, batch, scale, vectors.scale, widths, None if noise is None else second_order.SHORT_ROWS
        )
    drawn = slope = None
    if noise is not None:
        drawn = second_order.noise_of_heads(
            session, noise.kind, noise.sigma / batch.count, (columns + 1, len(grid)), second_order.NOISE_BITS
        )
        slope = first_slope(batch, len(grid))
    with session.measure("inverse curvature"):
        gram = session.public(np.zeros((columns, columns)), MATRIX_BITS) if penalty is None else penalty.gram
        made = second_order.inverse_curvatures(session, rows, gram, vectors, plan, batch.count, drawn, slope)
    parts = tuple((part, list[Request]()) for part in parts_of(batch.rows, len(grid)))
    private = begun = None
    if noise is not None and made.tilt is not None:
        unscale = _over_all(session, widths, 1.0 / scale[None], np.ones(1), VECTOR_BITS)[0]
        private = SharedNoise(noise, made.tilt, crypten.stack([unscale, vectors.scale]))
    if made.gradient is not None:
        begun = (None, made.gradient, session.public(np.zeros((batch.rows, len(grid))), LOGIT_BITS))
    return SharedGrid(number, number, batch, plan, scale, rows, made.stack, parts, made.curved, private, begun)


def first_slope(batch: SharedBatch, heads: int) -> Shared | None:
    """The slope of the capped loss at logits of 0, RESIDUAL_BITS: 1/2 or -1/2. None for a regression."""
    return None if batch.codes is None else 0.5 - tiled(batch.label, heads)


def sharpened(session: Session, descent: SharedGrid, before: Weights, number: int) -> SharedGrid:
    """The descent with inverses of the curvature at these heads, estimated on SAMPLED bands of rows."""
    batch, private, heads = descent.batch, descent.private, before.whole
    most = SAMPLED if private is None else PRIVATE_SAMPLED
    sample, chosen = descent.rows.sampled(most), torch.from_numpy(sampled_rows(batch.rows, most))
    plan = descent.plan.sharpened(SHARP_RATE, SHARP_MOMENTUM if private is None else 0.0)
    slopes: second_order.Slopes = second_order.slopes_of
    if private is not None:
        slopes = second_order.slopes_of_bounded if batch.codes is None else second_order.slopes_of_capped
    together = len(descent.parts) == 1  # then the gradient of the next step comes with it
    label = every_label(batch, heads.size(1), private is not None)
    with session.measure("inverse curvature"):
        seen = descent.rows if together else sample
        logits, pulls = second_order.look(seen, descent.stack, heads, 0)
        slope, steep = slopes(logits, label if together else label[chosen])
        steep = steep[chosen] if together else steep
        fitted, sums = second_order.curvature_at(sample, steep, plan, seen, slope if together else None)
        gradients = None
        if sums is not None:
            gradients = gradients_of(descent, sums, pulls, 0)
        curved = descent.curved.of_heads(descent.plan)
        share = batch.count * sample.size(0) / batch.rows
        made = second_order.sharpened(session, curved, fitted, share, plan, gradients)
    parts = tuple((part, list[Request]()) for part, _ in descent.parts)
    begun = None if made.gradient is None else (before, made.gradient, logits)
    return replace(descent, number=number, plan=plan, stack=made.stack, parts=parts, curved=curved, begun=begun)


def every_label(batch: SharedBatch, heads: int, private: bool) -> Shared:
    """The label for each head: whole numbers of a class if they are private, else RESIDUAL_BITS."""
    return tiled(batch.label if batch.codes is None or not private else batch.codes, heads)


def tiled(label: Shared, heads: int) -> Shared:
    """The columns of a label, again for each lambda."""
    return label.repeat(1, heads // label.size(1))


def gradient_at(
    descent: SharedGrid, heads: Shared, start: int, residual: Callable[[Shared], Shared]
) -> tuple[Shared, Shared]:
    """The gradient of the mean objective of some heads of a grid, from number `start` on, and their logits."""
    logits, pulls = second_order.look(descent.rows, descent.stack, heads, start)
    sums = descent.rows.t() @ residual(logits)
    return gradients_of(descent, sums, pulls, start).found(descent.plan), logits


def gradients_of(descent: SharedGrid, sums: Shared, pulls: Shared, start: int) -> Gradients:
    """From X^T r, and from what `look` gives."""
    tilt = None if descent.private is None else descent.private.tilt
    return Gradients(sums, pulls, start, descent.batch.count, tilt)


def begun(descent: SharedGrid, before: Weights) -> tuple[Shared, Shared] | None:
    """Gradient and logits of these heads, if they are known."""
    if descent.begun is None:
        return None
    there, gradient, logits = descent.begun
    return (gradient, logits) if before is there or (there is None and before.zero) else None


def advanced(
    session: Session, before: Weights, descent: SharedGrid, count: int, residuals: Residuals
) -> tuple[Weights, Shared | None, Slope | None]:
    """Weights after these steps, and logits and slope of the last one."""
    made, seen = list[Moving](), []
    heads, velocity = before.whole, crypten.cat([before.velocity, before.bias_velocity[None]])
    first = begun(descent, before) if count else None
    left = count if first is None else count - 1
    for part, pattern in descent.parts:
        here = slice(part.start, part.stop)
        residual = residuals(here)
        at = Moving(heads[:, here], velocity[:, here], part.start)
        if first is not None:
            at = second_order.move(at, first[0][:, here], descent.stack, descent.plan)
            if not left:
                seen.append(first[1][:, here])
        for step in session.repeat(left, pattern):
            gradient, logits = gradient_at(descent, at.heads, at.start, residual)
            at = second_order.move(at, gradient, descent.stack, descent.plan)
            if step == left - 1:
                seen.append(logits)
        made.append(at)
    after, moved = (crypten.cat([getattr(at, name) for at in made], dim=1) for name in ("heads", "velocity"))
    weights = Weights.of(after, moved)
    if not seen:
        return weights, None, None
    slopes = [at.slope for at in made if at.slope is not None]
    gradient, along = (crypten.cat([getattr(s, name) for s in slopes], dim=1) for name in ("gradient", "step"))
    return weights, crypten.cat(seen, dim=1), Slope(gradient, along, descent.plan.rate)


def guessed(descent: SharedGrid, targets: Shared) -> SharedHead:
    """The head that fits shared targets by least squares, in the columns of the descent."""
    batch, plan = descent.batch, descent.plan
    found = second_order.solved(descent.rows, descent.stack, targets, batch.count, plan)
    return SharedHead(Weights.of(found, found * 0), descent.scale, "regression", descent.columns)


def columns_of(trained: SharedHead, plain: Shared, outputs: int) -> tuple[SharedHead, ...]:
    """The heads of a grid, each with its logits. `plain`: weights for unscaled columns, of all of them."""
    last, end = trained.last_logits, trained.slope

    def column(at: int) -> SharedHead:
        here = slice(at, at + outputs)
        every = trained.weights
        weights = Weights(
            *(one[..., here] for one in (every.weight, every.bias, every.velocity, every.bias_velocity))
        )
        seen = None if last is None else last[:, here]
        slope = None if end is None else Slope(end.gradient[:, here], end.step[:, here], end.rate)
        return SharedHead(weights, trained.scale, trained.task, trained.descent, seen, plain[:, here], slope)

    return tuple(column(at) for at in range(0, trained.weights.bias.size(0), outputs))
