"""What a process is doing, as plain data that may be shown to anybody.

The thread of the session writes and others read, so everything goes through a lock. An error about a party's own
data is shown by its kind alone, as its peers hear it: the details are in its log, on its own host.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accounting.plain_text import plain
from protocols.errors import reason_for_peers
from protocols.net.link import Activity
from secure_sccvfl.runs.status.steps import Steps

_WINDOW, _SPACING = 15.0, 0.5
_PROBLEMS, _LONGEST = 5, 300


class Status:
    """The state of one process, from its start to its end."""

    def __init__(self, place: str, activity: Activity | None = None) -> None:
        self.activity = Activity() if activity is None else activity
        self._place, self._phase = place, "starting"
        self._session = self._job = ""
        self._jobs: tuple[str, ...] = ()
        self._steps = Steps()
        self._problems: deque[str] = deque(maxlen=_PROBLEMS)
        self._samples: deque[tuple[float, int, int]] = deque()
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def describe(
        self, place: str, session: str, job: str, jobs: Sequence[str] = (), stages: Sequence[str] = ()
    ) -> None:
        """A job begins: who takes part in what. `jobs`: all that this process runs, one after the other."""
        with self._lock:
            self._place, self._session, self._job, self._jobs = place, session, job, tuple(jobs)
            self._steps = Steps(stages)

    def phase(self, name: str) -> None:
        """What the process does now, in a few words."""
        with self._lock:
            self._phase = name

    def begins(self, step: str, number: int, total: int) -> None:
        """A step of the job begins."""
        with self._lock:
            self._steps.begins(plain(step), number, total)

    def problem(self, text: str) -> None:
        """Something that people should see; the last few are kept."""
        with self._lock:
            self._problems.append(plain(text)[:_LONGEST])

    def stops(self, error: BaseException) -> None:
        """The process stops because of an error."""
        self.problem(f"stops: {reason_for_peers(error)}")
        self.phase("stopping")

    def snapshot(self) -> dict[str, Any]:
        """Everything that is shown, as JSON data."""
        now = time.monotonic()
        cost, left = self.activity.cost, self.activity.connect_left
        with self._lock:
            at = self._steps.at(now)
            rounds, sent = self._rates(now, cost.rounds, cost.sent + cost.dealer)
            return {
                "place": self._place,
                "session": self._session,
                "job": self._job,
                "jobs": list(self._jobs),
                "phase": "connecting" if left is not None and self._phase != "stopping" else self._phase,
                "connect_left": left,
                "seconds": now - self._began,
                "step": None
                if at is None
                else {
                    "name": at.step,
                    "number": at.number,
                    "total": at.total,
                    "seconds": at.seconds,
                    "left": at.left,
                    "then": list(at.then),
                },
                "rounds": cost.rounds,
                "rounds_per_second": rounds,
                "bytes_sent": cost.sent,
                "bytes_received": cost.received,
                "bytes_dealer": cost.dealer,
                "bytes_per_second": sent,
                "peers": [
                    {"name": p.name, "connected": p.connected, "silent": p.silent, "awaited": p.awaited}
                    for p in self.activity.peers()
                ],
                "budget": dict(self.activity.facts),
                "memory": memory(),
                "problems": list(self._problems),
            }

    def _rates(self, now: float, rounds: int, sent: int) -> tuple[float, float]:
        """Rounds and bytes per second over the last seconds."""
        if not self._samples or now - self._samples[-1][0] >= _SPACING:
            self._samples.append((now, rounds, sent))
        while len(self._samples) > 1 and now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        then, rounds_then, sent_then = self._samples[0]
        span = now - then
        return ((rounds - rounds_then) / span, (sent - sent_then) / span) if span > 0 else (0.0, 0.0)


def memory() -> dict[str, int]:
    """Bytes of memory of this process, now and at most; empty where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    known = {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if value.strip()}
    names = {"now": "VmRSS", "most": "VmHWM"}
    return {name: 1024 * int(known[key]) for name, key in names.items() if key in known}
