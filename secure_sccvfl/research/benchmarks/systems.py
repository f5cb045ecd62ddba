"""The measured systems, one at a time on one machine: ours in its own sessions, and stock CrypTen.

Both are real processes. `in_turn` runs them several times each, so that a busy moment of the machine affects all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocols.errors import ProtocolError
from secure_sccvfl.reports.folders import result_of
from secure_sccvfl.research.benchmarks.usage import Usage
from secure_sccvfl.runs.local.forked import same_imports
from secure_sccvfl.runs.local.processes import LocalSession, session_config

PARTIES = 3
PEER_SECONDS = 600
Row = dict[str, Any]
Tell = Callable[[str], None]
"""Called with what is being measured."""


def in_turn(
    systems: Mapping[str, Callable[[], list[Row]]], blocks: int, tell: Tell
) -> dict[tuple[str, str], list[Row]]:
    """Run the systems one after the other, several times; rows by job and system."""
    measured: dict[tuple[str, str], list[Row]] = {}
    for block in range(blocks):
        for system, measure in systems.items():
            tell(f"block {block + 1} of {blocks}: {system}")
            for row in measure():
                measured.setdefault((row["job"], system), []).append(row)
    return measured


def run_ours(
    job: str, settings: dict[str, Any], parties: int = PARTIES, delay: float = 0.0
) -> tuple[list[list[Row]], dict[str, int]]:
    """The rows of every party, and the largest memory of each process in kB. `delay`: seconds one way."""
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        with LocalSession(session_config(folder, job, parties, settings), folder, delay=delay) as session:
            usage = Usage({child.name: child.process.pid for child in session.children})
            ending = session.wait()
        ending.check()
        return [result_of(folder, rank)["rows"] for rank in range(parties)], usage.peaks


def run_stock(provider: str, repeats: int, what: str, *more: str) -> list[Row]:
    """The rows of party 0 of stock CrypTen; each of its processes is a new Python (`benchmarks/peers/stock.py`)."""
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        out = Path(folder) / "rows.json"
        common = ["--parties", str(PARTIES), "--provider", provider, "--rendezvous", f"{folder}/meet", "--what", what]
        common += ["--repeats", str(repeats), "--out", str(out), *more]
        ranks = range(PARTIES + (provider == "TTP"))
        start = [sys.executable, "-m", "secure_sccvfl.research.benchmarks.peers.stock"]
        codes = finished([[*start, "--rank", str(rank), *common] for rank in ranks], {**os.environ, **same_imports()})
        if any(codes) or not out.exists():
            raise ProtocolError(f"stock CrypTen with {provider} failed, exit codes {codes}")
        rows: list[Row] = json.loads(out.read_text())
        return rows


def finished(commands: Sequence[Sequence[str]], environment: Mapping[str, str], log: Path | None = None) -> list[int]:
    """The exit codes of processes that run at the same time; those that hang are ended. `log`: what they say."""
    with open(log or os.devnull, "wb") as said:
        processes = [
            subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment) for command in commands
        ]
        try:
            return [process.wait(timeout=PEER_SECONDS) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
