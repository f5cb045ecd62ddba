"""The audit log of a run: every decision with the numbers it rests on, in a hash-chained file at each party.

It holds what all parties know (scores, roles, settings, refusals), and nothing of the tables behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocols.records.chain import HashChain, read_chain

RUN, TABLES = "run", "kept tables"
"""Events: a session of a run begins; it uses the tables of another run."""
OWN_RECORDS = "of each party its own"
"""Stands for records where nobody knows which all parties have."""


class AuditLog:
    """Call it with an event and its numbers; a line is on disk when the call returns."""

    def __init__(self, path: Path | None = None) -> None:
        self._chain = HashChain(path)

    def __call__(self, event: str, numbers: Mapping[str, Any]) -> None:
        self._chain.append({"event": event, **numbers})

    @property
    def entries(self) -> list[dict[str, Any]]:
        return list(self._chain.entries)


def read_audit(path: Path) -> list[dict[str, Any]]:
    """All lines of an audit log; LedgerError names the first that was changed."""
    return read_chain(path)


def sessions_of(folder: Path) -> tuple[str, ...]:
    """The names under which a run has charged, one for each session: a run that resumes gets a new one."""
    return tuple(dict.fromkeys(str(entry["run"]) for entry in _events(folder, RUN)))


def tables_used(folder: Path) -> tuple[str, ...]:
    """The names of the run whose kept tables a run used."""
    return tuple(dict.fromkeys(str(run) for entry in _events(folder, TABLES) for run in entry["runs"]))


def _events(folder: Path, event: str) -> list[dict[str, Any]]:
    logs = sorted(folder.glob("audit*.jsonl"))
    return [entry for log in logs for entry in read_chain(log) if entry["event"] == event]
