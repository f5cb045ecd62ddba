"""The book of charges: hash-chained lines that belong to the data, not to a run; on disk or in memory.

Each line is JSON with `index`, `previous` and `hash`; the hash covers the line without itself. Beside
`ledger.jsonl` lies `ledger.jsonl.head`: the number of lines and the last hash. An append happens under an exclusive
lock: (1) write all lines to a new file, fsync, rename it over the ledger; (2) do the same for the head. Only then
does `append` return, and only then may a release follow. A crash can therefore leave
  - a half-written new file: it is ignored and overwritten; nothing was charged and nothing released;
  - a ledger one line ahead of its head: the line is complete, so it counts, and the head is moved up.
No crash tears a line, drops a charge that `append` returned from, or leaves a book that stays refused. Everything
else comes from a person or a failing disk, and is refused: a torn, edited, dropped, swapped or repeated line, lines
cut off the end, a missing ledger or head.

Not noticed here: ledger and head both set back to an earlier state, deleted, or rewritten with new hashes (no key
is involved). Every party has its own book with the same lines. Each asks its own before a release, and one refusal
is enough. So a single book that was set back spends nothing more, and the report shows where books differ. The
files must lie on a local disk: locks of network file systems do not always hold.

The sets of records that lines are about lie next to the book, in `sets/`: keyed pseudonyms as bytes, named by their
SHA-256. A set is on disk before a line names it. A missing or altered set makes the book unreadable; otherwise what
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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from accounting.records import RecordSet

Entry = dict[str, Any]
START = hashlib.sha256(b"sccvfl privacy ledger").hexdigest()
SETS = "sets"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WHAT_TO_DO = (
    "nothing was charged; do not delete it, bring back the last good copy of the ledger and its .head "
    "(another party's has the same lines)"
)


class LedgerError(RuntimeError):
    """The book of charges is damaged, so nothing may be released on its account."""

    for_operator = True


class LedgerFull(LedgerError):
    """There is no room for a charge. Nothing is wrong with the book; `reason` has the file that could not grow."""

    def __init__(self, number: int, words: str, file: str) -> None:
        super().__init__(f"the disk is full: cannot write {file}; release nothing until there is room")
        self.reason = OSError(number, words, file)


class Book(Protocol):
    """An open, locked ledger."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    def append(self, content: Entry) -> None:
        """Durable when it returns."""
        ...


class Sets(Protocol):
    """The store of the sets of records that a book is about."""

    def keep(self, records: RecordSet) -> None:
        """Durable when it returns."""
        ...

    def load(self, digest: str) -> RecordSet:
        """The set of this digest, or LedgerError."""
        ...


class Ledger(Protocol):
    """Where a book is kept."""

    @property
    def sets(self) -> Sets: ...

    def locked(self) -> AbstractContextManager[Book]:
        """Context manager: a Book in its current state, with nobody else using it."""
        ...


def digest_of(entries: Sequence[Entry]) -> str:
    """The last hash, which stands for all lines."""
    return str(entries[-1]["hash"]) if entries else START


def chained(entries: Sequence[Entry], content: Entry) -> Entry:
    """The line that continues the chain with this content."""
    entry = {"index": len(entries), "previous": digest_of(entries), **content}
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


class MemorySets:
    """Sets that end with the process."""

    def __init__(self) -> None:
        self._sets: dict[str, RecordSet] = {}

    def keep(self, records: RecordSet) -> None:
        self._sets[records.digest] = records

    def load(self, digest: str) -> RecordSet:
        if digest not in self._sets:
            raise LedgerError(f"the set {digest[:12]} of records is not here; nothing was charged")
        return self._sets[digest]


class FileSets:
    """Sets on disk, each in a file named by its digest, which never changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int, int], RecordSet]] = {}

    @classmethod
    def beside(cls, ledger: Path) -> FileSets:
        """The sets of the ledger at this path."""
        return cls(ledger.resolve().parent / SETS)

    def keep(self, records: RecordSet) -> None:
        place = self._folder / records.digest
        if not place.exists():
            _make_folder(self._folder)
            # Two ledgers may share the folder, each under its own lock. Nobody else writes to this name.
            _replace(place, records.to_bytes(), f"{os.getpid()}-{threading.get_ident()}")
        if self.load(records.digest) != records:
            raise LedgerError(f"{SETS}/{records.digest[:12]}: could not be kept; nothing was charged")

    def load(self, digest: str) -> RecordSet:
        name = f"{SETS}/{digest[:12]}"
        try:
            place = self._folder / digest
            state = place.stat()
            seen = (state.st_ino, state.st_size, state.st_mtime_ns)
            if digest in self._known and self._known[digest][0] == seen:
                return self._known[digest][1]
            data = place.read_bytes()
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise LedgerError(f"{name}: {reason}; {WHAT_TO_DO}") from None
        if hashlib.sha256(data).hexdigest() != digest or not data or len(data) % 8:
            raise LedgerError(f"{name}: is not the set of records that was charged; {WHAT_TO_DO}")
        records = RecordSet.from_bytes(data)
        if records.digest != digest:
            raise LedgerError(f"{name}: is not a set of records; {WHAT_TO_DO}")
        self._known[digest] = (seen, records)
        return records


class MemoryLedger:
    """A book that ends with the process: for simulations on public data."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.sets: Sets = MemorySets()
        self._lock = threading.Lock()

    @contextmanager
    def locked(self) -> Iterator[Book]:
        with self._lock:
            yield self

    def append(self, content: Entry) -> None:
        self.entries.append(chained(self.entries, content))


class FileLedger:
    """A book on disk. The operating system holds the lock, so it ends with its process."""

    def __init__(self, path: Path) -> None:
        self.path = path = path.resolve()  # resolve: an append would replace a link by a second ledger
        self.sets: Sets = FileSets.beside(path)
        self._head = _head_of(path)
        self._guard = path.with_name(path.name + ".lock")

    @contextmanager
    def locked(self) -> Iterator[Book]:
        try:
            _make_folder(self.path.parent)
            handle = os.open(self._guard, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield _FileBook(self.path, self._head)
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise LedgerFull(error.errno, error.strerror or "", str(self.path)) from None
            reason = error.strerror or type(error).__name__
            raise LedgerError(
                f"{self.path.name}: {reason}; release nothing until it can be read and written"
            ) from None


class _FileBook:
    """The two files of a ledger while they are locked."""

    def __init__(self, path: Path, head: Path) -> None:
        self._path, self._head = path, head
        self.entries = _read_lines(_text(path), path.name)
        known = _check_head(self.entries, head, path.name)
        if known < len(self.entries):
            self._write_head()

    def append(self, content: Entry) -> None:
        entries = [*self.entries, chained(self.entries, content)]
        _replace(self._path, "".join(json.dumps(e) + "\n" for e in entries).encode())
        self.entries = entries
        self._write_head()

    def _write_head(self) -> None:
        head = {"count": len(self.entries), "digest": digest_of(self.entries)}
        _replace(self._head, (json.dumps(head) + "\n").encode())


def read_ledger(path: Path) -> tuple[list[Entry], bool]:
    """All lines of a ledger, for reading only, and whether a head next to it confirms its end."""
    if not path.is_file():
        raise LedgerError(f"{path}: there is no ledger")
    entries, head = _read_lines(_text(path), path.name), _head_of(path)
    if not head.exists():
        return entries, False
    _check_head(entries, head, path.name)
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
    found, last = [], START
    for entry in comparable(entries, own_records=True):
        last = _hash({"previous": last, **entry})
        found.append(last)
    return [*found, *(str(entry["hash"]) for entry in entries)]


def _head_of(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _check_head(entries: Sequence[Entry], head: Path, name: str) -> int:
    """How many lines the head confirms: all, or all but the last, which is what a crash leaves."""
    text, known, last = _text(head), 0, START
    if text:
        try:
            content = json.loads(text)
            known, last = int(content["count"]), str(content["digest"])
        except (ValueError, KeyError, TypeError):
            raise LedgerError(f"{head.name}: is not readable; {WHAT_TO_DO}") from None
    if known > len(entries):
        raise LedgerError(f"{name}: {known - len(entries)} lines are missing at the end; {WHAT_TO_DO}")
    if digest_of(entries[:known]) != last:
        raise LedgerError(f"{name}: is not the ledger its head was written for; {WHAT_TO_DO}")
    if len(entries) > known + 1:
        raise LedgerError(f"{name}: the head is missing or too old; {WHAT_TO_DO}")
    return known


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
    """Make the folder and missing parents, durably."""
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
