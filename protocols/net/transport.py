"""The transport interface of a session: rounds of exchanged arrays, with deadlines and counters.

`protocols/net/mesh.py` implements the interface `Transport` with mutual TLS. Nodes are numbered: parties 0..m-1, the
dealer m.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Spec(NamedTuple):
    """Type and shape of an array that a peer must send."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> Spec:
        return cls(array.dtype.str, array.shape)

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


def describe(step: str, specs: Sequence[Spec]) -> bytes:
    """What both ends must agree on before a payload is read: the step, types and shapes."""
    return step.encode() + _described(tuple(specs))


@lru_cache(maxsize=1024)
def _described(specs: tuple[Spec, ...]) -> bytes:
    return "".join(f"|{spec.dtype}{list(spec.shape)}" for spec in specs).encode()


@dataclass
class Cost:
    """The cost of a protocol. Bytes are frames on this process's links, without TLS records."""

    calls: int = 0
    rounds: int = 0
    sent: int = 0
    received: int = 0
    dealer: int = 0
    """Bytes from and to the dealer; they may come ahead of time."""


class Meter:
    """Cost by protocol. A scope inside another counts for both."""

    def __init__(self) -> None:
        self.total = Cost()
        self.by_protocol: dict[str, Cost] = {}
        self._scopes: list[Cost] = []

    @contextmanager
    def scope(self, protocol: str) -> Iterator[Cost]:
        """Everything spent inside belongs to `protocol` too."""
        cost = self.by_protocol.setdefault(protocol, Cost())
        cost.calls += 1
        nested = any(cost is open_scope for open_scope in self._scopes)
        if not nested:
            self._scopes.append(cost)
        try:
            yield cost
        finally:
            if not nested:
                self._scopes.pop()

    def add(self, *, rounds: int = 0, sent: int = 0, received: int = 0, dealer: int = 0) -> None:
        for cost in (self.total, *self._scopes):
            cost.rounds += rounds
            cost.sent += sent
            cost.received += received
            cost.dealer += dealer


class Transport(Protocol):
    """Authenticated links to every other node of the session."""

    node: int
    parties: int
    meter: Meter
    deadline: float

    def exchange(
        self, step: str, send: Mapping[int, Sequence[Array]], receive: Mapping[int, Sequence[Spec]]
    ) -> dict[int, list[Array]]:
        """One round: send to some peers and wait for arrays of known shape from some peers."""
        ...

    def send_message(self, peer: int, step: str, message: bytes) -> None:
        """A short message of any length to one peer."""
        ...

    def receive_message(self, peer: int, step: str, *, wait: float | None = None) -> bytes | None:
        """The next message of a peer, within `wait` seconds (default: the deadline).

        With `wait=0`: None if no message has begun to arrive.
        """
        ...

    def skip_to(self, peer: int, step: str) -> None:
        """Discard what a peer sent up to an empty frame named `step`."""
        ...

    def finish(self) -> None:
        """Say goodbye, wait for the others to do so, close."""
        ...

    def abort(self, reason: str, waited_for: str = "") -> None:
        """Send all reachable peers the reason why this process stops, and close.

        `waited_for` names those whose answer it missed, if that is the reason.
        """
        ...
