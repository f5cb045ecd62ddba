"""CrypTen's arithmetic tensors on our kernels: any number of fractional bits, shares kept as NumPy arrays.

`ArithmeticSharedTensor` keeps its share as an array; torch's view of the same memory is made when CrypTen's own code
asks for it. A tensor may have a `value` instead (protocols/session/tensors.py), whose share is computed at its first
use. Encoders are shared between tensors, so they are immutable. Handles (`MPCTensor`) are made without CrypTen's
constructor, which draws randomness for an empty tensor each time. Operators go straight to the kernels unless an
operand requires a gradient.

Fractions. A regular tensor has 0, 16 or 32 fractional bits (integers, fixed-point values, series before truncation),
and a product of two of them is truncated to 16. A tensor with another fraction is long: its products and public
factors keep the whole fraction until it is rescaled. A value written in place takes the fraction of its target, as
torch keeps a dtype: a longer fraction is truncated (one round, one unit), and a fraction written to a tensor of
integers raises. So a tensor, its views and its slices always agree on the fraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.errors import ProtocolError, RangeError, Unavailable
from secure_sccvfl.protocols.operations import arithmetic, banded
from secure_sccvfl.protocols.ring import FRACTION_BITS, RingArray, Share
from secure_sccvfl.protocols.session import tensors
from secure_sccvfl.protocols.session.tensors import Held, Late, Owned, Parts, Pinned, Stack, Sum, Value, current

_Shared: Any = None
_Tensor: Any = None
_arithmetic: Any = None
_leaf: Any = None
_autograd: Callable[[], bool]
_Encoder: Any = None
_plain_encode: Any = None
_encoders: list[Any] = []
_get, _new = object.__getattribute__, object.__new__

Kernel = Callable[[Any, Any], Any]
MOST_BITS = 62
METHODS = frozenset(
    {"capped_slope", "capped_slope_and_bend", "doubled", "each", "exact", "gram", "group_sums", "packed", "pinned"}
    | {"rescale", "sampled", "selected", "sigmoid_and_slope", "unpacked", "with_fraction"}
)
"""Functions that this package adds to CrypTen's tensors. They have no gradients."""
_PUBLIC = (bool, int, float, list, np.ndarray, np.generic, torch.Tensor)
_LARGEST = 1 << 62


class Elsewhere:
    """A tensor that lies in other sessions (shards.py)."""

    def joined(self, parts: Sequence[Any], dim: int) -> Any:
        raise NotImplementedError


def install(crypten: Any) -> None:
    """Replace, once per process, how tensors keep their shares and what their operators compute."""
    global _Shared, _Tensor, _arithmetic, _leaf, _autograd
    _Shared, _Tensor = crypten.mpc.primitives.ArithmeticSharedTensor, crypten.mpc.MPCTensor
    _arithmetic, _leaf = crypten.mpc.arithmetic, crypten.gradients.AutogradContext()
    _autograd = lambda: bool(crypten.CrypTensor.AUTOGRAD_ENABLED)  # noqa: E731
    _install_encoders(crypten.encoder.FixedPointEncoder)
    _install_shares()
    _install_handles(crypten)


def _install_encoders(Encoder: Any) -> None:
    global _Encoder, _plain_encode
    _Encoder, _plain_encode = Encoder, Encoder.encode
    Encoder.encode = encode

    class Fixed(Encoder):  # type: ignore[misc]
        """An encoder that many tensors share."""

        def __init__(self, bits: int) -> None:
            self.__dict__.update(_precision_bits=bits, _scale=1 << bits)

        def __setattr__(self, name: str, value: Any) -> NoReturn:
            raise ProtocolError("the fraction of a tensor is changed by rescale, not in its encoder")

    _encoders[:] = [Fixed(bits) for bits in range(MOST_BITS + 1)]


def _install_shares() -> None:
    methods: dict[str, Any] = {
        "_array": None,
        "_torch": None,
        "_value": None,
        "_tensor": property(_view, _set_view),
        "data": property(lambda self: self._tensor.data, _set_view),
        "from_shares": staticmethod(_from_shares),
        "shallow_copy": _shallow_copy,
        "clone": lambda self: held(array_of(self).copy(), bits_in(self)),
        "size": _size,
        "dim": lambda self: len(shape_of(self)),
        "nelement": lambda self: int(np.prod(shape_of(self), dtype=np.int64)),
        "__len__": lambda self: shape_of(self)[0],
        "__getitem__": _item(_Shared.__getitem__),
        "copy_": write,
        "pad": pad,
        "index_add": index_add,
        "cat": _join(torch.cat, np.concatenate),
        "stack": _join(torch.stack, np.stack),
        "_arithmetic_function": _function,
        "add": lambda self, y: add(self, y, 1),
        "sub": lambda self, y: add(self, y, -1),
        "mul": lambda self, y: multiply(self, y, "mul"),
        "div": divide,
        "square": square,
        "neg": negate,
        **{name: _moved(name, getattr(_Shared, name)) for name in MOVES},
        "split": _split(_Shared.split),
        "cumsum": _cumulated(_Shared.cumsum),
        **{name: _turned(_moved(name, getattr(_Shared, name))) for name in ("t", "transpose")},
        **{name: _on_array(name, getattr(_Shared, name), kernel) for name, kernel in ON_ARRAYS.items()},
    }
    methods["numel"] = methods["nelement"]
    operators = {"__add__": "add", "__sub__": "sub", "__mul__": "mul", "__truediv__": "div", "__neg__": "neg"}
    for name, method in (methods | {operator: methods[name] for operator, name in operators.items()}).items():
        setattr(_Shared, name, method)


def _install_handles(crypten: Any) -> None:
    slow, size, neg = _Tensor.from_shares, _Tensor.size, _Tensor.__neg__

    def from_shares(share: Any, precision: int | None = None, ptype: Any = _arithmetic) -> Any:
        return slow(share, precision, ptype) if ptype is not _arithmetic else handle(_from_shares(share, precision))

    methods: dict[str, Any] = {
        "from_shares": staticmethod(from_shares),
        "size": lambda self, *dim: _size(_get(self, "_tensor"), *dim) if direct(self) else size(self, *dim),
        "shallow_copy": lambda self: handle(_get(self, "_tensor")),
        "clone": lambda self: handle(_get(self, "_tensor").clone()),
        **{name: _passed_on(getattr(_Shared, name)) for name in ("index_add", "pad", "t", "transpose", *ON_ARRAYS)},
        "__add__": _operator("add", lambda x, y: add(x, y, 1)),
        "__sub__": _operator("sub", lambda x, y: add(x, y, -1)),
        "__mul__": _operator("mul", lambda x, y: multiply(x, y, "mul")),
        "__truediv__": _operator("div", divide, shared=False),
        "__matmul__": _operator("matmul", lambda x, y: multiply(x, y, "matmul")),
        "__neg__": lambda self: handle(_get(self, "_tensor").neg()) if direct(self) else neg(self),
    }
    methods |= {"__radd__": methods["__add__"], "__rmul__": methods["__mul__"]}
    added: dict[str, Callable[..., Any]] = {
        "rescale": lambda self, bits, sliced=False: of(tensors.rescale(value_of(self), bits, sliced)),
        "pinned": lambda self, bound=None: of(tensors.pinned(value_of(self), bound)),
        "gram": lambda self, weights=None: of(
            tensors.gram(value_of(self), None if weights is None else value_of(weights))
        ),
        "group_sums": lambda self, one_hot, bound: of(tensors.group_sums(value_of(self), value_of(one_hot), bound)),
        "sampled": lambda self, most: of(_a(Pinned, self, "only a pinned matrix can be sampled").sampled(most)),
        "selected": lambda self, one_hot: of(tensors.selected(value_of(self), value_of(one_hot))),
        "sigmoid_and_slope": lambda self: tuple(map(of, tensors.slopes(value_of(self), None, False, True))),
        "capped_slope_and_bend": lambda self, label: tuple(
            map(of, tensors.slopes(value_of(self), value_of(label), False, True))
        ),
        "capped_slope": lambda self, label, fine: of(*tensors.slopes(value_of(self), value_of(label), fine, False)),
        "each": lambda self, columns: of(
            _a(Stack, self, "each takes square matrices that are pinned together").each(value_of(columns))
        ),
        "packed": lambda self: of(Held(ring.upper_triangles(share_in(self)), bits_in(self))),
        "unpacked": lambda self, columns: of(Held(ring.symmetric_matrices(share_in(self), columns), bits_in(self))),
        "doubled": _doubled,
    }
    methods |= {name: _counted(name, method) for name, method in added.items()}
    methods["exact"] = lambda self: of(Held(share_in(self), bits_in(self), exact=True))
    methods["with_fraction"] = lambda self, bits: handle(held(share_in(self), bits))
    for name in ("cat", "stack"):
        methods[name] = staticmethod(_joining(name))
        setattr(crypten, name, _joining(name))
    for name, method in methods.items():
        setattr(_Tensor, name, method)


def _counted(name: str, function: Callable[..., Any]) -> Any:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        current().operations[name] += 1
        return function(self, *args, **options)

    return method


def _operator(name: str, kernel: Kernel, shared: bool = True) -> Any:
    """An operator that calls its kernel directly where CrypTen would not record a gradient.

    shared: whether the kernel takes another shared tensor too.
    """

    def operator(self: Any, other: Any) -> Any:
        both = isinstance(other, _Tensor)
        if not direct(self) or (both and not (shared and direct(other))):
            return getattr(self, name)(other)
        return handle(kernel(_get(self, "_tensor"), _get(other, "_tensor") if both else other))

    return operator


def direct(tensor: Any) -> bool:
    """Whether a tensor requires no gradient."""
    return not _get(tensor, "requires_grad")


def _joining(name: str) -> Any:
    """`crypten.cat` or `stack`, without gradients: CrypTen's own makes an empty tensor at every call."""

    def join(parts: Sequence[Any], dim: int = 0) -> Any:
        if _autograd() and any(type(one) is _Tensor and not direct(one) for one in parts):
            raise Unavailable(f"{name} with gradients")
        if len(parts) == 1:
            return parts[0] if name == "cat" else parts[0].unsqueeze(dim)
        if name == "cat" and isinstance(parts[0], Elsewhere):
            return parts[0].joined(parts, dim)
        current().operations[name] += 1
        return handle(getattr(_Shared, name)([inner_of(one) for one in parts], dim))

    return join


# shares, values and fractions


def encoder_of(bits: int) -> Any:
    if not 0 <= bits <= MOST_BITS:
        raise ProtocolError(f"a tensor has 0 to {MOST_BITS} fractional bits, not {bits}")
    return _encoders[bits]


def encode(self: Any, x: Any, device: Any = None) -> Any:
    """CrypTen's encoder, with range checks: reals are checked and rounded, integers are checked where scaled."""
    if torch.is_tensor(x) and x.dtype == torch.bool:
        x = x.long()
    if _is_real(x):
        return torch.from_numpy(np.asarray(ring.encode(x, self._precision_bits)))
    if torch.is_tensor(x):
        largest = max(abs(int(end)) for end in torch.aminmax(x)) if x.numel() else 0
    else:
        largest = abs(x) if isinstance(x, int) else 0
    if self._scale > 1 and largest > _LARGEST // self._scale:
        raise RangeError(f"an integer is too large for a fraction of {self._precision_bits} bits")
    return _plain_encode(self, x, device)


def _is_real(x: Any) -> bool:
    """Whether public values may have a fraction."""
    return isinstance(x, (float, list, np.ndarray, np.floating)) or (torch.is_tensor(x) and x.is_floating_point())


def held(array: Any, bits: int) -> Any:
    """A shared tensor of this party's share."""
    tensor = _new(_Shared)
    tensor._array = array if type(array) is Authenticated else np.asarray(array)
    tensor.encoder = encoder_of(bits)
    return tensor


def late(value: Value) -> Any:
    """A shared tensor of a value whose share is not computed yet, or is stored in another form."""
    if isinstance(value, Held) and not value.exact:
        return held(value.share(), value.bits)
    tensor = _new(_Shared)
    tensor._value, tensor.encoder = value, encoder_of(value.bits)
    return tensor


def handle(inner: Any) -> Any:
    """An `MPCTensor` of a shared tensor."""
    tensor = _new(_Tensor)
    tensor._tensor, tensor.ptype = inner, _arithmetic
    tensor.requires_grad, tensor.grad, tensor.grad_fn, tensor.children = False, None, None, []
    tensor.grad_expected = tensor.grad_received = 0
    tensor.ctx = _leaf  # CrypTen gives the result of a function with a gradient its own context
    return tensor


def of(value: Value) -> Any:
    """An `MPCTensor` of a value."""
    return handle(late(value))


def inner_of(tensor: Any) -> Any:
    """The shared tensor of a handle."""
    return _get(tensor, "_tensor") if type(tensor) is _Tensor else tensor


def array_of(shared: Any) -> Share:
    """This party's share, as a contiguous array."""
    array: Share = shared._array
    if array is not None:
        return array if type(array) is Authenticated or array.flags.c_contiguous else np.ascontiguousarray(array)
    if shared._torch is not None:
        view: torch.Tensor = shared._torch
        return view.contiguous().numpy()
    value: Value = shared._value
    share = value.share()
    array = share if isinstance(share, Authenticated) else np.ascontiguousarray(share)
    shared._array = array = array.reshape(value.shape)
    return array


def share_in(tensor: Any) -> Share:
    """This party's share of a handle or a shared tensor."""
    return array_of(inner_of(tensor))


def bits_in(tensor: Any) -> int:
    """The number of fractional bits."""
    return int(inner_of(tensor).encoder._precision_bits)


def value_of(tensor: Any) -> Value:
    """The value of a tensor, which may still wait for a round."""
    inner = inner_of(tensor)
    value: Value | None = inner._value
    return value if value is not None else Held(array_of(inner), bits_in(inner))


def _a(kind: Any, tensor: Any, otherwise: str) -> Any:
    value = value_of(tensor)
    if not isinstance(value, kind):
        raise ProtocolError(otherwise)
    return value


def is_long(shared: Any) -> bool:
    """Whether products and factors keep the whole fraction."""
    value: Value | None = shared._value
    return value.long if value is not None else shared.encoder._precision_bits not in tensors.USUAL


def _view(self: Any) -> Any:
    if self._torch is None:
        array = self._array if self._array is not None else array_of(self)
        if type(array) is Authenticated:
            raise Unavailable("this function of CrypTen, with active security,")
        self._torch, self._array = torch.from_numpy(array), None  # torch may move its memory
    return self._torch


def _set_view(self: Any, share: Any) -> None:
    self._array, self._torch, self._value = None, share, None


def _from_shares(share: Any, precision: int | None = None, device: Any = None) -> Any:
    tensor = _new(_Shared)
    tensor._torch, tensor.encoder = share, encoder_of(FRACTION_BITS if precision is None else precision)
    return tensor


def _shallow_copy(self: Any) -> Any:
    tensor = _new(_Shared)
    tensor.__dict__.update(self.__dict__)
    return tensor


def shape_of(shared: Any) -> tuple[int, ...]:
    for stored in (shared._array, shared._torch, shared._value):
        if stored is not None:
            return tuple(stored.shape)
    raise ProtocolError("a tensor without a share")


def _size(self: Any, dim: int | None = None) -> Any:
    return torch.Size(shape_of(self)) if dim is None else shape_of(self)[dim]


def as_shared_tensor(value: Any, precision: int) -> Any:
    """A public value as a tensor, where integers get the given fraction; a shared value stays as it is."""
    if isinstance(value, _Shared):
        return value
    if not isinstance(value, _PUBLIC):
        raise ProtocolError(f"arithmetic shares do not mix with {type(value).__name__}")
    precision = max(precision, FRACTION_BITS) if _is_real(value) else precision
    encoded = _Encoder(precision_bits=precision).encode(value)
    if current().party.active:
        return held(Authenticated.public(encoded.numpy()), precision)
    return _from_shares(encoded if current().rank == 0 else torch.zeros_like(encoded), precision)


def same_fraction(values: Sequence[Any]) -> list[Any]:
    """All values as tensors with the longest fraction among them: exact, no communication."""
    least = max((bits_in(value) for value in values if isinstance(value, _Shared)), default=FRACTION_BITS)
    parts = [as_shared_tensor(value, least) for value in values]
    longest = max(map(bits_in, parts))
    return [
        part if bits_in(part) == longest else held(np.left_shift(array_of(part), longest - bits_in(part)), longest)
        for part in parts
    ]


def _regular_share(tensor: Any) -> RingArray:
    """The share with FRACTION_BITS; a longer fraction costs a round of truncation."""
    return arithmetic.rescale(current().party, array_of(tensor), bits_in(tensor), FRACTION_BITS)


# arithmetic


def _function(self: Any, y: Any, op: str, inplace: bool = False, *args: Any, **options: Any) -> Any:
    """The function that CrypTen's own bilinear functions call."""
    if op != "matmul":
        raise Unavailable(op)
    return multiply(self, y, op)


def add(x: Any, y: Any, sign: int) -> Any:
    """x + y or x - y; no communication."""
    current().operations["add" if sign > 0 else "sub"] += 1
    y = as_shared_tensor(y, bits_in(x))
    for value in (x._value, y._value):
        if value is not None and (isinstance(value, Sum) or value.parts > 1):
            return late(tensors.added(value_of(x), value_of(y), sign))
    left, right, longest = array_of(x), array_of(y), max(bits_in(x), bits_in(y))
    if bits_in(x) < longest:
        left = np.left_shift(left, longest - bits_in(x))
    elif bits_in(y) < longest:
        right = np.left_shift(right, longest - bits_in(y))
    return held(np.add(left, right) if sign > 0 else np.subtract(left, right), longest)


def multiply(x: Any, y: Any, op: str) -> Any:
    """A product or matrix product with a shared or a public operand."""
    session = current()
    session.operations[op] += 1
    party = session.party
    if isinstance(y, _Shared):
        if is_long(x) or is_long(y) or (op == "matmul" and isinstance(x._value, Pinned)):
            return late(tensors.multiplied(op, value_of(x), value_of(y)))
        with session.measure("product" if op == "mul" else op):
            if 0 in (bits_in(x), bits_in(y)):
                return held(arithmetic.bilinear(party, op, array_of(x), array_of(y)), bits_in(x) + bits_in(y))
            left, right = _regular_share(x), _regular_share(y)
            return held(arithmetic.scaled_bilinear(party, op, left, right, 1 << FRACTION_BITS), FRACTION_BITS)
    if not isinstance(y, _PUBLIC):
        raise ProtocolError(f"arithmetic shares do not mix with {type(y).__name__}")
    if op == "mul" and is_long(x) and (factors := _coefficients(y)) is not None:
        return late(tensors.scaled(value_of(x), factors))
    if not _is_real(y):
        factor = torch.as_tensor(y, dtype=torch.int64).numpy()
        return held(ring.apply(op, array_of(x), factor), bits_in(x))
    factor = np.asarray(ring.encode(y))
    if bits_in(x) == 0 or is_long(x):
        return held(ring.apply(op, array_of(x), factor), bits_in(x) + FRACTION_BITS)
    return _truncated(ring.apply(op, _regular_share(x), factor))


def _coefficients(y: Any) -> Any:
    """A public number, or one for each index of the last axis; None for other operands."""
    if isinstance(y, (bool, int, float)):
        return y
    array = np.asarray(y)
    if array.ndim == 0:
        return array.item()
    return array.astype(np.float64) if array.ndim == 1 else None


def _truncated(product: RingArray) -> Any:
    """A product of two values with FRACTION_BITS, back to FRACTION_BITS."""
    return held(arithmetic.truncate(current().party, product, FRACTION_BITS), FRACTION_BITS)


def divide(self: Any, y: Any) -> Any:
    """Divide by a public number: integers exactly, others by their reciprocal, rounded to 2^-16."""
    current().operations["div"] += 1
    if not isinstance(y, _PUBLIC):
        raise ProtocolError(f"division of arithmetic shares by {type(y).__name__}: use MPCTensor")
    if torch.is_tensor(y) and y.numel() == 1 and self.dim() >= y.dim():
        y = y.item()
    if is_long(self) and isinstance(y, (int, float)):
        if y == 0:
            raise ProtocolError("division by zero")
        return late(tensors.scaled(value_of(self), 1 if y > 0 else -1, abs(y)))
    if isinstance(y, float) and y.is_integer():
        y = int(y)
    if isinstance(y, int):
        precision = bits_in(self) or FRACTION_BITS  # the half of an integer has a fraction
        whole = np.left_shift(array_of(self), precision - bits_in(self))
        with current().measure("truncation"):
            return held(arithmetic.divide(current().party, whole, y), precision)
    return multiply(self, 1.0 / y if isinstance(y, float) else torch.as_tensor(y).double().reciprocal(), "mul")


def negate(self: Any) -> Any:
    if isinstance(self._value, Sum):
        return late(tensors.scaled(self._value, -1))
    return held(np.negative(array_of(self)), bits_in(self))


def square(self: Any) -> Any:
    current().operations["square"] += 1
    if is_long(self):
        return late(tensors.square(value_of(self)))
    with current().measure("square"):
        if bits_in(self) == 0:
            return held(arithmetic.square(current().party, array_of(self)), 0)
        return _truncated(arithmetic.square(current().party, _regular_share(self)))


def pad(self: Any, pad: Sequence[int]) -> Any:
    """Add a border of zeros."""
    if isinstance(array_of(self), Authenticated):
        border = lambda places: torch.nn.functional.pad(torch.from_numpy(places), tuple(pad), value=-1)  # noqa: E731
        return held(array_of(self).rearranged(border), bits_in(self))
    return _from_shares(torch.nn.functional.pad(self.share, tuple(pad)), bits_in(self))


def index_add(self: Any, dim: int, index: Any, tensor: Any) -> Any:
    """A copy to which the rows of another tensor are added, at these indices."""
    total, rows = same_fraction([self, inner_of(tensor)])
    if isinstance(array_of(total), Authenticated):
        result, source, before = array_of(total).copy(), array_of(rows), (slice(None),) * dim
        for row, at in enumerate(np.asarray(index).tolist()):
            result[(*before, at)] = result[(*before, at)] + source[(*before, row)]
        return held(result, bits_in(total))
    return _from_shares(total.share.clone().index_add_(dim, index, rows.share), bits_in(total))


def _doubled(self: Any, other: Any, columns: int, more: float = 0.0) -> tuple[Any, Any]:
    """F F and Q (F + more I) for upper triangles of symmetric matrices F (self) and Q that commute; two rounds.

    The products have the fractions of F and of Q.
    """
    bits = bits_in(self)
    squared, product = banded.doubled(current().party, share_in(self), share_in(other), columns, 1 << bits, more)
    return handle(held(squared, bits)), handle(held(product, bits_in(other)))


# writing in place


def write(self: Any, value: Any) -> Any:
    """Copy a value into the memory of a tensor, which its views and slices share."""
    if self._value is not None:  # the share gets its own memory
        self._array, self._torch, self._value = array_of(self).copy(), None, None
    source = _source(self, value)
    if isinstance(source, Authenticated):
        array_of(self)[...] = source
    else:
        self.share.copy_(source)
    return self


def _source(self: Any, value: Any) -> Any:
    """The ring elements to write into a tensor, in other memory: torch does not check for an overlap."""
    source, wanted = as_shared_tensor(value, bits_in(self)), bits_in(self)
    if wanted == 0 and bits_in(source) > 0:
        raise ProtocolError("a tensor of integers cannot take fractions in place: multiply it by 1.0 first")
    if wanted != bits_in(source):
        elements = arithmetic.rescale(current().party, array_of(source), bits_in(source), wanted)
        return elements if isinstance(elements, Authenticated) else torch.from_numpy(np.asarray(elements))
    if isinstance(array_of(source), Authenticated):
        return array_of(source)
    share: torch.Tensor = source.share
    same = share.untyped_storage().data_ptr() == self.share.untyped_storage().data_ptr()
    return share.clone() if same else share


# shapes


def _turned(function: Callable[..., Any]) -> Any:
    def transpose(self: Any, *dims: Any, **options: Any) -> Any:
        value = self._value
        return late(value.turn()) if isinstance(value, Pinned) else function(self, *dims, **options)

    return transpose


MOVES = ("expand", "flatten", "narrow", "permute", "roll", "squeeze", "view")
"""Functions that move elements to other places, which torch does for shares without tags."""


def _moved(name: str, function: Callable[..., Any]) -> Any:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        moved = _rearranged(self, lambda places: getattr(places, name)(*args, **options))
        return function(self, *args, **options) if moved is None else moved

    return method


def _split(function: Callable[..., Any]) -> Any:
    def split(self: Any, split_size: Any, dim: int = 0) -> Any:
        if _rearranged(self, lambda places: places) is None:
            return function(self, split_size, dim=dim)
        array, places = array_of(self), torch.arange(int(np.prod(shape_of(self)))).reshape(shape_of(self))
        pieces = torch.split(places, split_size, dim=dim)
        return tuple(held(array.reshape(-1)[piece.numpy()], bits_in(self)) for piece in pieces)

    return split


def _cumulated(function: Callable[..., Any]) -> Any:
    def cumsum(self: Any, *args: Any, **options: Any) -> Any:
        if self._torch is None and isinstance(array_of(self), Authenticated):
            return held(array_of(self).cumsum(*args, *options.values()), bits_in(self))
        return function(self, *args, **options)

    return cumsum


def _rearranged(self: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An authenticated tensor whose elements torch moves to other places; None for a plain share."""
    if self._torch is not None:
        return None
    array = array_of(self)
    if not isinstance(array, Authenticated):
        return None
    return held(array.rearranged(lambda places: move(torch.from_numpy(places))), bits_in(self))


def _item(function: Callable[..., Any]) -> Any:
    def item(self: Any, index: Any) -> Any:
        value = self._value
        if isinstance(value, Stack) and isinstance(index, (slice, list)):
            return late(value.chosen(index))
        if isinstance(value, (Late, Parts)) and value.parts > 1:
            at = index if isinstance(index, tuple) else (index,)
            return late(Parts(value.divided()[(slice(None), *at)], value.bits))
        if self._torch is None and _basic(index):
            part = _raw(self)[index]
            if isinstance(part, np.ndarray | Authenticated):
                return held(part, bits_in(self))
        moved = _rearranged(self, lambda places: places[index])
        return function(self, index) if moved is None else moved

    return item


def _basic(index: Any) -> bool:
    """Whether an index has only integers, ranges and new axes: NumPy and torch agree about these."""
    for at in index if type(index) is tuple else (index,):
        if type(at) is slice:
            if at.step is not None:
                return False
        elif at is not None and at is not Ellipsis and type(at) is not int:
            return False
    return True


def _raw(shared: Any) -> RingArray:
    """The array of a tensor without a view in torch; it need not be contiguous."""
    array: RingArray = shared._array if shared._array is not None else array_of(shared)
    return array


def _on_array(name: str, function: Callable[..., Any], kernel: Callable[..., Any]) -> Any:
    """A function on the array if torch has no view of it, else CrypTen's. Sums are counted."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        if name == "sum":
            current().operations[name] += 1
        if self._torch is None:
            result = kernel(_raw(self), *args, **options)
            if result is not None:
                return held(result, bits_in(self))
        moved = None if name == "sum" else _rearranged(self, lambda places: getattr(places, name)(*args, **options))
        return function(self, *args, **options) if moved is None else moved

    return method


def _reshaped(array: RingArray, *shape: Any) -> RingArray | None:
    sides = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    return array.reshape(sides) if all(type(side) is int for side in sides) else None


def _summed(array: RingArray, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None and isinstance(array, Authenticated):
        return array.sum()
    return array.sum(axis=dim, keepdims=keepdim) if isinstance(dim, (int, tuple)) else None


def _repeated(array: RingArray, *times: Any) -> RingArray | None:
    return np.tile(array, times) if len(times) == array.ndim and all(type(n) is int for n in times) else None


ON_ARRAYS: dict[str, Callable[..., Any]] = {
    "reshape": _reshaped,
    "unsqueeze": lambda array, dim: np.expand_dims(array, dim),
    "sum": _summed,
    "repeat": _repeated,
}
"""Functions that need no torch; they return None for arguments that are left to torch."""


def _passed_on(kernel: Callable[..., Any]) -> Any:
    return lambda self, *args, **options: handle(kernel(_get(self, "_tensor"), *args, **options))


def _join(how: Callable[..., torch.Tensor], of_arrays: Callable[..., RingArray]) -> Any:
    def joined(values: Sequence[Any], dim: int = 0) -> Any:
        whole = _blocks(values, dim) if how is torch.cat else None
        if whole is not None:
            return whole
        parts = same_fraction(values)
        if all(part._torch is None for part in parts) and len({part.dim() for part in parts}) == 1:
            return held(of_arrays([_raw(part) for part in parts], axis=dim), bits_in(parts[0]))
        return _from_shares(how([part.share for part in parts], dim=dim), bits_in(parts[0]))

    return staticmethod(joined)


def _blocks(parts: Sequence[Any], dim: int) -> Any:
    """Blocks of owners side by side, or pinned rows below each other; None for other tensors."""
    values = [part._value if isinstance(part, _Shared) else None for part in parts]
    blocks = [value for value in values if isinstance(value, Owned)]
    if len(blocks) == len(values) and dim in (-1, len(blocks[0].shape) - 1):
        return late(blocks[0].joined(blocks[1:]))
    rows = [value for value in values if isinstance(value, Pinned) and not value.turned]
    if len(rows) == len(values) and dim == 0:
        whole = rows[0].tall
        for value in rows[1:]:
            whole = whole.stacked(value.tall)
        return late(Pinned(whole, max(value.bits for value in rows), rows[0].bands_per_truncation))
    return None
