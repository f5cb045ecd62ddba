"""An append-only hash-chained log: every line carries the hash of all before it.

A line is JSON with `index`, `previous` and `hash`; the hash covers the line without itself. Changing, dropping,
adding or swapping a line breaks the chain. Lines reach the disk before `append` returns.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.errors import LogError
from secure_sccvfl.protocols.records.private import naming

START = hashlib.sha256(b"sccvfl chain").hexdigest()


class HashChain:
    """A log in memory and, if a path is given, in a new file."""

    def __init__(self, path: Path | None = None) -> None:
        self.head = START
        self.entries: list[dict[str, Any]] = []
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600, exist_ok=False)

    @classmethod
    def reopened(cls, path: Path) -> HashChain:
        """An existing log to add to; its chain is checked."""
        chain = cls()
        chain.entries, chain._path = read_chain(path), path
        if chain.entries:
            chain.head = str(chain.entries[-1]["hash"])
        return chain

    def append(self, content: dict[str, Any]) -> str:
        """Add a line; returns the new head."""
        return self.extend([content])[0]

    def extend(self, contents: Sequence[dict[str, Any]]) -> list[str]:
        """Add several lines at once; returns the head after each."""
        added, head = [], self.head
        for number, content in enumerate(contents, start=len(self.entries)):
            entry = {"index": number, "previous": head, **content}
            entry["hash"] = head = _hash(entry)
            added.append(entry)
        if self._path is not None:
            with naming(self._path), self._path.open("a") as file:
                file.write("".join(json.dumps(entry) + "\n" for entry in added))
                file.flush()
                os.fsync(file.fileno())
        self.entries.extend(added)
        self.head = head
        return [str(entry["hash"]) for entry in added]


def unused_name(path: Path) -> Path:
    """The first of NAME, NAME-1, NAME-2, ... that is free: a run that resumes adds to what is there."""
    taken, result = 0, path
    while result.exists():
        taken += 1
        result = path.with_stem(f"{path.stem}-{taken}")
    return result


def read_chain(path: Path) -> list[dict[str, Any]]:
    """All lines of a log, or LogError naming the first bad one."""
    entries: list[dict[str, Any]] = []
    head = START
    for number, line in enumerate(path.read_text().splitlines()):
        try:
            entry = json.loads(line)
            intact = entry["index"] == number and entry["previous"] == head and entry["hash"] == _hash(entry)
        except (ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise LogError(f"{path.parent.name}/{path.name}: line {number + 1} does not continue the chain")
        entries.append(entry)
        head = entry["hash"]
    return entries


def _hash(entry: dict[str, Any]) -> str:
    content = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
