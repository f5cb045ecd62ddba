"""`bench.py width`: whole secure trainings by number of rows and of columns, and how time and bytes grow with them.

Every point is a default training on made-up records (`synthetic:ROWSxFEATURES`), counterfactuals included, beside the
plaintext engine on the same releases. A whole training of stock CrypTen is out of reach at these sizes, and SPU has
none. So one sealed step of both is measured beside one of ours, at the fewest and at the most rows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accounting.tables import Column, Table, page
from secure_sccvfl.research.benchmarks.steps import step_table
from secure_sccvfl.research.benchmarks.steps.step import Size
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell
from secure_sccvfl.research.benchmarks.trainings import whole
from secure_sccvfl.research.benchmarks.trainings.whole import MEMORY, sent, took

ROWS, COLUMNS = (10_000, 30_000, 100_000), (20, 40, 60)
PATIENCE = 900.0
"""Seconds that a process waits for another: a million rows take long to read, and between two messages."""
DELTA = 1e-5
"""That of a default run; with more than its inverse of records, a run refuses it."""
MOST_STEP_ROWS = 100_000
"""A step of stock CrypTen on more rows would need more memory than a small machine has."""


def points(rows: Sequence[int], columns: Sequence[int]) -> list[tuple[int, int]]:
    """All rows with the fewest columns, then all columns with the most rows."""
    rows, columns = sorted(rows), sorted(columns)
    return [*((r, columns[0]) for r in rows), *((rows[-1], c) for c in columns[1:])]


def measure(rows: Sequence[int], columns: Sequence[int], tell: Tell, spu: Path | None = None) -> dict[str, list[Row]]:
    """Trainings of every point, the last of several also as before heads were private; steps of all systems."""
    grid = points(rows, columns)
    trainings = [point(r, c, False, tell) for r, c in grid]
    if len(grid) > 1:
        trainings.append(point(*grid[-1], True, tell))
    steps = []
    for count in sorted({min(rows), max(rows)}):
        if count <= MOST_STEP_ROWS:
            size = Size(count, -(-max(columns) // PARTIES))
            tell(f"one sealed step, {size}")
            steps += step_table.measure(2, 1, tell, size, spu, cases=("sealed",))
    return {"trainings": trainings, "steps": steps}


def point(rows: int, columns: int, before: bool, tell: Tell) -> Row:
    """One training beside the plaintext engine."""
    dataset = f"synthetic:{rows}x{columns}"
    tell(dataset + (", not private, from records" if before else ""))
    options: dict[str, Any] = {"delta": min(DELTA, 1 / rows), **(whole.BEFORE if before else {})}
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        ours = whole.secure(dataset, PARTIES, folder, patience=PATIENCE, **options)
        reference = whole.plain(dataset, PARTIES, folder, **options)
    told = {"rows": rows, "features": columns, "columns": reference.columns, "before": before}
    return {**told, **ours, "plain_seconds": reference.seconds}


def growth(trainings: Sequence[Row]) -> list[str]:
    """Sentences: by how much seconds and bytes grow from the first to the last point of either axis."""
    found = []
    for axis, other in (("rows", "features"), ("features", "rows")):
        line = _axis(trainings, axis, other)
        if len(line) > 1:
            first, last = line[0], line[-1]
            factors = {
                name: sum(last[part] for part in parts) / sum(first[part] for part in parts)
                for name, parts in MEASURED.items()
            }
            told = ", ".join(f"{name} times {factor:.1f}" for name, factor in factors.items())
            found.append(f"{axis} times {last[axis] / first[axis]:.1f} ({first[axis]} to {last[axis]}): {told}.")
    return found


MEASURED = {"seconds": ("seconds",), "bytes": ("bytes", "dealer_bytes"), "memory of a party": ("party_mb",)}


def _axis(trainings: Sequence[Row], axis: str, other: str) -> list[Row]:
    """Points along an axis: where the other number is as at its end."""
    plain = [row for row in trainings if not row["before"]]
    fixed = (min if axis == "rows" else max)(row[other] for row in plain)
    return sorted((row for row in plain if row[other] == fixed), key=lambda row: int(row[axis]))


COLUMNS_SHOWN = (
    Column("rows"),
    Column("features", lambda row: f"{row['features']}{', not private' if row['before'] else ''}"),
    *(Column("columns"), *took(".1f"), Column("rounds"), *sent(".0f"), Column("CPU s", "processor", ".0f"), *MEMORY),
    Column("s of counterfactuals", lambda row: f"{row['phases']['counterfactuals']:.1f}"),
    Column("s of training", lambda row: f"{row['phases']['training']:.1f}"),
)


def markdown(result: dict[str, list[Row]], command: str, note: str) -> str:
    """Trainings, how they grow, and steps."""
    steps: list[object] = []
    for rows in sorted({row["rows"] for row in result["steps"]}):
        found = [row for row in result["steps"] if row["rows"] == rows]
        steps += [
            f"One sealed step, {rows} x {found[0]['columns']}: a whole training of stock CrypTen takes too long,\n"
            f"and SPU has none. {note}; its step has no consistency.",
            step_table.table(found),
        ]
    return page(
        f"Made by `{command}` on {os.cpu_count() or 1} cores, {PARTIES} parties.\n"
        "Whole secure trainings on made-up records: inputs, discovery with refreshes, penalty, one private head.\n"
        "`columns`: of the encodings. `plain s`: the plaintext engine on the same releases. MB: of the mean party,\n"
        "to its peers, and to and from the dealer. CPU: of all processes, with their start. MB of memory: the peak\n"
        "of the largest party and of the dealer. `not private`: nine heads without noise, edits of every record.",
        Table.of(result["trainings"], COLUMNS_SHOWN),
        "\n".join(f"- {line}" for line in growth(result["trainings"])) or None,
        *steps,
    )


def plot(trainings: Sequence[Row], path: Path) -> bool:
    """Seconds, bytes and memory by rows and by columns, with straight lines from the first to the last point.

    Says whether there was enough to plot.
    """
    lines = {axis: _axis(trainings, axis, other) for axis, other in (("rows", "features"), ("features", "rows"))}
    if any(len(line) < 2 for line in lines.values()):
        return False
    with rc_context({"svg.hashsalt": "width", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 5), layout="constrained")
        panels = figure.subplots(2, len(MEASURED))
        for row, (axis, line) in zip(panels, lines.items(), strict=True):
            for panel, (name, parts) in zip(row, MEASURED.items(), strict=True):
                _panel(panel, axis, name, line, parts)
        figure.savefig(path, metadata={"Date": None})
    return True


UNITS = {"seconds": ("seconds", 1.0), "bytes": ("GB of a party, with dealer", 1e9), "memory of a party": ("GB", 1e3)}


def _panel(panel: Axes, axis: str, name: str, line: Sequence[Row], parts: Sequence[str]) -> None:
    unit, scale = UNITS[name]
    across = [row[axis] for row in line]
    up = [sum(row[part] for part in parts) / scale for row in line]
    panel.plot(across, up, "o-", label="measured")
    panel.plot([across[0], across[-1]], [up[0], up[-1]], "--", color="grey", label="straight")
    fixed = "features" if axis == "rows" else "rows"
    panel.set(xlabel=f"{axis}, at {line[0][fixed]} {fixed}", ylabel=unit, ylim=(0, None), xlim=(0, None), title=name)
    panel.legend(frameon=False)
