"""Our protocols behind CrypTen's names: what `protocols/session/runtime.py` installs into CrypTen.

Nothing here imports crypten; `install` receives the module. Every replacement looks up the session of its context
when it is called. This module has set-up, randomness and openings. The tensors are in `binding_arithmetic.py`,
`binding_binary.py`, `binding_functions.py` and `binding_gradients.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from protocols.errors import ProtocolError, Unavailable, UndeclaredRelease
from protocols.net.transport import Array
from protocols.session import (
    binding_arithmetic,
    binding_binary,
    binding_functions,
    binding_gradients,
    binding_tensors,
)

if TYPE_CHECKING:
    from protocols.session.runtime import Session


class Provider:
    """CrypTen's tuple provider, served by the dealer."""

    NAME = "dealer"

    def __getattr__(self, name: str) -> NoReturn:
        raise Unavailable(f"CrypTen's provider: {name}")

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
    binding_tensors.install(crypten, current)
    binding_arithmetic.install(crypten, current)
    binding_binary.install(crypten, current)
    binding_functions.install(crypten, current)
    binding_gradients.install(crypten, current)


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
        raise ProtocolError("CrypTen's own set-up is not used here: open a protocols.session.runtime.Session")

    crypten.init = crypten.init_thread = crypten.uninit = refuse
    crypten.communicator._init = crypten.communicator.uninit = refuse
    crypten.communicator.get = lambda: current().communicator
    crypten.communicator.is_initialized = lambda: True
    crypten.mpc.get_default_provider = lambda: current().provider
    crypten.mpc.ttp_required = lambda: False

    # CrypTen's configuration and its autograd switch are global to the process: give each context its own.
    cfg = crypten.config.cfg
    state: ContextVar[Any] = ContextVar("crypten configuration", default=cfg.config)
    autograd: ContextVar[bool] = ContextVar("crypten autograd", default=True)
    type(crypten.CrypTensor).AUTOGRAD_ENABLED = property(
        lambda self: autograd.get(), lambda self, mode: _set(autograd, mode)
    )

    class ContextConfig(cfg.__class__):  # type: ignore[name-defined, misc]
        config = property(lambda self: state.get(), lambda self, value: _set(state, _without_debugging(value)))
        debug = NoDebugging()

    cfg.__class__ = ContextConfig
    for name in UNAVAILABLE:
        setattr(crypten, name, binding_binary.unavailable(f"crypten.{name}"))


UNAVAILABLE = (
    "fill_cache",
    "load",
    "load_from_party",
    "print_communication_stats",
    "reset_communication_stats",
    "save",
    "save_from_party",
    "trace",
    "trace_once",
)
"""Functions of the package that need something absent here: caches, files with shares, other counters."""


class NoDebugging:
    """CrypTen's debugging settings, all off: its validation mode would open every value."""

    debug_mode = validation_mode = False

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise Unavailable(f"CrypTen's setting debug.{name}")


def _without_debugging(config: Any) -> Any:
    for name in ("debug_mode", "validation_mode"):
        if config.debug[name]:
            raise Unavailable(f"CrypTen's setting debug.{name}")
    return config


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
