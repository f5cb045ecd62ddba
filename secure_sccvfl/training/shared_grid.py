"""What a party brings to second-order steps: scales that it knows for its own columns, as shares over all columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.errors import RangeError
from protocols.ring import FRACTION_BITS, Words
from protocols.steps import head
from protocols.steps.head import BandedMatrix
from protocols.steps.second_order import INVERSE_LIMIT, RIDGE_BITS, VECTOR_BITS, Plan, Scales
from secure_sccvfl.training.grid import Bounds, Grid, relative_scales, scales
from secure_sccvfl.training.handles import SharedBatch, SharedRows

_TOGETHER = 1 << 18
"""How many logits go through the sigmoid at once: the dealer makes 32 words for each."""


def plan_of(grid: Grid, columns: int) -> Plan:
    """The public numbers of a grid; `columns` includes the bias."""
    return Plan(
        tuple(zip(grid.lambdas, grid.guards, strict=True)),
        grid.inverted,
        grid.places,
        *(grid.curvature, grid.factor(columns), grid.doublings(columns), grid.rate, grid.momentum),
    )


def parts_of(rows: int, heads: int) -> list[range]:
    """Heads that step together: all, unless there are many rows."""
    each = max(1, _TOGETHER // rows)
    return [range(start, min(start + each, heads)) for start in range(0, heads, each)]


def own_scales(bounds: Bounds, rank: int, ridge: np.ndarray) -> np.ndarray:
    """The factor of each own column; raises where the inverse might leave its range."""
    own = scales(*(blocks[rank] for blocks in bounds))
    if own.size and float((1.0 / (ridge * own**2)).max()) > INVERSE_LIMIT:
        raise RangeError(
            f"the curvature of a column is more than {INVERSE_LIMIT:g} times its ridge: scale the columns, or raise "
            "the ridge"
        )
    return own


def shared_scales(
    party: Party, widths: Sequence[int], grid: Grid, bounds: Bounds, ridge: np.ndarray, guards: Sequence[np.ndarray]
) -> Scales:
    """Shares of all vectors that second-order steps need. No communication."""
    own = own_scales(bounds, party.rank, ridge)
    relative = relative_scales(grid, *(blocks[party.rank] for blocks in bounds))
    of_bias = np.full(len(relative), grid.curvature**-0.5)

    def spread(rows: np.ndarray, bias: np.ndarray, bits: int) -> Words:
        return _over_all(party, widths, rows.reshape(len(bias), len(own)), bias, bits)

    directions = np.array([guard * own for guard in guards])
    return Scales(
        spread(own, np.ones(1), VECTOR_BITS)[0],
        spread(relative, of_bias, VECTOR_BITS),
        spread(directions, np.zeros(len(guards)), VECTOR_BITS),
        spread(ridge * own**2, np.zeros(1), RIDGE_BITS)[0],
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
    """The scaled encodings under masks, and a last column of ones."""
    own, rows = batch.own, batch.rows
    if isinstance(own, SharedRows):
        head.check_columns(ring.encode(own.reach * scale))
        words = head.scaled_columns(party, own.words, scale_shares[:-1], VECTOR_BITS)
        ones = np.full((rows, 1), int(party.rank == 0) << FRACTION_BITS, np.int64)
        return head.mask_rows(party, np.concatenate([words, ones], axis=1))
    last = len(widths) - 1
    block = np.column_stack([own * scale, np.ones(rows)]) if party.rank == last else own * scale
    return head.mask_columns(party, ring.encode(block), (*widths[:-1], widths[-1] + 1))
