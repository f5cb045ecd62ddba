"""Our protocols behind CrypTen's names: what `protocols/runtime.py` installs into CrypTen.

Nothing here imports crypten; `install` is handed the module. Every replacement looks up the
session of its context when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from protocols import arithmetic, comparison, ring
from protocols.errors import ProtocolError, UndeclaredRelease
from protocols.ring import FRACTION_BITS
from protocols.transport import Array

if TYPE_CHECKING:
    from protocols.runtime import Session


class Provider:
    """CrypTen's tuple provider, served by the dealer."""

    NAME = "dealer"

    def __init__(self, session: Session) -> None:
        self._session = session

    def generate_additive_triple(
        self, size0: Any, size1: Any, op: str, device: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        options = tuple(sorted(kwargs.items()))
        return self._arithmetic("bilinear", ("a", "b", "c"), op, tuple(size0), tuple(size1), options)

    def square(self, size: Any, device: Any = None) -> Any:
        return self._arithmetic("square", ("a", "b"), tuple(size))

    def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None) -> Any:
        fields = self._session.party.take("binary", tuple(size0), tuple(size1))
        return tuple(self._tensor("BinarySharedTensor", fields[name]) for name in ("a", "b", "c"))

    def wrap_rng(self, size: Any, device: Any = None) -> Any:
        return self._arithmetic("wraps", ("r", "theta"), tuple(size))

    def B2A_rng(self, size: Any, device: Any = None) -> Any:
        fields = self._session.party.take("bit", tuple(size))
        return (
            self._tensor("ArithmeticSharedTensor", fields["a"]),
            self._tensor("BinarySharedTensor", fields["b"].astype(np.int64)),
        )

    def _arithmetic(self, kind: str, names: tuple[str, ...], *arguments: Any) -> Any:
        fields = self._session.party.take(kind, *arguments)
        return tuple(self._tensor("ArithmeticSharedTensor", fields[name]) for name in names)

    def _tensor(self, kind: str, words: Array) -> Any:
        return getattr(_primitives, kind).from_shares(torch.from_numpy(words), precision=0)


_primitives: Any = None


def install(crypten: Any, current: Callable[[], Session]) -> None:
    """Replace, once per process, what must not stay."""
    global _primitives
    _primitives = primitives = crypten.mpc.primitives
    tensors = (crypten.mpc.MPCTensor, primitives.ArithmeticSharedTensor, primitives.BinarySharedTensor)
    _close_plain_ways(tensors)
    _replace_set_up(crypten, current)
    _replace_randomness(crypten, current)
    _replace_arithmetic(crypten, primitives.ArithmeticSharedTensor, current)
    _replace_binary(crypten, primitives, current)
    _replace_functions(crypten.mpc.MPCTensor, current)


def _close_plain_ways(tensors: tuple[Any, ...]) -> None:
    def refuse(what: str) -> Callable[..., NoReturn]:
        def refused(*args: Any, **kwargs: Any) -> NoReturn:
            raise UndeclaredRelease(f"{what} of a shared value: use Session.open with a declared release")

        return refused

    for tensor in tensors:
        tensor.get_plain_text = refuse("get_plain_text")
        tensor.reveal = refuse("reveal")
        tensor.__repr__ = tensor.__str__ = tensor.__format__ = refuse("printing")
        tensor.__reduce_ex__ = refuse("pickling")
        if hasattr(tensor, "reveal_batch"):
            tensor.reveal_batch = staticmethod(refuse("reveal_batch"))


def _replace_set_up(crypten: Any, current: Callable[[], Session]) -> None:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise ProtocolError("CrypTen's own set-up is not used here: open a protocols.runtime.Session")

    crypten.init = crypten.init_thread = crypten.uninit = refuse
    crypten.communicator._init = crypten.communicator.uninit = refuse
    crypten.communicator.get = lambda: current().communicator
    crypten.communicator.is_initialized = lambda: True
    crypten.mpc.get_default_provider = lambda: current().provider
    crypten.mpc.ttp_required = lambda: False

    # CrypTen's configuration and its autograd switch are one for the process: give each context its own.
    cfg = crypten.config.cfg
    state: ContextVar[Any] = ContextVar("crypten configuration", default=cfg.config)
    autograd: ContextVar[bool] = ContextVar("crypten autograd", default=True)
    type(crypten.CrypTensor).AUTOGRAD_ENABLED = property(
        lambda self: autograd.get(), lambda self, mode: _set(autograd, mode)
    )

    class ContextConfig(cfg.__class__):  # type: ignore[name-defined, misc]
        config = property(lambda self: state.get(), lambda self, value: _set(state, value))

    cfg.__class__ = ContextConfig

    # CrypTen's validation mode opens every value, so it cannot work here; asking for it at every access is slow.
    crypten.CrypTensor.__getattribute__ = crypten.CrypTensor.__getattribute__.__wrapped__


def _set(state: ContextVar[Any], value: Any) -> None:
    state.set(value)


def _replace_randomness(crypten: Any, current: Callable[[], Session]) -> None:
    class NoGenerators(dict[str, Any]):
        def __missing__(self, key: str) -> NoReturn:
            raise ProtocolError(f"CrypTen's generator {key!r} is not used here")

    def ring_element(size: Any, ring_size: int = 2**64, generator: Any = None, **kwargs: Any) -> torch.Tensor:
        if generator is not None or ring_size != 2**64:
            raise ProtocolError("random words come from the session's own streams only")
        return torch.from_numpy(current().party.local.draw().words(tuple(size)))

    def k_bits(size: Any, bitlength: int | None = None, generator: Any = None, **kwargs: Any) -> torch.Tensor:
        words = ring_element(size, generator=generator)
        return words if bitlength in (None, 64) else words & ((1 << bitlength) - 1)

    def zeros(how: Any) -> Any:
        kind = "ArithmeticSharedTensor" if how == "add" else "BinarySharedTensor"

        def przs(*size: Any, device: Any = None) -> Any:
            shape = tuple(size[0]) if isinstance(size[0], (tuple, list)) else tuple(size)
            share = current().party.zero_share(shape, how)
            return getattr(_primitives, kind).from_shares(torch.from_numpy(np.asarray(share)), precision=0)

        return staticmethod(przs)

    crypten.generators = NoGenerators()
    for module in (crypten.common.rng, _primitives.arithmetic, _primitives.binary):
        for name, function in (
            ("generate_random_ring_element", ring_element),
            ("generate_kbit_random_tensor", k_bits),
        ):
            if hasattr(module, name):
                setattr(module, name, function)
    _primitives.ArithmeticSharedTensor.PRZS = zeros("add")
    _primitives.BinarySharedTensor.PRZS = zeros("xor")


def _replace_arithmetic(crypten: Any, Shared: Any, current: Callable[[], Session]) -> None:
    Encoder = crypten.encoder.FixedPointEncoder
    plain_encode = Encoder.encode

    def encode(self: Any, x: Any, device: Any = None) -> Any:
        """CrypTen's encoder, with reals checked and rounded; integers are ring elements to be scaled."""
        if torch.is_tensor(x) and x.dtype == torch.bool:
            x = x.long()
        if real(x):
            return torch.from_numpy(np.asarray(ring.encode(x, self._precision_bits)))
        return plain_encode(self, x, device)

    def real(x: Any) -> bool:
        """Public values that may have a fraction."""
        return isinstance(x, (float, list, np.ndarray)) or (torch.is_tensor(x) and x.is_floating_point())

    def bits(tensor: Any) -> int:
        return int(tensor.encoder._precision_bits)

    def words(tensor: Any) -> Any:
        return tensor.share.contiguous().numpy()

    def result(target: Any, array: Array, precision: int) -> Any:
        target.share = torch.from_numpy(np.asarray(array))
        target.encoder = Encoder(precision_bits=precision)
        return target

    def arithmetic_function(self: Any, y: Any, op: str, inplace: bool = False, *args: Any, **options: Any) -> Any:
        target = self if inplace else Shared(src=-1)
        party = current().party
        if op in ("add", "sub"):
            return add(target, self, y, 1 if op == "add" else -1, party.rank)
        if isinstance(y, Shared):
            with current().measure("product" if op == "mul" else op):
                whole = 0 in (bits(self), bits(y))
                left, right = (words(self), words(y)) if whole else (usual_words(self), usual_words(y))
                if whole:
                    product = arithmetic.bilinear(party, op, left, right, **options)
                    return result(target, product, bits(self) + bits(y))
                quotient = arithmetic.scaled_bilinear(party, op, left, right, 1 << FRACTION_BITS, **options)
                return result(target, quotient, FRACTION_BITS)
        if isinstance(y, int) or (torch.is_tensor(y) and not y.is_floating_point()):
            factor = torch.as_tensor(y, dtype=torch.int64).numpy()
            return result(target, scaled(op, words(self), factor, options), bits(self))
        factor = np.asarray(ring.encode(y))
        if bits(self) == 0:
            return result(target, scaled(op, words(self), factor, options), FRACTION_BITS)
        return narrow(target, scaled(op, usual_words(self), factor, options))

    def scaled(op: str, x: Array, y: Array, options: dict[str, Any]) -> Array:
        if op == "mul" and x.ndim == y.ndim == 0:
            return (x.reshape(1) * y.reshape(1)).reshape(())
        return ring.apply(op, x, y, **options)

    def usual_words(tensor: Any) -> Any:
        """The share with the usual fraction; a wide one costs a round of truncation."""
        return arithmetic.refraction(current().party, words(tensor), bits(tensor), FRACTION_BITS)

    def narrow(target: Any, product: Array) -> Any:
        """A product of two usual fractions, back to one."""
        return result(target, arithmetic.truncate(current().party, product, FRACTION_BITS), FRACTION_BITS)

    def add(target: Any, x: Any, y: Any, sign: int, rank: int) -> Any:
        if isinstance(y, Shared):
            precision = max(bits(x), bits(y))
            left = x.share * (1 << (precision - bits(x)))
            right = y.share * (1 << (precision - bits(y)))
            total = left + right if sign > 0 else left - right
        else:
            precision = bits(x)
            if precision == 0 and real(y):
                precision = FRACTION_BITS
            public = Encoder(precision_bits=precision).encode(y)
            left = x.share * (1 << (precision - bits(x)))
            total = left + sign * public if rank == 0 else left + torch.zeros_like(public)
        target.share = total
        target.encoder = Encoder(precision_bits=precision)
        return target

    def divide_in_place(self: Any, y: Any) -> Any:
        if torch.is_tensor(y) and y.numel() == 1 and self.share.dim() >= y.dim():
            y = y.item()
        if isinstance(y, float) and y.is_integer():
            y = int(y)
        if isinstance(y, int):
            precision = bits(self) or FRACTION_BITS  # half of an integer has a fraction
            whole = np.left_shift(words(self), precision - bits(self))
            with current().measure("truncation"):
                return result(self, arithmetic.divide(current().party, whole, y), precision)
        return self.mul_(1.0 / y if isinstance(y, float) else y.double().reciprocal())

    def square_in_place(self: Any) -> Any:
        with current().measure("square"):
            if bits(self) == 0:
                return result(self, arithmetic.square(current().party, words(self)), 0)
            return narrow(self, arithmetic.square(current().party, usual_words(self)))

    def widen(tensor: Any, precision: int) -> Any:
        """The same value with a longer fraction, in place; exact, no communication."""
        if bits(tensor) < precision:
            result(tensor, np.left_shift(words(tensor), precision - bits(tensor)), precision)
        return tensor

    def same_fraction(tensors: list[Any]) -> list[Any]:
        """All with the longest fraction among them; public ones become shared."""
        shared = [value if isinstance(value, Shared) else Shared(torch.as_tensor(value)) for value in tensors]
        longest = max(bits(value) for value in shared)
        return [value if bits(value) == longest else widen(value.clone(), longest) for value in shared]

    # CrypTen joins the shares of two tensors in these without looking at their fractions.
    def aligned_write(function: Any) -> Any:
        def write(self: Any, *args: Any) -> Any:
            joined, value = same_fraction([self, args[-1]])
            return function(widen(self, bits(joined)), *args[:-1], value)

        return write

    def aligned_join(function: Any) -> Any:
        return staticmethod(lambda tensors, *args, **options: function(same_fraction(tensors), *args, **options))

    for name in ("__setitem__", "scatter_", "scatter_add_", "index_add_"):
        setattr(Shared, name, aligned_write(getattr(Shared, name)))
    for name in ("cat", "stack"):
        setattr(Shared, name, aligned_join(getattr(Shared, name)))
    Encoder.encode = encode
    Shared._arithmetic_function = arithmetic_function
    Shared.div_ = divide_in_place
    Shared.square_ = square_in_place
    beaver = _primitives.beaver

    def raw(op: str) -> Any:
        def product(x: Any, y: Any, **options: Any) -> Any:
            array = arithmetic.bilinear(current().party, op, words(x), words(y), **options)
            return result(Shared(src=-1), array, 0)

        return product

    for op in ("mul", "matmul", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"):
        setattr(beaver, op, raw(op))
    beaver.square = lambda x: result(Shared(src=-1), arithmetic.square(current().party, words(x)), 0)
    beaver.truncate = divide_in_place
    original_wraps = beaver.wraps

    def wraps(x: Any) -> Any:
        with current().communicator.masked_openings():  # opens x + r for a fresh r
            return original_wraps(x)

    beaver.wraps = wraps


def _replace_binary(crypten: Any, primitives: Any, current: Callable[[], Session]) -> None:
    def binary_and(x: Any, y: Any) -> Any:
        session = current()
        a, b, c = session.provider.generate_binary_triple(x.size(), y.size())
        masked = [(left.share ^ mask.share).numpy() for left, mask in ((x, a), (y, b))]
        e, d = (torch.from_numpy(word) for word in session.party.open_masked("and", masked, how="xor"))
        share = c.share ^ (b.share & e) ^ (a.share & d)
        if session.rank == 0:
            share ^= e & d
        return primitives.BinarySharedTensor.from_shares(share, precision=0)

    def bit_to_number(x: Any) -> Any:
        session = current()
        # CrypTen asks for one bit in each word.
        flat = (x.share & 1).to(torch.uint8).reshape(-1).numpy()
        share = comparison.to_arithmetic(session.party, flat).reshape(tuple(x.size()))
        return primitives.ArithmeticSharedTensor.from_shares(torch.from_numpy(share), precision=0)

    primitives.beaver.AND = binary_and
    primitives.beaver.B2A_single_bit = bit_to_number


def _replace_functions(Tensor: Any, current: Callable[[], Session]) -> None:
    def less_than_zero(self: Any) -> Any:
        session = current()
        with session.measure("comparison"):
            bits = comparison.negative(session.party, self.share.contiguous().numpy())
            return session.wrap(bits, 0)

    def not_equal(self: Any, y: Any) -> Any:
        """Either difference is negative; CrypTen's way for two parties forgets the fraction."""
        difference = self - y
        return type(self).stack([difference, -difference])._ltz().sum(0)

    convert = Tensor._to_ptype

    def to_ptype(self: Any, ptype: Any, **options: Any) -> Any:
        if ptype != self.ptype and hasattr(self._tensor, "div_") and self.encoder._precision_bits > FRACTION_BITS:
            return convert(self * 1.0, ptype, **options)  # bits have the usual fraction
        return convert(self, ptype, **options)

    Tensor._ltz = less_than_zero
    Tensor.ne = not_equal
    Tensor.eq = lambda self, y: 1 - not_equal(self, y)
    Tensor._to_ptype = to_ptype
    Tensor.sigmoid = lambda self, bound=None: current().sigmoid(self, bound)
    Tensor.tanh = lambda self, bound=None: current().tanh(self, bound)
