"""The figures of a model are opened once: they are kept next to the model, and returned again.

Two evaluations of the same records would tell more than one, and noise drawn twice is half of a noise. So a second
call returns the recorded figures and opens nothing. The parties tell each other what they have on record. All
records must agree. What each party's records have spent is not on it: that is the party's own. Two short rounds, and
one more if some party has no record.

A party without a record (a fault came before it was written) takes over noisy figures of the others only if it took
part in the evaluation that they are of: it had begun this very evaluation under that name, its own ledger has the
charge, and its own release log has the release. Otherwise all stop. What it cannot check are the values: a party that
deviates and stops an evaluation between the release line and the opening could tell figures of its choice later.
Exact figures are opened again instead, which tells nothing new about the same records.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accounting.ledger import read_ledger
from accounting.records import RecordSet
from protocols.errors import LedgerError, ProtocolError
from protocols.records.chain import read_chain
from protocols.records.private import private
from protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import EVALUATION
from secure_sccvfl.runs.paths import ModelError

FILE = "evaluation.json"
BEGUN = "begun: "
"""Before what an evaluation is about: the name under which it was begun, until its figures are on record."""


def recorded(
    session: Session, folder: Path, about: str, took_part: Callable[[str], bool] | None
) -> dict[str, Any] | None:
    """Run by all parties together: the figures of `about` that are on record, or None if they are to be opened.

    took_part: whether this party paid for and released something under a name; None if figures are exact.
    """
    record_here = _read(folder, about)
    texts = session.swap_texts("recorded figures", record_here)
    records = sorted({text for text in texts if text})
    if not records:
        return None
    if len(records) > 1:
        raise ProtocolError(
            f"the parties have different figures of one evaluation on record ({FILE} next to the model)"
        )
    if all(texts):
        return dict(json.loads(records[0]))
    if took_part is None:
        return None
    fits = bool(record_here) or _fits(folder, about, records[0], took_part)
    states = session.tell_all("figures of an evaluation that this party took part in", int(fits))
    if not all(states):
        raise ProtocolError(
            f"party {states.index(0)} has no charge, or no line in its release log, for the figures that others have "
            f"on record; nothing was opened or charged: remove {FILE} next to the model at the others if they made "
            "it up, or copy it from a party that you trust"
        )
    if not record_here:
        _write(folder, about, records[0])
    return dict(json.loads(records[0]))


def begin(folder: Path, about: str, name: str) -> None:
    """Note, before anything is charged, under which name this party evaluates `about`."""
    _put(folder, BEGUN + about, name)


def record(folder: Path, about: str, figures: dict[str, Any]) -> None:
    """Keep what was opened about `about`."""
    _write(folder, about, json.dumps(figures, sort_keys=True).encode())


def took_part(ledger: Path, folder: Path | None, records: RecordSet, name: str) -> bool:
    """Whether a charge of this name about these records is in a ledger, and its release in an own release log.

    folder: of this session; those of earlier attempts lie next to it.
    """
    charge = f"{name} {EVALUATION.charged_as()}"
    if folder is None or not ledger.is_file():
        return False
    charged = (entry for entry in read_ledger(ledger)[0] if entry["kind"] == "charge")
    if not any(entry["key"] == charge and entry["event"]["records"] == records.digest for entry in charged):
        return False
    on_one_machine = folder.name.startswith("party-")
    pattern = f"*/{folder.name}/releases*.jsonl" if on_one_machine else "*/releases*.jsonl"
    logs = (folder.parent.parent if on_one_machine else folder.parent).glob(pattern)
    return any(entry["charge"] == charge for log in logs for entry in _intact(log))


def _intact(log: Path) -> list[dict[str, Any]]:
    """The lines of a release log; none if it was changed or torn."""
    try:
        return read_chain(log)
    except LedgerError:
        return []


def _fits(folder: Path, about: str, figures: bytes, took_part: Callable[[str], bool]) -> bool:
    """Whether figures of others are of the evaluation that this party had begun."""
    try:
        name = json.loads(figures)["evaluation"]["charged"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(name, str) and name == _kept(folder).get(BEGUN + about) and took_part(name)


def _read(folder: Path, about: str) -> bytes:
    kept = _kept(folder)
    return json.dumps(kept[about], sort_keys=True).encode() if about in kept else b""


def _kept(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / FILE).read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, OSError):
        raise ModelError(f"{FILE} next to the model cannot be read: bring back the copy of another party") from None


def _write(folder: Path, about: str, figures: bytes) -> None:
    _put(folder, about, json.loads(figures), without=BEGUN + about)


def _put(folder: Path, key: str, value: Any, without: str = "") -> None:
    kept = {**_kept(folder), key: value}
    kept.pop(without, None)
    path = folder / FILE
    fresh = path.with_suffix(".part")
    with open(fresh, "w", opener=private) as file:
        json.dump(kept, file, indent=1, sort_keys=True)
    fresh.replace(path)
