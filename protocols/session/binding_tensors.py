"""CrypTen's tensors with any fraction, on arrays, and on the values of `tensors.py` that are not shares yet.

`ArithmeticSharedTensor` keeps its share as an array; torch's view of the same memory is made when CrypTen's own code
asks for it. A tensor may have a `value` instead (protocols/session/tensors.py), whose words are made at their first
use. Encoders are shared between tensors, so they cannot be changed. Handles (`MPCTensor`) are made without CrypTen's
constructor, which draws random words for an empty tensor each time. Operators go straight to the kernels unless an
operand has a gradient. Slices, reshapings and sums of an array stay arrays: like torch's, slices and reshapings share
its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from protocols import ring
from protocols.errors import ProtocolError
from protocols.operations import banded
from protocols.ring import FRACTION_BITS, Words
from protocols.session import tensors
from protocols.session.tensors import Exact, Held, Late, Owned, Parts, Pinned, Stack, Sum, Value

if TYPE_CHECKING:
    from protocols.session.runtime import Session

_Shared: Any = None
_Tensor: Any = None
_arithmetic: Any = None
_leaf: Any = None
_encoders: list[Any] = []
_current: Callable[[], Session]
_get, _new = object.__getattribute__, object.__new__

Kernel = Callable[[Any, Any], Any]
MOST_BITS = 62
METHODS = frozenset(
    {"capped_slope", "capped_slope_and_bend", "doubled", "each", "exact", "gram", "group_sums", "packed", "pinned"}
    | {"rescale", "sampled", "selected", "sigmoid_and_slope", "unpacked", "with_fraction"}
)
"""Functions that tensors have on a session, and CrypTen's own have not. They have no gradients."""


def install(crypten: Any, current: Callable[[], Session]) -> None:
    """Replace, once per process, how tensors keep their shares."""
    global _Shared, _Tensor, _arithmetic, _leaf, _current
    _Shared, _Tensor = crypten.mpc.primitives.ArithmeticSharedTensor, crypten.mpc.MPCTensor
    _arithmetic, _leaf, _current = crypten.mpc.arithmetic, crypten.gradients.AutogradContext(), current
    tensors.install(current)
    _install_encoders(crypten.encoder.FixedPointEncoder)
    _Shared._array = _Shared._torch = _Shared._value = None
    _Shared._tensor = property(_view, _set_view)
    _Shared.from_shares = staticmethod(_from_shares)
    _Shared.shallow_copy = _shallow_copy
    _Shared.clone = _clone
    _Shared.size = _size
    _Shared.dim = lambda self: len(shape_of(self))
    _Shared.nelement = _Shared.numel = lambda self: int(np.prod(shape_of(self), dtype=np.int64))
    _Shared.__len__ = lambda self: shape_of(self)[0]
    _Shared.data = property(lambda self: self._tensor.data, _set_view)
    _Shared.t, _Shared.transpose = _turned(_Shared.t), _transposed(_Shared.transpose)
    _Shared.__getitem__ = _item(_Shared.__getitem__)
    for name, kernel in ON_ARRAYS.items():
        setattr(_Shared, name, _on_array(name, getattr(_Shared, name), kernel))
    size = _Tensor.size
    _Tensor.size = lambda self, *dim: _size(_get(self, "_tensor"), *dim) if direct(self) else size(self, *dim)
    for name in ("t", "transpose", *ON_ARRAYS):
        setattr(_Tensor, name, _passed_on(name, getattr(_Tensor, name)))
    _Tensor.shallow_copy = lambda self: handle(_get(self, "_tensor"), _get(self, "ptype"))
    _Tensor.clone = lambda self: handle(_get(self, "_tensor").clone(), _get(self, "ptype"))
    crypten.cat, crypten.stack = _join("cat", crypten.cat), _join("stack", crypten.stack)
    slow = _Tensor.from_shares

    def from_shares(share: Any, precision: int | None = None, ptype: Any = _arithmetic) -> Any:
        if ptype is not _arithmetic:
            return slow(share, precision=precision, ptype=ptype)
        return handle(_from_shares(share, precision))

    _Tensor.from_shares = staticmethod(from_shares)
    _Tensor.rescale = lambda self, bits, sliced=False: of(tensors.rescale(value_of(self), bits, sliced))
    _Tensor.pinned = lambda self, bound=None: of(tensors.pinned(value_of(self), bound))
    _Tensor.gram = lambda self, weights=None: of(
        tensors.gram(value_of(self), None if weights is None else value_of(weights))
    )
    _Tensor.group_sums = lambda self, one_hot, bound: of(tensors.group_sums(value_of(self), value_of(one_hot), bound))
    _Tensor.sampled = _sampled
    _Tensor.selected = lambda self, one_hot: of(tensors.selected(value_of(self), value_of(one_hot)))
    _Tensor.exact = lambda self: of(Exact(words_in(self), bits_in(self)))
    _Tensor.with_fraction = lambda self, bits: handle(held(words_in(self), bits))
    _Tensor.sigmoid_and_slope = lambda self: tuple(of(one) for one in tensors.slopes(value_of(self)))
    _Tensor.capped_slope_and_bend = lambda self, label: tuple(
        of(one) for one in tensors.capped(value_of(self), value_of(label), False, True)
    )
    _Tensor.each = _each
    _Tensor.packed = lambda self: of(Held(ring.packed(words_in(self)), bits_in(self)))
    _Tensor.unpacked = lambda self, columns: of(Held(ring.unpacked(words_in(self), columns), bits_in(self)))
    _Tensor.doubled = _doubled
    _Tensor.capped_slope = lambda self, label, fine: of(*tensors.capped(value_of(self), value_of(label), fine, False))
    for name in METHODS - {"exact", "with_fraction"}:
        setattr(_Tensor, name, _counted(name, getattr(_Tensor, name)))
    neg = _Tensor.__neg__
    _Tensor.__neg__ = lambda self: handle(_get(self, "_tensor").neg()) if direct(self) else neg(self)


def install_operators(add: Kernel, subtract: Kernel, multiply: Kernel, matrix_multiply: Kernel) -> None:
    """Send the operators of tensors to these kernels; each takes a shared tensor and another, or a public value."""
    _Tensor.__add__ = _Tensor.__radd__ = _operator("add", add)
    _Tensor.__sub__ = _operator("sub", subtract)
    _Tensor.__mul__ = _Tensor.__rmul__ = _operator("mul", multiply)
    _Tensor.__truediv__ = _operator("div", lambda x, y: x.div(y), shared=False)
    _Tensor.__matmul__ = _operator("matmul", matrix_multiply)


def _counted(name: str, function: Callable[..., Any]) -> Any:
    def method(self: Any, *given: Any, **options: Any) -> Any:
        _current().operations[name] += 1
        return function(self, *given, **options)

    return method


def _operator(name: str, kernel: Kernel, shared: bool = True) -> Any:
    """An operator that goes to its kernel at once where CrypTen would not record a gradient.

    shared: whether the kernel takes another shared tensor too.
    """

    def operator(self: Any, other: Any) -> Any:
        both = isinstance(other, _Tensor)
        if not direct(self) or (both and not (shared and direct(other))):
            return getattr(self, name)(other)
        return handle(kernel(_get(self, "_tensor"), _get(other, "_tensor") if both else other))

    return operator


def direct(tensor: Any) -> bool:
    """Whether a tensor has arithmetic shares and no gradient."""
    return _get(tensor, "ptype") is _arithmetic and not _get(tensor, "requires_grad")


def _join(name: str, function: Callable[..., Any]) -> Any:
    """`crypten.cat` or `stack`. CrypTen's own makes an empty tensor at every call, to ask it about gradients."""

    def join(tensors: Any, dim: int = 0) -> Any:
        if type(tensors) is not list or not all(type(one) is _Tensor and direct(one) for one in tensors):
            return function(tensors, dim)
        if len(tensors) == 1:
            return tensors[0] if name == "cat" else tensors[0].unsqueeze(dim)
        _current().operations[name] += 1
        return handle(getattr(_Shared, name)([_get(one, "_tensor") for one in tensors], dim))

    return join


def _install_encoders(Encoder: Any) -> None:
    class Fixed(Encoder):  # type: ignore[misc]
        """An encoder that many tensors share."""

        def __init__(self, bits: int) -> None:
            self.__dict__.update(_precision_bits=bits, _scale=1 << bits)

        def __setattr__(self, name: str, value: Any) -> NoReturn:
            raise ProtocolError("the fraction of a tensor is changed by encode or rescale, not in its encoder")

    _encoders[:] = [Fixed(bits) for bits in range(MOST_BITS + 1)]


# shares as arrays


def encoder_of(bits: int) -> Any:
    if not 0 <= bits <= MOST_BITS:
        raise ProtocolError(f"a tensor has 0 to {MOST_BITS} fractional bits, not {bits}")
    return _encoders[bits]


def held(array: Words, bits: int) -> Any:
    """A shared tensor of this array."""
    made = _new(_Shared)
    made._array, made.encoder = array, encoder_of(bits)
    return made


def late(value: Value) -> Any:
    """A shared tensor of a value that is not a share yet, or is kept otherwise."""
    if type(value) is Held:
        return held(value.words(), value.bits)
    made = _new(_Shared)
    made._value, made.encoder = value, encoder_of(value.bits)
    return made


def handle(inner: Any, ptype: Any = None) -> Any:
    """An `MPCTensor` of a shared tensor."""
    made = _new(_Tensor)
    made._tensor, made.ptype = inner, _arithmetic if ptype is None else ptype
    made.requires_grad, made.grad, made.grad_fn, made.children = False, None, None, []
    made.grad_expected = made.grad_received = 0
    made.ctx = _leaf  # CrypTen gives the result of a function with a gradient a context of its own
    return made


def of(value: Value) -> Any:
    """An `MPCTensor` of a value."""
    return handle(late(value))


def inner_of(tensor: Any) -> Any:
    """The shared tensor of a handle."""
    inner = _get(tensor, "_tensor") if type(tensor) is _Tensor else tensor
    if type(inner) is not _Shared:
        raise ProtocolError("this needs arithmetic shares: convert the binary ones first")
    return inner


def array_of(shared: Any) -> Words:
    """This party's share, as a contiguous array."""
    array: Words | None = shared._array
    if array is not None:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if shared._torch is not None:
        view: torch.Tensor = shared._torch
        return view.contiguous().numpy()
    value: Value = shared._value
    shared._array = array = np.ascontiguousarray(value.words()).reshape(value.shape)
    return array


def words_in(tensor: Any) -> Words:
    return array_of(inner_of(tensor))


def bits_in(tensor: Any) -> int:
    return int(inner_of(tensor).encoder._precision_bits)


def value_of(tensor: Any) -> Value:
    """The value of a tensor, which may still wait."""
    inner = inner_of(tensor)
    value: Value | None = inner._value
    if value is not None:
        return value
    return Held(array_of(inner), int(inner.encoder._precision_bits))


def is_long(shared: Any) -> bool:
    """Whether products and factors keep the whole fraction."""
    value: Value | None = shared._value
    return value.long if value is not None else shared.encoder._precision_bits not in tensors.USUAL


def is_pinned(shared: Any) -> bool:
    return isinstance(shared._value, Pinned)


def _view(self: Any) -> Any:
    if self._torch is None:
        array = self._array if self._array is not None else array_of(self)
        self._torch, self._array = torch.from_numpy(array), None  # torch may move its memory
    return self._torch


def _set_view(self: Any, share: Any) -> None:
    self._array, self._torch, self._value = None, share, None


def _from_shares(share: Any, precision: int | None = None, device: Any = None) -> Any:
    made = _new(_Shared)
    made._torch, made.encoder = share, encoder_of(FRACTION_BITS if precision is None else precision)
    return made


def _shallow_copy(self: Any) -> Any:
    made = _new(_Shared)
    made.__dict__.update(self.__dict__)
    return made


def settled(self: Any) -> Any:
    """The tensor with a share in memory of its own, to be written in place."""
    if self._value is not None:
        self._array, self._torch, self._value = array_of(self).copy(), None, None
    return self


def _clone(self: Any) -> Any:
    return held(array_of(self).copy(), int(self.encoder._precision_bits))


def shape_of(shared: Any) -> tuple[int, ...]:
    for known in (shared._array, shared._torch, shared._value):
        if known is not None:
            return tuple(known.shape)
    raise ProtocolError("a tensor without a share")


def _size(self: Any, dim: int | None = None) -> Any:
    return torch.Size(shape_of(self)) if dim is None else shape_of(self)[dim]


# functions


def _turned(function: Callable[..., Any]) -> Any:
    def t(self: Any) -> Any:
        value = self._value
        return late(value.turn()) if isinstance(value, Pinned) else function(self)

    return t


def _transposed(function: Callable[..., Any]) -> Any:
    def transpose(self: Any, *dims: Any, **options: Any) -> Any:
        value = self._value
        return late(value.turn()) if isinstance(value, Pinned) else function(self, *dims, **options)

    return transpose


def _item(function: Callable[..., Any]) -> Any:
    def item(self: Any, index: Any) -> Any:
        value = self._value
        if isinstance(value, Stack) and isinstance(index, (slice, list)):
            return late(value.chosen(index))
        if isinstance(value, (Late, Parts)) and value.parts > 1:
            places = index if isinstance(index, tuple) else (index,)
            return late(Parts(value.divided()[(slice(None), *places)], value.bits))
        if self._torch is None and _basic(index):
            found = _raw(self)[index]
            if isinstance(found, np.ndarray):
                return held(found, self.encoder._precision_bits)
        return function(self, index)

    return item


def _basic(index: Any) -> bool:
    """Whether an index has whole numbers, ranges and new axes alone: NumPy and torch agree about these."""
    for at in index if type(index) is tuple else (index,):
        if type(at) is slice:
            if at.step is not None:
                return False
        elif at is not None and at is not Ellipsis and type(at) is not int:
            return False
    return True


def _raw(shared: Any) -> Words:
    """The array of a tensor that has no view of torch's, with gaps in its memory if it has any."""
    array: Words = shared._array if shared._array is not None else array_of(shared)
    return array


def _on_array(name: str, function: Callable[..., Any], kernel: Callable[..., Any]) -> Any:
    """A function of tensors that works on the array where that is all there is; torch's for what it does not take."""
    counted = name in COUNTED

    def method(self: Any, *given: Any, **options: Any) -> Any:
        if counted:
            _current().operations[name] += 1
        if self._torch is None:
            found = kernel(_raw(self), *given, **options)
            if found is not None:
                return held(np.asarray(found), self.encoder._precision_bits)
        return function(self, *given, **options)

    return method


def _reshaped(array: Words, *shape: Any) -> Words | None:
    sides = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    return array.reshape(sides) if all(type(side) is int for side in sides) else None


def _unsqueezed(array: Words, dim: int) -> Words:
    return np.expand_dims(array, dim)


def _summed(array: Words, dim: Any = None, keepdim: bool = False) -> Any:
    return array.sum(axis=dim, keepdims=keepdim) if isinstance(dim, (int, tuple)) else None


def _repeated(array: Words, *times: Any) -> Words | None:
    return np.tile(array, times) if len(times) == array.ndim and all(type(n) is int for n in times) else None


ON_ARRAYS = {"reshape": _reshaped, "unsqueeze": _unsqueezed, "sum": _summed, "repeat": _repeated}
"""Functions that need no torch; they give None for arguments that are left to torch."""
COUNTED = frozenset({"sum"})
"""Those of them that compute something, and so are counted among the operations of a run."""


def _passed_on(name: str, function: Callable[..., Any]) -> Any:
    """A function of a tensor that its shares have too."""
    kernel = getattr(_Shared, name)

    def method(self: Any, *given: Any, **options: Any) -> Any:
        if _get(self, "ptype") is _arithmetic:
            return handle(kernel(_get(self, "_tensor"), *given, **options))
        return function(self, *given, **options)

    return method


def arrays_of(parts: Sequence[Any]) -> list[Words] | None:
    """The arrays of tensors with as many axes, if torch has a view of none."""
    if any(part._torch is not None for part in parts):
        return None
    arrays = [_raw(part) for part in parts]
    return arrays if len({array.ndim for array in arrays}) == 1 else None


def joined(parts: Sequence[Any], dim: int) -> Any:
    """Blocks of owners side by side, or pinned rows below each other; None for other tensors."""
    values = [part._value if isinstance(part, _Shared) else None for part in parts]
    blocks = [value for value in values if isinstance(value, Owned)]
    if len(blocks) == len(values) and dim in (-1, len(blocks[0].shape) - 1):
        return late(blocks[0].beside(blocks[1:]))
    rows = [value for value in values if isinstance(value, Pinned) and not value.turned]
    if len(rows) == len(values) and dim == 0:
        whole = rows[0].tall
        for value in rows[1:]:
            whole = whole.stacked(value.tall)
        return late(Pinned(whole, max(value.bits for value in rows), rows[0].together))
    return None


def _each(self: Any, columns: Any) -> Any:
    stack = value_of(self)
    if not isinstance(stack, Stack):
        raise ProtocolError("each takes square matrices that are pinned together")
    return of(stack.each(value_of(columns)))


def _sampled(self: Any, most: int) -> Any:
    value = value_of(self)
    if not isinstance(value, Pinned):
        raise ProtocolError("only bands of a pinned matrix can be sampled")
    return of(value.sampled(most))


def _doubled(self: Any, made: Any, columns: int, more: float = 0.0) -> tuple[Any, Any]:
    """F F and Q (F + more I) for upper triangles of symmetric matrices F (self) and Q that commute; two rounds.

    The products have the fractions of F and of Q.
    """
    bits = bits_in(self)
    square, next_ = banded.doubled(tensors.party(), words_in(self), words_in(made), columns, 1 << bits, more)
    return handle(held(square, bits)), handle(held(next_, bits_in(made)))


def added(x: Any, y: Any, sign: int) -> Any:
    """The sum of tensors of which one is a sum with coefficients, or comes in parts; None for others."""
    for value in (x._value, y._value):
        if value is not None and (isinstance(value, Sum) or value.parts > 1):
            return late(tensors.added(value_of(x), value_of(y), sign))
    return None


def scaled(x: Any, p: Any = 1, q: Any = 1) -> Any:
    """A tensor times a public p / q, exactly."""
    return late(tensors.scaled(value_of(x), p, q))


def multiplied(x: Any, y: Any, op: str) -> Any:
    """A product of shared tensors of which one is long, or pinned."""
    return late(tensors.multiplied(op, value_of(x), value_of(y)))


def coefficients(y: Any) -> Any:
    """A public number, or one for each place of the last axis; None for other operands."""
    if isinstance(y, (bool, int, float)):
        return y
    if isinstance(y, (np.ndarray, np.generic, torch.Tensor, list)):
        array = np.asarray(y)
        if array.ndim == 0:
            return array.item()
        if array.ndim == 1:
            return array.astype(np.float64)
    return None
