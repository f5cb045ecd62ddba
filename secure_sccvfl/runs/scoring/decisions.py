"""The file of decisions at their receiver."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from protocols.records.private import private
from secure_sccvfl.data.party_data import Schema

UNDECIDED = "undecided: not all parties hold this record"


def write_decisions(
    path: Path,
    schema: Schema,
    ids: Sequence[str],
    opened: np.ndarray,
    held: np.ndarray,
    said: Mapping[str, str],
    scores: bool,
) -> None:
    """id, decision (as the description names the classes) and, if asked for, the score of each class.

    held: whether all parties hold a record. Of the others nothing was told, and the decision says so. said: what
    each line says besides.
    """
    title, note = list(said), list(said.values())
    with open(path, "w", newline="", opener=private) as file:
        writer = csv.writer(file)
        if schema.task == "regression":
            writer.writerow(["id", "prediction", *title])
            texts = [f"{v[0]:.6f}" if here else UNDECIDED for v, here in zip(opened, held, strict=True)]
            writer.writerows([name, value, *note] for name, value in zip(ids, texts, strict=True))
            return
        codes = opened[:, 0] > 0 if schema.task == "binary" else opened.argmax(axis=1)
        logits = [f"logit {c}" for c in (schema.classes[1:] if schema.task == "binary" else schema.classes)]
        writer.writerow(["id", "decision", *(logits if scores else []), *title])
        for name, code, row, here in zip(ids, codes.astype(int), opened, held, strict=True):
            texts = [f"{v:.5f}" if here else "" for v in row] if scores else []
            writer.writerow([name, schema.classes[code] if here else UNDECIDED, *texts, *note])
