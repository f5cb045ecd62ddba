"""A test before a session: every connection of the session is made once, carries bytes both ways, and is measured.

Each member runs it at the same time, with its own certificate, in the directions in which the session will dial. Two
members that have connected send each other public facts (versions, settings, digests), and each echoes the other's
bytes with its clock. Nothing else is sent: no data is read, no ledger is opened, and nothing can be charged. A
session compares the facts again. A process of a session does not take part in a preflight, nor the reverse.
"""

from __future__ import annotations

import queue
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.errors import PeerError
from secure_sccvfl.protocols.net.certificates import Credentials
from secure_sccvfl.protocols.net.link import why
from secure_sccvfl.protocols.net.rendezvous import PREFLIGHT, Rendezvous, difference, exchange_settings, received

ECHOES = 5
"""The least of so many round trips is the one that is shown; the clocks are compared at it."""
CLOCK_SECONDS = 60.0
"""A larger difference of two clocks is a problem: certificates would seem to begin later, or to have ended."""
_CLOCK = struct.Struct(">d")


@dataclass(frozen=True)
class Met:
    """A peer: the round trip and how far its clock is ahead, in seconds, and the facts that it sent.

    problem: why it was not reached; then nothing else is known.
    """

    node: int
    name: str
    round_trip: float = 0.0
    ahead: float = 0.0
    facts: Mapping[str, str] | None = None
    problem: str = ""

    def differing(self, facts: Mapping[str, str], kind: str) -> dict[str, str] | None:
        """Which facts of a kind (`code x` is of kind `code`) differ from ours, and how; None if one side has none."""
        theirs = {k.removeprefix(f"{kind} "): v for k, v in (self.facts or {}).items() if k.startswith(f"{kind} ")}
        ours = {k.removeprefix(f"{kind} "): v for k, v in facts.items() if k.startswith(f"{kind} ")}
        if not theirs or not ours:
            return None
        keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        return {key: difference(key, ours.get(key), theirs.get(key)) for key in keys}


class Preflight(Rendezvous):
    """One member's part. facts: sent to every peer that has shown its certificate."""

    magic = PREFLIGHT

    def __init__(
        self,
        config: SessionConfig,
        node: int,
        credentials: Credentials,
        listener: socket.socket | None,
        facts: Mapping[str, str],
    ) -> None:
        super().__init__(config, node, credentials, listener)
        self.facts = dict(facts)
        self.met: queue.Queue[Met] = queue.Queue()

    def meet(self) -> Iterator[Met]:
        """Every peer as it connects; missing ones at the end."""
        left = dict(self.peers)
        self._begin()
        try:
            while left and time.monotonic() < self.end:
                one = self._one()
                if one is not None and one.node in left:
                    del left[one.node]
                    yield one
        finally:
            self._end()
        for node, name in left.items():
            turned_away = f"; turned away: {self.refused[-1]}" if self.refused else ""
            problem = f"not met within {self.config.connect:.0f} s: {self.route(node)}{turned_away}"
            yield Met(node, name, problem=problem)

    def _one(self) -> Met | None:
        try:
            return self.met.get(timeout=0.1)
        except queue.Empty:
            if self.found.empty():
                return None
        error = self.found.get()  # of a peer that was dialled or has shown its certificate, and cannot take part
        by_name = {name: node for node, name in self.peers.items()}
        if not isinstance(error, PeerError) or error.peer not in by_name:
            return None
        return Met(by_name[error.peer], error.peer, problem=error.reason)

    def _compare(self, sock: ssl.SSLSocket, name: str, parties: int, configuration: bytes, code: bytes) -> None:
        """Differences are results here: the members send each other the facts behind them."""

    def _give(self, peer: int, sock: ssl.SSLSocket) -> None:
        with sock:
            try:
                facts = exchange_settings(sock, self.facts)
                if peer < self.node:
                    round_trip, ahead = self._measured(sock)
                    self._echo(sock)
                else:
                    self._echo(sock)
                    round_trip, ahead = self._measured(sock)
            except (OSError, ValueError, struct.error) as error:
                self.met.put(Met(peer, self.peers[peer], problem=f"connected, then {why(error)}"))
                return
        outcome = {} if facts is not None else {"problem": "connected, and sent nothing that can be read"}
        self.met.put(Met(peer, self.peers[peer], round_trip, ahead, facts, **outcome))

    @staticmethod
    def _measured(sock: ssl.SSLSocket) -> tuple[float, float]:
        """The shortest round trip, and how far the peer's clock is ahead of ours."""
        trips = []
        for _ in range(ECHOES):
            begin = time.monotonic()
            sock.sendall(b"?")
            (clock,) = _CLOCK.unpack(received(sock, _CLOCK.size))
            trip = time.monotonic() - begin
            trips.append((trip, clock - (time.time() - trip / 2)))
        return min(trips)

    @staticmethod
    def _echo(sock: ssl.SSLSocket) -> None:
        for _ in range(ECHOES):
            if received(sock, 1) != b"?":
                raise ConnectionResetError("it ended before the echo")
            sock.sendall(_CLOCK.pack(time.time()))
