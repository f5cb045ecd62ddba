"""What people see while a party or the dealer runs: a file of metrics in the text format of Prometheus.

`--status FILE` is written again every two seconds, for the textfile collector of Prometheus' node exporter, or to be
read. It holds names, steps, times and counts, and never a value of the computation. An error about a party's own data
is shown by its kind alone, as its peers hear it: the details are in its log, on its own host. The thread of the
session and the one that writes the file share a lock.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import reason_for_peers
from secure_sccvfl.protocols.net.link import Activity

SECONDS = 2.0
_PROBLEMS, _LONGEST = 5, 300
_SHOWN = "secure_sccvfl.protocols.net"
"""Whose warnings are about links. A party's own log may speak of its data."""


class Status:
    """The state of one process, from its start to its end."""

    def __init__(self, process: str) -> None:
        self.activity = Activity()
        self._facts = {"place": process, "session": "", "job": "", "phase": "starting", "step": ""}
        self._step: tuple[int, int] | None = None
        self._problems: deque[str] = deque(maxlen=_PROBLEMS)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def describe(self, process: str, session: str, job: str) -> None:
        """A job begins: who takes part in what."""
        with self._lock:
            self._facts |= {"place": process, "session": session, "job": job, "step": ""}
            self._step = None

    def phase(self, name: str) -> None:
        with self._lock:
            self._facts["phase"] = name

    def begins(self, step: str, number: int, total: int) -> None:
        with self._lock:
            self._facts["step"], self._step = plain(step), (number + 1, total)

    def problem(self, text: str) -> None:
        """Something that people should see; the last few are kept."""
        with self._lock:
            self._problems.append(plain(text)[:_LONGEST])

    def stops(self, error: BaseException) -> None:
        self.problem(f"stops: {reason_for_peers(error)}")
        self.phase("stopping")

    def metrics(self) -> str:
        """Everything that is shown, in the text format 0.0.4 of Prometheus; recent problems are comments."""
        lines: list[str] = []
        with self._lock:
            for name, labels, value in self._metrics():
                kind = f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
                lines += [kind] if kind not in lines else []
                shown = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
                lines.append(f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}")
            lines += [f"# {problem}" for problem in self._problems]
        return "\n".join(lines) + "\n"

    def _metrics(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Name, labels and value of each metric; samples of one metric follow each other."""
        cost, peers = self.activity.cost, self.activity.peers()
        connecting = self.activity.connect_left is not None and self._facts["phase"] != "stopping"
        yield "sccvfl_info", {**self._facts, **({"phase": "connecting"} if connecting else {})}, 1
        yield "sccvfl_uptime_seconds", {}, time.monotonic() - self._began
        yield "sccvfl_rounds_total", {}, cost.rounds
        for kind in ("sent", "received", "dealer"):
            yield f"sccvfl_{kind}_bytes_total", {}, getattr(cost, kind)
        if self._step is not None:
            yield "sccvfl_step", {}, self._step[0]
            yield "sccvfl_steps", {}, self._step[1]
        for peer in peers:
            yield "sccvfl_peer_connected", {"peer": peer.name}, peer.connected
        for peer in peers:
            yield "sccvfl_peer_awaited", {"peer": peer.name}, bool(peer.awaited)
        for peer in peers:
            if peer.silent is not None:
                yield "sccvfl_peer_silent_seconds", {"peer": peer.name}, peer.silent
        for name, value in self.activity.facts.items():
            yield f"sccvfl_budget_{name}", {}, value
        for name, value in memory().items():
            yield f"sccvfl_memory_{name}_bytes", {}, value
        yield "sccvfl_problems", {}, len(self._problems)


def memory() -> dict[str, int]:
    """Bytes of memory of this process, now and at most; empty where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    facts = {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if value.strip()}
    names = {"now": "VmRSS", "most": "VmHWM"}
    return {name: 1024 * int(facts[key]) for name, key in names.items() if key in facts}


@dataclass(frozen=True)
class Watching:
    """file: where the metrics of a process are written; nowhere if None."""

    file: Path | None = None

    def __post_init__(self) -> None:
        if self.file is not None and (self.file.name.isdigit() or not self.file.parent.is_dir()):
            raise ConfigError(f"--status takes a file in a folder that exists, such as status.prom, not {self.file}")

    @contextmanager
    def of(self, process: str) -> Iterator[Status]:
        """Show the status of `process` for as long as it runs, and how it ended."""
        status, ended = Status(process), threading.Event()
        problems = _Problems(status)
        writer = threading.Thread(target=self._write_until, args=(ended, status), daemon=True)
        writer.start()
        logging.getLogger().addHandler(problems)
        try:
            yield status
        except BaseException as error:
            status.stops(error)
            raise
        finally:
            logging.getLogger().removeHandler(problems)
            ended.set()
            writer.join()

    def _write_until(self, ended: threading.Event, status: Status) -> None:
        if self.file is None:
            return
        part, last = self.file.with_name(f"{self.file.name}.part"), False
        while not last:
            last = ended.wait(SECONDS)
            part.write_text(status.metrics(), encoding="utf-8")
            os.replace(part, self.file)


class _Problems(logging.Handler):
    """Warnings about links are shown. All others stay in the log: they may quote a cell or an id."""

    def __init__(self, status: Status) -> None:
        super().__init__(logging.WARNING)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_SHOWN):
            self._status.problem(record.getMessage())
