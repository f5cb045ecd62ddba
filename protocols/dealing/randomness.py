"""ChaCha20 streams with 256-bit keys: the source of every mask, share and tuple.

Two processes agree on a key with X25519, freshly for each session and inside the authenticated channel. HKDF-SHA256
splits it into one key per label. A label's stream is cut into draws: draw number c is the ChaCha20 key stream with
nonce c, so both ends derive the same elements from (label, c). A draw may be bound to its use: a process that
describes the use differently derives unrelated elements. Counters only go up; an old one raises, because two secrets
under one mask would reveal their difference. Objects here never show their key: not in repr, not in a pickle.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure_sccvfl.protocols.errors import CounterReuse, ProtocolError

KEY_BYTES = 32
_ZEROS = memoryview(bytes(1 << 18))  # encrypting zeros gives the key stream


class Unshown:
    """Keeps an object that holds a key out of logs and files."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: key hidden>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ProtocolError(f"{type(self).__name__} holds a key and cannot be pickled or copied")


class KeyAgreement(Unshown):
    """One end of an ephemeral X25519 exchange. `public` may be shown to anyone."""

    __slots__ = ("_private", "public")

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, peer_public: bytes, context: bytes) -> bytes:
        """The 256-bit key shared with the owner of `peer_public`, bound to `context`."""
        secret = self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        low, high = sorted((self.public, peer_public))
        return _hkdf(secret, salt=low + high, info=b"sccvfl pair key" + context)


def fresh_key() -> bytes:
    """A key for a single process, from the operating system."""
    return os.urandom(KEY_BYTES)


class Stream(Unshown):
    """The draws of one label under one key."""

    __slots__ = ("_key", "_next", "label")

    def __init__(self, key: bytes, label: str) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"a stream key has {KEY_BYTES} bytes, not {len(key)}")
        self.label = label
        self._key = _hkdf(key, salt=b"", info=b"sccvfl stream " + label.encode())
        self._next = 0

    def draw(self, counter: int | None = None, use: bytes = b"") -> Draw:
        """Draw number `counter` (default: the next one) for `use`; each is given once, in rising order."""
        if counter is None:
            counter = self._next
        if counter < self._next:
            raise CounterReuse(f"draw {counter} of stream {self.label!r} was already used")
        self._next = counter + 1
        key = hashlib.blake2s(use, key=self._key).digest() if use else self._key
        return Draw(key, counter)


class Draw(Unshown):
    """Random ring elements read from the front, as often as wanted; no element is used twice."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes, counter: int) -> None:
        # 64-bit block counter, starting at zero, then the 64-bit nonce.
        nonce = bytes(8) + counter.to_bytes(8, "little")
        self._cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()

    def elements(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """Uniform integers of `dtype`, over its whole range."""
        out = np.empty(shape, dtype=dtype)
        view = out.reshape(-1).view(np.uint8).data
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part)
        return out

    def bits(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Uniform bits, one in each byte."""
        count = math.prod(shape)
        packed = self.elements(((count + 7) // 8,), np.uint8)
        return np.unpackbits(packed, count=count).reshape(shape)

    def order(self, count: int) -> npt.NDArray[np.int64]:
        """The numbers below `count` in a random order, each equally likely: sorted by ring elements that differ."""
        while True:
            elements = self.elements((count,), np.uint64)
            order = np.argsort(elements)
            ranked = elements[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order.astype(np.int64)


def _hkdf(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)
