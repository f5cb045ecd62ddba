"""The key of a consortium, and tags of records under it.

A ledger knows records by tags: keyed hashes of their ids. Without the key, a reader of a ledger or a report cannot
try ids against them. All parties know the key, since they make the same tags. The dealer does not, and the key is
in no log. It lies as `records.key` next to each party's ledger, readable by its owner alone, and lives as long as
the ledger. Under another key the same records would be strangers to the ledger and start again, so that is refused.

A tag is made from one canonical form of an id (`protocols.alignment.ids.canonical`), whatever the file or the id rule
says about case, spaces or Unicode. What else an id rule changes (which columns, leading zeros, numbers) would make
strangers of the same records too. So the key is bound to the id rule under which it was first used: the rule follows
the key in its file, and a description with another rule is refused. A key file of an earlier version, 32 bytes alone,
keeps making tags of ids as they are written, and is bound to the rule of its next session.

| step | who | what each learns |
|---|---|---|
| first session | every party sends 32 random bytes to every other, over their own channels | the key: a hash of all |
| later sessions | every party sends a keyed check value | whether all have the same key |

One round to say who has a key, and whether the id rule is its own; one for the bytes. 33 bytes to each peer, or 65.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import numpy as np

from secure_sccvfl.accounting.ledger import SETS
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.splits import Split
from secure_sccvfl.protocols.alignment.ids import IdRule, canonical
from secure_sccvfl.protocols.dealing.randomness import KEY_BYTES, fresh_key
from secure_sccvfl.protocols.errors import LocalError, ProtocolError
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.ledgers import PREDICTION_LOGS

NAME = "records.key"
_CANONICAL, _AS_WRITTEN = "canonical", "as written"
NONE, UNUSED, USED, LOST, OTHERWISE = range(5)
"""What a party says of its key: OTHERWISE, it was used with another id rule."""


class RecordKey:
    """Makes tags; shows nothing of itself.

    rule: the id rule that it is bound to, None if it was not bound yet. canonical: whether tags are of the canonical
    form of ids; otherwise of ids as they are written.
    """

    __slots__ = ("_key", "canonical", "rule")

    def __init__(self, key: bytes, rule: IdRule | None = None, canonical: bool = True) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError("a key of records has another length")
        self._key, self.rule, self.canonical = key, rule, canonical

    @classmethod
    def from_bytes(cls, content: bytes) -> RecordKey:
        """From a key file: the key and what it is bound to, or a key of an earlier version alone."""
        key, bound = content[:KEY_BYTES], content[KEY_BYTES:]
        if not bound:
            return cls(key, canonical=False)
        binding = json.loads(bound)
        rule = IdRule(**{**binding["id"], "columns": tuple(binding["id"]["columns"])})
        return cls(key, rule, binding["ids"] == _CANONICAL)

    def to_bytes(self) -> bytes:
        """What the file holds of a key that is bound; the same at every party."""
        if self.rule is None:
            raise ValueError("a key of records is written with its id rule")
        bound = {"ids": _CANONICAL if self.canonical else _AS_WRITTEN, "id": asdict(self.rule)}
        return self._key + b"\n" + json.dumps(bound, sort_keys=True).encode() + b"\n"

    def bound(self, rule: IdRule) -> RecordKey:
        """The same key for this id rule."""
        return RecordKey(self._key, rule, self.canonical)

    @property
    def check(self) -> bytes:
        """A value from which two parties find out whether they have the same key, and make the same tags."""
        form = b"" if self.canonical else _AS_WRITTEN.encode()
        return hashlib.blake2b(form, key=self._key, person=b"check of the key").digest()

    def record_set(self, ids: Iterable[object]) -> RecordSet:
        """The set of these records, whatever their order."""
        return RecordSet(np.frombuffer(b"".join(self._hashed(ids, b"tag of a record", 8)), "<u8"))

    def pseudonyms(self, ids: Iterable[object], about: str) -> list[str]:
        """A name for each of these records, by which a log of predictions knows it.

        about: what the log is about. Without the key, nobody can link names about different things with each other,
        or with the tags in a ledger.
        """
        return [name.hex() for name in self._hashed(ids, b"of a prediction", 16, about)]

    def _hashed(self, ids: Iterable[object], purpose: bytes, size: int, about: str = "") -> Iterator[bytes]:
        """The keyed hash of each id for one purpose."""
        keyed = hashlib.blake2b(key=self._key, person=purpose, digest_size=size)
        if about:
            keyed.update(f"{about}\0".encode())
        for name in ids:
            one = keyed.copy()
            one.update((canonical(str(name)) if self.canonical else str(name)).encode())
            yield one.digest()

    def parts(self, ids: np.ndarray, split: Split) -> dict[str, RecordSet]:
        """The sets of training, validation and test records."""
        return {name: self.record_set(ids[getattr(split, name)]) for name in ("train", "validation", "test")}

    def __repr__(self) -> str:
        return "<key of records>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key of records is not pickled")


def record_key(session: Session, folder: Path, rule: IdRule) -> RecordKey:
    """Run by all parties together: the key next to this party's ledger, made now if nothing was ever charged.

    rule: how the description of this session makes ids. All refuse if a key was used with another one.
    """
    path = folder / NAME
    key = _read(path)
    used = any((folder / SETS).glob("*")) or any(folder.glob(PREDICTION_LOGS))
    state_here = (LOST if used else NONE) if key is None else (USED if used else UNUSED)
    if state_here == USED and key is not None and key.rule not in (None, rule):
        state_here = OTHERWISE
    states = session.tell_all("key of records", state_here)
    lacking = [rank for rank, state in enumerate(states) if state in (NONE, LOST)]
    if lacking and not {USED, LOST, OTHERWISE} & set(states):
        return _make(session, path, rule, new=state_here == NONE)
    if lacking or key is None:
        raise ProtocolError(
            f"party {lacking[0]} has no {NAME} next to its ledger, which the parties have spent under: bring it back "
            "(another party's is the same)"
        )
    if OTHERWISE in states:
        bound = "" if key.rule is None else f", which were made of {key.rule.words}"
        raise ProtocolError(
            f"the description makes ids of {rule.words}, and the ledger of party {states.index(OTHERWISE)} knows "
            f"records by other ids{bound}: under another rule what they have spent would be forgotten; use that rule"
        )
    if len(set(session.swap_bytes("check of the key of records", key.check))) > 1:
        raise ProtocolError(f"the parties' {NAME} differ: bring back the one that their ledgers were written with")
    if key.rule != rule:
        key = key.bound(rule)
        _write(path, key, new=False)
    return key


def _read(path: Path) -> RecordKey | None:
    try:
        return RecordKey.from_bytes(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise LocalError(
            f"{path.name}: cannot be read as a key; bring it back (another party's is the same)"
        ) from None


def _make(session: Session, path: Path, rule: IdRule, new: bool) -> RecordKey:
    """From random bytes of all, so that no party chooses it; on disk before anything is charged under it."""
    parts = session.swap_bytes("parts of the key of records", fresh_key())
    key = hashlib.blake2b(b"".join(parts), digest_size=KEY_BYTES, person=b"key of records").digest()
    result = RecordKey(key, rule)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, result, new)
    return result


def _write(path: Path, key: RecordKey, new: bool) -> None:
    """Put a key on disk as a whole. new: refuse if another session was faster."""
    fresh = path.with_name(f"{NAME}.{os.getpid()}")
    try:
        with open(fresh, "wb", opener=private) as file:
            file.write(key.to_bytes())
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
