"""Our protocols behind CrypTen's `ArithmeticSharedTensor`.

A usual tensor has 0, 16 or 32 fractional bits (integers, usual values, series before truncation). Results get the
fraction they need. A tensor with another fraction is long: its products and public factors keep the whole fraction
until it is rescaled (protocols/session/tensors.py). A value written in place takes the fraction of its target tensor,
as torch keeps a dtype: a longer fraction is truncated (one round, one unit), and a fraction written to a tensor of
integers raises. So the memory of a tensor, its views and its slices always agree on what the words mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protocols import ring
from protocols.errors import ProtocolError, RangeError
from protocols.operations import arithmetic
from protocols.ring import FRACTION_BITS, Words
from protocols.session import binding_tensors, tensors
from protocols.session.binding_tensors import is_long

if TYPE_CHECKING:
    from protocols.session.runtime import Session

_Shared: Any = None
_Encoder: Any = None
_plain_encode: Any = None
_current: Callable[[], Session]

_PUBLIC = (bool, int, float, list, np.ndarray, np.generic, torch.Tensor)
_LARGEST = 1 << 62


def install(crypten: Any, current: Callable[[], Session]) -> None:
    """Replace, once per process, what the tensor does."""
    global _Shared, _Encoder, _plain_encode, _current
    _Shared, _current = crypten.mpc.primitives.ArithmeticSharedTensor, current
    _Encoder = crypten.encoder.FixedPointEncoder
    _plain_encode = _Encoder.encode
    _Encoder.encode = encode
    _Shared._arithmetic_function = _function
    methods: dict[str, Any] = {
        "mul": lambda self, y: multiply(self, y, "mul"),
        "div": divide,
        "square": square,
        "neg": negate,
        "scatter": _on_copy(_scatter),
        "scatter_add": _on_copy(_scatter_add),
        "index_add": _on_copy(_index_add),
        "pad": pad,
        "encode": _encode,
    }
    in_place = {
        **{name: _in_place(methods[name]) for name in ("mul", "div", "square", "neg")},
        **{name: _in_place(getattr(_Shared, name)) for name in ("add", "sub")},
        "scatter": _scatter,
        "scatter_add": _scatter_add,
        "index_add": _index_add,
        "encode": _encode_in_place,
    }
    methods |= {f"{name}_": function for name, function in in_place.items()}
    operators = {"__mul__": "mul", "__rmul__": "mul", "__truediv__": "div", "__div__": "div", "__neg__": "neg"}
    operators |= {f"__i{name}__": f"{name}_" for name in ("add", "sub", "mul")} | {"__itruediv__": "div_"}
    methods |= {operator: methods[name] for operator, name in operators.items()}
    methods |= {"cat": _join(torch.cat, np.concatenate), "stack": _join(torch.stack, np.stack)}
    methods |= {"__setitem__": _set_item, "copy_": write}
    for name, method in methods.items():
        setattr(_Shared, name, method)
    binding_tensors.install_operators(
        add=lambda x, y: add(x, y, 1),
        subtract=lambda x, y: add(x, y, -1),
        multiply=lambda x, y: multiply(x, y, "mul"),
        matrix_multiply=lambda x, y: multiply(x, y, "matmul"),
    )
    _replace_beaver(crypten.mpc.primitives.beaver)


# words and fractions


def bits(tensor: Any) -> int:
    return int(tensor.encoder._precision_bits)


def words(tensor: Any) -> Any:
    return binding_tensors.words_in(tensor)


def make(array: Any, precision: int) -> Any:
    """A tensor of its own from this party's share."""
    return binding_tensors.held(np.asarray(array), precision)


def encode(self: Any, x: Any, device: Any = None) -> Any:
    """CrypTen's encoder, but reals are checked and rounded, and integers are checked where they are scaled."""
    if torch.is_tensor(x) and x.dtype == torch.bool:
        x = x.long()
    if is_real(x):
        return torch.from_numpy(np.asarray(ring.encode(x, self._precision_bits)))
    if self._scale > 1 and _largest(x) > _LARGEST // self._scale:
        raise RangeError(f"an integer is too large for a fraction of {self._precision_bits} bits")
    return _plain_encode(self, x, device)


def _largest(x: Any) -> int:
    """The magnitude of public integers; CrypTen would let them wrap."""
    if torch.is_tensor(x):
        return max(abs(int(end)) for end in torch.aminmax(x)) if x.numel() else 0
    return abs(x) if isinstance(x, int) else 0


def is_real(x: Any) -> bool:
    """Whether public values may have a fraction."""
    return isinstance(x, (float, list, np.ndarray, np.floating)) or (torch.is_tensor(x) and x.is_floating_point())


def usual_words(tensor: Any) -> Any:
    """The share with the usual fraction; a wide one costs a round of truncation."""
    return arithmetic.rescale(_current().party, words(tensor), bits(tensor), FRACTION_BITS)


def fitted(value: Any, precision: int) -> torch.Tensor:
    """The share with this fraction; integers never take fractions, since that would round them away."""
    if precision == 0 and bits(value) > 0:
        raise ProtocolError("a tensor of integers cannot take fractions in place: multiply it by 1.0 first")
    if precision == bits(value):
        share: torch.Tensor = value.share
        return share
    return torch.from_numpy(np.asarray(arithmetic.rescale(_current().party, words(value), bits(value), precision)))


def shared(value: Any, precision: int) -> Any:
    """A public value as a tensor, where whole numbers get the given fraction; a shared value stays as it is."""
    if isinstance(value, _Shared):
        return value
    if not isinstance(value, _PUBLIC):
        raise ProtocolError(f"arithmetic shares do not mix with {type(value).__name__}")
    precision = max(precision, FRACTION_BITS) if is_real(value) else precision
    own = _Encoder(precision_bits=precision).encode(value)
    return _Shared.from_shares(own if _current().rank == 0 else torch.zeros_like(own), precision=precision)


def same_fraction(values: Sequence[Any]) -> list[Any]:
    """All values as tensors with the longest fraction among them: exact, no communication."""
    least = max((bits(value) for value in values if isinstance(value, _Shared)), default=FRACTION_BITS)
    tensors = [shared(value, least) for value in values]
    longest = max(map(bits, tensors))
    return [
        tensor if bits(tensor) == longest else make(np.left_shift(words(tensor), longest - bits(tensor)), longest)
        for tensor in tensors
    ]


# functions


def _function(self: Any, y: Any, op: str, inplace: bool = False, *args: Any, **options: Any) -> Any:
    """The function that CrypTen's add, sub, matmul and convolutions call."""
    if op in ("add", "sub"):
        return add(self, y, 1 if op == "add" else -1)
    return multiply(self, y, op, **options)


def add(x: Any, y: Any, sign: int) -> Any:
    """x + y or x - y; no communication."""
    _current().operations["add" if sign > 0 else "sub"] += 1
    y = shared(y, bits(x))
    found = binding_tensors.added(x, y, sign)
    if found is not None:
        return found
    left, right, longest = words(x), words(y), max(bits(x), bits(y))
    if bits(x) < longest:
        left = np.left_shift(left, longest - bits(x))
    elif bits(y) < longest:
        right = np.left_shift(right, longest - bits(y))
    return make(np.add(left, right) if sign > 0 else np.subtract(left, right), longest)


def multiply(x: Any, y: Any, op: str, **options: Any) -> Any:
    """A product, matrix product or convolution with a shared or a public operand."""
    session = _current()
    session.operations[op] += 1
    party = session.party
    if isinstance(y, _Shared):
        if is_long(x) or is_long(y) or (op == "matmul" and binding_tensors.is_pinned(x)):
            return binding_tensors.multiplied(x, y, op)
        with _current().measure("product" if op == "mul" else op):
            if 0 in (bits(x), bits(y)):
                return make(arithmetic.bilinear(party, op, words(x), words(y), **options), bits(x) + bits(y))
            left, right = usual_words(x), usual_words(y)
            quotient = arithmetic.scaled_bilinear(party, op, left, right, 1 << FRACTION_BITS, **options)
            return make(quotient, FRACTION_BITS)
    if not isinstance(y, _PUBLIC):
        raise ProtocolError(f"arithmetic shares do not mix with {type(y).__name__}")
    if op == "mul" and is_long(x) and (factors := binding_tensors.coefficients(y)) is not None:
        return binding_tensors.scaled(x, factors)
    if not is_real(y):
        factor = torch.as_tensor(y, dtype=torch.int64).numpy()
        return make(_scaled(op, words(x), factor, options), bits(x))
    factor = np.asarray(ring.encode(y))
    if bits(x) == 0 or is_long(x):
        return make(_scaled(op, words(x), factor, options), bits(x) + FRACTION_BITS)
    return _narrow(_scaled(op, usual_words(x), factor, options))


def _scaled(op: str, x: Words, y: Words, options: dict[str, Any]) -> Words:
    if op == "mul" and x.ndim == y.ndim == 0:
        return (x.reshape(1) * y.reshape(1)).reshape(())
    return ring.apply(op, x, y, **options)


def _narrow(product: Words) -> Any:
    """A product of two usual fractions, back to one."""
    return make(arithmetic.truncate(_current().party, product, FRACTION_BITS), FRACTION_BITS)


def divide(self: Any, y: Any) -> Any:
    """Divide by a public number: integers exactly, others by their reciprocal, rounded to 2^-16."""
    _current().operations["div"] += 1
    if not isinstance(y, _PUBLIC):
        raise ProtocolError(f"division of arithmetic shares by {type(y).__name__}: MPCTensor has it")
    if torch.is_tensor(y) and y.numel() == 1 and self.dim() >= y.dim():
        y = y.item()
    if is_long(self) and isinstance(y, (int, float)):
        if y == 0:
            raise ProtocolError("division by zero")
        return binding_tensors.scaled(self, 1 if y > 0 else -1, abs(y))
    if isinstance(y, float) and y.is_integer():
        y = int(y)
    if isinstance(y, int):
        precision = bits(self) or FRACTION_BITS  # a half of an integer has a fraction
        whole = np.left_shift(words(self), precision - bits(self))
        with _current().measure("truncation"):
            return make(arithmetic.divide(_current().party, whole, y), precision)
    return multiply(self, 1.0 / y if isinstance(y, float) else torch.as_tensor(y).double().reciprocal(), "mul")


def negate(self: Any) -> Any:
    if isinstance(binding_tensors.value_of(self), tensors.Sum):
        return binding_tensors.scaled(self, -1)
    return make(np.negative(words(self)), bits(self))


def square(self: Any) -> Any:
    _current().operations["square"] += 1
    if is_long(self):
        return binding_tensors.late(tensors.square(binding_tensors.value_of(self)))
    with _current().measure("square"):
        if bits(self) == 0:
            return make(arithmetic.square(_current().party, words(self)), 0)
        return _narrow(arithmetic.square(_current().party, usual_words(self)))


def pad(self: Any, pad: Sequence[int], mode: str = "constant", value: Any = 0) -> Any:
    """Add a border of a public or a shared number."""
    if mode != "constant":
        raise ProtocolError(f"pad with mode {mode!r} is not available on a session")
    inner, border = same_fraction([self, value])
    if border.dim() != 0:
        raise ProtocolError("the value of a border must have no dimension")
    # torch would treat the border's share as a float, so a product puts it around zeros.
    outside = torch.nn.functional.pad(torch.zeros_like(inner.share), tuple(pad), value=1)
    share = torch.nn.functional.pad(inner.share, tuple(pad)) + outside * border.share
    return _Shared.from_shares(share, precision=bits(inner))


def _join(how: Callable[..., torch.Tensor], of_arrays: Callable[..., Words]) -> Any:
    def joined(values: Sequence[Any], dim: int = 0) -> Any:
        if how is torch.cat:
            kept = binding_tensors.joined(values, dim)
            if kept is not None:
                return kept
        parts = same_fraction(values)
        arrays = binding_tensors.arrays_of(parts)
        if arrays is not None:
            return make(of_arrays(arrays, axis=dim), bits(parts[0]))
        return _Shared.from_shares(how([part.share for part in parts], dim=dim), precision=bits(parts[0]))

    return staticmethod(joined)


# in place


def write(self: Any, value: Any) -> Any:
    """Copy a value into the memory of a tensor, which its views and slices share."""
    binding_tensors.settled(self).share.copy_(_source(self, value))
    return self


def _source(self: Any, value: Any) -> torch.Tensor:
    """The words to write into a tensor, in memory of their own: torch does not check for an overlap."""
    share = fitted(shared(value, bits(self)), bits(self))
    same = share.untyped_storage().data_ptr() == self.share.untyped_storage().data_ptr()
    return share.clone() if same else share


def _in_place(function: Callable[..., Any]) -> Any:
    return lambda self, *args, **options: write(self, function(self, *args, **options))


def _set_item(self: Any, index: Any, value: Any) -> None:
    binding_tensors.settled(self).share[index] = _source(self, value)


def _scatter(self: Any, dim: int, index: Any, src: Any) -> Any:
    binding_tensors.settled(self).share.scatter_(dim, index, _filled(self, src, index))
    return self


def _scatter_add(self: Any, dim: int, index: Any, other: Any) -> Any:
    binding_tensors.settled(self).share.scatter_add_(dim, index, _filled(self, other, index))
    return self


def _filled(self: Any, value: Any, index: Any) -> torch.Tensor:
    """The words to scatter; torch allows one number for all places."""
    source = _source(self, value)
    return source.expand(index.size()) if source.dim() == 0 else source


def _index_add(self: Any, dim: int, index: Any, tensor: Any) -> Any:
    binding_tensors.settled(self).share.index_add_(dim, index, _source(self, tensor))
    return self


def _on_copy(function: Callable[..., Any]) -> Any:
    """The same function on a copy, with a fraction that fits both operands."""

    def copied(self: Any, dim: int, index: Any, value: Any) -> Any:
        wide, other = same_fraction([self, value])
        return function(wide.clone(), dim, index, other)

    return copied


def _encode(self: Any, encoder: Any) -> Any:
    return _Shared.from_shares(fitted(self, encoder._precision_bits).clone(), precision=encoder._precision_bits)


def _encode_in_place(self: Any, encoder: Any) -> Any:
    if encoder._precision_bits != bits(self):
        raise ProtocolError("another fraction in place is not available on a session: use encode")
    return self


class _WithoutFractions:
    """For CrypTen's functions that treat shares as integers: other encoders in place of changed ones."""

    def __init__(self, given: Sequence[Any]) -> None:
        self._given = [(tensor, tensor.encoder) for tensor in given]

    def __enter__(self) -> None:
        for tensor, _ in self._given:
            tensor.encoder = binding_tensors.encoder_of(0)

    def __exit__(self, *reason: Any) -> None:
        for tensor, encoder in self._given:
            tensor.encoder = encoder


def _replace_beaver(beaver: Any) -> None:
    """CrypTen's own protocol functions, for direct callers: products without truncation."""

    def raw(op: str) -> Any:
        return lambda x, y, **options: make(
            arithmetic.bilinear(_current().party, op, words(x), words(y), **options), 0
        )

    for op in ("mul", "matmul", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"):
        setattr(beaver, op, raw(op))
    beaver.square = lambda x: make(arithmetic.square(_current().party, words(x)), 0)
    beaver.truncate = _in_place(divide)
    beaver.IgnoreEncodings = _WithoutFractions
    original_wraps = beaver.wraps

    def wraps(x: Any) -> Any:
        with _current().communicator.masked_openings():  # opens x + r for a fresh r
            return original_wraps(x)

    beaver.wraps = wraps
