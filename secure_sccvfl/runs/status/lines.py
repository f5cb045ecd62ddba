"""Progress on the terminal of a process that was started by hand.

On a terminal one line is rewritten every second. Elsewhere, in a log say, there is a line for each step and at most
one more every ten seconds.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, TextIO

from accounting.plain_text import plain
from secure_sccvfl.runs.status.snapshot import Status

_TICK, _QUIET_TICK = 1.0, 10.0
_CLEAR = "\r\x1b[K"
log = logging.getLogger("progress")


def line_of(told: dict[str, Any]) -> str:
    """A snapshot in one line; empty while there is nothing to tell."""
    step = told["step"]
    if told["phase"] in ("starting", "connecting") or (step is None and not told["bytes_dealer"]):
        return ""
    parts = [f"{told['rounds_per_second']:.1f} rounds/s"] if step is not None else []
    parts.append(f"{size(told['bytes_sent'] + told['bytes_dealer'])}, {size(told['bytes_per_second'])}/s")
    if step is None:
        return f"serving: {', '.join(parts)}"
    if step["left"] is not None:
        parts.append(f"about {duration(step['left'])} left in this stage")
    if step["then"]:
        parts.append(f"then {', '.join(step['then'])}")
    return f"{step['name']} ({step['number'] + 1} of {step['total']}): {', '.join(parts)}"


def size(count: float) -> str:
    """Bytes as people write them."""
    unit, name = next(u for u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")) if count >= u[0] or u[0] == 1)
    return f"{count / unit:.{0 if unit == 1 else 1}f} {name}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Lines:
    """Shows a status until it is closed."""

    def __init__(self, status: Status, stream: TextIO | None = None) -> None:
        self._status, self._stream = status, sys.stderr if stream is None else stream
        self._rewrites = self._stream.isatty()
        self._last_time = time.monotonic()
        self._closed = threading.Event()
        self._handlers = list(logging.getLogger().handlers) if self._rewrites else []
        for handler in self._handlers:
            handler.addFilter(self._clear)
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def step(self, name: str, number: int, total: int) -> None:
        """A step begins. In a log it gets its line; jobs report few of their steps."""
        if not self._rewrites:
            self._last_time = time.monotonic()
            log.info("%s (%d of %d)", name, number + 1, total)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for handler in self._handlers:
            handler.removeFilter(self._clear)
        if self._rewrites:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            line = line_of(self._status.snapshot())
            if line and self._rewrites:
                self._stream.write(_CLEAR + plain(line)[:200])
                self._stream.flush()
            elif line and time.monotonic() - self._last_time >= _QUIET_TICK:
                self._last_time = time.monotonic()
                log.info("%s", line)

    def _clear(self, record: logging.LogRecord) -> bool:
        self._stream.write(_CLEAR)
        return True
