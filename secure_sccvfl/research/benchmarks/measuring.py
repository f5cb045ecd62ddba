"""The measuring loop of all benchmarks, and the systems that it measures: ours in sessions, and stock CrypTen.

All systems are real processes, one system at a time on one machine. `in_turn` runs them several times each, so that
a busy moment of the machine affects all.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.tables import Column, Table, page
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.shards import peak_memory as peak_memory
from secure_sccvfl.reports.folders import result_of
from secure_sccvfl.research.results import origin, provenance, write_results
from secure_sccvfl.runs.local.processes import LocalSession, same_imports, session_config

PARTIES = 3
PEER_SECONDS = 600
Row = dict[str, Any]
Tell = Callable[[str], None]
"""Called with what is being measured."""


class PublicJob:
    """A job of a benchmark, whose inputs are public. A subclass sets what it opens."""

    releases: Sequence[Release]

    def plan(self) -> ReleasePlan:
        return ReleasePlan(self.releases)

    @staticmethod
    def traffic(session: Session) -> Row:
        """Rounds and bytes of the session so far, at this party."""
        return {name: getattr(session.total_cost, name) for name in ("rounds", "sent", "dealer")}


@dataclass(frozen=True)
class Result:
    """Rows as data, and the paragraphs and tables that show them."""

    data: Row
    parts: Sequence[object]

    def publish(self, command: str, load: float, path: Path | None) -> None:
        """Print the page; write it and the data if there is a path. load: of the machine when the run began."""
        made = provenance(command)
        machine = f"{os.cpu_count() or 1} cores, load average {load:.1f} when it began."
        text = page(f"{origin(made)}\n{machine}", *self.parts)
        print(text)
        if path is not None:
            write_results(path, {**made, "load": load, **self.data}, text)


def in_turn(
    systems: Mapping[str, Callable[[], list[Row]]], blocks: int, tell: Tell
) -> dict[tuple[str, str], list[Row]]:
    """Run the systems one after the other, several times. Rows by job and system, jobs of one name together."""
    measured: dict[tuple[str, str], list[Row]] = {}
    for block in range(blocks):
        for system, measure in systems.items():
            tell(f"block {block + 1} of {blocks}: {system}")
            for row in measure():
                measured.setdefault((row["job"], system), []).append(row)
    jobs = list(dict.fromkeys(job for job, _ in measured))
    order = list(systems)
    return dict(sorted(measured.items(), key=lambda item: (jobs.index(item[0][0]), order.index(item[0][1]))))


def middle(blocks: Sequence[Row], name: str) -> float | None:
    """The median of a figure over blocks, each with one value or a list; None if nobody measured it."""
    values = [value for block in blocks for value in _listed(block.get(name))]
    return statistics.median(values) if values else None


def _listed(value: Any) -> Sequence[float]:
    return value if isinstance(value, list) else [] if value is None else [value]


def compare(systems: Mapping[str, Callable[[], list[Row]]], blocks: int, tell: Tell) -> list[Row]:
    """A row of medians for each job and system, the first system's own job as the unit of `times_ours`.

    The bytes of a system that counts none are read from the loopback device: its TCP headers and provider included.
    """
    rows: list[Row] = []
    for (job, system), measured in in_turn(systems, blocks, tell).items():
        sent = middle(measured, "sent")
        row: Row = {name: middle(measured, name) for name in ("seconds", "processor", "max_error")}
        row |= {
            "rounds": round(measured[-1]["rounds"]),
            "bytes_to_peers": round(sent if sent is not None else (middle(measured, "loopback") or 0) / PARTIES),
            "least_bytes": middle(measured, "least"),
            "bytes_dealer": middle(measured, "dealer"),
            "peak_memory": max((one["memory"] for one in measured if "memory" in one), default=None),
        }
        rows.append({"job": job, "system": system, **row})
    first = next(iter(systems))
    unit = {row["job"]: row["seconds"] for row in rows if row["system"] == first}
    return [{**row, "times_ours": round(row["seconds"] / unit[row["job"].split()[0]], 2)} for row in rows]


def table_of_systems(rows: Sequence[Row]) -> Table:
    """What `compare` made, without empty columns."""
    return filled(rows, SYSTEMS)


def filled(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """A table of the columns in which some row has a value."""
    return Table.of(rows, [column for column in columns if any(column.cell(row) for row in rows)])


SYSTEMS = (
    *(
        Column("job"),
        Column("system"),
        Column("ms", "seconds", ".3f", 1e-3),
        Column("times ours", "times_ours", ".2f"),
    ),
    *(Column("CPU ms", "processor", ".1f", 1e-3), Column("rounds")),
    *(Column("kB to peers", "bytes_to_peers", ".1f", 1e3), Column("least", "least_bytes", ".1f", 1e3)),
    *(Column("kB dealer", "bytes_dealer", ".1f", 1e3), Column("MB memory", "peak_memory", ".0f", 1e6)),
    Column("error", "max_error", ".0e"),
)


def loopback_bytes() -> int:
    """All bytes that the loopback device has carried; 0 where the system does not report them."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), 0)


def time_repeats(
    work: Callable[[], Any],
    repeats: int,
    barrier: Callable[[], None] = lambda: None,
    rounds: Callable[[], int] = lambda: 0,
    passes: Iterable[int] | None = None,
) -> tuple[Any, Row]:
    """Time each pass between barriers; the first one is a warm-up and does not count.

    passes: counts from 0 to `repeats`, if it does more than count. The row has seconds of each pass, rounds of the
    last one, and the bytes per pass of all processes on the loopback device.
    """
    seconds: list[float] = []
    result, before, spent = None, 0, 0
    for number in range(repeats + 1) if passes is None else passes:
        barrier()
        if number == 1:
            before = loopback_bytes()
        start_rounds, start = rounds(), time.perf_counter()
        result = work()
        if number > 0:
            seconds.append(time.perf_counter() - start)
        spent = rounds() - start_rounds
    barrier()
    loopback = (loopback_bytes() - before) / max(1, len(seconds))
    return result, {"seconds": seconds, "rounds": spent, "loopback": loopback}


class Usage:
    """Largest memory of each process so far, in kB, and its processor seconds, read from /proc while they run."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.peaks: dict[str, int] = {}
        self.processor: dict[str, float] = {}
        self._processes = processes
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        alive = dict(self._processes)
        while alive:
            for name, pid in list(alive.items()):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                    self.processor[name] = processor_seconds(Path(f"/proc/{pid}/stat").read_text())
                except OSError:
                    del alive[name]
                    continue
                lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
                if lines:
                    self.peaks[name] = max(self.peaks.get(name, 0), int(lines[0].split()[1]))
                else:
                    del alive[name]  # it has ended
            time.sleep(0.05)

    @property
    def megabytes(self) -> dict[str, int]:
        """Peak memory of the largest party and of the dealer."""
        parties = [peak for name, peak in self.peaks.items() if name != "dealer"]
        return {
            "party_mb": round(max(parties, default=0) / 1e3),
            "dealer_mb": round(self.peaks.get("dealer", 0) / 1e3),
        }


def processor_seconds(stat: str) -> float:
    """User and system time from the line of a process; its name, in brackets, may have any characters."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_session(
    folder: Path, job: str, options: Row, parties: int = PARTIES, delay: float = 0.0, **settings: Any
) -> tuple[list[Row], Usage]:
    """The results of all parties of one session of ours, and what its processes used. delay: seconds one way."""
    with LocalSession(session_config(folder, job, parties, options, **settings), folder, delay=delay) as session:
        usage = Usage({child.name: child.process.pid for child in session.children})
        ending = session.wait()
    ending.check()
    return [result_of(folder, rank) for rank in range(parties)], usage


def run_ours(job: str, options: Row, parties: int = PARTIES, **settings: Any) -> tuple[list[list[Row]], Usage]:
    """The rows of every party of a benchmark's job, and what the processes used."""
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        results, usage = run_session(Path(folder) / "run", job, options, parties, **settings)
    return [result["rows"] for result in results], usage


def run_stock(provider: str, what: str, **settings: Any) -> list[Row]:
    """The rows of party 0 of stock CrypTen; each of its processes is a new Python (`benchmarks/stock.py`)."""
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        out = Path(folder) / "rows.json"
        common = {"provider": provider, "what": what, "folder": folder, "out": str(out), **settings}
        start = [sys.executable, "-m", "secure_sccvfl.research.benchmarks.stock"]
        ranks = range(PARTIES + (provider == "TTP"))
        commands = [[*start, json.dumps({"rank": rank, **common})] for rank in ranks]
        codes = finished(commands, {**os.environ, **same_imports()})
        if any(codes) or not out.exists():
            raise ProtocolError(f"stock CrypTen with {provider} failed, exit codes {codes}")
        rows: list[Row] = json.loads(out.read_text())
        return rows


def finished(commands: Sequence[Sequence[str]], environment: Mapping[str, str], log: Path | None = None) -> list[int]:
    """Exit codes of processes that run at the same time; those that hang are ended. log: what they print."""
    with open(log or os.devnull, "wb") as output:
        processes = [
            subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
            for command in commands
        ]
        try:
            return [process.wait(timeout=PEER_SECONDS) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
