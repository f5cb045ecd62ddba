"""Where sessions in tests take their randomness from: fixed bytes, or the operating system.

A test without the marker `chance` is given fixed keys, masks and noise, the same in every run of the suite, so its
outcome cannot depend on them. One with the marker, and whatever other processes do, draws afresh. The switch
replaces functions from outside: no setting of a session or program reaches it.
"""

from __future__ import annotations

import contextvars
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_sccvfl.protocols.dealing import gaussian, randomness
from secure_sccvfl.protocols.dealing.randomness import KeyAgreement

DRAWER: contextvars.ContextVar[str] = contextvars.ContextVar("drawer", default="")
"""Who draws: each party of a session in threads has a sequence of its own."""
DIGEST_BYTES = 32
Setting = tuple[Any, str, Any]


class Fixed:
    """Bytes that follow from a name, from who draws, and from how often it has drawn."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._drawn: Counter[str] = Counter()

    def bytes(self, count: int) -> bytes:
        with self._lock:
            drawer = DRAWER.get()
            self._drawn[drawer] += 1
            seed = f"{self._name}|{drawer}|{self._drawn[drawer]}"
        return hashlib.shake_256(seed.encode()).digest(count)

    def sampler(self, sigma: float) -> Callable[[list[int]], Any]:
        def sample(zeros: list[int]) -> Any:
            rng = np.random.default_rng(list(self.bytes(16)))
            return np.rint(rng.normal(0, sigma, len(zeros)))

        return sample

    def settings(self) -> list[Setting]:
        honest = KeyAgreement.agree

        def start(agreement: KeyAgreement) -> None:
            agreement._private = X25519PrivateKey.from_private_bytes(self.bytes(randomness.KEY_BYTES))
            agreement.public = agreement._private.public_key().public_bytes_raw()

        def agree(agreement: KeyAgreement, peer_public: bytes, context: bytes) -> bytes:
            """The digest of the configuration has ports and folders in it, which differ from run to run."""
            return honest(agreement, peer_public, context[:-DIGEST_BYTES] or context)

        return [
            (KeyAgreement, "__init__", start),
            (KeyAgreement, "agree", agree),
            (randomness, "os", SimpleNamespace(urandom=self.bytes)),
            (gaussian, "_sampler", self.sampler),
        ]


REAL: list[Setting] = [
    (owner, name, getattr(owner, name))
    for owner, name in (
        (KeyAgreement, "__init__"),
        (KeyAgreement, "agree"),
        (randomness, "os"),
        (gaussian, "_sampler"),
    )
]
assert randomness.os is os


@contextmanager
def drawn_from(name: str | None) -> Iterator[None]:
    """Fixed randomness of this name inside; without a name that of the operating system."""
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in REAL]
    for owner, attribute, value in REAL if name is None else _fixed(name):
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


def fresh(fixture: Callable[..., Any]) -> Callable[..., Any]:
    """Written under `pytest.fixture`: a shared fixture that draws afresh; tests that look at it have the marker."""
    fixture.fresh = True  # type: ignore[attr-defined]
    return fixture


def _fixed(name: str) -> list[Setting]:
    with drawn_from(None):
        return Fixed(name).settings()
