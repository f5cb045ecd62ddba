"""Matrices under masks: tall ones that parties hold side by side, stacks of square ones, and products with them.

Before: each party holds its own columns of a tall matrix X, or all hold shares of it. After masking: X is stored in
bands of rows. In each band every party's block lies under a mask that its owner shares with the dealer (or, of a
shared matrix, under a mask that nobody knows). The masked block was sent once. The mask serves all products of that
block and no other secret. Nobody learns anything.

| | rounds | ring elements to each peer |
|---|---|---|
| `mask_columns` | 1 for each 2^21 ring elements | own columns x rows |
| `mask_rows` | 1 for each band | columns x rows |
| `multiplication`: X w | 1 | size of w |
| the same, transposed: X_i^T r_i for every band i | 1 | size of r |
| `gram_sums`: X^T X | 0 | 0 |
| `weighted_grams`: X^T D X of k diagonals | 2 for each 2^21 ring elements | (1 + k) x size of X |
| `stack_product`: matrix g times column g | 1 | size of the columns |
| `doubled`: E E and P E of symmetric matrices | 2 | 4 triangles for each matrix |

Why it is secure: each opened value is a secret minus a uniform tuple value that is used once, or minus a mask that
belongs to one secret. X^T X = O^T O + O^T M + M^T O + M^T M for X = O + M with O open. The parties that know columns
of the mask M multiply them, and the dealer provides shares of M^T M. So every view is uniform whatever the data are.

A band of 2^11 rows of magnitude 2^6 with 16 fractional bits, times residuals below 1 with 28, stays below 2^62, where
truncation is exact (protocols/operations/arithmetic.py). So products of bands are truncated before they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.dealing.tuples import Band
from secure_sccvfl.protocols.errors import ProtocolError, RangeError
from secure_sccvfl.protocols.operations.arithmetic import (
    Halves,
    Masked,
    bilinear,
    mask_blocks,
    mask_shared,
    unmask_quotient,
)
from secure_sccvfl.protocols.ring import FRACTION_BITS, RingArray, Share

BAND_ROWS = 1 << 11
Turn = Callable[[RingArray], RingArray]
_ROUND_WORDS = 1 << 21
"""How many ring elements of a matrix go under masks, or are multiplied by weights, at once."""
_GRAM_BANDS = (1 << 16) // BAND_ROWS
"""So many bands of magnitude 2^6 add up to less than 2^60."""
COLUMN_LIMIT = 2.0**6
"""Largest magnitude of an encoding."""


def even(count: int, most: int) -> list[int]:
    """At most this many numbers below `count`, at even distances."""
    return list(range(count)) if count <= most else [at * count // most for at in range(most)]


@dataclass(frozen=True)
class BandedMatrix:
    """A matrix in bands of rows; each band consists of masked blocks side by side."""

    bands: tuple[tuple[Masked, ...], ...]
    columns: int

    @cached_property
    def rows(self) -> int:
        return sum(band[0].shape[0] for band in self.bands)

    def stacked(self, other: BandedMatrix) -> BandedMatrix:
        """This matrix with another's rows appended."""
        if other.columns != self.columns:
            raise ProtocolError(f"{other.columns} columns do not go below {self.columns}")
        return BandedMatrix((*self.bands, *other.bands), self.columns)

    def sampled(self, most: int) -> BandedMatrix:
        """Some of the bands, at even distances, if there are more than this many."""
        if len(self.bands) <= most:
            return self
        return BandedMatrix(tuple(self.bands[at] for at in even(len(self.bands), most)), self.columns)

    def apart(self, together: int) -> Iterator[BandedMatrix]:
        """This many bands at a time."""
        starts = range(0, len(self.bands), together)
        return (BandedMatrix(self.bands[at : at + together], self.columns) for at in starts)

    def numbers(self) -> Iterator[int]:
        """The counters of the masks that the dealer keeps for this matrix."""
        return (block.counter for band in self.bands for block in band)

    @cached_property
    def layout(self) -> tuple[Band, ...]:
        """Rows of each band, and of its blocks the counters of the masks and the columns."""
        return tuple((band[0].shape[0], tuple((b.counter, b.shape[1]) for b in band)) for band in self.bands)


def check_columns(columns: RingArray) -> None:
    """Raise unless a party's encodings are small enough for sums over a band."""
    if columns.size and max(int(columns.max()), -int(columns.min())) > int(COLUMN_LIMIT * 2**FRACTION_BITS):
        raise RangeError(f"an encoding is larger in magnitude than {COLUMN_LIMIT:g}; scale the columns")


def mask_columns(party: Party, columns: RingArray, widths: Sequence[int]) -> BandedMatrix:
    """Every party puts its own columns under its masks; `columns` has widths[rank] columns.

    They may be shorter integers. All send at once: one round for each 2^21 ring elements of the matrix.
    """
    check_columns(columns)
    starts = range(0, len(columns), BAND_ROWS)
    each = max(1, _ROUND_WORDS // (BAND_ROWS * max(1, sum(widths))))
    bands: list[tuple[Masked, ...]] = []
    for first in range(0, len(starts), each):
        bands += mask_blocks(party, [columns[at : at + BAND_ROWS] for at in starts[first : first + each]], widths)
    return BandedMatrix(tuple(bands), sum(widths))


def mask_rows(party: Party, shares: RingArray, each: int = BAND_ROWS) -> BandedMatrix:
    """A shared tall matrix, band by band under masks that no party knows; one round and its size for each band."""
    bands = [mask_shared(party, shares[start : start + each]) for start in range(0, len(shares), each)]
    return BandedMatrix(tuple((band,) for band in bands), shares.shape[1])


def shares_of(party: Party, tall: BandedMatrix) -> RingArray:
    """Shares of a matrix under masks. No round: an owner's share of its columns is the columns, others' is 0."""

    def share(block: Masked) -> RingArray:
        if block.owner is not None:
            return np.zeros(block.shape, np.int64) if block.plaintext is None else block.plaintext
        return _known_mask(block) + block.opened if party.adds_public else _known_mask(block)

    bands = [np.concatenate([share(block) for block in band], axis=1, dtype=np.int64) for band in tall.bands]
    return np.concatenate(bands)


def multiplication(party: Party, tall: BandedMatrix, other: RingArray, transposed: bool = False) -> Halves:
    """Shares of X @ other, not truncated, in two halves: what to open (one round), and the step that follows.

    transposed: of X_i^T @ other_i for every band i instead (bands x columns x outputs).
    """
    pair = party.take("band_matmul", tall.layout, tall.columns, other.shape, transposed)
    b, c = pair["b"], pair["c"]

    def finish(opened: Sequence[RingArray]) -> Share:
        (d,), at = opened, 0
        for number, band in enumerate(tall.bands):
            rows, left = slice(at, at + band[0].shape[0]), 0
            for block in band:
                columns = slice(left, left + block.shape[1])
                if transposed:
                    _add_product(party, block, b[rows], d[rows], c[number, columns], np.transpose)
                else:
                    _add_product(party, block, b[columns], d[columns], c[rows], lambda matrix: matrix)
                left = columns.stop
            at = rows.stop
        return c

    return [other - b], finish


def _add_product(party: Party, block: Masked, b: RingArray, d: RingArray, out: RingArray, turn: Turn) -> None:
    """Add (x - mask) b + x d, where the owner knows x, or x is opened + a shared mask."""
    out += ring.matmul(turn(block.opened), b)
    if block.plaintext is not None:
        out += ring.matmul(turn(block.plaintext.astype(np.int64, copy=False)), d)
    elif block.owner is None:
        out += ring.matmul(turn(_known_mask(block)), d)
        if party.adds_public:
            out += ring.matmul(turn(block.opened), d)


def gram_sums(party: Party, tall: BandedMatrix) -> RingArray:
    """Shares of X^T X, as upper triangles of its sum over every 2^16 rows; 2 FRACTION_BITS. No round.

    X = opened + mask. Who knows columns of the mask multiplies them, and the dealer provides shares of mask^T mask.
    """
    total: RingArray = party.take("band_grams", tall.layout, tall.columns, _GRAM_BANDS)["c"]
    for at, band in enumerate(tall.bands):
        opened = np.concatenate([block.opened for block in band], axis=1)
        cross = ring.matmul(opened.T, np.concatenate([_known_mask(block) for block in band], axis=1))
        cross = cross + cross.T
        if party.adds_public:
            cross += ring.matmul(opened.T, opened)
        total[at // _GRAM_BANDS] += ring.upper_triangles(cross)
    return total


def weighted_grams(party: Party, tall: BandedMatrix, weights: RingArray) -> RingArray:
    """Shares of X_i^T D_k X_i for every band i and every diagonal D_k (rows of `weights`), as upper triangles.

    bands x matrices x triangle, not truncated. Two rounds for each 2^21 ring elements of D X, of whose size, and
    that of X, is sent to each peer.
    """
    count, columns = len(weights), tall.columns
    squares, at = [], 0
    each = max(1, _ROUND_WORDS // (count * columns * BAND_ROWS))
    for bands in tall.apart(each):  # a few at a time: k times the rows are large
        here = weights[:, at : at + bands.rows, None]
        weighted = bilinear(party, "mul", shares_of(party, bands)[None], here)
        wide = weighted.transpose(1, 0, 2).reshape(-1, count * columns)
        masked, finish = multiplication(party, bands, wide, transposed=True)
        for sums in finish(party.open_masked("head gradient", masked)):
            squares.append(ring.upper_triangles(sums.reshape(columns, count, columns).transpose(1, 0, 2)))
        at += bands.rows
    return np.stack(squares)


def _known_mask(block: Masked) -> RingArray:
    """The part of a block's mask that this party knows: its own mask, or its share of a shared one."""
    if block.owner is None:
        if block.mask is None:
            raise ProtocolError("a shared masked matrix has lost its mask")
        return block.mask
    return np.zeros(block.shape, np.int64) if block.plaintext is None else block.plaintext - block.opened


def gram(party: Party, matrix: RingArray) -> Share:
    """Shares of X^T X of a shared matrix, not truncated; a round for each 2^21 ring elements, or 2^16 rows.

    Owners have checked their columns (`check_gram`).
    """
    columns = matrix.shape[1]
    total = party.nothing((columns, columns))
    each = min(rows_at_once(columns), _GRAM_BANDS * BAND_ROWS)
    for start in range(0, len(matrix), each):
        band = mask_rows(party, matrix[start : start + each], each)
        total += ring.symmetric_matrices(gram_sums(party, band)[0], columns)
        for counter in band.numbers():
            party.tuples.forget(counter)
    return total


def rows_at_once(elements: int) -> int:
    """How many rows of this many ring elements go into one round."""
    return max(BAND_ROWS, _ROUND_WORDS // max(1, elements))


def stack_product(party: Party, stack: Masked, indices: Sequence[int], vectors: RingArray) -> Halves:
    """Matrix number indices[g] of a masked stack times column g, not truncated: what to open, and what follows."""
    columns = len(vectors)
    pair = party.take("stack_matmul", stack.counter, columns, tuple(indices))
    start, count = indices[0] if indices else 0, len(indices)
    there = slice(start, start + count) if tuple(indices) == tuple(range(start, start + count)) else list(indices)
    opened_stack, mask = (m.reshape(-1, columns, columns)[there] for m in (stack.opened, _known_mask(stack)))

    def finish(opened: Sequence[RingArray]) -> RingArray:
        result: RingArray = pair["c"] + _each(opened_stack, pair["b"]) + _each(mask, opened[0])
        return result + _each(opened_stack, opened[0]) if party.adds_public else result

    return [vectors - pair["b"]], finish


def _each(matrices: RingArray, vectors: RingArray) -> RingArray:
    result: RingArray = np.einsum("gij,jg->ig", matrices, vectors)
    return result


def doubled(
    party: Party, error: RingArray, inverse: RingArray, columns: int, divisor: int, more: float = 0.0
) -> tuple[RingArray, RingArray]:
    """Shares of F F / divisor and Q F / divisor + more Q, for symmetric matrices that commute, as upper triangles."""
    fields = party.take("doubling", len(error), columns, divisor)
    opened = party.open_masked("doubling", [error - fields["a"], inverse - fields["b"]])
    e, d = (ring.symmetric_matrices(elements, columns) for elements in opened)
    a, b = (ring.symmetric_matrices(fields[name], columns) for name in ("a", "b"))
    square = ring.matmul(e, a)
    square += square.transpose(0, 2, 1).copy()
    if party.adds_public:
        square += ring.matmul(e, e)
        b += d
    product = ring.matmul(b, e) + ring.matmul(d, a)
    fields["m"] += ring.upper_triangles(np.stack([square, product]))
    fields["m"][1] += inverse * np.int64(round(more * divisor))
    both = unmask_quotient(party, fields["m"], fields["q"], fields["top"], divisor, one_round=True)
    return both[0], both[1]
