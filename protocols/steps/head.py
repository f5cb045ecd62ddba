"""The fused linear head under MPC: tall matrices that parties hold side by side, and one training step on them.

Before: each party holds its own columns (encodings, which it has scaled). One party holds the labels. Head and
velocity are shares. After: shares of the new head and velocity. Nobody learns anything. A tall matrix X is stored in
bands of rows under masks (protocols/operations/banded.py).

| step of training | rounds | ring elements to each peer |
|---|---|---|
| open w - b: shares of X w and of H w | 1 | columns |
| open X w + t modulo the period, and extend: shares of the residual r | 2 | rows |
| open r - b': shares of X^T r, band by band | 1 | rows |
| truncate, with rate and momentum as the divisors | 1 | columns x (bands + 2) |

Why it is secure: each opened value is a secret minus a uniform tuple value that is used once, or minus a mask that
belongs to one secret. So every view is uniform whatever the data are.

Rows that s has selected (mode `aware`) are shares of all columns, and no owner's. They are scaled by a product with
the shared factors and masked once per descent, by a mask that nobody knows. A step on them has the same rounds and
sizes. So do rows that are zero where not all parties have a record (protocols/alignment/hidden_intersection.py):
their bias is the weight of one more column, which is 1 where all have one.

Fractions: encodings 16 bits, head and H 24, logits 40, residuals 28. So a band of 2^11 rows of magnitude 2^6 stays
below 2^62, where truncation is exact (protocols/operations/arithmetic.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.operations import banded
from secure_sccvfl.protocols.operations.sigmoid import BOUND, SIGMOID_BITS
from secure_sccvfl.protocols.ring import FRACTION_BITS
from secure_sccvfl.protocols.session.runtime import MPCTensor, crypten

HEAD_BITS = 24
LOGIT_BITS = FRACTION_BITS + HEAD_BITS
RESIDUAL_BITS = SIGMOID_BITS
LOGIT_BOUND = BOUND
"""Beyond this the one-round sigmoid is wrong; training code must check (see `headroom`)."""
GRAM_LIMIT = 2.0**61


def scaled_columns(rows: Any, factors: Any) -> Any:
    """The columns of a tall tensor times a shared factor each, with the fraction of the former.

    One product for each band: two rounds, three for a large one.
    """
    if not isinstance(rows, MPCTensor):  # in shards
        return rows.product(factors[None], FRACTION_BITS)
    starts = range(0, rows.size(0), banded.BAND_ROWS)
    bits = rows.encoder._precision_bits
    bands = [(rows[at : at + banded.BAND_ROWS] * factors[None]).rescale(bits) for at in starts]
    return crypten.cat(bands)


@dataclass(frozen=True)
class Pace:
    """Public numbers of a step: rate, momentum, and the curvature of the bias."""

    rate: float
    momentum: float
    bias_curvature: float


@dataclass(frozen=True, repr=False, eq=False)
class Weights:
    """A head (columns x outputs) and its bias, with their velocities: tensors. zero: all are public zeros."""

    weight: Any
    bias: Any
    velocity: Any
    bias_velocity: Any
    zero: bool = False

    @property
    def whole(self) -> Any:
        """The weights, and the bias below them."""
        return crypten.cat([self.weight, self.bias[None]])

    @classmethod
    def of(cls, heads: Any, velocity: Any) -> Weights:
        """From `whole` and the same of the velocities."""
        return cls(heads[:-1], heads[-1], velocity[:-1], velocity[-1])


def check_reach(reach: np.ndarray) -> None:
    """Raise unless encodings of at most this magnitude are small enough for sums over a band."""
    banded.check_columns(ring.encode(reach))


def headroom(logits: Any, bound: float = LOGIT_BOUND) -> Any:
    """bound + u and bound - u, as integers: both are positive while the logit u is inside the range."""
    flat = logits.reshape(-1)
    return (crypten.cat([flat, -flat]) + bound).with_fraction(0)


def largest_squares(choices: np.ndarray) -> np.ndarray:
    """Of each column the sum over rows of the largest square that could be selected, for `check_gram`.

    choices: rows x groups x own columns. One group at a time, as ring elements.
    """
    largest = np.zeros((len(choices), choices.shape[2]))
    for group in range(choices.shape[1]):
        np.maximum(largest, ring.encode(choices[:, group]).astype(np.float64) ** 2, out=largest)
    result: np.ndarray = largest.sum(axis=0)
    return result


def check_gram(squares: np.ndarray) -> None:
    """Raise unless a Gram matrix with this diagonal (at most, of the own columns) stays in range.

    No entry of a Gram matrix is above its largest diagonal. A truncation is exact below 2^62, and 2^61 leaves room
    for its divisor. An owner knows what could be selected of its columns, so it checks before it sends them.
    """
    if squares.size and float(squares.max()) >= GRAM_LIMIT:
        raise RangeError("the squares of a column's changes add up to too much: scale the columns, or draw fewer")
