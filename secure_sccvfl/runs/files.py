"""Files of a party's folder that readers of reports need: names, the check of a saved model, the audit log. No torch.

The audit log has every decision with the numbers it rests on, in a hash-chained file at each party. It holds what all
parties know (scores, roles, settings, refusals), and nothing of the tables behind them.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from secure_sccvfl.data.catalogue import loader_of
from secure_sccvfl.data.features import NOTES
from secure_sccvfl.protocols.errors import InputError
from secure_sccvfl.protocols.records.chain import HashChain, read_chain

if TYPE_CHECKING:
    from secure_sccvfl.data.party_data import Schema  # imports torch, which readers of a report need not

CARD, DESCRIPTION = "card.json", "description.toml"
"""Copies of the public files that a run was given, in each party's folder."""
SESSION, RESULT = "session.toml", "result.json"
"""The session file of a run, and the result of a job in each party's folder."""


class ModelError(InputError):
    """A model that cannot be used; the message says why."""


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The facts and arrays of a saved model, checked; ModelError if a file is missing or was changed."""
    part = f"{folder.parent.name}/{folder.name}"
    try:
        facts = json.loads((folder / "model.json").read_text())
        with np.load(folder / "model.npz") as file:
            arrays = {name: file[name] for name in file.files}
        digest = facts.pop("digest")
    except FileNotFoundError as error:
        raise ModelError(f"no {Path(error.filename).name} in {part}: train first, or name the run") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, BadZipFile, zlib.error):
        raise ModelError(f"the model in {part} cannot be read; train again") from None
    if content_digest(facts, arrays) != digest:
        raise ModelError(f"the model in {part} was changed after training; train again")
    return {**facts, "digest": digest}, arrays


def content_digest(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a model's facts and arrays."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def model_digest(folder: Path) -> str:
    """The digest of a saved model, checked; ModelError if a file is missing or was changed."""
    return str(read_model(folder)[0]["digest"])


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
    """All lines of an audit log; LogError names the first that was changed."""
    return read_chain(path)


def run_names(folder: Path) -> tuple[str, ...]:
    """The names under which a run has charged, one for each session: a run that resumes gets a new one."""
    return tuple(dict.fromkeys(str(entry["run"]) for entry in _events(folder, RUN)))


def tables_used(folder: Path) -> tuple[str, ...]:
    """The names of the run whose kept tables a run used."""
    return tuple(dict.fromkeys(str(run) for entry in _events(folder, TABLES) for run in entry["runs"]))


def _events(folder: Path, event: str) -> list[dict[str, Any]]:
    logs = sorted(folder.glob("audit*.jsonl"))
    return [entry for log in logs for entry in read_chain(log) if entry["event"] == event]


def describe_data(dataset: str, schema: Schema) -> dict[str, Any]:
    """Label, protected attributes and columns with their words; nothing here comes from a record."""
    spec = loader_of(dataset).words(dataset)
    label = spec["label"]
    return {
        "about": spec.get("about", ""),
        "task": schema.task,
        "label": {
            "holder": schema.parties[schema.label_holder],
            "meaning": label.get("meaning", ""),
            "classes": list(schema.classes),
            "labels": label.get("labels") or list(schema.classes),
            "low": label.get("low"),
            "high": label.get("high"),
        },
        "protected": [
            {
                "name": attribute.name,
                "holder": attribute.holder,
                "meaning": entry.get("meaning", ""),
                "groups": list(attribute.groups),
                "labels": entry.get("labels") or list(attribute.groups),
            }
            for attribute, entry in zip(schema.protected, spec["protected"], strict=True)
        ],
        "features": {
            f.name: {
                "kind": f.kind,
                "meaning": f.meaning,
                "unit": f.unit,
                "labels": dict(zip(f.categories, f.labels or f.categories, strict=True)),
                **{note: getattr(f, note) for note in NOTES if getattr(f, note)},
            }
            for party_features in schema.features
            for f in party_features
        },
    }
