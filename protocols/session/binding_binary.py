"""Our protocols behind CrypTen's `BinarySharedTensor`: words that are shared by exclusive or.

Bitwise functions act on the words. Sums, comparisons and joins take values of one fraction only. Comparisons give
integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from protocols.errors import ProtocolError, RangeError, Unavailable
from protocols.operations import comparison

if TYPE_CHECKING:
    from protocols.session.runtime import Session

_Shared: Any = None
_Encoder: Any = None
_Arithmetic: Any = None
_current: Callable[[], Session]

UNAVAILABLE = ("cumsum", "dot", "ger", "index_add", "mean", "prod", "scatter_add", "trace", "var")
"""CrypTen names these functions, but they have no sound meaning on bits."""


def install(crypten: Any, current: Callable[[], Session]) -> None:
    """Replace, once per process, what the tensor does."""
    global _Shared, _Encoder, _Arithmetic, _current
    primitives = crypten.mpc.primitives
    _Shared, _Arithmetic, _current = primitives.BinarySharedTensor, primitives.ArithmeticSharedTensor, current
    _Encoder = crypten.encoder.FixedPointEncoder
    primitives.beaver.AND = _and
    primitives.beaver.B2A_single_bit = _bit_to_number
    for name in UNAVAILABLE:
        setattr(_Shared, name, unavailable(f"BinarySharedTensor.{name}"))
    _Shared.__getattr__ = _no_attribute
    for name in ("add", "eq", "ne", "lt", "le", "gt", "ge"):
        method = _on_values(getattr(_Shared, name), name)
        setattr(_Shared, name, method)
        setattr(_Shared, f"__{name}__", method)
    _Shared.__radd__ = _Shared.add
    _Shared.__iand__ = _and_in_place
    for name in ("and", "xor", "or"):
        for operator in (f"__{name}__", f"__i{name}__"):
            setattr(_Shared, operator, _bitwise(getattr(_Shared, operator)))
        setattr(_Shared, f"__r{name}__", getattr(_Shared, f"__{name}__"))
    _Shared.__setitem__ = _set_item
    _Shared.scatter_ = _scatter_in_place
    _Shared.scatter = lambda self, dim, index, src: self.clone().scatter_(dim, index, src)
    _Shared.where = _where(_Shared.where)
    _Shared.copy_ = _copy_in_place
    _Shared.rand = staticmethod(_with_encoder(_Shared.rand))
    _Shared.cat, _Shared.stack = _join(torch.cat), _join(torch.stack)


def unavailable(what: str) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unavailable(what)

    return refused


def _no_attribute(self: Any, name: str) -> NoReturn:
    raise Unavailable(f"{name} on binary shares")


def bits(tensor: Any) -> int:
    return int(tensor.encoder._precision_bits)


def same_fraction(x: Any, y: Any) -> None:
    if bits(x) != bits(y):
        raise ProtocolError(f"binary shares with {bits(x)} and {bits(y)} fractional bits do not mix")


def operand(x: Any, y: Any) -> Any:
    """A public number as binary shares with the fraction of x; binary shares stay as they are."""
    if isinstance(y, _Shared):
        same_fraction(x, y)
        return y
    if isinstance(y, _Arithmetic):
        raise ProtocolError("binary shares do not mix with arithmetic ones: convert one of them")
    words = _Encoder(precision_bits=bits(x)).encode(whole(y) if bits(x) == 0 else y)
    return _Shared.from_shares(words if _current().rank == 0 else torch.zeros_like(words), precision=bits(x))


def whole(value: Any) -> Any:
    """A public value that must be whole, as integers."""
    given = torch.as_tensor(value)
    if given.is_floating_point():
        if not bool((given == given.round()).all()):
            raise RangeError("binary shares without a fraction take whole numbers only")
        return given.long()
    return value


def _on_values(function: Callable[..., Any], name: str) -> Any:
    def method(self: Any, y: Any) -> Any:
        result = function(self, operand(self, y))
        if name != "add":
            result.encoder = _Encoder(precision_bits=0)
        return result

    return method


def _and(x: Any, y: Any) -> Any:
    session = _current()
    a, b, c = session.provider.generate_binary_triple(x.size(), y.size())
    masked = [(left.share ^ mask.share).numpy() for left, mask in ((x, a), (y, b))]
    e, d = (torch.from_numpy(word) for word in session.party.open_masked("and", masked, how="xor"))
    share = c.share ^ (b.share & e) ^ (a.share & d)
    if session.rank == 0:
        share ^= e & d
    return _Shared.from_shares(share, precision=0)


def _and_in_place(self: Any, y: Any) -> Any:
    """Write into the memory of the tensor. CrypTen would give it other memory and leave its views behind."""
    self.share.copy_(_and(self, y).share if isinstance(y, _Shared) else self.share & y)
    return self


def _bit_to_number(x: Any) -> Any:
    session = _current()
    # CrypTen asks for one bit in each word.
    flat = (x.share & 1).to(torch.uint8).reshape(-1).numpy()
    share = comparison.to_arithmetic(session.party, flat).reshape(tuple(x.size()))
    return _Arithmetic.from_shares(torch.from_numpy(share), precision=0)


def _bitwise(function: Callable[..., Any]) -> Any:
    def method(self: Any, y: Any) -> Any:
        if isinstance(y, _Shared):
            same_fraction(self, y)
        return function(self, y)

    return method


def _set_item(self: Any, index: Any, value: Any) -> None:
    self.share[index] = operand(self, value).share.clone()


def _scatter_in_place(self: Any, dim: int, index: Any, src: Any) -> Any:
    share = operand(self, src).share
    self.share.scatter_(dim, index, share.expand(index.size()) if share.dim() == 0 else share)
    return self


def _copy_in_place(self: Any, other: Any) -> Any:
    same_fraction(self, other)
    self.share.copy_(other.share.clone())
    return self


def _where(function: Callable[..., Any]) -> Any:
    def method(self: Any, condition: Any, y: Any) -> Any:
        """A condition is a bit for each word."""
        if isinstance(condition, _Shared):
            if bits(condition) != 0:
                raise ProtocolError("a condition is a bit: it has no fraction")
            condition = condition.shallow_copy()
            condition.encoder = self.encoder
        return function(self, condition, operand(self, y))

    return method


def _with_encoder(function: Callable[..., Any]) -> Callable[..., Any]:
    def random(*size: Any, **options: Any) -> Any:
        tensor = function(*size, **options)
        tensor.encoder = _Encoder(precision_bits=0)  # CrypTen leaves it out
        return tensor

    return random


def _join(how: Callable[..., torch.Tensor]) -> Any:
    def joined(tensors: list[Any], *args: Any, **options: Any) -> Any:
        for tensor in tensors:
            same_fraction(tensors[0], tensor)
        share = how([tensor.share for tensor in tensors], *args, **options)
        return _Shared.from_shares(share, precision=bits(tensors[0]))

    return staticmethod(joined)
