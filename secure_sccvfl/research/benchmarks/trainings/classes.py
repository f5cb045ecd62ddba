"""`bench.py classes`: a training of three classes beside the binary one on the same columns.

The records are those of `synthetic:ROWSxFEATURES`; of three classes only the label differs. The error is the largest
difference of a record's probability between the secure model (its shares are added up here) and the plaintext engine
on the same releases. Stock CrypTen's softmax is measured in one sealed step over two logits: a whole training of it
takes too long.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accounting.tables import Column, Table, page
from secure_sccvfl.research.benchmarks.steps import step_table
from secure_sccvfl.research.benchmarks.steps.step import Size
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell
from secure_sccvfl.research.benchmarks.trainings import whole
from secure_sccvfl.research.benchmarks.trainings.whole import MEMORY, sent, took
from secure_sccvfl.training.model import probabilities

ROWS, COLUMNS, CLASSES = 10_000, 20, (2, 3)


def measure(rows: int, columns: int, tell: Tell, spu: Path | None = None) -> dict[str, list[Row]]:
    """A training for each number of classes, and steps of all systems."""
    trainings = [training(rows, columns, classes, tell) for classes in CLASSES]
    size = Size(rows, -(-columns // PARTIES))
    tell(f"one sealed step, {size}")
    steps = step_table.measure(2, 1, tell, size, spu, cases=("sealed", "sealed softmax"))
    return {"trainings": trainings, "steps": steps}


def training(rows: int, columns: int, classes: int, tell: Tell) -> Row:
    dataset = f"synthetic:{rows}x{columns}x{classes}"
    tell(dataset)
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        # Without noise, so that both engines can be compared.
        ours = whole.secure(dataset, PARTIES, folder, private_model=False)
        reference = whole.plain(dataset, PARTIES, folder, private_model=False)
    secret, plain = (probabilities(logits, reference.model.task) for logits in reference.logits())
    told = {"classes": classes, "plain_seconds": reference.seconds, "lambda": reference.shares[0].lam}
    return {**told, **ours, "max_error": float(np.abs(secret - plain).max())}


def markdown(rows: int, features: int, result: dict[str, list[Row]], command: str, note: str) -> str:
    """Trainings with their ratio to the binary one, and steps."""
    binary, first = result["trainings"][0], result["steps"][0]

    def moved(row: Mapping[str, Any]) -> int:
        return int(row["bytes"] + row["dealer_bytes"])

    columns = (
        *(Column("classes"), *took(), Column("rounds")),
        Column("times binary", lambda row: f"{row['rounds'] / binary['rounds']:.2f}"),
        *sent(),
        Column("times binary", lambda row: f"{moved(row) / moved(binary):.2f}"),
        *(Column("CPU s", "processor", ".0f"), *MEMORY),
        Column("largest error of a probability", "max_error", ".5f"),
    )
    return page(
        f"Made by `{command}` on {os.cpu_count() or 1} cores, {PARTIES} parties.\n"
        f"Whole secure trainings on {rows} made-up records of {features} features. Records are the same; the label\n"
        "has two or three classes. `plain s`: the plaintext engine on the same releases; errors are distances from\n"
        "its probabilities, over all records, with the temperature that was chosen in secret.",
        Table.of(result["trainings"], columns),
        f"One sealed step, {first['rows']} x {first['columns']}: a whole training of stock\n"
        f"CrypTen takes too long here. `softmax` is its own, over two logits. {note}; its step has no consistency.",
        step_table.table(result["steps"]),
    )
