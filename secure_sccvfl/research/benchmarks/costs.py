"""`bench.py costs`: costs of sessions on own data by phase, the basis of a plan's estimate (`runs.member.outlook`).

Every row is one real run of `train` or `evaluate` with default options on synthetic records in a file for each party,
as a consortium has them. Rounds and bytes are counted at party 0.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from accounting.tables import Column, Table
from secure_sccvfl.data.party_data import own_schema
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.research.benchmarks.measuring import Result, Tell, run_session

SHAPES = (
    *((400, 6, 3), (400, 24, 3), (1600, 12, 3), (1600, 36, 3)),
    *((6400, 12, 3), (6400, 24, 3), (1600, 12, 2), (1600, 12, 5)),
)
"""Records, features of all parties together, parties."""
LETTERS = ("a", "b", "c", "d")
BINARY, PROTECTED = ("0", "1"), ("no", "yes")


def write_files(folder: Path, rows: int, features: int, parties: int) -> Path:
    """Synthetic records of one consortium: numbers and categories in turn, some of which depend on s."""
    rng = stream(rows, "survey", str(features), str(parties))
    s = rng.random(rows) < 0.4
    values = np.clip(
        rng.beta(2, 2, (rows, features)) + 0.3 * (np.arange(features) % 3 == 0) * (s[:, None] - 0.5), 0, 1
    )
    y = rng.random(rows) < 1 / (1 + np.exp(-4 * (values - 0.5).sum(axis=1) / np.sqrt(features)))
    names = [f"x{k:02d}" for k in range(features)]
    lines = [
        *('name = "survey"', 'task = "binary"', 'id = "id"'),
        f'label = {{ party = "p0", column = "y", classes = {json.dumps(BINARY)} }}',
        f'protected = [ {{ party = "p1", column = "s", groups = {json.dumps(PROTECTED)} }} ]',
    ]
    folder.mkdir(parents=True)
    for rank in range(parties):
        own = range(rank, features, parties)
        described = [
            f'{{ name = "{names[k]}", kind = "category", categories = {json.dumps(LETTERS)} }}'
            if k % 2
            else f'{{ name = "{names[k]}", kind = "number", low = 0, high = 1 }}'
            for k in own
        ]
        lines += [f"[parties.p{rank}]", f'file = "p{rank}.csv"', f"features = [ {', '.join(described)} ]"]
        columns = [
            np.array(LETTERS)[(values[:, k] * 3.999).astype(int)] if k % 2 else values[:, k].round(4) for k in own
        ]
        head = ["id", *(names[k] for k in own)]
        if rank < 2:
            held = np.array(PROTECTED)[s.astype(int)] if rank else y.astype(int)
            head, columns = [*head, "s" if rank else "y"], [*columns, held]
        with open(folder / f"p{rank}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            writer.writerows(zip((f"r{k:06d}" for k in range(rows)), *columns, strict=True))
    (folder / "survey.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "survey.toml"


def measure(tell: Tell, shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> Result:
    """One row for each shape and job: what the estimate knows beforehand, and the cost of each phase."""
    rows: list[dict[str, Any]] = []
    for records, features, parties in shapes:
        tell(f"{records} records, {features} features, {parties} parties")
        with tempfile.TemporaryDirectory(prefix="sccvfl-survey-") as place:
            path = write_files(Path(place) / "data", records, features, parties)
            schema = own_schema(path)
            bins = sum(sum(own.values()) for own in schema.bins.values())
            shape = {"rows": records, "features": features, "bins": bins, "groups": sum(schema.group_counts)}
            options = {"dataset": str(path)}
            for job in ("train", "evaluate"):
                results, _ = run_session(Path(place) / job, job, dict(options), parties, deadline=120.0)
                rows.append({"job": job, "parties": parties, **shape, "phases": results[0]["cost"]})
                options["model"] = str(Path(place) / "train")
    phases = [{**row, "phase": phase, **cost} for row in rows for phase, cost in row["phases"].items()]
    note = "Rounds and bytes are those of party 0. `sccvfl plan` estimates from these rows."
    return Result({"rows": rows}, [note, Table.of(phases, COLUMNS)])


COLUMNS = (
    *(Column("job"), Column("records", "rows"), Column("features"), Column("parties"), Column("phase")),
    Column("rounds", form=".0f"),
    Column("MB to peers", "bytes", ".2f", 1e6),
    Column("MB dealer", "dealer_bytes", ".2f", 1e6),
    Column("s", "seconds", ".2f"),
)
