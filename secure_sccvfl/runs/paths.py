"""Names of files in run folders, and the check of a saved model. Readers of reports import this: no torch here."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from protocols.errors import InputError

CARD, DESCRIPTION = "card.json", "description.toml"
"""Copies of the public files that a run was given, in each party's folder."""
SESSION, RESULT = "session.toml", "result.json"
"""The session file of a run, and the result of a job in each party's folder."""


class ModelError(InputError):
    """A model that cannot be used; the message says why."""


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The facts and arrays of a saved model, checked; ModelError if a file is missing or was changed."""
    place = f"{folder.parent.name}/{folder.name}"
    try:
        facts = json.loads((folder / "model.json").read_text())
        with np.load(folder / "model.npz") as file:
            arrays = {name: file[name] for name in file.files}
        told = facts.pop("digest")
    except FileNotFoundError as error:
        raise ModelError(f"no {Path(error.filename).name} in {place}: train first, or name the run") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, BadZipFile, zlib.error):
        raise ModelError(f"the model in {place} cannot be read; train again") from None
    if digest_of(facts, arrays) != told:
        raise ModelError(f"the model in {place} was changed after training; train again")
    return {**facts, "digest": told}, arrays


def digest_of(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
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
