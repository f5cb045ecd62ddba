"""What a process does on its links right now, for people who watch it.

The thread of the session writes, any thread may read. It holds names, steps, times and counts, and nothing of what
is sent. One `Activity` may follow several sessions, one after the other; its counts go on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields

from protocols.net.link import Link
from protocols.net.transport import Cost, Meter


@dataclass(frozen=True)
class PeerSeen:
    """One peer: whether it is connected, seconds since its last word, and the step that it owes an answer to."""

    name: str
    connected: bool
    silent: float | None
    awaited: str


class Activity:
    """The links of one process, as they are."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._links: dict[int, Link] = {}
        self._until: float | None = None
        self._meter, self._past = Meter(), Cost()
        self.facts: dict[str, float] = {}
        """Public numbers that a job wants people to see, such as what the privacy budget has come to."""

    def connecting(self, names: Mapping[int, str], until: float) -> None:
        """A session begins: who is expected, and until when (`time.monotonic`)."""
        self._past, self._meter = self.cost, Meter()
        self._links, self._names, self._until = {}, dict(names), until

    def joined(self, link: Link) -> None:
        """A peer is connected."""
        self._links[link.node] = link

    def running(self, meter: Meter) -> None:
        """All peers are connected; the session counts here."""
        self._meter, self._until = meter, None

    @property
    def connect_left(self) -> float | None:
        """Seconds in which the missing peers must connect; None while none is missing."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    @property
    def cost(self) -> Cost:
        """Rounds and bytes of all sessions so far."""
        now = self._meter.total
        return Cost(**{f.name: getattr(self._past, f.name) + getattr(now, f.name) for f in fields(Cost)})

    def peers(self) -> list[PeerSeen]:
        """Every peer, in the order of places."""
        now, seen = time.monotonic(), []
        for node, name in sorted(self._names.items()):
            link = self._links.get(node)
            want = link.want if link is not None else None
            silent = None if link is None else max(0.0, now - link.heard)
            seen.append(PeerSeen(name, link is not None, silent, want.step if want is not None else ""))
        return seen
