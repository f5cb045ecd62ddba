"""Installs our protocols into CrypTen, once per process: replaced and refused functions.

`install` receives the crypten module. Every replacement looks up the session of its context when it is called. The
arithmetic of the tensors is in `binding_tensors.py`; this module has set-up, randomness, the ways to a plain value,
the list of functions that a tensor has on a session, comparisons, and gradients.

An `MPCTensor` has the functions of `FUNCTIONS` and the methods that this package adds. All others raise: most because
nothing here uses them, some because CrypTen's own results are wrong (powers from 5 on, `var`, several gradients).
Binary shares are not available: comparisons have their own protocol (protocols/operations/comparison.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
import torch

from secure_sccvfl.protocols.errors import ProtocolError, Unavailable, UndeclaredRelease
from secure_sccvfl.protocols.operations import comparison
from secure_sccvfl.protocols.ring import FRACTION_BITS
from secure_sccvfl.protocols.session import binding_tensors
from secure_sccvfl.protocols.session.binding_tensors import (
    METHODS,
    bits_in,
    direct,
    handle,
    held,
    inner_of,
    is_long,
    share_in,
)
from secure_sccvfl.protocols.session.tensors import current

_crypten: Any = None
_Tensor: Any = None

# fmt: off
FUNCTIONS = frozenset({
    "abs", "add", "argmax", "cat", "clone", "cumsum", "div", "eq", "exp", "expand", "flatten", "ge", "gt",
    "index_add", "le", "lt", "matmul", "max", "mean", "mul", "narrow", "ne", "neg", "pad", "permute", "prod",
    "reciprocal", "relu", "repeat", "reshape", "roll", "sigmoid", "sign", "split", "square", "squeeze", "stack",
    "sub", "sum", "t", "tanh", "transpose", "unsqueeze", "view", "weighted_index", "where",
})
"""CrypTen's functions that an `MPCTensor` has on a session."""
IN_PLACE = frozenset({"add_", "copy_", "mul_"})
"""What CrypTen's own code writes in place: Newton's steps of a reciprocal, and sums of gradients."""
_ATTRIBUTES = frozenset({
    "backward", "children", "ctx", "data", "detach", "device", "dim", "enable_grad", "encoder", "from_shares",
    "get_plain_text", "grad", "grad_expected", "grad_fn", "grad_received", "nelement", "new", "no_grad", "numel",
    "ptype", "requires_grad", "reveal", "set", "set_grad_enabled", "shallow_copy", "shape", "share", "size",
})
# fmt: on
_PLAIN = frozenset({"__class__", "_tensor", "dim", "encoder", "nelement", "ptype", "requires_grad", "share", "size"})
"""Attributes that autograd does not record."""
_DIRECT = METHODS | {"repeat", "reshape", "sigmoid", "sum", "t", "unsqueeze"}
"""Functions of one tensor that bypass CrypTen's autograd where no gradient is required."""
UNAVAILABLE = (
    *("bernoulli", "fill_cache", "load", "load_from_party", "print_communication_stats", "randn"),
    *("reset_communication_stats", "save", "save_from_party", "trace", "trace_once"),
)
"""Functions of the package that need something absent here: caches, files with shares, other counters."""
PRODUCT_BITS, GRADIENT_BITS = 24, 20
"""Most fractional bits of products in a graph, and of gradients: sums of 2^16 products of both fit a truncation."""


def install(crypten: Any) -> None:
    """Replace, once per process, what CrypTen does."""
    global _crypten, _Tensor
    _crypten, _Tensor = crypten, crypten.mpc.MPCTensor
    primitives = crypten.mpc.primitives
    _close_plain_ways((_Tensor, primitives.ArithmeticSharedTensor, primitives.BinarySharedTensor))
    _replace_set_up(crypten)
    _replace_randomness(crypten)
    binding_tensors.install(crypten)
    Shared = primitives.ArithmeticSharedTensor
    Shared.__init__ = _owned(Shared.__init__)
    for name in ("__init__", "from_shares"):
        setattr(primitives.BinarySharedTensor, name, _unavailable("a tensor of binary shares"))
    _replace_attributes(crypten.CrypTensor)
    logic = crypten.common.functions.logic
    methods: dict[str, Any] = {
        "_ltz": _less_than_zero,
        "ne": logic.ne,  # CrypTen's method for two parties forgets the fraction
        "eq": logic.eq,
        "sigmoid": lambda self, bound=None, bits=None: current().sigmoid(self, bound, bits),
        "tanh": lambda self, bound=None: current().tanh(self, bound),
        "_to_ptype": _unavailable("a conversion of shares"),
        "div": _divide,
        "__rtruediv__": lambda self, y: self.reciprocal().mul(y),
        "weighted_index": _weighted_index,
        "rand": staticmethod(_rand),
        "copy_": _copy_in_place,
        "__getitem__": _get_item,
        "__setitem__": _unavailable("x[index] = y"),
        "backward": _backward(_Tensor.backward),
    }
    for name, method in methods.items():
        setattr(_Tensor, name, method)
    registry = crypten.gradients.FUNCTION_REGISTRY
    registry["matmul"].forward = staticmethod(_matmul)
    registry["matmul"].backward = staticmethod(_matmul_backward(registry["matmul"].backward))
    registry["sigmoid"].backward = staticmethod(_sigmoid_backward(registry["sigmoid"].backward))


def _unavailable(what: str) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unavailable(what)

    return refused


# plain values, set-up and randomness


def _close_plain_ways(kinds: tuple[Any, ...]) -> None:
    def refuse(what: str) -> Callable[..., NoReturn]:
        def refused(*args: Any, **kwargs: Any) -> NoReturn:
            raise UndeclaredRelease(f"{what} of a shared value: use Session.open with a declared release")

        return refused

    for tensor in kinds:
        tensor.get_plain_text = refuse("get_plain_text")
        tensor.reveal = refuse("reveal")
        tensor.__repr__ = tensor.__str__ = tensor.__format__ = refuse("printing")
        tensor.__reduce_ex__ = refuse("pickling")
        if hasattr(tensor, "reveal_batch"):
            tensor.reveal_batch = staticmethod(refuse("reveal_batch"))


class Communicator:
    """The communicator that CrypTen gets: ranks, without any way to send a share."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UndeclaredRelease(f"CrypTen's communicator ({name}) moves shares; use Session.open with a release")

    def get_rank(self) -> int:
        return current().rank

    def get_world_size(self) -> int:
        return current().parties

    def get_name(self) -> str:
        return f"rank{current().rank}"


def _replace_set_up(crypten: Any) -> None:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise ProtocolError(
            "CrypTen's own set-up is not used here: open a secure_sccvfl.protocols.session.runtime.Session"
        )

    crypten.init = crypten.init_thread = crypten.uninit = refuse
    crypten.communicator._init = crypten.communicator.uninit = refuse
    communicator = Communicator()
    crypten.communicator.get = lambda: communicator
    crypten.communicator.is_initialized = lambda: True
    crypten.mpc.get_default_provider = _unavailable("CrypTen's tuple provider")
    crypten.mpc.ttp_required = lambda: False

    # CrypTen's configuration and its autograd switch are global to the process: give each context its own.
    cfg = crypten.config.cfg
    state: ContextVar[Any] = ContextVar("crypten configuration", default=cfg.config)
    autograd: ContextVar[bool] = ContextVar("crypten autograd", default=True)

    def set_config(self: Any, config: Any) -> None:
        for name in ("debug_mode", "validation_mode"):
            if config.debug[name]:
                raise Unavailable(f"CrypTen's setting debug.{name}")
        state.set(config)

    def set_autograd(self: Any, mode: bool) -> None:
        autograd.set(mode)

    type(crypten.CrypTensor).AUTOGRAD_ENABLED = property(lambda self: autograd.get(), set_autograd)

    class ContextConfig(cfg.__class__):  # type: ignore[name-defined, misc]
        config = property(lambda self: state.get(), set_config)
        debug = NoDebugging()

    cfg.__class__ = ContextConfig
    for name in UNAVAILABLE:
        setattr(crypten, name, _unavailable(f"crypten.{name}"))


class NoDebugging:
    """CrypTen's debugging settings, all off: its validation mode would open every value."""

    debug_mode = validation_mode = False

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise Unavailable(f"CrypTen's setting debug.{name}")


def _replace_randomness(crypten: Any) -> None:
    class NoGenerators(dict[str, Any]):
        def __missing__(self, key: str) -> NoReturn:
            raise ProtocolError(f"CrypTen's generator {key!r} is not available")

    def przs(*size: Any, device: Any = None) -> Any:
        shape = tuple(size[0]) if isinstance(size[0], (tuple, list)) else tuple(size)
        return held(current().party.zero_share(shape) if np.prod(shape) else np.zeros(shape, np.int64), 0)

    crypten.generators = NoGenerators()
    primitives = crypten.mpc.primitives
    for module in (crypten.common.rng, primitives.arithmetic, primitives.binary):
        for name in ("generate_random_ring_element", "generate_kbit_random_tensor"):
            setattr(module, name, _unavailable(f"CrypTen's {name}"))
    primitives.ArithmeticSharedTensor.PRZS = staticmethod(przs)
    primitives.ArithmeticSharedTensor.PRSS = _unavailable("PRSS")


def _rand(*size: Any, device: Any = None) -> Any:
    """Uniform values in [0, 1) with FRACTION_BITS, unknown to all: FRACTION_BITS shared random bits each."""
    shape = tuple(size[0]) if isinstance(size[0], (tuple, list)) else tuple(size)
    party = current().party
    elements = party.local.draw().elements(shape)
    bits = np.stack([(elements >> k) & 1 for k in range(FRACTION_BITS)]).astype(np.uint8)
    if party.active:
        shares = party.take("shared_bit", bits.shape)["a"]
    else:
        shares = comparison.to_arithmetic(party, bits.reshape(-1)).reshape(bits.shape)
    return handle(held(sum(share << k for k, share in enumerate(shares)), FRACTION_BITS))


# attributes, construction and copies


def _replace_attributes(Base: Any) -> None:
    # CrypTen's validation mode opens every value, so it cannot work here; asking for it at every access is slow.
    original, get = Base.__getattribute__.__wrapped__, object.__getattribute__
    allowed = FUNCTIONS | IN_PLACE | _ATTRIBUTES | METHODS
    no_gradient = without_gradient()

    def attribute(self: Any, name: str) -> Any:
        if name in _PLAIN or (name in _DIRECT and not get(self, "requires_grad")):
            return get(self, name)
        if name[0] != "_" and name not in allowed:
            raise Unavailable(name)
        if name in no_gradient and self.requires_grad and Base.AUTOGRAD_ENABLED:
            raise Unavailable(f"{name} with gradients")
        return original(self, name)

    Base.__getattribute__ = attribute
    Base.__torch_function__ = classmethod(Base.__torch_function__)  # as torch wants it now


def without_gradient() -> frozenset[str]:
    """Functions unknown to CrypTen's autograd: their results would silently have no gradient."""
    return (FUNCTIONS | METHODS) - set(_crypten.gradients.FUNCTION_REGISTRY) | {
        "cat",
        "cumsum",
        "max",
        "pad",
        "stack",
    }


def _owned(function: Callable[..., None]) -> Any:
    """A constructor that reads the owner's values only; those of the others only give the size."""

    def construct(self: Any, tensor: Any = None, *args: Any, src: int = 0, **options: Any) -> None:
        if isinstance(src, int) and src >= 0 and tensor is not None:  # CrypTen asserts what src may be
            tensor = torch.as_tensor(tensor)
            if current().rank != src:
                tensor = torch.zeros_like(tensor)
            elif not tensor.is_floating_point() and options.get("precision") != 0:
                tensor = tensor.double()  # CrypTen would take float, which has 24 bits
        function(self, tensor, *args, src=src, **options)

    return construct


def _copy_in_place(self: Any, other: Any) -> Any:
    self._tensor.copy_(inner_of(other))
    return self


def _get_item(self: Any, index: Any) -> Any:
    if not direct(self) and _crypten.CrypTensor.AUTOGRAD_ENABLED:
        raise Unavailable("x[index] with gradients")
    return handle(object.__getattribute__(self, "_tensor")[index])


# functions


def _less_than_zero(self: Any) -> Any:
    session = current()
    session.operations["lt"] += 1
    with session.measure("comparison"):
        return handle(held(comparison.negative(session.party, share_in(self)), 0))


def _divide(self: Any, y: Any) -> Any:
    return self.mul(y.reciprocal()) if isinstance(y, _Tensor) else handle(self._tensor.div(y))


def _weighted_index(self: Any, dim: int | None = None) -> Any:
    """One-hot along a dimension, at random with these weights: how `argmax` chooses among equal values.

    The threshold, a uniform number below the total, is not rounded: rounding could make it reach the total.
    """
    if dim is None:
        return self.flatten().weighted_index(dim=0).view(self.size())
    sums = (self if bits_in(self) <= FRACTION_BITS else self * 1.0).cumsum(dim)
    total = sums.narrow(dim, sums.size(dim) - 1, 1)
    uniform = handle(held(share_in(_rand(total.size())), 0))
    threshold = handle(held(share_in(uniform * total), bits_in(total) + FRACTION_BITS))
    above = sums.gt(threshold)
    before = share_in(above.roll(1, dims=dim)).copy()
    before[(slice(None),) * (dim % before.ndim) + (slice(0, 1),)] = 0
    return above - handle(held(before, bits_in(above)))


# gradients


def _backward(function: Callable[..., None]) -> Any:
    def backward(self: Any, grad_input: Any = None, top_node: bool = True) -> None:
        if top_node and not self.requires_grad:
            raise ProtocolError("backward of a value that no gradient depends on")
        function(self, grad_input, top_node)

    return backward


def _matmul(ctx: Any, input: Any, other: Any) -> Any:
    """A product of long fractions is rescaled to PRODUCT_BITS: in a graph nothing else would rescale it."""
    ctx.save_multiple_for_backward([input, other])
    product = input.matmul(other)
    if (_needs(input) or _needs(other)) and is_long(inner_of(product)):
        return product.rescale(PRODUCT_BITS)
    return product


def _matmul_backward(general: Callable[..., Any]) -> Any:
    def backward(ctx: Any, grad_output: Any) -> Any:
        """Gradients of the factors that require one: two rounds, for one factor or for both.

        CrypTen's own multiplies for constants too, and truncates each product separately. Results have the fraction
        of the incoming gradient, if that is between FRACTION_BITS and GRADIENT_BITS. A pinned factor opens nothing of
        its own. general: CrypTen's, for vectors, batches and public factors.
        """
        left, right = ctx.saved_tensors
        if any(not isinstance(one, _Tensor) or one.dim() != 2 for one in (left, right)):
            return general(ctx, grad_output)
        whole, bits = grad_output.exact(), _bits_of_gradients(grad_output)
        products = [
            whole.matmul(right.t()) if _needs(left) else None,
            left.t().matmul(whole) if _needs(right) else None,
        ]
        current().flush()
        return tuple(None if one is None else one.rescale(bits) for one in products)

    return backward


def _sigmoid_backward(general: Callable[..., Any]) -> Any:
    def backward(ctx: Any, grad_output: Any) -> Any:
        """general: CrypTen's, for gradients with a regular fraction."""
        if not is_long(inner_of(grad_output)):
            return general(ctx, grad_output)
        (chance,) = ctx.saved_tensors
        slope = chance.mul(chance.neg().add(1.0))
        return grad_output.mul(slope).rescale(_bits_of_gradients(grad_output))

    return backward


def _bits_of_gradients(grad_output: Any) -> int:
    bits = bits_in(grad_output)
    return bits if FRACTION_BITS <= bits <= GRADIENT_BITS else FRACTION_BITS


def _needs(value: Any) -> bool:
    return bool(getattr(value, "requires_grad", False))
