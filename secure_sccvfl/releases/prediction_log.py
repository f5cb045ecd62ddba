"""One answer per person and model: what each party has on record about predictions.

The receiver of predictions gives its own columns of a new record. If it could change them and ask again, each answer
would reveal more about the columns of the others (16 decisions are enough to read a category off). So every party
keeps a log for each model, next to its ledger, and withholds the result of a person that its log knows
(protocols/steps/choice.py). No cooperation of the receiver is needed: one honest party's log is enough.

A log is append-only and hash-chained. It is about one run, whatever its model's files look like: a model that is
saved again is the same model. Its lines:

| line | written | holds |
|---|---|---|
| `log` | first | the run, and a check value of the key of records |
| `asked` | by every party, before anything is opened | people whose results may now be opened, and own columns |
| `opening` | by every party, when all have written `asked`, before it sends its shares | nothing |
| `answers` | by the receiver alone, before it writes its predictions | its answers, and who of `asked` got none |

Who can read what: a person is a pseudonym, a hash of the id under the key that all parties have (`record_key`), for
this purpose and run alone. Of a party's own columns there is a digest, under a key that this party alone has
(`predictions-RUN.key`). The dealer has neither key. Nothing of a log is sent, except how many predictions are
allowed, how many sessions were opened, and whether one more was begun.

Why crashes are safe: a value is opened only with the shares of all parties, and each writes `opening` before it sends
its shares. So what a receiver has seen is on record at every honest party. `asked` without `opening` is void: this
party has sent nothing. `opening` without `answers` costs the receiver the answers of that session. It is not possible
to open them again: the other parties cannot know whether the receiver's columns are the same as before.

Why a lost log is noticed: `opening` is written only after all parties have written `asked`. So a party that has fewer
sessions on record than another one, and did not begin the missing one, has lost lines. A party also notices by itself
that its log is gone while the key of its digests is there. It does not notice an older copy of its log if the other
parties say nothing, and nobody notices if all lose theirs at the same time; keep them as you keep the ledgers.

Two rounds for each prediction, 18 bytes to each peer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.protocols.dealing.randomness import KEY_BYTES, fresh_key
from secure_sccvfl.protocols.errors import LocalError, LogError, ProtocolError
from secure_sccvfl.protocols.records.chain import HashChain
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.record_key import RecordKey

NO_LIMIT = 0
"""As the number of predictions that are allowed: on public data alone."""
_STATE = ">qq?"


class TooManyPredictions(LocalError):
    """More people are asked for than the approved plan allows. How many is this party's own business."""

    kind = "more predictions are asked for than this model is approved for, nothing was opened"


class PredictionLog:
    """This party's log of one model, open and locked.

    decided: the digest of this party's own columns, for each pseudonym whose result may have been opened. answers:
    at a receiver, what it received. sessions: how many predictions have been opened. begun: pseudonyms of a session
    that this party began and did not open.
    """

    def __init__(self, path: Path, run: str, key: RecordKey) -> None:
        self._path, self._run, self._key = path, run, key
        self.decided: dict[str, str] = {}
        self.answers: dict[str, list[float]] = {}
        self.sessions, self.begun = 0, False
        self._asked: Mapping[str, str] = {}
        head = {"kind": "log", "run": run, "key": hashlib.sha256(key.check).hexdigest()[:16]}
        if path.exists():
            _cut_torn_line(path)
        key_file = path.with_suffix(".key")
        if not path.exists() or not path.stat().st_size:
            if key_file.exists():  # it is written after the first line, so there was a log
                raise LogError(
                    f"{path.name}: missing, and {key_file.name} is there: bring it back; nothing was opened"
                )
            path.unlink(missing_ok=True)
            self._chain = HashChain(path)
            self._chain.append(head)
        else:
            self._chain = HashChain.reopened(path)
            self._take(self._chain.entries, head)
        if len(self._chain.entries) == 1 and not (key_file.exists() and key_file.stat().st_size == KEY_BYTES):
            _write_key(key_file)
        self._digest_key = _read_key(key_file)

    def __repr__(self) -> str:
        return f"<log of predictions with run {self._run[:12]}: {len(self.decided)} people>"

    def names(self, ids: Sequence[object], kind: str = "") -> list[str]:
        """The pseudonyms of these ids. kind: of answer, where each kind is counted separately."""
        return self._key.pseudonyms(ids, f"{self._run} {kind}".strip())

    def digests(self, names: Sequence[str], *columns: np.ndarray) -> list[str]:
        """Digests of this party's own columns of each of these people (rows), under a key of this party alone.

        One for each array of columns, with spaces between them.
        """
        arrays = [np.ascontiguousarray(part, np.float64) for part in columns]
        return [
            " ".join(
                hashlib.blake2b(name.encode() + row.tobytes(), key=self._digest_key, digest_size=16).hexdigest()
                for row in rows
            )
            for name, *rows in zip(names, *arrays, strict=True)
        ]

    def agree(self, session: Session, people: int, allowed: int) -> None:
        """Run by all parties together, before anything is opened: all logs are complete, and `people` more fit.

        If not, all parties stop. One party that has too many on record is enough. People who are on record already
        do not count.
        """
        if allowed != NO_LIMIT and len(self.decided) + people > allowed:
            raise TooManyPredictions(
                f"{len(self.decided)} of {allowed} predictions of this model are on record here, and {people} more "
                "are asked for; nothing was opened. More need a new approval: set `predictions` in the session file "
                "and let all parties approve it (runs on one machine: train with --predictions)"
            )
        state = struct.pack(_STATE, allowed, self.sessions, self.begun)
        states = [struct.unpack(_STATE, text) for text in session.swap_bytes("predictions on record", state)]
        if len({one[0] for one in states}) > 1:
            raise ProtocolError("the parties allow different numbers of predictions: all must use the same plan")
        most = max(sessions for _, sessions, _ in states)
        short = [rank for rank, (_, sessions, begun) in enumerate(states) if sessions + begun < most]
        if short:
            raise ProtocolError(
                f"party {short[0]} has no complete log of the predictions of this model ({self._path.name} next to "
                "its ledger), and others do: bring it back; nothing was opened"
            )
        if self.sessions < most:  # the others have opened their logs' session; this party began it, and sent nothing
            self._append({"kind": "opening"})

    def record(self, session: Session, people: Mapping[str, str]) -> None:
        """Run by all parties together, right before the opening: these people's results may be opened now.

        people: pseudonym and digest of columns of those that this party does not withhold.
        """
        self._append({"kind": "asked", "records": dict(people)})
        session.tell_all("predictions are on record", 1)
        self._append({"kind": "opening"})

    def answer(self, answers: Mapping[str, Sequence[float]], none: Collection[str]) -> None:
        """At the receiver: what it received, and who got no answer, so that nothing was opened about them."""
        received = {name: [float(value) for value in values] for name, values in answers.items()}
        self._append({"kind": "answers", "answers": received, "none": sorted(none)})

    def _append(self, content: dict[str, Any]) -> None:
        self._chain.append(content)
        self._count(content)

    def _count(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "asked":
            self._asked, self.begun = line["records"], True
        elif line["kind"] == "opening":
            self.decided |= self._asked
            self._asked, self.begun, self.sessions = {}, False, self.sessions + 1
        elif line["kind"] == "answers":
            self.answers |= line["answers"]
            self.decided = {k: v for k, v in self.decided.items() if k not in set(line["none"])}
        else:
            raise LogError(f"{self._path.name}: no line of this kind is known: {line['kind']!r}")

    def _take(self, lines: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> None:
        first, *others = lines
        if any(first.get(name) != value for name, value in head.items() if name != "key"):
            raise LogError(f"{self._path.name}: it is not the log of predictions of this model; bring that back")
        if first["key"] != head["key"]:
            raise LocalError(
                f"{self._path.name}: it was written with another records.key: bring that back (another party's is "
                "the same)"
            )
        try:
            for line in others:
                self._count(line)
        except (KeyError, TypeError, AttributeError):
            raise LogError(f"{self._path.name}: cannot be read as a log of predictions; bring it back") from None


@contextmanager
def open_log(folder: Path, run: str, key: RecordKey) -> Iterator[PredictionLog]:
    """This party's log of a model, next to its ledger; nobody else uses it meanwhile.

    Two predictions at the same time would each find the other's people not on record yet.
    """
    path = folder / f"predictions-{hashlib.sha256(run.encode()).hexdigest()[:16]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w", opener=private) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError("another prediction with this model is under way here: wait until it ends") from None
        yield PredictionLog(path, run, key)


def _cut_torn_line(path: Path) -> None:
    """Remove what a crash left of a line that was being written: nothing was sent on its account."""
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        with open(path, "r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)
            file.flush()
            os.fsync(file.fileno())


def _write_key(path: Path) -> None:
    with open(path, "wb", opener=private) as file:
        file.write(fresh_key())
        file.flush()
        os.fsync(file.fileno())


def _read_key(path: Path) -> bytes:
    key = path.read_bytes() if path.exists() else b""
    if len(key) != KEY_BYTES:
        raise LocalError(f"{path.name}: missing or not a key; bring it back, the log of predictions needs it")
    return key
