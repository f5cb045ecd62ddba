"""The state of a process as plain data that may be shown to anybody, and its form for Prometheus.

The thread of the session writes and others read, so everything goes through a lock. An error about a party's own
data is shown by its kind alone, as its peers hear it: the details are in its log, on its own host.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accounting.plain_text import plain
from protocols.errors import reason_for_peers
from protocols.net.link import Activity

_WINDOW, _SPACING = 15.0, 0.5
_PROBLEMS, _LONGEST = 5, 300


class Status:
    """The state of one process, from its start to its end."""

    def __init__(self, place: str) -> None:
        self.activity = Activity()
        self._facts: dict[str, Any] = {"place": place, "session": "", "job": "", "jobs": [], "phase": "starting"}
        self._step: dict[str, Any] | None = None
        self._problems: deque[str] = deque(maxlen=_PROBLEMS)
        self._samples: deque[tuple[float, int, int]] = deque()
        self._began = self._step_began = time.monotonic()
        self._lock = threading.Lock()

    def describe(self, place: str, session: str, job: str, jobs: Sequence[str] = ()) -> None:
        """A job begins: who takes part in what. `jobs`: all that this process runs, one after the other."""
        with self._lock:
            self._facts |= {"place": place, "session": session, "job": job, "jobs": list(jobs)}
            self._step = None

    def phase(self, name: str) -> None:
        """What the process does now, in a few words."""
        with self._lock:
            self._facts["phase"] = name

    def begins(self, step: str, number: int, total: int) -> None:
        """A step of the job begins."""
        with self._lock:
            self._step, self._step_began = {"name": plain(step), "number": number, "total": total}, time.monotonic()

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
        now, cost, left = time.monotonic(), self.activity.cost, self.activity.connect_left
        with self._lock:
            connecting = left is not None and self._facts["phase"] != "stopping"
            rounds, sent = self._rates(now, cost.rounds, cost.sent + cost.dealer)
            step = None if self._step is None else {**self._step, "seconds": now - self._step_began}
            return {
                **self._facts,
                **({"phase": "connecting"} if connecting else {}),
                "connect_left": left,
                "seconds": now - self._began,
                "step": step,
                "rounds": cost.rounds,
                "rounds_per_second": rounds,
                "bytes_sent": cost.sent,
                "bytes_received": cost.received,
                "bytes_dealer": cost.dealer,
                "bytes_per_second": sent,
                "peers": [asdict(peer) for peer in self.activity.peers()],
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
    """Bytes of memory of this process, now and at most; empty where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    known = {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if value.strip()}
    names = {"now": "VmRSS", "most": "VmHWM"}
    return {name: 1024 * int(known[key]) for name, key in names.items() if key in known}


def exposition(snapshot: dict[str, Any]) -> str:
    """A snapshot in the text format 0.0.4 of Prometheus."""
    lines: list[str] = []
    for name, labels, value in _metrics(snapshot):
        kind = "counter" if name.endswith("_total") else "gauge"
        if f"# TYPE {name} {kind}" not in lines:
            lines.append(f"# TYPE {name} {kind}")
        shown = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
        lines.append(f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _metrics(snapshot: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each metric; samples of one metric follow each other."""
    yield "sccvfl_info", {key: snapshot[key] for key in ("place", "session", "job", "phase")}, 1
    yield "sccvfl_uptime_seconds", {}, snapshot["seconds"]
    yield "sccvfl_rounds_total", {}, snapshot["rounds"]
    for kind in ("sent", "received", "dealer"):
        yield f"sccvfl_{kind}_bytes_total", {}, snapshot[f"bytes_{kind}"]
    if snapshot["step"] is not None:
        yield "sccvfl_step", {}, snapshot["step"]["number"] + 1
        yield "sccvfl_steps", {}, snapshot["step"]["total"]
    for key, suffix in (("connected", "connected"), ("awaited", "awaited"), ("silent", "silent_seconds")):
        for peer in snapshot["peers"]:
            if peer[key] is not None:
                value = peer[key] if key == "silent" else bool(peer[key])
                yield f"sccvfl_peer_{suffix}", {"peer": peer["name"]}, value
    for name, value in snapshot["budget"].items():
        yield f"sccvfl_budget_{name}", {}, value
    for name, value in snapshot["memory"].items():
        yield f"sccvfl_memory_{name}_bytes", {}, value
    yield "sccvfl_problems", {}, len(snapshot["problems"])
