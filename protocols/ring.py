"""The ring Z/2^64 and fixed-point numbers in it.

A real v is stored as round(v * 2^bits) in an int64, where sums and products wrap modulo 2^64. Inputs are checked
before they are encoded: a value that is not finite or does not fit raises. Products need |x * y| < 2^30 at 16 bits,
because truncation works for magnitudes below 2^62 (protocols/operations/arithmetic.py).
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.errors import ProtocolError, RangeError

if TYPE_CHECKING:
    import torch

RingArray = npt.NDArray[np.int64]
Shape = tuple[int, ...]
Share = Any
"""A party's share: an array of ring elements, or `Authenticated` with active security."""

FRACTION_BITS = 16
"""Fractional bits of every value at rest (CrypTen's default)."""

WIDE_BITS = 32
"""Fractional bits of a product, or of a one-round series, before it is truncated."""

INPUT_LIMIT = 2.0**30
"""Largest magnitude of an input."""


def encode(values: torch.Tensor | npt.ArrayLike, bits: int = FRACTION_BITS, limit: float = INPUT_LIMIT) -> RingArray:
    """Real or integer values to ring elements with `bits` fractional bits, rounded to nearest."""
    array = np.asarray(values.detach() if hasattr(values, "detach") else values)
    limit = min(limit, 2.0 ** (62 - bits))
    if array.dtype == np.bool_ or np.issubdtype(array.dtype, np.integer):
        if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise RangeError(f"an integer input is larger than {int(limit)}")
        whole = array.astype(np.int64)
        if array.size and (int(whole.max()) > limit or int(whole.min()) < -limit):
            raise RangeError(f"an integer input is larger in magnitude than {int(limit)}, the fixed-point limit")
        return np.ascontiguousarray(whole << bits)
    if not np.issubdtype(array.dtype, np.floating):
        raise RangeError(f"inputs must be real numbers, not {array.dtype}")
    real = array.astype(np.float64, copy=False)
    if not np.isfinite(real).all():
        bad = int(real.size - np.count_nonzero(np.isfinite(real)))
        raise RangeError(f"{bad} of {real.size} input values are NaN or infinite")
    if real.size and max(float(real.max()), -float(real.min())) > limit:
        raise RangeError(f"an input value is larger in magnitude than {limit:g}, the fixed-point limit")
    scaled = np.multiply(real, 2.0**bits, out=np.empty_like(real))
    return np.rint(scaled, out=scaled).astype(np.int64)


def decode(elements: RingArray, bits: int = FRACTION_BITS) -> npt.NDArray[np.float64]:
    return elements.astype(np.float64) / 2.0**bits


_PIECE_BITS = 22
_PIECES = 3
_INNER = 1 << (53 - 2 * _PIECE_BITS)
"""So many products of two pieces add up to at most 2^53: exact in a float64, in whatever order they are added."""
_LARGE = 48
"""From this size of all three dimensions on, products of pieces are faster."""
_TALL = 1 << 12
"""From so many ring elements on, einsum is faster than matmul for a few columns."""


def matmul(a: RingArray, b: RingArray) -> RingArray:
    """Matrix product in the ring.

    numpy has no fast product of integers. Large matrices are cut into pieces of 22 bits, which the fast product
    of floating-point numbers takes exactly. A few columns go through einsum, one at a time: that is 1.5 times as fast
    as matmul, and up to six times for the transpose of a tall matrix. One factor may be an authenticated share.
    """
    if not isinstance(a, np.ndarray):
        return a.matmul(b)
    if not isinstance(b, np.ndarray):
        return b.rmatmul(a)
    if a.ndim >= 2 and b.ndim >= 2 and min(a.shape[-2:] + b.shape[-1:]) >= _LARGE:
        return _matmul_of_pieces(a, b)
    if a.ndim == 2 and b.ndim == 2 and (b.shape[1] == 1 or (a.size >= _TALL and b.shape[1] <= a.shape[1])):
        columns = [np.einsum("ij,j->i", a, column) for column in np.ascontiguousarray(b.T)]
        return np.stack(columns, axis=1) if columns else np.zeros((len(a), 0), np.int64)
    product: RingArray = np.asarray(np.matmul(a, b))  # of two vectors NumPy returns a scalar
    return product


def _matmul_of_pieces(a: RingArray, b: RingArray) -> RingArray:
    """sum over i + j < 3 of 2^(22 (i + j)) a_i b_j. The others have a factor of 2^66, which is 0 in the ring."""
    left, right = _pieces(a), _pieces(b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.zeros((*batch, a.shape[-2], b.shape[-1]), np.uint64)
    for start in range(0, a.shape[-1], _INNER):
        here = slice(start, start + _INNER)
        for i in range(_PIECES):
            for j in range(_PIECES - i):
                part = np.matmul(left[i][..., here], right[j][..., here, :]).astype(np.uint64)
                result += part << np.uint64(_PIECE_BITS * (i + j))
    return result.view(np.int64)


def _pieces(elements: RingArray) -> list[npt.NDArray[np.float64]]:
    """The 22 lowest bits of every element, the next 22, and the rest."""
    unsigned, low = (
        elements.astype(np.int64, order="C", copy=False).view(np.uint64),
        np.uint64((1 << _PIECE_BITS) - 1),
    )
    return [((unsigned >> np.uint64(_PIECE_BITS * k)) & low).astype(np.float64) for k in range(_PIECES)]


def cross(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """a^T @ b for tall thin integer matrices of one word size: einsum reads both once, row by row."""
    product: npt.NDArray[Any] = np.einsum("na,nb->ab", a, b)
    return product


def upper_triangles(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The upper triangles of square matrices, row by row."""
    columns = matrices.shape[-1]
    return matrices.reshape(*matrices.shape[:-2], columns * columns)[..., _triangle(columns)]


@lru_cache(maxsize=8)
def _triangle(columns: int) -> npt.NDArray[np.intp]:
    """The indices of an upper triangle in its matrix, row by row."""
    return np.flatnonzero(np.triu(np.ones((columns, columns), bool)))


@lru_cache(maxsize=8)
def _whole(columns: int) -> npt.NDArray[np.intp]:
    """For every entry of a symmetric matrix, its index in the packed upper triangle."""
    positions = np.zeros((columns, columns), np.intp)
    row, column = np.triu_indices(columns)
    positions[row, column] = positions[column, row] = np.arange(len(row))
    return positions


def columns_of(size: int) -> int:
    """The number of columns of a symmetric matrix, from the size of its upper triangle."""
    return (isqrt(8 * size + 1) - 1) // 2


def symmetric_matrices(triangles: RingArray, columns: int) -> RingArray:
    """The symmetric matrices of these upper triangles."""
    return np.take(triangles, _whole(columns), axis=-1)


def unsigned_quotient(elements: RingArray, divisor: int) -> RingArray:
    """words // divisor, with elements read as unsigned; a shift where that is equal."""
    unsigned = elements.view(np.uint64)
    if divisor.bit_count() == 1:
        return (unsigned >> np.uint64(divisor.bit_length() - 1)).view(np.int64)
    return (unsigned // np.uint64(divisor)).view(np.int64)


def apply(op: str, a: RingArray, b: RingArray) -> RingArray:
    """The product (`mul`) or matrix product (`matmul`) in the ring."""
    return np.multiply(a, b) if op == "mul" else matmul(a, b)


def shape_of(op: str, shape_a: Shape, shape_b: Shape) -> Shape:
    if op == "mul":
        return np.broadcast_shapes(shape_a, shape_b)
    if op == "matmul":
        batch = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
        return (*batch, *shape_a[-2:-1], *(shape_b[-1:] if len(shape_b) > 1 else ()))
    raise ProtocolError(f"unknown product {op!r}; available: mul, matmul")
