"""Our protocols behind CrypTen's `MPCTensor`: functions beyond those of its two kinds of shares.

Some of CrypTen's own functions are replaced because they are wrong: powers above 4, `var` with `unbiased`, borders
of `max_pool2d`, joins with public tensors, `copy_` between kinds, `to` of a data type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from protocols.errors import ProtocolError, Unavailable
from protocols.operations import comparison
from protocols.ring import FRACTION_BITS, INPUT_LIMIT
from protocols.session import binding_arithmetic, binding_binary, binding_tensors
from protocols.session.binding_arithmetic import bits, words
from protocols.session.binding_tensors import METHODS

if TYPE_CHECKING:
    from protocols.session.runtime import Session

_Tensor: Any = None
_crypten: Any = None
_current: Callable[[], Session]

# fmt: off
IN_PLACE = frozenset({
    "abs", "add", "copy", "cos", "cumsum", "detach", "div", "eq", "erf", "exp", "ge", "gt", "index_add", "le", "log",
    "lt", "mul", "ne", "neg", "pow", "reciprocal", "relu", "scatter", "scatter_add", "sigmoid", "sign", "sin", "sqrt",
    "square", "sub", "tanh",
})
# fmt: on
"""Functions with a form that writes into the tensor itself (`add_`): those that torch has, for one shape."""

NO_GRADIENT = frozenset(
    {
        "conv_transpose1d",
        "conv_transpose2d",
        "expand",
        "index_add",
        "prod",
        "repeat",
        "scatter_add",
        "split",
        "unbind",
    }
    | {"unfold"}
    | METHODS
)
"""Functions that CrypTen's autograd does not know: their results would silently have no gradient."""


PLAIN = frozenset({"__class__", "_tensor", "dim", "encoder", "nelement", "ptype", "requires_grad", "share", "size"})
"""Attributes that no gradient is about."""
DIRECT = METHODS | {"repeat", "reshape", "sigmoid", "sum", "t", "unsqueeze"}
"""Functions of one tensor, which need not go by CrypTen's autograd where it has no gradient."""


def install(crypten: Any, current: Callable[[], Session]) -> None:
    """Replace, once per process, what the tensors do."""
    global _Tensor, _crypten, _current
    _Tensor, _crypten, _current = crypten.mpc.MPCTensor, crypten, current
    primitives = crypten.mpc.primitives
    for kind in (primitives.ArithmeticSharedTensor, primitives.BinarySharedTensor):
        kind.__init__ = _owned(kind.__init__, whole=kind is primitives.BinarySharedTensor)
        kind.__copy__ = kind.shallow_copy
        kind.__deepcopy__ = lambda self, memo: self.clone()
        kind.take = _take
        kind.to = _stay
        kind.cuda = binding_binary.unavailable("cuda")
    primitives.ArithmeticSharedTensor.var = variance
    primitives.ArithmeticSharedTensor.PRSS = staticmethod(_random_shares)
    _replace_attributes(crypten.CrypTensor)
    convert, pool = _Tensor._to_ptype, _Tensor.max_pool2d
    methods: dict[str, Any] = {
        "_ltz": less_than_zero,
        "ne": not_equal,
        "eq": lambda self, y: 1 - not_equal(self, y),
        "sigmoid": lambda self, bound=None, bits=None: current().sigmoid(self, bound, bits),
        "tanh": lambda self, bound=None: current().tanh(self, bound),
        "_eqz_2PC": binding_binary.unavailable("_eqz_2PC"),
        "_to_ptype": lambda self, ptype, **options: _converted(convert, self, ptype, **options),
        "max_pool2d": lambda self, *args, **options: max_pool2d(pool, self, *args, **options),
        **{name: _passed_on(name) for name in ("index_add", "pad", "scatter", "scatter_add", "take")},
        "div": divide,
        "pow": power,
        "__pow__": lambda self, p: self.pow(p),
        "__rtruediv__": lambda self, y: self.reciprocal().mul(y),
        "var": variance,
        "weighted_index": weighted_index,
        "copy_": copy_in_place,
        "__getitem__": _get_item(_Tensor.__getitem__),
        "__setitem__": set_item,
        "backward": _backward(_Tensor.backward),
        "__copy__": _copied,
        "__deepcopy__": _deeply_copied,
        "to": _converted_or_stay,
        "cuda": binding_binary.unavailable("cuda"),
        "cat": _join("cat"),
        "stack": _join("stack"),
    }
    for name, method in methods.items():
        setattr(_Tensor, name, method)


def _replace_attributes(Base: Any) -> None:
    # CrypTen's validation mode opens every value, so it cannot work here; asking for it at every access is slow.
    original, get = Base.__getattribute__.__wrapped__, object.__getattribute__

    def attribute(self: Any, name: str) -> Any:
        if name in PLAIN or (name in DIRECT and not get(self, "requires_grad")):
            return get(self, name)
        if name[-1:] == "_" and name[-2:] != "__" and name[:-1] not in IN_PLACE:
            raise Unavailable(name)
        if name in NO_GRADIENT and self.requires_grad and Base.AUTOGRAD_ENABLED:
            raise Unavailable(f"{name} with gradients")
        return original(self, name)

    Base.__getattribute__ = attribute
    Base.__torch_function__ = classmethod(Base.__torch_function__)  # as torch wants it now


# making, copying and moving


def _owned(function: Callable[..., None], whole: bool) -> Any:
    """A constructor that looks at the owner's values only; the others' values only give the size."""

    def made(self: Any, tensor: Any = None, *args: Any, src: int = 0, **options: Any) -> None:
        if isinstance(src, int) and src >= 0 and tensor is not None:  # CrypTen asserts what src may be
            tensor = torch.as_tensor(tensor)
            if _current().rank != src:
                tensor = torch.zeros_like(tensor)
            elif whole:
                tensor = binding_binary.whole(tensor)
            elif not tensor.is_floating_point() and options.get("precision") != 0:
                tensor = tensor.double()  # CrypTen would take float, which has 24 bits
        function(self, tensor, *args, src=src, **options)

    return made


def _stay(self: Any, *args: Any, **options: Any) -> Any:
    """Shares are 64-bit words in main memory and stay there."""
    places = [*args, *options.values()]
    if any(isinstance(place, torch.dtype) or torch.is_tensor(place) for place in places):
        raise Unavailable("to another type of number")
    if any(torch.device(place).type != "cpu" for place in places if isinstance(place, (str, int, torch.device))):
        raise Unavailable("to another device")
    return self


def _converted_or_stay(self: Any, *args: Any, **options: Any) -> Any:
    if "ptype" in options or (args and isinstance(args[0], _crypten.mpc.ptype)):
        return self._to_ptype(*args, **options)
    return _stay(self, *args, **options)


def _converted(convert: Callable[..., Any], self: Any, ptype: Any, **options: Any) -> Any:
    if ptype != self.ptype and ptype == _crypten.mpc.binary and bits(self) > FRACTION_BITS:
        return convert(self * 1.0, ptype, **options)  # bits have the usual fraction
    if ptype != self.ptype and ptype == _crypten.mpc.arithmetic:
        wanted = _crypten.encoder.FixedPointEncoder(precision_bits=options.get("precision"))._precision_bits
        if wanted < bits(self):
            raise ProtocolError(f"a conversion to {wanted} fractional bits would lose some of {bits(self)}")
    return convert(self, ptype, **options)


def copy_in_place(self: Any, other: Any) -> Any:
    if not isinstance(other, _Tensor) or other.ptype != self.ptype:
        raise ProtocolError("copy_ needs a tensor of the same kind of shares")
    self._tensor.copy_(other._tensor)
    return self


def _copied(self: Any) -> Any:
    """Another handle on the same memory, as torch's."""
    result = self.shallow_copy()
    result._tensor = self._tensor.shallow_copy()
    result.requires_grad = self.requires_grad
    return result


def _deeply_copied(self: Any, memo: dict[int, Any]) -> Any:
    if self.children:
        raise ProtocolError("only a leaf of the graph can be copied deeply: detach it first")
    result = _Tensor.clone(self)
    result.requires_grad = self.requires_grad
    result.grad = None if self.grad is None else _Tensor.clone(self.grad)
    memo[id(self)] = result
    return result


def _get_item(function: Callable[..., Any]) -> Any:
    """x[index] as part of the graph: Python would bypass the attribute that records it."""

    def item(self: Any, index: Any) -> Any:
        if binding_tensors.direct(self):
            return binding_tensors.handle(object.__getattribute__(self, "_tensor")[index])
        if self.requires_grad and _crypten.CrypTensor.AUTOGRAD_ENABLED:
            return self.__getattribute__("__getitem__")(index)
        return function(self, index)

    return item


def _backward(function: Callable[..., None]) -> Any:
    def backward(self: Any, grad_input: Any = None, top_node: bool = True) -> None:
        if top_node and not self.requires_grad:
            raise ProtocolError("backward of a value that no gradient depends on")
        function(self, grad_input, top_node)

    return backward


def _take(self: Any, index: Any, dimension: int | None = None) -> Any:
    """torch's take, or ONNX's gather along a dimension."""
    result = self.shallow_copy()
    if dimension is None or self.dim() == 0:
        result.share = self.share.take(index.long())
    else:
        result.share = self.share[(slice(None),) * (dimension % self.dim()) + (index.long(),)]
    return result


def set_item(self: Any, index: Any, value: Any) -> None:
    graph = [tensor for tensor in (self, value) if isinstance(tensor, _Tensor) and tensor.requires_grad]
    if _crypten.CrypTensor.AUTOGRAD_ENABLED and graph:
        raise RuntimeError("Autograd is not supported for in-place functions.")
    self._tensor[index] = value._tensor if isinstance(value, _Tensor) else value


def _passed_on(name: str) -> Any:
    """A function that the shares have; a shared operand is passed as its shares."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        result = self.shallow_copy()
        args = tuple(value._tensor if isinstance(value, _Tensor) else value for value in args)
        options = {key: value._tensor if isinstance(value, _Tensor) else value for key, value in options.items()}
        result._tensor = getattr(self._tensor, name)(*args, **options)
        return result

    return method


def _join(name: str) -> Any:
    def joined(tensors: Sequence[Any], *args: Any, **options: Any) -> Any:
        first = next(tensor for tensor in tensors if isinstance(tensor, _Tensor))
        if any(isinstance(tensor, _Tensor) and tensor.ptype != first.ptype for tensor in tensors):
            raise ProtocolError(f"{name} of arithmetic and binary shares: convert one of them")
        _current().operations[name] += 1
        result = first.shallow_copy()
        parts = [tensor._tensor if isinstance(tensor, _Tensor) else tensor for tensor in tensors]
        result._tensor = getattr(first._tensor, name)(parts, *args, **options)
        return result

    return staticmethod(joined)


def _random_shares(*size: Any, device: Any = None) -> Any:
    shape = tuple(size[0]) if isinstance(size[0], (tuple, list)) else size
    return binding_arithmetic.make(_current().party.local.draw().words(shape), FRACTION_BITS)


# functions


def _arithmetic(self: Any, what: str) -> Any:
    if self.ptype != _crypten.mpc.arithmetic:
        raise Unavailable(f"{what} on binary shares")
    return self


def less_than_zero(self: Any) -> Any:
    session = _current()
    session.operations["lt"] += 1
    with session.measure("comparison"):
        return session.wrap(comparison.negative(session.party, words(_arithmetic(self, "a comparison"))), 0)


def not_equal(self: Any, y: Any) -> Any:
    """Either difference is negative; CrypTen's method for two parties forgets the fraction."""
    difference = self - y
    return _Tensor.stack([difference, -difference])._ltz().sum(0)


def divide(self: Any, y: Any) -> Any:
    if isinstance(y, _Tensor):
        return self.mul(y.reciprocal())
    result = self.shallow_copy()
    result._tensor = self._tensor.div(y)
    return result


def power(self: Any, p: Any) -> Any:
    """A power by squaring; CrypTen's own function gives x^6 for x^5."""
    if isinstance(p, float) and p.is_integer():
        p = int(p)
    if not isinstance(p, int):
        raise TypeError("pow must take an integer exponent; pos_pow takes others, for positive bases")
    if p < 0:
        return power(self.reciprocal(), -p)
    if p == 0:
        return self.new(torch.ones(self.size()))
    result, base = None, self
    while p:
        if p & 1:
            result = base if result is None else result.mul(base)
        p >>= 1
        base = base.square() if p else base
    return result.clone() if result is self else result


def variance(self: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    """As in torch: `unbiased` divides by one less than the count. CrypTen reads it the other way round."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    mean = self.mean() if dim is None else self.mean(dim, keepdim=True)
    squares = (self - mean).square()
    total = squares.sum() if dim is None else squares.sum(dim, keepdim=keepdim)
    count = self.nelement() // total.nelement() - int(unbiased)
    if count < 1:
        raise ProtocolError("one value alone has no unbiased variance")
    return total.div(count)


def max_pool2d(
    pool: Callable[..., Any],
    self: Any,
    kernel_size: Any,
    padding: Any = 0,
    stride: Any = None,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """CrypTen's function without its borders, whose words mean another number for each fraction and party."""
    if ceil_mode and self.requires_grad:
        raise Unavailable("max_pool2d with ceil_mode and gradients")
    kernel, steps, gaps, border = (_pair(x) for x in (kernel_size, stride or kernel_size, dilation, padding))
    sides: list[int] = []
    for size, k, s, d, p in reversed(list(zip(self.size()[-2:], kernel, steps, gaps, border, strict=True))):
        reach = d * (k - 1) + 1
        outputs = (size + 2 * p - reach + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (outputs - 1) * s >= size + p:
            outputs -= 1  # the last window must start inside
        sides += [p, max(p, p + (outputs - 1) * s + reach - size - 2 * p)]
    if any(sides):
        usual = self if bits(self) <= FRACTION_BITS else self * 1.0
        self = usual.pad(tuple(sides), value=int(-INPUT_LIMIT))
    return pool(self, kernel, stride=steps, dilation=gaps, return_indices=return_indices)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def weighted_index(self: Any, dim: int | None = None) -> Any:
    """One-hot along a dimension, at random with these weights.

    The threshold, a uniform number below the total, is not rounded: rounding could make it reach the total.
    """
    if dim is None:
        return self.flatten().weighted_index(dim=0).view(self.size())
    sums = (self if bits(self) <= FRACTION_BITS else self * 1.0).cumsum(dim)
    total = sums.narrow(dim, sums.size(dim) - 1, 1)
    session = _current()
    uniform = session.wrap(words(_crypten.rand(total.size())), 0)
    threshold = session.wrap(words(uniform * total), bits(total) + FRACTION_BITS)
    above = sums.gt(threshold)
    before = above.roll(1, dims=dim)
    before.share.narrow(dim, 0, 1).fill_(0)
    return above - before
