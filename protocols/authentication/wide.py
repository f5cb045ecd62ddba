"""Arrays of integers modulo 2^128: shares of authenticated values and their MAC tags.

`Wide` holds the low and the high 64 bits as two uint64 arrays. Everything is exact modulo 2^128. Public numbers are
64-bit integers, read as unsigned. The loops that NumPy takes long for are in native.c too, which setup.py compiles
where there is a C compiler; both implementations give the same numbers, and `implementation` says which one runs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.errors import ProtocolError

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.integer[Any]]

_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_BLOCK = 1 << 15
"""Elements of a block: temporaries stay in the cache."""
_PIECE_BITS = 22
_INNER = 1 << (53 - 2 * _PIECE_BITS)
"""So many products of two pieces add up to at most 2^53: exact in a float64, in whatever order they are added."""


_LIBRARY = Path(__file__).with_name("_native.abi3.so")
_native = ctypes.CDLL(str(_LIBRARY)) if _LIBRARY.exists() else None
"""The compiled native.c, or None if it was not built here."""


def implementation() -> str:
    """`native` or `numpy`: which implementation runs."""
    return "numpy" if _native is None else "native"


class Wide:
    """An array of integers modulo 2^128, as uint64 arrays `lo` and `hi` of one shape. It keeps them, not copies."""

    __slots__ = ("hi", "lo")
    __array_ufunc__ = None  # an ndarray on the left raises, where NumPy would make an array of objects

    def __init__(self, lo: npt.ArrayLike, hi: npt.ArrayLike) -> None:
        self.lo: Words = np.asarray(lo)
        self.hi: Words = np.asarray(hi)
        if self.lo.dtype != np.uint64 or self.hi.dtype != np.uint64 or self.lo.shape != self.hi.shape:
            given = " and ".join(f"{array.dtype} {array.shape}" for array in (self.lo, self.hi))
            raise ProtocolError(f"a Wide needs two uint64 arrays of one shape, not {given}")

    @classmethod
    def of(cls, array: Integers) -> Wide:
        """The elements of an integer array of 8 to 64 bits, read as unsigned: a copy."""
        words = _unsigned(array).astype(np.uint64)
        return cls(words, np.zeros(words.shape, np.uint64))

    @classmethod
    def zeros(cls, shape: int | tuple[int, ...]) -> Wide:
        return cls(np.zeros(shape, np.uint64), np.zeros(shape, np.uint64))

    def __repr__(self) -> str:
        return f"<Wide {self.shape}: elements hidden>"

    # Shape, as of an ndarray: views where NumPy gives views.

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lo.shape

    @property
    def ndim(self) -> int:
        return self.lo.ndim

    @property
    def size(self) -> int:
        return self.lo.size

    def reshape(self, *shape: Any) -> Wide:
        return Wide(self.lo.reshape(*shape), self.hi.reshape(*shape))

    def transpose(self, *axes: Any) -> Wide:
        return Wide(self.lo.transpose(*axes), self.hi.transpose(*axes))

    def copy(self) -> Wide:
        return Wide(self.lo.copy(), self.hi.copy())

    def __getitem__(self, index: Any) -> Wide:
        return Wide(self.lo[index], self.hi[index])

    def __setitem__(self, index: Any, value: Wide) -> None:
        self.lo[index], self.hi[index] = value.lo, value.hi

    # Sums and differences, with broadcasting. The functions of NumPy wrap scalars too, where operators warn.

    def __add__(self, other: Wide) -> Wide:
        lo = np.add(self.lo, other.lo)
        return Wide(lo, np.add(np.add(self.hi, other.hi), lo < other.lo))

    def __sub__(self, other: Wide) -> Wide:
        borrow = self.lo < other.lo
        return Wide(np.subtract(self.lo, other.lo), np.subtract(np.subtract(self.hi, other.hi), borrow))

    def __neg__(self) -> Wide:
        return Wide(np.negative(self.lo), np.add(np.invert(self.hi), self.lo == 0))

    def __iadd__(self, other: Wide) -> Wide:
        self[...] = self + other
        return self

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Wide:
        halves = (self.lo & _LOW, self.lo >> _HALF)
        low, middle = (np.asarray(half.sum(axis=axis, dtype=np.uint64)) for half in halves)
        high = np.asarray(self.hi.sum(axis=axis, dtype=np.uint64))
        return _weighted([low, middle, high], 32)

    def cumsum(self, axis: int) -> Wide:
        lo = self.lo.cumsum(axis=axis)
        return Wide(lo, self.hi.cumsum(axis=axis) + (lo < self.lo).cumsum(axis=axis, dtype=np.uint64))

    # Products with public numbers or with the MAC key.

    def shift_left(self, bits: int) -> Wide:
        """2^bits times the elements, for 0 <= bits < 128."""
        if not 0 <= bits < 128:
            raise ProtocolError(f"a shift must be by 0 to 127 bits, not {bits}")
        if bits >= 64:
            return Wide(np.zeros_like(self.lo), np.left_shift(self.lo, np.uint64(bits - 64)))
        carried = np.right_shift(np.right_shift(self.lo, np.uint64(1)), np.uint64(63 - bits))
        return Wide(np.left_shift(self.lo, np.uint64(bits)), np.left_shift(self.hi, np.uint64(bits)) | carried)

    def times(self, public: Words | npt.NDArray[np.int64] | int) -> Wide:
        """Elementwise products with public 64-bit numbers, with broadcasting; a Python int is taken modulo 2^64."""
        words = np.array(public % 2**64, np.uint64) if isinstance(public, int) else _public(public)
        blocks = np.nditer(
            [self.lo, self.hi, words, None, None],
            ["external_loop", "buffered", "zerosize_ok"],
            [["readonly"], ["readonly"], ["readonly"], ["writeonly", "allocate"], ["writeonly", "allocate"]],
            [np.uint64] * 5,
            order="C",
            buffersize=_BLOCK,
        )
        with blocks:
            for lo, hi, factor, out_lo, out_hi in blocks:
                _times(lo, hi, factor, out_lo, out_hi)
            return Wide(*blocks.operands[3:])

    def scaled(self, key: int) -> Wide:
        """Elementwise products with one integer below 2^128."""
        _check_key(key)
        scaled = self.times(key)
        return Wide(scaled.lo, np.add(scaled.hi, np.multiply(self.lo, np.uint64(key >> 64))))

    def left_matmul(self, public: Words | npt.NDArray[np.int64]) -> Wide:
        """public (n, c) @ self (..., c, k). `public` may be a transposed view of a tall matrix: no copy is made."""
        words = _public(public)
        if words.ndim != 2 or self.ndim < 2 or words.shape[1] != self.shape[-2]:
            raise ProtocolError(f"matrices of shapes {words.shape} and {self.shape} have no product")
        batches = self.reshape(math.prod(self.shape[:-2]), *self.shape[-2:])
        return _matmul(words, batches).reshape(*self.shape[:-2], len(words), self.shape[-1])

    def matmul(self, public: Words | npt.NDArray[np.int64]) -> Wide:
        """self (..., n, c) @ public (c, k): the transpose of public^T @ self^T. `self` may be a transposed view."""
        axes = (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)
        if self.ndim < 2 or np.ndim(public) != 2:
            raise ProtocolError(f"matrices of shapes {self.shape} and {np.shape(public)} have no product")
        return self.transpose(axes).left_matmul(public.T).transpose(axes)


def concatenate(parts: Sequence[Wide], axis: int = 0) -> Wide:
    return Wide(*(np.concatenate(words, axis) for words in ([x.lo for x in parts], [x.hi for x in parts])))


def stack(parts: Sequence[Wide], axis: int = 0) -> Wide:
    return Wide(*(np.stack(words, axis) for words in ([x.lo for x in parts], [x.hi for x in parts])))


def project(choice: npt.NDArray[np.uint8], flat: Wide | Integers) -> Wide:
    """Subset sums (w, R) of the rows of `flat` (w, n), by packed bits `choice` (n, R/8).

    Sum 8 q + b of a row adds up the elements i whose bit b, from the lowest, of choice[i, q] is set. Public integers
    are read as unsigned. `flat` may be a transposed view of a tall matrix.
    """
    if choice.dtype != np.uint8 or choice.ndim != 2 or flat.ndim != 2 or len(choice) != flat.shape[1]:
        raise ProtocolError(f"a choice of shape {choice.shape} does not fit elements of shape {flat.shape}")
    rows, sums = flat.shape[0], 8 * choice.shape[1]
    total = Wide.zeros((rows, sums))
    for at in _slices(len(choice), 8 * _BLOCK // (rows + sums + 1)):
        block = flat[:, at]
        total += _project(choice[at], block if isinstance(block, Wide) else Wide.of(block))
    return total


def project_words(choice: npt.NDArray[np.uint8], words: Integers) -> Words:
    """Subset sums (w, R) of public integers (w, n) modulo 2^64, as `project` takes them."""
    return project(choice, words).lo


def tag_corrections(shares: Sequence[Integers], others: Sequence[Wide], key: int) -> Wide:
    """The receiver's tags: key * value less the tags of all others, from all shares of the value. The dealer runs it.

    Shares are integers of 8 to 64 bits, read as unsigned; the value is their sum as integers.
    """
    _check_key(key)
    shapes = {share.shape for share in shares} | {tag.shape for tag in others}
    if not shares or len(shapes) != 1:
        raise ProtocolError(f"shares and tags must have one shape, not {sorted(shapes)}")
    values = [_flat(_unsigned(share)) for share in shares]
    lows, highs = [_flat(tag.lo) for tag in others], [_flat(tag.hi) for tag in others]
    out = _empty(values[0].shape)
    if _native is not None:
        tables = _pointers(values), np.array([value.itemsize for value in values], np.int32), len(values)
        tags = _pointers(lows), _pointers(highs), len(lows)
        _run("wide_corrections", *tables, *tags, key % 2**64, key >> 64, out.size, out.lo, out.hi)
        return out.reshape(shares[0].shape)
    for at in _slices(out.size, _BLOCK):
        value = sum((Wide.of(share[at]) for share in values), Wide.zeros(()))
        tags_of_others = (Wide(low[at], high[at]) for low, high in zip(lows, highs, strict=True))
        out[at] = value.scaled(key) - sum(tags_of_others, Wide.zeros(()))
    return out.reshape(shares[0].shape)


def _matmul(public: Words, wide: Wide) -> Wide:
    """public (n, c) @ wide (b, c, k), block by block, so that temporaries stay small whichever dimension is long."""
    (rows, inner), (batch, _, columns) = public.shape, wide.shape
    out = Wide.zeros((batch, rows, columns))
    side = _BLOCK // max(1, min(inner, _INNER))  # of a block; a few columns of all of the batch are in one
    sides = ((inner, _INNER), (rows, side), (batch, side // max(1, columns)), (columns, side))
    for j, i, b, k in product(*(_slices(*pair) for pair in sides)):
        right = wide[b, j, k].transpose(0, 2, 1)
        sums = _dot(np.ascontiguousarray(public[i, j]), right.reshape(-1, right.shape[2]))
        target = out[b, i, k]
        target += sums.reshape(-1, *right.shape[:2]).transpose(1, 0, 2)
    return out


def _dot(public: Words, wide: Wide) -> Wide:
    """public (n, c) @ wide (k, c)^T for c up to `_INNER`."""
    rows, columns, inner = len(public), len(wide.lo), public.shape[1]
    if _native is not None:
        out = _empty((rows, columns))
        _run("wide_dot", public, wide.lo, wide.hi, rows, columns, inner, out.lo, out.hi)
        return out
    lo, hi = wide.lo, wide.hi
    left = _pieces([public, public >> np.uint64(22), public >> np.uint64(44)])
    middle = (lo >> np.uint64(44)) | (hi << np.uint64(20))
    right = _pieces([lo, lo >> np.uint64(22), middle, *(hi >> np.uint64(bits) for bits in (2, 24, 46))])
    products = (left @ right.T).astype(np.uint64).reshape(3, rows, 6, columns)
    sums = np.zeros((6, rows, columns), np.uint64)
    for i in range(3):
        sums[i:] += products[i].swapaxes(0, 1)[: 6 - i]
    return _weighted(sums, _PIECE_BITS)


def _pieces(words: list[Words]) -> npt.NDArray[np.float64]:
    """The lowest 22 bits of these matrices, one below the other."""
    low = np.uint64((1 << _PIECE_BITS) - 1)
    return np.concatenate([(part & low).astype(np.float64) for part in words])


def _project(choice: npt.NDArray[np.uint8], wide: Wide) -> Wide:
    """`project` of one block."""
    (count, width), rows = choice.shape, len(wide.lo)
    if _native is not None:
        out = _empty((rows, 8 * width))
        _run("wide_project", choice, wide.lo, wide.hi, rows, count, width, out.lo, out.hi)
        return out
    bits = np.unpackbits(choice, axis=1, bitorder="little").astype(np.float64)
    words = [wide.lo, wide.hi] if wide.hi.any() else [wide.lo]
    halves = np.stack([half for word in words for half in (word & _LOW, word >> _HALF)])
    return _weighted((halves.astype(np.float64) @ bits).astype(np.uint64), 32)


def _times(lo: Words, hi: Words, factor: Words, out_lo: Words, out_hi: Words) -> None:
    """Products of contiguous arrays of one size."""
    if _native is not None:
        _run("wide_times", lo, hi, factor, lo.size, out_lo, out_hi)
        return
    a, b, c, d = lo & _LOW, lo >> _HALF, factor & _LOW, factor >> _HALF
    cross, other = a * d, b * c
    carry = ((a * c) >> _HALF) + (cross & _LOW) + (other & _LOW)
    out_lo[...] = lo * factor
    out_hi[...] = hi * factor + b * d + (cross >> _HALF) + (other >> _HALF) + (carry >> _HALF)


def _weighted(parts: Sequence[Words] | Words, bits: int) -> Wide:
    """The sum of 2^(bits k) parts[k]."""
    return sum((Wide.of(part).shift_left(bits * k) for k, part in enumerate(parts)), Wide.zeros(()))


def _run(function: str, *arguments: Any) -> None:
    """Call native.c: arrays as pointers to contiguous elements (results are contiguous), integers as 64 bits."""
    getattr(_native, function)(*map(_passed, arguments))


def _passed(value: npt.NDArray[Any] | int) -> ctypes.c_void_p | ctypes.c_uint64:
    if isinstance(value, int):
        return ctypes.c_uint64(value)
    return np.ascontiguousarray(value).ctypes.data_as(ctypes.c_void_p)  # the pointer keeps the array alive


def _pointers(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uintp]:
    return np.array([array.ctypes.data for array in arrays], np.uintp)


def _empty(shape: tuple[int, ...]) -> Wide:
    return Wide(np.empty(shape, np.uint64), np.empty(shape, np.uint64))


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(at, at + max(1, step)) for at in range(0, length, max(1, step))]


def _unsigned(array: Integers) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The same bits read as unsigned integers."""
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise ProtocolError(f"shares must be integers, not {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False).view(f"u{array.itemsize}")


def _public(array: Integers) -> Words:
    if np.asarray(array).dtype not in (np.uint64, np.int64):
        raise ProtocolError(f"public numbers must be 64-bit integers, not {np.asarray(array).dtype}")
    return _unsigned(array).astype(np.uint64, copy=False)


def _check_key(key: int) -> None:
    if not 0 <= key < 2**128:
        raise ProtocolError("a MAC key must be an integer from 0 to 2^128 - 1")
