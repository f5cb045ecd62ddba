"""The run's own log: the digests of all files of a finished run, and every later event.

RUN/audit.jsonl is hash-chained. Its line "finished" holds the digest of every file in the run's folder (logs, model
shares, report, policy card, page). Later lines (leakage, page, appeal, review) hold the digests of what they
changed. RUN/audit.head keeps the length and the head of the chain, so lines cut off its end are noticed too.

Who holds what: the process that runs the session on one machine writes the log, from files of all parties that are
there. It holds digests and public figures, no share and no record. It cannot show a change by someone who can write
every file of the folder and recomputes all digests. Against that, others must keep the head of this chain: each party
should note the seal that a run prints, and check with `audit verify RUN --seal SEAL`. Later events only add lines, so
a seal that was noted before them still fits: it is the hash of an earlier line.

On a party's own host the log is that party's. `reports.signed` has the digests that the others hold.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.config import code_digest
from secure_sccvfl.protocols.errors import LogError
from secure_sccvfl.protocols.records.chain import HashChain
from secure_sccvfl.releases.ledgers import PREDICTION_LOGS

LOG, HEAD = "audit.jsonl", "audit.head"
FINISHED, STOPPED = "finished", "stopped"
SEAL = 12
"""Fewest characters of a seal that tell one from another."""
_CARD = r"policy_card\.\w+|report\.html"
MAY_CHANGE = {
    "page": r"(party-\d+/)?report\.html",
    "leakage": r"security[\w.-]*|report\.html",
    "appeal": _CARD,
    "approve": _CARD,
    "review": rf"{_CARD}|reviews/.*",
    "predict": r"predict(-\d+)?/.*",
    STOPPED: r"predict(-\d+)?/.*",
}
"""The files that each later event of a finished run may make or change."""


def contents(run: Path) -> list[Path]:
    """Every file of a run except locks, this log itself and logs of predictions.

    The latter grow with every prediction, are hash-chained themselves, and are compared with those of the other
    parties at each prediction.
    """
    excluded = {run / LOG, run / HEAD}
    files = (p for p in run.rglob("*") if p.is_file() and p.suffix != ".lock" and p not in excluded)
    return sorted(p for p in files if not p.match(PREDICTION_LOGS))


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(run: Path, facts: Mapping[str, Any]) -> str:
    """Record all files of a finished run; returns the head of the log, which others should keep."""
    return record(run, FINISHED, {**facts, "code": code_digest().hex()}, contents(run))


def record(run: Path, event: str, facts: Mapping[str, Any], files: Iterable[Path]) -> str:
    """Append a line: an event, its figures, and the digests of the files that it made or changed."""
    log = run / LOG
    chain = HashChain.reopened(log) if log.exists() else HashChain(log)
    if log.stat().st_size:
        check_head(run, chain)
    digests = {path.relative_to(run).as_posix(): file_digest(path) for path in files}
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    head = chain.append({"event": event, "time": time, **facts, "files": digests})
    (run / HEAD).write_text(json.dumps({"count": len(chain.entries), "head": head}) + "\n")
    return head


def check_head(run: Path, chain: HashChain) -> None:
    """Raise LogError if the log is shorter or longer than its head says, or differs from it."""
    try:
        expected = json.loads((run / HEAD).read_text())
    except (OSError, ValueError):
        raise LogError(f"{HEAD} is missing or cannot be read, so lines cut off {LOG} would not show") from None
    if expected != {"count": len(chain.entries), "head": chain.head}:
        raise LogError(f"{LOG} has {len(chain.entries)} lines and another end than {HEAD} says")


def last_seal(run: Path) -> str:
    """The seal after the last event of a run; "" if it has none."""
    return str(json.loads((run / HEAD).read_text())["head"]) if (run / HEAD).exists() else ""


def read_log(run: Path) -> list[dict[str, Any]]:
    """All lines, the chain and its head checked."""
    if not (run / LOG).exists():
        raise LogError(f"the run has no {LOG}: it did not finish, or the log was removed")
    chain = HashChain.reopened(run / LOG)
    check_head(run, chain)
    return chain.entries


def strange(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of a log that claim a change which their event does not make."""
    return [
        f"{LOG}: the line {entry['event']!r} of {entry['time']} may not change {name}"
        for entry in entries
        if entry["event"] != FINISHED
        for name in entry["files"]
        if not re.fullmatch(MAY_CHANGE.get(entry["event"], ""), name)
    ]


def since(entries: Sequence[Mapping[str, Any]], seal: str) -> list[Mapping[str, Any]] | None:
    """The lines after the one whose hash a seal is the beginning of; None if there is none."""
    positions = [
        number for number, entry in enumerate(entries) if len(seal) >= SEAL and entry["hash"].startswith(seal)
    ]
    return list(entries[positions[-1] + 1 :]) if positions else None


def recorded(entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The digest that each file should have now; a resumed run starts again."""
    digests: dict[str, str] = {}
    for entry in entries:
        if entry["event"] == FINISHED:
            digests = {}
        digests.update(entry["files"])
    return digests
