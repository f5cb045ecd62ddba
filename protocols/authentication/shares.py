"""`Authenticated`: a party's share of a secret, with its share of a MAC tag; the array that kernels compute with.

A secret x is K + v modulo 2^64. K is public. Party i holds v_i and t_i modulo 2^128, where v = sum v_i and the t_i
add up to alpha v modulo 2^112. The MAC key alpha = sum alpha_i is known to nobody but the dealer, which deals every
v_i with its t_i. Kernels are linear with public coefficients, so they act on v_i, t_i and K alike, and the tag of a
result is computed without communication. What a party sends is v_i modulo 2^64, plus K at rank 0, as without tags.

The class takes part in NumPy's functions, so a kernel is written once for both kinds of shares: a plain array that is
added to an `Authenticated` is a public constant (a kernel adds it where `Party.adds_public` says so), and one that it
is multiplied by is a public factor. Functions that are not linear with public coefficients raise TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.authentication.wide import Wide
from secure_sccvfl.protocols.authentication.wide import concatenate as _concatenate_wide
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.ring import RingArray, Shape

_MASK = (1 << 64) - 1


def public_elements(values: Any) -> npt.NDArray[np.uint64]:
    """Public integers modulo 2^64, as unsigned ring elements."""
    if isinstance(values, int):
        return np.array(values & _MASK, np.uint64)
    array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise TypeError(f"a public factor or constant is an array of integers, not of {array.dtype}")
    return array if array.dtype == np.uint64 else array.astype(np.int64).view(np.uint64)


class Authenticated:
    """One party's share of a secret tensor. `pair`: v_i and t_i, along a first axis of two. `offset`: K."""

    __slots__ = ("offset", "pair")
    dtype = np.dtype(np.int64)

    def __init__(self, pair: Wide, offset: npt.NDArray[np.uint64]) -> None:
        if pair.shape != (2, *offset.shape):
            raise ProtocolError(f"a share of shape {pair.shape[1:]} cannot have constants of shape {offset.shape}")
        self.pair, self.offset = pair, offset

    @classmethod
    def public(cls, values: Any) -> Authenticated:
        """Shares of public ring elements."""
        offset = np.array(public_elements(values))
        return cls(Wide.zeros((2, *offset.shape)), offset)

    def words(self, rank: int) -> RingArray:
        """What party `rank` sends where this is opened."""
        value = self.pair.lo[0, ...]  # an array also without dimensions: sums of scalars warn where they wrap
        return np.array(value + self.offset if rank == 0 else value, order="C").view(np.int64)

    def __repr__(self) -> str:
        return f"<Authenticated: shape {self.shape}, share hidden>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ProtocolError("an authenticated share cannot be pickled or copied by pickling")

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError("an authenticated share has no plain array")

    # shape

    @property
    def shape(self) -> Shape:
        return self.offset.shape

    @property
    def ndim(self) -> int:
        return self.offset.ndim

    @property
    def size(self) -> int:
        return self.offset.size

    @property
    def T(self) -> Authenticated:
        return self.transpose()

    def __len__(self) -> int:
        return len(self.offset)

    def copy(self) -> Authenticated:
        return Authenticated(self.pair.copy(), self.offset.copy())

    def reshape(self, *shape: Any) -> Authenticated:
        offset = self.offset.reshape(*shape)
        return Authenticated(self.pair.reshape(2, *offset.shape), offset)

    def transpose(self, *axes: Any) -> Authenticated:
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = tuple(order) if order else tuple(reversed(range(self.ndim)))
        return Authenticated(
            self.pair.transpose(0, *(at % self.ndim + 1 for at in order)), self.offset.transpose(order)
        )

    def __getitem__(self, index: Any) -> Authenticated:
        parts = index if isinstance(index, tuple) else (index,)
        return Authenticated(self.pair[(slice(None), *parts)], np.asarray(self.offset[index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        source = value if isinstance(value, Authenticated) else Authenticated.public(value)
        parts = index if isinstance(index, tuple) else (index,)
        room = self.offset[index]
        self.pair[(slice(None), *parts)] = source._spread(np.ndim(room)).pair
        self.offset[index] = source.offset

    def rearranged(self, move: Callable[[RingArray], Any]) -> Authenticated:
        """The elements in the order in which a function moves an array of this shape; -1 stands for a zero."""
        places = np.asarray(move(np.arange(self.size, dtype=np.int64).reshape(self.shape)))
        flat = self.reshape(-1)[np.maximum(places, 0)]
        if places.size and int(places.min()) < 0:
            empty = places < 0
            for part in (flat.pair.lo, flat.pair.hi):
                part[:, empty] = 0
            flat.offset[empty] = 0
        return flat

    def astype(self, dtype: npt.DTypeLike, **options: Any) -> Authenticated:
        if np.dtype(dtype) != self.dtype:
            raise TypeError("an authenticated share has 64-bit ring elements")
        return self

    def _spread(self, ndim: int) -> Authenticated:
        """With axes of length one in front, so that it broadcasts as an array of `ndim` axes does."""
        if ndim <= self.ndim:
            return self
        return self.reshape(*(1,) * (ndim - self.ndim), *self.shape)

    # arithmetic

    def _plus(self, other: Any, sign: int) -> Authenticated:
        if isinstance(other, Authenticated):
            left, right = self._spread(other.ndim), other._spread(self.ndim)
            pair = left.pair + right.pair if sign > 0 else left.pair - right.pair
            return Authenticated(pair, left.offset + right.offset if sign > 0 else left.offset - right.offset)
        constant = public_elements(other)
        offset = np.asarray(self.offset + constant if sign > 0 else self.offset - constant)
        pair = self._spread(offset.ndim).pair
        if pair.shape[1:] != offset.shape:
            pair = pair + Wide.zeros((2, *offset.shape))
        return Authenticated(pair if pair is not self.pair else pair.copy(), offset)

    def __add__(self, other: Any) -> Authenticated:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Authenticated:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Authenticated:
        return (-self)._plus(other, 1)

    def __neg__(self) -> Authenticated:
        return Authenticated(-self.pair, np.negative(self.offset))

    def __iadd__(self, other: Any) -> Authenticated:
        if isinstance(other, Authenticated):
            self.pair += other._spread(self.ndim).pair
            self.offset += other.offset
        else:
            self.offset += public_elements(other)
        return self

    def __isub__(self, other: Any) -> Authenticated:
        return self.__iadd__(-other)

    def __mul__(self, factor: Any) -> Authenticated:
        if isinstance(factor, Authenticated):
            return NotImplemented
        public = public_elements(factor)
        spread = self._spread(public.ndim)
        return Authenticated(spread.pair.times(public), np.asarray(spread.offset * public))

    __rmul__ = __mul__

    def __imul__(self, factor: Any) -> Authenticated:
        result = self * factor
        self.pair, self.offset = result.pair, result.offset
        return self

    def __lshift__(self, bits: int) -> Authenticated:
        return self * (1 << int(bits))

    def sum(self, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Authenticated:
        axes = range(self.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        pair, offset, kept = self.pair, self.offset, list(self.shape)
        for at in sorted((one % max(1, self.ndim) for one in axes), reverse=True):
            pair, offset, kept[at] = pair.sum(at + 1), np.asarray(offset.sum(axis=at, dtype=np.uint64)), 1
        result = Authenticated(pair, offset)
        return result.reshape(tuple(kept)) if keepdims else result

    def cumsum(self, axis: int) -> Authenticated:
        return Authenticated(self.pair.cumsum(axis % self.ndim + 1), self.offset.cumsum(axis=axis, dtype=np.uint64))

    def matmul(self, public: Array) -> Authenticated:
        """self @ public."""
        factor = public_elements(public)
        if factor.ndim == 1 or self.ndim == 1:
            return self._vector_product(factor)
        if factor.ndim > 2 or self.ndim > 2:
            return _in_batches(self, factor, Authenticated.matmul)
        return Authenticated(self.pair.matmul(factor), _matmul(self.offset, factor))

    def rmatmul(self, public: Array) -> Authenticated:
        """public @ self."""
        factor = public_elements(public)
        if factor.ndim == 1 or self.ndim == 1:
            return self.transpose()._vector_product(factor.T).transpose()
        if factor.ndim > 2 or self.ndim > 2:
            return _in_batches(self, factor, Authenticated.rmatmul)
        return Authenticated(self.pair.left_matmul(factor), _matmul(factor, self.offset))

    def _vector_product(self, factor: npt.NDArray[np.uint64]) -> Authenticated:
        if factor.ndim == 1:
            return (self * factor).sum(-1)
        return (self[:, None] * factor).sum(0)

    # NumPy's functions

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        action = _UFUNCS.get((ufunc.__name__, method))
        if action is None or options.keys() - {"axis", "dtype"}:
            return NotImplemented
        result = action(*inputs, **options)
        if out is None:
            return result
        (target,) = out
        if not isinstance(target, Authenticated) or target.shape != result.shape:
            return NotImplemented
        target.pair, target.offset = result.pair, result.offset
        return target

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        action = _FUNCTIONS.get(function)
        return NotImplemented if action is None else action(*args, **kwargs)


def _matmul(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    from secure_sccvfl.protocols import ring

    return ring.matmul(a.view(np.int64), b.view(np.int64)).view(np.uint64)


def _in_batches(
    share: Authenticated, factor: npt.NDArray[np.uint64], product: Callable[[Authenticated, Array], Authenticated]
) -> Authenticated:
    """Matrix products along the last two axes."""
    lead = np.broadcast_shapes(share.shape[:-2], factor.shape[:-2])
    shares = share._spread(len(lead) + 2)
    factors = np.broadcast_to(factor, (*lead, *factor.shape[-2:]))
    results = []
    for at in np.ndindex(*lead):
        here = tuple(0 if side == 1 else index for index, side in zip(at, shares.shape[:-2], strict=True))
        results.append(product(shares[here], factors[at]))
    whole = _stacked(results)
    return whole.reshape(*lead, *whole.shape[1:])


def _added(x: Any, y: Any) -> Authenticated:
    return x + y if isinstance(x, Authenticated) else y + x  # type: ignore[no-any-return]


def _subtracted(x: Any, y: Any) -> Authenticated:
    return x - y if isinstance(x, Authenticated) else (-y) + x  # type: ignore[no-any-return]


def _multiplied(x: Any, y: Any) -> Any:
    if isinstance(x, Authenticated) and isinstance(y, Authenticated):
        raise TypeError("a product of two authenticated shares is not linear")
    return x * y if isinstance(x, Authenticated) else y * x


def _reduced(values: Authenticated, starts: Sequence[int], axis: int = 0, dtype: Any = None) -> Authenticated:
    """np.add.reduceat along the first axis."""
    ends = [*starts[1:], len(values)]
    return _stacked([values[low:high].sum(0) for low, high in zip(starts, ends, strict=True)])


def _whole(values: Any) -> Authenticated:
    return values if isinstance(values, Authenticated) else Authenticated.public(values)


def _joined(parts: Sequence[Any], axis: int = 0, dtype: Any = None) -> Authenticated:
    shares = [_whole(part) for part in parts]
    at = axis % shares[0].ndim
    return Authenticated(
        _concatenate_wide([one.pair for one in shares], at + 1),
        np.concatenate([one.offset for one in shares], axis=at),
    )


def _stacked(parts: Sequence[Any], axis: int = 0) -> Authenticated:
    shares = [_whole(part) for part in parts]
    return _joined([_expanded(one, axis) for one in shares], axis % (shares[0].ndim + 1))


def _expanded(values: Authenticated, axis: int) -> Authenticated:
    at = axis % (values.ndim + 1)
    return values.reshape(*values.shape[:at], 1, *values.shape[at:])


def _taken(values: Authenticated, indices: Any, axis: int | None = None) -> Authenticated:
    if axis is None:
        return values.reshape(-1)[indices]
    return values[(*(slice(None),) * (axis % values.ndim), indices)]


def _cut(values: Authenticated, sections: Any, axis: int = 0) -> list[Authenticated]:
    if isinstance(sections, int):
        length, rest = divmod(values.shape[axis], sections)
        if rest:
            raise ValueError("an authenticated share is split into parts of equal length")
        sections = range(length, values.shape[axis], length)
    edges, before = [0, *sections, values.shape[axis]], (slice(None),) * (axis % values.ndim)
    return [values[(*before, slice(low, high))] for low, high in pairwise(edges)]


def _summed_product(pattern: str, x: Any, y: Any) -> Authenticated:
    """The sums of products that kernels write with einsum, of one public and one authenticated factor."""
    if pattern == "gij,jg->ig":
        return _multiplied(x, y.T[:, None, :]).sum(-1).T  # type: ignore[no-any-return]
    if pattern == "tn,tn->n":
        return _multiplied(x, y).sum(0)  # type: ignore[no-any-return]
    if pattern == "ng,ngc->nc":
        return _multiplied(x[:, :, None], y).sum(1)  # type: ignore[no-any-return]
    raise TypeError(f"no kernel sums products of shares by {pattern!r}")


_UFUNCS: dict[tuple[str, str], Callable[..., Any]] = {
    ("add", "__call__"): _added,
    ("subtract", "__call__"): _subtracted,
    ("multiply", "__call__"): _multiplied,
    ("negative", "__call__"): lambda x: -x,
    ("left_shift", "__call__"): lambda x, bits: x << bits,
    ("add", "reduceat"): _reduced,
}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.concatenate: _joined,
    np.stack: _stacked,
    np.take: _taken,
    np.split: _cut,
    np.einsum: _summed_product,
    np.expand_dims: _expanded,
    np.transpose: lambda values, axes=None: values.transpose(*(axes or ())),
    np.tile: lambda values, times: values.rearranged(lambda places: np.tile(places, times)),
    np.zeros_like: lambda values, **options: Authenticated.public(np.zeros(values.shape, np.int64)),
}
