"""The key of a consortium, and tags of records under it.

A ledger knows records by tags: keyed hashes of their ids. Without the key, a reader of a ledger or a report cannot
try ids against them. All parties know the key, since they make the same tags. The dealer does not, and the key is
in no log. It lies as `records.key` beside each party's ledger, readable by its owner alone, and lives as long as
the ledger. Under another key the same records would be strangers to the ledger and start anew, so that is refused.

| step | who | what each learns |
|---|---|---|
| first session | every party sends 32 random bytes to every other, over their own channels | the key: a hash of all |
| later sessions | every party sends a keyed check value | whether all have the same key |

One round to say who has a key, one for the bytes; 33 bytes to each peer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np

from accounting.ledger import SETS
from accounting.records import RecordSet
from protocols.dealing.randomness import KEY_BYTES, fresh_key
from protocols.errors import LocalError, ProtocolError
from protocols.records.private import private
from protocols.session.runtime import Session
from secure_sccvfl.data.splits import Split

NAME = "records.key"
NONE, UNUSED, USED, LOST = range(4)


class RecordKey:
    """Makes tags; shows nothing of itself."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError("a key of records has another length")
        self._key = key

    @classmethod
    def throw_away(cls) -> RecordKey:
        """A key that nobody keeps: for simulations on public data."""
        return cls(fresh_key())

    @property
    def check(self) -> bytes:
        """A value from which two parties find out whether they have the same key."""
        return hashlib.blake2b(key=self._key, person=b"check of the key").digest()

    def tags(self, ids: Iterable[object]) -> RecordSet:
        """The set of these records, whatever their order."""
        keyed = hashlib.blake2b(key=self._key, person=b"tag of a record", digest_size=8)

        def tag(name: object) -> bytes:
            one = keyed.copy()
            one.update(str(name).encode())
            return one.digest()

        return RecordSet(np.frombuffer(b"".join(map(tag, ids)), "<u8"))

    def parts(self, ids: np.ndarray, split: Split) -> dict[str, RecordSet]:
        """The sets of training, validation and test records."""
        return {name: self.tags(ids[getattr(split, name)]) for name in ("train", "validation", "test")}

    def __repr__(self) -> str:
        return "<key of records>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key of records is not pickled")


def record_key(session: Session, folder: Path) -> RecordKey:
    """Run by all parties together: the key beside this party's ledger, made now if nothing was ever charged."""
    path = folder / NAME
    known, used = _read(path), any((folder / SETS).glob("*"))
    own = (LOST if used else NONE) if known is None else (USED if used else UNUSED)
    states = session.tell_all("key of records", own)
    lacking = [rank for rank, state in enumerate(states) if state in (NONE, LOST)]
    if lacking and not {USED, LOST} & set(states):
        return _make(session, path, new=own == NONE)
    if lacking or known is None:
        raise ProtocolError(
            f"party {lacking[0]} has no {NAME} beside its ledger, which the parties have spent under: bring it back "
            "(another party's is the same)"
        )
    if len(set(session.swap_bytes("check of the key of records", known.check))) > 1:
        raise ProtocolError(f"the parties' {NAME} differ: bring back the one that their ledgers were written with")
    return known


def _read(path: Path) -> RecordKey | None:
    try:
        return RecordKey(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise LocalError(
            f"{path.name}: cannot be read as a key; bring it back (another party's is the same)"
        ) from None


def _make(session: Session, path: Path, new: bool) -> RecordKey:
    """From random bytes of all, so that no party chooses it; on disk before anything is charged under it."""
    parts = session.swap_bytes("parts of the key of records", fresh_key())
    key = hashlib.blake2b(b"".join(parts), digest_size=KEY_BYTES, person=b"key of records").digest()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{NAME}.{os.getpid()}")
    try:
        with open(fresh, "wb", opener=private) as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(fresh, path)  # unlike a rename it fails if another session was faster
            os.unlink(fresh)
        else:
            os.replace(fresh, path)
    except FileExistsError:
        fresh.unlink(missing_ok=True)
        raise LocalError(f"{NAME}: another session has just made one; start this one again") from None
    return RecordKey(key)
