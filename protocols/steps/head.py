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

from dataclasses import dataclass

import numpy as np

from protocols.dealing.party import Party
from protocols.errors import ProtocolError, RangeError
from protocols.net.transport import Spec
from protocols.operations import banded
from protocols.operations.arithmetic import divide_each, scaled_bilinear
from protocols.operations.sigmoid import BOUND, SIGMOID_BITS, sigmoid
from protocols.ring import FRACTION_BITS, Words

HEAD_BITS = 24
LOGIT_BITS = FRACTION_BITS + HEAD_BITS
RESIDUAL_BITS = SIGMOID_BITS
LOGIT_BOUND = BOUND
"""Beyond this the one-round sigmoid is wrong; training code must check (see `headroom`)."""
GRAM_LIMIT = 2.0**61


def scaled_columns(party: Party, shares: Words, factors: Words, bits: int) -> Words:
    """Shares of the columns of a tall matrix times a shared factor each, which has `bits` fractional bits.

    One round for each band, two for a large one.
    """
    bands = [
        scaled_bilinear(party, "mul", shares[start : start + banded.BAND_ROWS], factors[None, :], 1 << bits)
        for start in range(0, len(shares), banded.BAND_ROWS)
    ]
    return np.concatenate(bands)


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


def select(
    party: Party, owner: int, holder: int, choices: Words | None, one_hot: Words | None, shape: tuple[int, int, int]
) -> Words:
    """Shares of choices[i, s_i, :] (rows x columns), from choices at `owner` and the one-hot of s at `holder`.

    Each of the two sends one message to the other, for each 2^21 words. A party that is both computes alone.
    """
    rows, groups, columns = shape
    out = np.zeros((rows, columns), np.int64)
    each = banded.rows_at_once(groups * columns)
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


def check_gram(squares: np.ndarray) -> None:
    """Raise unless a Gram matrix with this diagonal (at most, of the own columns) stays in range.

    No entry of a Gram matrix is above its largest diagonal. A truncation is exact below 2^62, and 2^61 leaves room
    for its divisor. An owner knows what could be selected of its columns, so it checks before it sends them.
    """
    if squares.size and float(squares.max()) >= GRAM_LIMIT:
        raise RangeError("the squares of the edits of a column add up to too much: scale the columns, or draw fewer")
