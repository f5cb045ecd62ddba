"""`bench.py shards`: a private head over synthetic rows, in one session and in row shards.

The parties hold the columns side by side; party 0 has the label. Every run trains the same head: second-order steps
with the private loss, a noise vector that is too small to matter, and the check of the finished head. Rows are made
where they are used, so by the workers of shards; no file is read.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from secure_sccvfl.accounting.tables import Column
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.records.releases import ANY, Release
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.research.benchmarks.measuring import PublicJob, Result, Row, Tell, filled, peak_memory, run_ours
from secure_sccvfl.research.benchmarks.random_rows import SIZE, RandomRows
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.training.engine import PRIVATE_CURVATURE
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.secure import SecureEngine

RIDGE = 0.01
"""Over records."""
STEPS = (4, 6, 3)
"""Before and after the curvature is taken at the heads, and precise ones."""


class ShardsBenchmark(PublicJob):
    """Options: `rows` and `columns`."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.rows, columns = int(config.options["rows"]), int(config.options["columns"])
        everyone = tuple(range(len(config.parties)))
        self.widths = [columns // len(everyone) + (at < columns % len(everyone)) for at in everyone]
        shapes: dict[str, tuple[int, ...]] = {"columns": (ANY,), "range check": (1,), "predictions": (ANY, ANY)}
        self.releases = [Release(name, everyone, shape, "inputs are public") for name, shape in shapes.items()]

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        engine, rank, began = SecureEngine(session, 0, [0]), session.rank, time.perf_counter()
        width, total = self.widths[rank], sum(self.widths)
        idle = [] if session.shards is None else session.shards.used()
        rows: Any = RandomRows(rank, width, 0, self.rows)
        weights = np.linspace(-4, 4, width, dtype=np.float32)
        label = None if rank else np.concatenate([(piece @ weights > 0).astype(np.int8) for piece in rows.pieces()])
        batch = engine.bind({rank: rows}, label, {rank: np.zeros(width)}, classes=True)
        grid = Grid((0.0,), (0.0,), PRIVATE_CURVATURE["binary"], 1.0, 0.0, sharpens=True, separate=True)
        noise = HeadNoise(1e-3, RIDGE * self.rows, 1e-9, float(np.sqrt(1 + total * SIZE**2)))
        flat, zero = {rank: np.full(width, grid.curvature * SIZE**2 + RIDGE)}, {rank: np.zeros(width)}
        descent = engine.second_order(batch, None, grid, Bounds(flat, zero, zero), noise)
        head = engine.head(batch, 1, "binary")
        for number, count in enumerate(STEPS):
            progress("steps", number, len(STEPS))
            head = engine.steps(head, descent, count, fine=number == 2)
            descent = descent if number else engine.sharpen(head, descent)
        head = engine.finish(head, descent)
        seconds = time.perf_counter() - began
        opened = session.open(head.weights.whole, session.declared("predictions"))
        used = [] if session.shards is None else session.shards.used()
        row: Row = {"seconds": seconds, **self.traffic(session), "memory": peak_memory()}
        row |= {"processor": time.process_time(), "idle": max((one.memory for one in idle), default=None)}
        row |= {"workers": [asdict(one) for one in used], "weights": np.asarray(opened)[:, 0].tolist()}
        return {"ok": True, "rows": [row]}


def measure_shards(rows: int, columns: int, counts: list[int], number: int, tell: Tell) -> Result:
    """A row for each number of workers; 0: one session without shards."""
    measured, reference = list[Row](), None
    for count in counts:
        tell(f"{rows} x {columns}: {f'{count} workers of each party' if count else 'one session'}")
        settings: dict[str, Any] = {"deadline": 900.0, "connect": 300.0, "shards": {"count": count} if count else {}}
        results, _ = run_ours("bench-shards", {"rows": rows, "columns": columns}, number, **settings)
        parties = [mine[0] for mine in results]
        weights = np.array(parties[0]["weights"])
        reference = weights if reference is None else reference
        workers = [one for party in parties for one in party["workers"]]
        mean = lambda name, of: sum(one[name] for one in of) / number  # noqa: E731
        row = {
            "count": count,
            "seconds": max(party["seconds"] for party in parties),
            "rounds": max(party["rounds"] for party in parties),
            "shard_rounds": max((one["rounds"] for one in workers), default=None),
            "sent": mean("sent", parties) + mean("sent", workers),
            "dealer": mean("dealer", parties) + mean("dealer", workers),
            "processor": mean("processor", parties) + mean("processor", workers),
            "head_memory": max(party["memory"] for party in parties),
            "idle": (idle := max((party["idle"] for party in parties), default=None) if count else None),
            "memory": (peak := max((one["memory"] for one in workers), default=None)),
            "above": None if idle is None or peak is None else peak - idle,
            "error": float(np.abs(weights - reference).max()),
        }
        measured.append(row)
    about = (
        f"Training of a private head on {rows} x {columns}, {number} parties, on this one machine.\n\n"
        "- `workers`: of each party; 0 is one session without shards.\n"
        "- `CPU s`, `MB to peers`, `MB dealer`: of one party with its workers.\n"
        "- `shard rounds`: of one shard session, at the same time as the others.\n"
        "- `MB worker`: peak memory of the largest worker. `MB idle`: before it has rows. `MB rows`: the rest.\n"
        "- `MB head`: peak memory of the party's own process.\n"
        "- `error`: largest difference of a weight from the first row of the table."
    )
    data = {"parties": number, "rows": rows, "columns": columns, "shards": measured}
    return Result(data, [about, filled(measured, COLUMNS)])


COLUMNS = (
    *(Column("workers", "count"), Column("s", "seconds", ".1f"), Column("CPU s", "processor", ".1f")),
    *(Column("rounds"), Column("shard rounds", "shard_rounds"), Column("MB to peers", "sent", ".1f", 1e6)),
    *(Column("MB dealer", "dealer", ".1f", 1e6), Column("MB worker", "memory", ".0f", 1e6)),
    *(Column("MB idle", "idle", ".0f", 1e6), Column("MB rows", "above", ".0f", 1e6)),
    *(Column("MB head", "head_memory", ".0f", 1e6), Column("error", "error", ".0e")),
)
