"""The fused head in secret: tall matrices that parties hold side by side, and one training step on them.

Before: each party holds its own columns (encodings, which it has scaled). One party holds the labels. Head and
velocity are shares. After: shares of the new head and velocity. Nobody learns anything.

A tall matrix X is kept in bands of rows. In each band every party's block lies under a mask that its owner shares
with the dealer. The owner sent the masked block once. The mask serves all products of that block and no other
secret.

| step of training | rounds | words to each peer |
|---|---|---|
| open w - b: shares of X w and of H w | 1 | columns |
| open X w + t modulo the period, and lift: shares of the residual r | 2 | rows |
| open r - b': shares of X^T r, band by band | 1 | rows |
| truncate, with rate and momentum as the divisors | 1 | columns x (bands + 2) |

Why it is secure: each opened value is a secret minus a uniform tuple value that is used once, or minus a mask that
belongs to one secret. So every view is uniform whatever the data are.

Selection: `owner` holds a[i, g, :] for every group g, `holder` holds the one-hot s[i, :]. One message each way
between these two gives shares of a[i, s_i, :] (1 round for each 2^21 words), and nothing else.

Rows that s has selected (mode `aware`) are shares of all columns, and no owner's. They are scaled by a product with
the shared factors and go under a mask of nobody, once per descent. A step on them has the same rounds and words.
So do rows that are zero where not all parties have a record (protocols/alignment/presence.py): their bias is the
weight of one more column, which is 1 where all have one.

Fractions: encodings 16 bits, head and H 24, logits 40, residuals 28. So a band of 2^11 rows of magnitude 2^6 stays
below 2^62, where truncation is exact (protocols/operations/arithmetic.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.dealing.tuples import Band
from protocols.errors import ProtocolError, RangeError
from protocols.net.transport import Spec
from protocols.operations.arithmetic import Masked, divide_each, mask_blocks, mask_shared, scaled_bilinear
from protocols.operations.sigmoid import BOUND, SIGMOID_BITS, sigmoid
from protocols.ring import FRACTION_BITS, Words

HEAD_BITS = 24
LOGIT_BITS = FRACTION_BITS + HEAD_BITS
RESIDUAL_BITS = SIGMOID_BITS
LOGIT_BOUND = BOUND
"""Beyond this the one-round sigmoid is wrong; training code must check (see `headroom`)."""
BAND_ROWS = 1 << 11
_ROUND_WORDS = 1 << 21
"""How many words of a matrix go under masks in one round."""
_GRAM_BANDS = (1 << 16) // BAND_ROWS
"""So many bands of magnitude 2^6 add up to less than 2^60."""
GRAM_LIMIT = 2.0**61
COLUMN_LIMIT = 2.0**6
"""Largest magnitude of an encoding."""


def even(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, at even distances."""
    return list(range(count)) if count <= most else [at * count // most for at in range(most)]


@dataclass(frozen=True)
class BandedMatrix:
    """A matrix in bands of rows; each band consists of masked blocks side by side."""

    bands: tuple[tuple[Masked, ...], ...]
    columns: int

    @property
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

    def apart(self, together: int = 1) -> Iterator[BandedMatrix]:
        """So many bands at a time."""
        starts = range(0, len(self.bands), together)
        return (BandedMatrix(self.bands[at : at + together], self.columns) for at in starts)

    def numbers(self) -> Iterator[int]:
        """The counters of the masks that the dealer keeps for this matrix."""
        return (block.counter for band in self.bands for block in band)

    def layout(self) -> tuple[Band, ...]:
        return tuple((band[0].shape[0], tuple((b.counter, b.shape[1]) for b in band)) for band in self.bands)


def check_columns(own: Words) -> None:
    """Raise unless a party's encodings are small enough for sums over a band."""
    if own.size and int(np.abs(own).max()) > int(COLUMN_LIMIT * 2**FRACTION_BITS):
        raise RangeError(f"an encoding is larger in magnitude than {COLUMN_LIMIT:g}; scale the columns")


def mask_columns(party: Party, own: Words, widths: Sequence[int]) -> BandedMatrix:
    """Every party puts its own columns under its masks; `own` has widths[rank] columns.

    All send at once: one round for each 2^21 words of the matrix.
    """
    check_columns(own)
    starts = range(0, len(own), BAND_ROWS)
    each = max(1, _ROUND_WORDS // (BAND_ROWS * max(1, sum(widths))))
    bands: list[tuple[Masked, ...]] = []
    for first in range(0, len(starts), each):
        bands += mask_blocks(party, [own[at : at + BAND_ROWS] for at in starts[first : first + each]], widths)
    return BandedMatrix(tuple(bands), sum(widths))


def mask_square(party: Party, shares: Words) -> BandedMatrix:
    """A shared matrix as one band."""
    return BandedMatrix(((mask_shared(party, shares),),), shares.shape[1])


def mask_rows(party: Party, shares: Words) -> BandedMatrix:
    """A shared tall matrix, band by band under masks that nobody knows; one round and its size for each band."""
    bands = [mask_square(party, shares[start : start + BAND_ROWS]) for start in range(0, len(shares), BAND_ROWS)]
    return BandedMatrix(tuple(band for made in bands for band in made.bands), shares.shape[1])


def scaled_columns(party: Party, shares: Words, factors: Words, bits: int) -> Words:
    """Shares of the columns of a tall matrix times a shared factor each, which has `bits` fractional bits.

    One round for each band, two for a large one.
    """
    bands = [
        scaled_bilinear(party, "mul", shares[start : start + BAND_ROWS], factors[None, :], 1 << bits)
        for start in range(0, len(shares), BAND_ROWS)
    ]
    return np.concatenate(bands)


def shares_of(party: Party, tall: BandedMatrix) -> Words:
    """Shares of a matrix under masks. No round: an owner's share of its columns is the columns, the others' 0."""

    def share(block: Masked) -> Words:
        if block.owner is not None:
            return np.zeros(block.shape, np.int64) if block.own is None else block.own
        return _known_mask(block) + block.opened if party.rank == 0 else _known_mask(block)

    return np.concatenate([np.concatenate([share(block) for block in band], axis=1) for band in tall.bands])


def product(party: Party, tall: BandedMatrix, vector: Words) -> Words:
    """Shares of X @ vector, not truncated; one round."""
    masked, finish = multiplication(party, tall, vector)
    return finish(*party.open_masked("head product", [masked]))


def multiplication(party: Party, tall: BandedMatrix, vector: Words) -> tuple[Words, Callable[[Words], Words]]:
    """`product` in two halves, for a round that opens other values too: what to open, and the step that follows."""
    pair = party.take("band_matmul", tall.layout(), tall.columns, vector.shape, False)
    b, c = pair["b"], pair["c"]

    def finish(d: Words) -> Words:
        at = 0
        for band in tall.bands:
            out, left = c[at : at + band[0].shape[0]], 0
            for block in band:
                there = slice(left, left + block.shape[1])
                out += ring.matmul(block.opened, b[there])
                _add_known(party, block, d[there], out, transposed=False)
                left = there.stop
            at += band[0].shape[0]
        return c

    return vector - b, finish


def transposed_products(party: Party, tall: BandedMatrix, rows: Words) -> Words:
    """Shares of X_i^T @ rows_i for every band i (bands x columns x outputs), not truncated; one round."""
    masked, finish = transposition(party, tall, rows)
    return finish(*party.open_masked("head gradient", [masked]))


def transposition(party: Party, tall: BandedMatrix, rows: Words) -> tuple[Words, Callable[[Words], Words]]:
    """`transposed_products` in two halves, as `multiplication`."""
    pair = party.take("band_matmul", tall.layout(), tall.columns, rows.shape, True)
    b, c = pair["b"], pair["c"]

    def finish(d: Words) -> Words:
        at = 0
        for out, band in zip(c, tall.bands, strict=True):
            here, left = slice(at, at + band[0].shape[0]), 0
            for block in band:
                there = slice(left, left + block.shape[1])
                out[there] += ring.matmul(block.opened.T, b[here])
                _add_known(party, block, d[here], out[there], transposed=True)
                left = there.stop
            at = here.stop
        return c

    return rows - b, finish


def _add_known(party: Party, block: Masked, d: Words, out: Words, *, transposed: bool) -> None:
    """Add x d, where the owner knows x, or x is opened + a shared mask."""

    def turn(matrix: Words) -> Words:
        return matrix.T if transposed else matrix

    if block.own is not None:
        out += ring.matmul(turn(block.own), d)
    elif block.owner is None:
        if block.mask is None:
            raise ProtocolError("a shared masked matrix has lost its mask")
        out += ring.matmul(turn(block.mask), d)
        if party.rank == 0:
            out += ring.matmul(turn(block.opened), d)


@dataclass(frozen=True)
class Pace:
    """Public numbers of a step: rate, momentum, and the curvature of the bias."""

    rate: float
    momentum: float
    bias_curvature: float


@dataclass(frozen=True, repr=False)
class Weights:
    """Shares of a head (columns x outputs) and its bias, with their velocities; HEAD_BITS fractional bits."""

    weight: Words
    bias: Words
    velocity: Words
    bias_velocity: Words

    @property
    def zero(self) -> bool:
        """Whether these are public zeros, which no share of a trained head is."""
        return not (self.weight.any() or self.bias.any() or self.velocity.any() or self.bias_velocity.any())


def residual_of_sigmoid(party: Party, logits: Words, label: Words) -> Words:
    """sigmoid(logits) - label with RESIDUAL_BITS; logits have LOGIT_BITS, the label RESIDUAL_BITS. Two rounds."""
    return sigmoid(party, logits, LOGIT_BITS) - label


def logits_of(product_words: Words, bias: Words) -> Words:
    """X w with the bias added, LOGIT_BITS."""
    return product_words + (bias << FRACTION_BITS)


def descend(
    party: Party,
    weights: Weights,
    gradients: Words,
    pull: Words,
    slopes: Words,
    slope_bits: int,
    pace: Pace,
    records: int,
) -> Weights:
    """The update of a step, one round.

    gradients: X_i^T r of every band (FRACTION_BITS + RESIDUAL_BITS); pull: H w (2 HEAD_BITS); slopes: parts
    of the sum of r, which is the gradient of the bias (parts x outputs), slope_bits.
    velocity = momentum * velocity - rate * (sum of gradients / records + pull), weight += velocity.
    """
    kept = round(pace.momentum * 2**FRACTION_BITS)
    flat = np.concatenate([weights.velocity.reshape(-1), weights.bias_velocity.reshape(-1)])
    # The divisors include the rate: x / (rows / rate) is rate * x / records.
    gradient_unit = round(records * 2 ** (FRACTION_BITS + RESIDUAL_BITS - HEAD_BITS) / pace.rate)
    pull_unit = round(2**HEAD_BITS / pace.rate)
    bias_unit = max(2, round(records * 2 ** (slope_bits - HEAD_BITS) * pace.bias_curvature / pace.rate))
    momentum, gradient, pulled, bias = divide_each(
        party,
        [
            (flat * kept, 1 << FRACTION_BITS),
            (gradients, gradient_unit),
            (pull, pull_unit),
            (slopes, bias_unit),
        ],
    )
    columns = weights.weight.size
    velocity = momentum[:columns].reshape(weights.weight.shape) - gradient.sum(axis=0) - pulled
    bias_velocity = momentum[columns:] - bias.sum(axis=0)
    return Weights(weights.weight + velocity, weights.bias + bias_velocity, velocity, bias_velocity)


def headroom(party: Party, logits: Words, bits: int, bound: float = LOGIT_BOUND) -> Words:
    """Shares of bound + u and bound - u: both are positive while the logit u is inside the range."""
    flat = logits.reshape(-1)
    room = np.concatenate([flat, -flat])
    if party.rank == 0:
        room += np.int64(round(bound * 2**bits))
    return room


def rows_at_once(words: int) -> int:
    """How many rows of this many words go into one round."""
    return max(BAND_ROWS, _ROUND_WORDS // max(1, words))


def select(
    party: Party, owner: int, holder: int, choices: Words | None, one_hot: Words | None, shape: tuple[int, int, int]
) -> Words:
    """Shares of choices[i, s_i, :] (rows x columns), from choices at `owner` and the one-hot of s at `holder`.

    Each of the two sends one message to the other, for each 2^21 words. A party that is both computes alone.
    """
    rows, groups, columns = shape
    out = np.zeros((rows, columns), np.int64)
    each = rows_at_once(groups * columns)
    for start in range(0, rows, each):
        here = slice(start, min(start + each, rows))
        out[here] = _select(
            party,
            owner,
            holder,
            None if choices is None else choices[here],
            None if one_hot is None else one_hot[here],
            (here.stop - here.start, groups, columns),
        )
    return out


def _select(
    party: Party, owner: int, holder: int, choices: Words | None, one_hot: Words | None, shape: tuple[int, int, int]
) -> Words:
    rows, groups, columns = shape
    if party.rank == owner and (choices is None or choices.shape != shape):
        raise ProtocolError(f"the owner must give choices of shape {shape}")
    if party.rank == holder and (one_hot is None or one_hot.shape != shape[:2]):
        raise ProtocolError(f"the holder must give one-hot rows of shape {shape[:2]}")
    if owner == holder:
        zero = party.zero_share((rows * columns,)).reshape(rows, columns)
        if choices is None or one_hot is None:
            return zero
        chosen: Words = np.einsum("ng,ngc->nc", one_hot, choices)
        return zero + chosen
    fields = party.take("selection", rows, groups, columns, owner, holder)
    share: Words = fields["c"]
    if party.rank == owner and choices is not None:
        # s a = (s - b) a + b (a - m) + b m, where the last is c
        came = party.transport.exchange(
            "selection", {holder: [choices - fields["a"]]}, {holder: [Spec("<i8", (rows, groups))]}
        )
        share += np.einsum("ng,ngc->nc", came[holder][0], choices)
    elif party.rank == holder and one_hot is not None:
        came = party.transport.exchange("selection", {owner: [one_hot - fields["b"]]}, {owner: [Spec("<i8", shape)]})
        share += np.einsum("ng,ngc->nc", fields["b"], came[owner][0])
    return share


def gram_sums(party: Party, tall: BandedMatrix) -> Words:
    """Shares of X^T X, as upper triangles of its sum over every 2^16 rows; 2 FRACTION_BITS. No round.

    X = opened + mask. Who knows columns of the mask multiplies them, and the dealer gives shares of mask^T mask.
    """
    total: Words = party.take("band_grams", tall.layout(), tall.columns, _GRAM_BANDS)["c"]
    for at, band in enumerate(tall.bands):
        opened = np.concatenate([block.opened for block in band], axis=1)
        cross = ring.matmul(opened.T, np.concatenate([_known_mask(block) for block in band], axis=1))
        cross = cross + cross.T
        if party.rank == 0:
            cross += ring.matmul(opened.T, opened)
        total[at // _GRAM_BANDS] += ring.packed(cross)
    return total


def _known_mask(block: Masked) -> Words:
    """What this party knows of a block's mask: all of its own, nothing of another's, its share of a shared one."""
    if block.owner is None:
        if block.mask is None:
            raise ProtocolError("a shared masked matrix has lost its mask")
        return block.mask
    return np.zeros(block.shape, np.int64) if block.own is None else block.own - block.opened


def _pieces(matrices: Sequence[Words], each: int) -> Iterator[Words]:
    """Matrices below each other, in pieces of so many rows."""
    kept: list[Words] = []
    left = each
    for matrix in matrices:
        at = 0
        while at < len(matrix):
            kept.append(matrix[at : at + left])
            at += len(kept[-1])
            left -= len(kept[-1])
            if not left:
                yield np.concatenate(kept)
                kept, left = [], each
    if kept:
        yield np.concatenate(kept)


def check_gram(squares: np.ndarray) -> None:
    """Raise unless a Gram matrix with this diagonal (at most, of the own columns) stays in range.

    No entry of a Gram matrix is above its largest diagonal. A truncation is exact below 2^62, and 2^61 leaves room
    for its divisor. An owner knows what could be selected of its columns, so it checks before it sends them.
    """
    if squares.size and float(squares.max()) >= GRAM_LIMIT:
        raise RangeError("the squares of the edits of a column add up to too much: scale the columns, or draw fewer")


def gram(party: Party, matrices: Sequence[Words]) -> Words:
    """Shares of X^T X of shared matrices below each other, not truncated; a round for each 2^21 words, or 2^16 rows.

    Owners have checked their columns (`check_gram`).
    """
    columns = matrices[0].shape[1]
    total = np.zeros((columns, columns), np.int64)
    each = min(rows_at_once(columns), _GRAM_BANDS * BAND_ROWS)
    for rows in _pieces(matrices, each):
        band = mask_square(party, rows)
        total += ring.unpacked(gram_sums(party, band)[0], columns)
        for counter in band.numbers():
            party.tuples.forget(counter)
    return total
