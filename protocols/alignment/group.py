"""ristretto255 (libsodium, by the package rbcl): ids as elements of the group, and a secret scalar that blinds them.

The one module that imports rbcl. An id is hashed to 64 bytes (SHA-512 with a label) and mapped to the group as RFC
9496 has it, so nobody knows how elements of two ids relate. The order of the group is a prime. So a scalar that is
not zero maps elements one to one, and scalars commute.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from protocols.dealing.randomness import Draw
from protocols.errors import ProtocolError

Elements = npt.NDArray[np.uint8]
"""One row of 32 bytes for each element."""
ELEMENT_BYTES = 32
_LABEL = b"sccvfl alignment ristretto255 "
_UNREDUCED_BYTES = 64


class NoElement(Exception):
    """Bytes that stand for no element of the group, or for its neutral one."""


class Blinding:
    """A secret scalar; shows nothing of itself. `threads` share the work: libsodium lets Python go on meanwhile."""

    __slots__ = ("_scalar", "_threads")

    def __init__(self, draw: Draw, threads: int = 1) -> None:
        group, scalar = _group(), bytes(ELEMENT_BYTES)
        while not any(scalar):
            scalar = group.crypto_core_ristretto255_scalar_reduce(draw.words((_UNREDUCED_BYTES,), np.uint8).tobytes())
        self._scalar, self._threads = scalar, threads

    def hashed(self, ids: Sequence[str]) -> Elements:
        """The blinded elements of ids."""
        to_group = _group().crypto_core_ristretto255_from_hash

        def element(name: str) -> bytes:
            return self._multiplied(to_group(hashlib.sha512(_LABEL + name.encode()).digest()))

        return self._each(element, ids)

    def blinded(self, elements: Elements) -> Elements:
        """Elements under this scalar too, in the same order; raises NoElement for what is none."""
        flat = elements.tobytes()
        return self._each(
            self._multiplied, [flat[at : at + ELEMENT_BYTES] for at in range(0, len(flat), ELEMENT_BYTES)]
        )

    def _multiplied(self, element: bytes) -> bytes:
        try:
            made: bytes = _group().crypto_scalarmult_ristretto255(self._scalar, element)
        except RuntimeError:
            raise NoElement from None
        return made

    def _each(self, make: Callable[[Any], bytes], items: Sequence[Any]) -> Elements:
        def some(first: int) -> bytes:
            return b"".join(map(make, items[first :: self._threads]))

        made = np.empty((len(items), ELEMENT_BYTES), np.uint8)
        with ThreadPoolExecutor(self._threads) if self._threads > 1 else contextlib.nullcontext() as pool:
            parts = (pool.map if pool is not None else map)(some, range(self._threads))
            for first, part in enumerate(parts):
                made[first :: self._threads] = np.frombuffer(part, np.uint8).reshape(-1, ELEMENT_BYTES)
        return made

    def __repr__(self) -> str:
        return "<blinding: scalar hidden>"

    def __reduce__(self) -> NoReturn:
        raise ProtocolError("a secret scalar is not pickled")


@cache
def _group() -> Any:
    try:
        import rbcl
    except ModuleNotFoundError as error:
        raise ProtocolError(f"{error.name} is not installed; run `make env`") from None
    # rbcl writes libsodium to a temporary file, loads it, and leaves it there.
    with contextlib.suppress(KeyError, AttributeError, OSError):
        os.unlink(sys.modules["rbcl._sodium"].lib_path)
    return rbcl
