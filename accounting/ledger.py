"""The ledger: hash-chained lines of charges that belong to the data, not to a run; on disk or in memory.

Each line is JSON with `index`, `previous` and `hash`; the hash covers the line without itself. Next to
`ledger.jsonl` lies `ledger.jsonl.head`: the number of lines and the last hash. An append happens under an exclusive
lock: (1) write all lines to a new file, fsync, rename it over the ledger; (2) do the same for the head. Only then
does `append` return, and only then may a release follow. A crash can therefore leave
  - a half-written new file: it is ignored and overwritten; nothing was charged and nothing released;
  - a ledger one line ahead of its head: the line is complete, so it counts, and the head is moved up.
No crash tears a line, drops a charge that `append` returned from, or leaves a ledger that stays refused. Everything
else comes from a person or a failing disk, and is refused: a torn, edited, dropped, swapped or repeated line, lines
cut off the end, a missing ledger or head.

Not noticed here: ledger and head both set back to an earlier state, deleted, or rewritten with new hashes (no key
is involved). Every party has its own ledger with the same lines. Each asks its own before a release, and one refusal
is enough. So a single ledger that was set back spends nothing more, and the report shows where ledgers differ. The
files must lie on a local disk: locks of network file systems do not always hold.

The sets of records that lines are about lie next to the ledger, in `sets/`: keyed pseudonyms as bytes, named by their
SHA-256. A set is on disk before a line names it. A missing or altered set makes the ledger unreadable; otherwise what
its records have consumed would be forgotten.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from secure_sccvfl.accounting.records import RecordSet

Entry = dict[str, Any]
START = hashlib.sha256(b"sccvfl privacy ledger").hexdigest()
SETS = "sets"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WHAT_TO_DO = (
    "nothing was charged; do not delete it, bring back the last good copy of the ledger and its .head "
    "(another party's has the same lines)"
)


class LedgerError(RuntimeError):
    """The ledger is damaged, so nothing may be released on its account."""


class LedgerFull(LedgerError):
    """The disk is full. The ledger is intact; `reason` has the file that could not grow."""

    def __init__(self, number: int, words: str, file: str) -> None:
        super().__init__(f"the disk is full: cannot write {file}; release nothing until there is room")
        self.reason = OSError(number, words, file)


def ledger_digest(entries: Sequence[Entry]) -> str:
    """The last hash, which stands for all lines."""
    return str(entries[-1]["hash"]) if entries else START


def chained(entries: Sequence[Entry], content: Entry) -> Entry:
    """The line that continues the chain with this content."""
    entry = {"index": len(entries), "previous": ledger_digest(entries), **content}
    return {**entry, "hash": _hash(entry)}


def _read_lines(text: str, name: str) -> list[Entry]:
    """All lines of a ledger, or LedgerError naming the first bad one."""
    entries: list[Entry] = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            entry = json.loads(line)
            content = {k: v for k, v in entry.items() if k not in ("index", "previous", "hash")}
            intact = entry == chained(entries, content)
        except (ValueError, AttributeError):
            intact = False
        if not intact:
            raise LedgerError(f"{name}: line {number} does not continue the chain; {WHAT_TO_DO}")
        entries.append(entry)
    if text and not text.endswith("\n"):
        raise LedgerError(f"{name}: the last line is torn; {WHAT_TO_DO}")
    return entries


def _hash(entry: Entry) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


class Ledger:
    """A ledger in memory, which ends with the process: for simulations on public data."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._sets: dict[str, RecordSet] = {}
        self._lock = threading.Lock()

    @contextmanager
    def locked(self) -> Iterator[Self]:
        """The ledger with its current lines, while nobody else uses it."""
        with self._lock:
            yield self

    def append(self, content: Entry) -> None:
        """Call it under the lock. The line is durable when it returns."""
        self.entries.append(chained(self.entries, content))

    def keep(self, records: RecordSet) -> None:
        """Store a set of records. It is durable when it returns."""
        self._sets[records.digest] = records

    def load(self, digest: str) -> RecordSet:
        """The set of records of this digest, or LedgerError."""
        if digest not in self._sets:
            raise LedgerError(f"the set {digest[:12]} of records is not here; nothing was charged")
        return self._sets[digest]


class FileLedger(Ledger):
    """A ledger on disk. The operating system holds the lock, so it ends with its process.

    Each set of records is a file named by its digest, which never changes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path = path.resolve()  # resolve: an append would replace a link by a second ledger
        self._read: dict[str, tuple[int, int, int]] = {}

    @contextmanager
    def locked(self) -> Iterator[Self]:
        try:
            _make_folder(self.path.parent)
            lock = self.path.with_name(self.path.name + ".lock")
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                self.entries = _read_lines(_text(self.path), self.path.name)
                if _check_head(self.entries, self.path) < len(self.entries):
                    self._write_head()
                yield self
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise LedgerFull(error.errno, error.strerror or "", str(self.path)) from None
            reason = error.strerror or type(error).__name__
            raise LedgerError(
                f"{self.path.name}: {reason}; release nothing until it can be read and written"
            ) from None

    def append(self, content: Entry) -> None:
        entries = [*self.entries, chained(self.entries, content)]
        _replace(self.path, "".join(json.dumps(e) + "\n" for e in entries).encode())
        self.entries = entries
        self._write_head()

    def _write_head(self) -> None:
        head = {"count": len(self.entries), "digest": ledger_digest(self.entries)}
        _replace(_head_of(self.path), (json.dumps(head) + "\n").encode())

    def keep(self, records: RecordSet) -> None:
        path = self.path.parent / SETS / records.digest
        if not path.exists():
            _make_folder(path.parent)
            # Two ledgers may share the folder, each under its own lock. Nobody else writes to this name.
            _replace(path, records.to_bytes(), f"{os.getpid()}-{threading.get_ident()}")
        if self.load(records.digest) != records:
            raise LedgerError(f"{SETS}/{records.digest[:12]}: could not be kept; nothing was charged")

    def load(self, digest: str) -> RecordSet:
        name, path = f"{SETS}/{digest[:12]}", self.path.parent / SETS / digest
        try:
            state = path.stat()
            version = (state.st_ino, state.st_size, state.st_mtime_ns)
            if self._read.get(digest) == version:
                return self._sets[digest]
            data = path.read_bytes()
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise LedgerError(f"{name}: {reason}; {WHAT_TO_DO}") from None
        if hashlib.sha256(data).hexdigest() != digest or not data or len(data) % 8:
            raise LedgerError(f"{name}: is not the set of records that was charged; {WHAT_TO_DO}")
        records = RecordSet.from_bytes(data)
        if records.digest != digest:
            raise LedgerError(f"{name}: is not a set of records; {WHAT_TO_DO}")
        self._read[digest], self._sets[digest] = version, records
        return records


def read_ledger(path: Path) -> tuple[list[Entry], bool]:
    """All lines of a ledger, for reading only, and whether a head next to it confirms its end."""
    if not path.is_file():
        raise LedgerError(f"{path}: there is no ledger")
    entries = _read_lines(_text(path), path.name)
    if not _head_of(path).exists():
        return entries, False
    _check_head(entries, path)
    return entries, True


def comparable(entries: Sequence[Entry], *, own_records: bool) -> list[Entry]:
    """What must be the same in the ledgers of two parties: all of their lines.

    own_records: each charges its own records, so these differ, and so does every hash of the chain.
    """
    if not own_records:
        return list(entries)
    bare = [{k: v for k, v in entry.items() if k not in ("hash", "previous")} for entry in entries]
    return [
        {**e, "event": {k: v for k, v in e["event"].items() if k != "records"}} if "event" in e else e for e in bare
    ]


def states_of(entries: Sequence[Entry]) -> list[str]:
    """Stands for a ledger after each of its lines: hashes that the ledgers of all parties have, then its own ones.

    The former leave out records, which each party may charge for itself. Names of runs make them unlike any other's.
    """
    states, last = [], START
    for entry in comparable(entries, own_records=True):
        last = _hash({"previous": last, **entry})
        states.append(last)
    return [*states, *(str(entry["hash"]) for entry in entries)]


def _head_of(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _check_head(entries: Sequence[Entry], path: Path) -> int:
    """How many lines the head confirms: all, or all but the last, which is what a crash leaves."""
    name, head = path.name, _head_of(path)
    text, confirmed, last = _text(head), 0, START
    if text:
        try:
            content = json.loads(text)
            confirmed, last = int(content["count"]), str(content["digest"])
        except (ValueError, KeyError, TypeError):
            raise LedgerError(f"{head.name}: is not readable; {WHAT_TO_DO}") from None
    if confirmed > len(entries):
        raise LedgerError(f"{name}: {confirmed - len(entries)} lines are missing at the end; {WHAT_TO_DO}")
    if ledger_digest(entries[:confirmed]) != last:
        raise LedgerError(f"{name}: is not the ledger its head was written for; {WHAT_TO_DO}")
    if len(entries) > confirmed + 1:
        raise LedgerError(f"{name}: the head is missing or too old; {WHAT_TO_DO}")
    return confirmed


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise LedgerError(f"{path.name}: is not text; {WHAT_TO_DO}") from None


def _replace(path: Path, data: bytes, ending: str = "new") -> None:
    """Atomic and durable: after a crash the file holds the old content or the new one."""
    fresh = path.with_name(f"{path.name}.{ending}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
