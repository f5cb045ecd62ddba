"""Keeps what reaches a party in a session, and tells whether two secrets can be distinguished by it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.chance import alike, uniform
from tests.support.sessions import run_session

Views = dict[tuple[int, str], list[np.ndarray]]


class Spy:
    """What came to each party from the others, by rank and step, and what each sent to the dealer."""

    def __init__(self) -> None:
        self.kept: Views = defaultdict(list)
        self.by_peer: dict[tuple[int, int, str], list[np.ndarray]] = defaultdict(list)
        self.messages: dict[int, list[bytes]] = defaultdict(list)
        self.results: list[Any] = []
        self._lock = threading.Lock()

    def keep(self, rank: int, step: str, arrays: Sequence[np.ndarray]) -> None:
        with self._lock:
            self.kept[rank, step] += [array.copy() for array in arrays if array.size]

    def wrap(self, transport: Transport) -> Any:
        spy = self

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

            def exchange(self, step: str, send: Any, receive: Any) -> Any:
                received = transport.exchange(step, send, receive)
                for peer, arrays in received.items():
                    if peer < transport.parties:
                        spy.keep(transport.node, step, arrays)
                        spy.by_peer[transport.node, peer, step] += [array.copy() for array in arrays]
                return received

            def send_message(self, peer: int, step: str, message: bytes) -> None:
                spy.messages[transport.node].append(message)
                transport.send_message(peer, step, message)

        return Watched()

    def run(self, job: Callable[[Session], Any], plan: ReleasePlan) -> Spy:
        """A session of three parties, of which every masked value that is opened is kept too."""
        honest = Party.open_masked

        def opening(party: Party, step: str, shares: Any, how: Any = "add") -> Any:
            totals = honest(party, step, shares, how)
            self.keep(party.rank, step, totals)
            return totals

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Party, "open_masked", opening)
            self.results = run_session(job, 3, plan, wrap=self.wrap)
        return self


def all_bytes(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])


def distinguishable(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the views of two secrets can be told apart, or from noise: three checks."""
    return not (alike(first, second) and uniform(first) and uniform(second))
