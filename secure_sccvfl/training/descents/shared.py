"""Second-order steps on shares: what a party brings to them, their preparation, and the heads that they make.

A party knows the scales of its own columns. They become shares over all columns without communication. The protocol
is protocols/steps/second_order.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.dealing.tuples import Request
from protocols.errors import RangeError
from protocols.operations import banded
from protocols.operations.banded import BandedMatrix
from protocols.ring import Words
from protocols.session.runtime import Session
from protocols.steps import head, second_order
from protocols.steps.head import RESIDUAL_BITS, Weights
from protocols.steps.second_order import (
    INVERSE_LIMIT,
    RIDGE_BITS,
    VECTOR_BITS,
    Gradients,
    Moving,
    Plan,
    Scales,
    Slope,
)
from secure_sccvfl.privacy.heads import HeadNoise
from secure_sccvfl.training.descents.grid import (
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
)
from secure_sccvfl.training.sharing import with_bias

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
        None if grid.without is None else ring.packed(grid.used(columns)),
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
    party: Party,
    widths: Sequence[int],
    grid: Grid,
    bounds: Bounds,
    ridge: np.ndarray,
    guards: Sequence[np.ndarray],
    bias_ridge: float = 0.0,
) -> Scales:
    """Shares of all vectors that second-order steps need. No communication."""
    own = own_scales(grid, bounds, party.rank, ridge)

    def spread(rows: np.ndarray, bias: np.ndarray, bits: int) -> Words:
        return _over_all(party, widths, rows.reshape(len(bias), len(own)), bias, bits)

    directions = np.array([guard * own for guard in guards])
    return Scales(
        spread(own, np.ones(1), VECTOR_BITS)[0],
        spread(directions, np.zeros(len(guards)), VECTOR_BITS),
        spread(ridge * own**2, np.full(1, bias_ridge), RIDGE_BITS)[0],
    )


def _over_all(party: Party, widths: Sequence[int], own: np.ndarray, bias: np.ndarray, bits: int) -> Words:
    """Shares of vectors (rows) over the columns of all parties, and of public values for the bias."""
    at = sum(widths[: party.rank])
    shares = party.zero_share((len(bias), sum(widths) + 1))
    shares[:, at : at + widths[party.rank]] += ring.encode(own, bits)
    if party.rank == 0:
        shares[:, -1] += ring.encode(bias, bits)
    return shares


def with_ones(
    party: Party, batch: SharedBatch, scale: np.ndarray, scale_shares: Words, widths: Sequence[int]
) -> BandedMatrix:
    """The scaled encodings under masks, and a last column of ones, or of zeros where a row does not count."""
    own, rows = batch.own, batch.rows
    if isinstance(own, SharedRows):
        banded.check_columns(ring.encode(own.reach * scale))
        words = head.scaled_columns(party, own.words, scale_shares[:-1], VECTOR_BITS)
        return banded.mask_rows(party, with_bias(own, words, party.rank))
    last = len(widths) - 1
    block = np.column_stack([own * scale, np.ones(rows)]) if party.rank == last else own * scale
    return banded.mask_columns(party, ring.encode(block), (*widths[:-1], widths[-1] + 1))


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
    party, columns = session.party, sum(widths)
    plan = plan_of(grid, columns + 1)
    guards = () if penalty is None else penalty.guards
    ridge, of_bias = batch.ridge, 0.0
    if noise is not None:
        of_bias = noise.ridge / batch.count
        ridge = np.full(len(ridge), of_bias)
    shares = shared_scales(party, widths, grid, bounds, ridge, guards, of_bias)
    # Sums are over the records, and divided by another number where that of records is secret. Then the penalties are
    # too, except those of a private head, whose objective is a sum with a public number of records.
    if batch.presence is not None and noise is None:
        shares = replace(shares, weight=batch.presence.ratio(party))
    scale = scales(grid, *(blocks[party.rank] for blocks in bounds))
    with session.measure("mask encodings"):
        rows = with_ones(party, batch, scale, shares.scale, widths)
    drawn = slope = None
    if noise is not None:
        drawn = second_order.noise_of_heads(
            party, noise.kind, noise.sigma / batch.count, (columns + 1, len(grid)), second_order.NOISE_BITS
        )
        slope = first_slope(party, batch, len(grid))
    with session.measure("inverse curvature"):
        gram = np.zeros((columns, columns), np.int64) if penalty is None else penalty.gram
        made = second_order.inverse_curvatures(party, rows, gram, shares, plan, batch.count, drawn, slope)
    parts = tuple((part, list[Request]()) for part in parts_of(batch.rows, len(grid)))
    private = begun = None
    if noise is not None and made.tilt is not None:
        unscale = _over_all(party, widths, 1.0 / scale[None], np.ones(1), VECTOR_BITS)[0]
        private = SharedNoise(noise, made.tilt, np.stack([unscale, shares.scale]))
    if made.gradient is not None:
        begun = (None, made.gradient, np.zeros((batch.rows, len(grid)), np.int64))
    return SharedGrid(number, number, batch, plan, scale, rows, made.stack, parts, made.curved, private, begun)


def first_slope(party: Party, batch: SharedBatch, heads: int) -> Words | None:
    """Shares of the slope of the capped loss at logits of 0, RESIDUAL_BITS: 1/2 or -1/2. None for a regression."""
    if batch.codes is None:
        return None
    half = np.int64(1 << (RESIDUAL_BITS - 1)) if party.rank == 0 else np.int64(0)
    return half - np.tile(batch.label, heads // batch.label.shape[1])


def sharpened(session: Session, descent: SharedGrid, before: Weights, number: int) -> SharedGrid:
    """The descent with inverses of the curvature at these heads, estimated on SAMPLED bands of rows."""
    party, batch, private = session.party, descent.batch, descent.private
    heads = np.concatenate([before.weight, before.bias[None]])
    most = SAMPLED if private is None else PRIVATE_SAMPLED
    sample, chosen = descent.rows.sampled(most), sampled_rows(batch.rows, most)
    plan = descent.plan.sharpened(SHARP_RATE, SHARP_MOMENTUM if private is None else 0.0)
    slopes: second_order.Slopes = second_order.slopes_of
    if private is not None:
        slopes = second_order.slopes_of_bounded if batch.codes is None else second_order.slopes_of_capped
    together = len(descent.parts) == 1  # then the gradient of the next step comes with it
    label = every_label(batch, heads.shape[1], private is not None)
    with session.measure("inverse curvature"):
        seen = descent.rows if together else sample
        logits, pulls = second_order.look(party, seen, descent.stack, heads, 0)
        slope, steep = slopes(party, logits, label if together else label[chosen])
        steep = steep[chosen] if together else steep
        fitted, sums = second_order.curvature_at(party, sample, steep, plan, seen, slope if together else None)
        gradients = None
        if sums is not None:
            gradients = gradients_of(descent, sums, pulls, 0)
        curved = descent.curved.of_heads(descent.plan)
        share = batch.count * sample.rows / batch.rows
        made = second_order.sharpened(party, curved, fitted, share, plan, gradients)
    parts = tuple((part, list[Request]()) for part, _ in descent.parts)
    begun = None if made.gradient is None else (before, made.gradient, logits)
    return replace(descent, number=number, plan=plan, stack=made.stack, parts=parts, curved=curved, begun=begun)


def every_label(batch: SharedBatch, heads: int, private: bool) -> Words:
    """Shares of the label for each head: whole numbers of a class if they are private, else RESIDUAL_BITS."""
    label = batch.label if batch.codes is None or not private else batch.codes
    return np.tile(label, heads // label.shape[1])


def gradient_at(
    party: Party, descent: SharedGrid, heads: Words, start: int, residual: Callable[[Words], Words]
) -> tuple[Words, Words]:
    """The gradient of the mean objective of some heads of a grid, from number `start` on, and their logits."""
    logits, pulls = second_order.look(party, descent.rows, descent.stack, heads, start)
    sums = banded.transposed_products(party, descent.rows, residual(logits))
    return gradients_of(descent, sums, pulls, start).found(party, descent.plan), logits


def gradients_of(descent: SharedGrid, sums: Words, pulls: Words, start: int) -> Gradients:
    """From X_i^T r of every band, and from what `look` gives."""
    if descent.private is None:
        return Gradients(sums, pulls, start, descent.batch.count, None)
    return Gradients(second_order.added_bands(sums), pulls, start, descent.batch.count, descent.private.tilt)


def begun(descent: SharedGrid, before: Weights) -> tuple[Words, Words] | None:
    """Gradient and logits of these heads, if they are known."""
    if descent.begun is None:
        return None
    there, gradient, logits = descent.begun
    return (gradient, logits) if before is there or (there is None and before.zero) else None


def advanced(
    session: Session, before: Weights, descent: SharedGrid, count: int, residual: Callable[[Words, slice], Words]
) -> tuple[Weights, Words | None, Slope | None]:
    """Weights after these steps, and logits and slope of the last one.

    `residual`: from the logits of some heads, and which these are, to the slope of the loss.
    """
    party, made, seen = session.party, [], []
    heads = np.concatenate([before.weight, before.bias[None]])
    velocity = np.concatenate([before.velocity, before.bias_velocity[None]])
    first = begun(descent, before) if count else None
    left = count if first is None else count - 1
    for part, pattern in descent.parts:
        here = slice(part.start, part.stop)
        at = Moving(heads[:, here], velocity[:, here], part.start)
        if first is not None:
            at = second_order.move(party, at, first[0][:, here], descent.stack, descent.plan)
            if not left:
                seen.append(first[1][:, here])
        for step in session.repeat(left, pattern):
            gradient, logits = gradient_at(party, descent, at.heads, at.start, lambda z: residual(z, here))  # noqa: B023
            at = second_order.move(party, at, gradient, descent.stack, descent.plan)
            if step == left - 1:
                seen.append(logits)
        made.append(at)
    after = np.concatenate([at.heads for at in made], axis=1)
    moved = np.concatenate([at.velocity for at in made], axis=1)
    weights = Weights(after[:-1], after[-1], moved[:-1], moved[-1])
    if not seen:
        return weights, None, None
    slopes = [at.slope for at in made if at.slope is not None]
    gradient = np.concatenate([slope.gradient for slope in slopes], axis=1)
    along = np.concatenate([slope.step for slope in slopes], axis=1)
    return weights, np.concatenate(seen, axis=1), Slope(gradient, along, descent.plan.rate)


def guessed(party: Party, descent: SharedGrid, targets: Words) -> SharedHead:
    """The head that fits shared targets by least squares, in the columns of the descent."""
    batch, plan = descent.batch, descent.plan
    found = second_order.solved(party, descent.rows, descent.stack, targets, batch.count, plan)
    still = np.zeros_like(found)
    weights = Weights(found[:-1], found[-1], still[:-1], still[-1])
    return SharedHead(weights, descent.scale, "regression", descent.columns)


def columns_of(trained: SharedHead, plain: Words, outputs: int) -> tuple[SharedHead, ...]:
    """The heads of a grid, each with its logits. `plain`: weights for unscaled columns, of all of them."""
    last, end = trained.last_logits, trained.slope

    def column(at: int) -> SharedHead:
        here = slice(at, at + outputs)
        weights = Weights(*(getattr(trained.weights, f.name)[..., here] for f in fields(Weights)))
        seen = None if last is None else last[:, here]
        slope = None if end is None else Slope(end.gradient[:, here], end.step[:, here], end.rate)
        return SharedHead(weights, trained.scale, trained.task, trained.descent, seen, plain[:, here], slope)

    return tuple(column(at) for at in range(0, len(trained.weights.bias), outputs))
