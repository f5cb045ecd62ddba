"""`bench.py ops`: single secure operations of ours, stock CrypTen and plain torch, on the same public inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from accounting.tables import Column, Table
from protocols.config import SessionConfig
from protocols.records.releases import ANY, Release, ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.research.benchmarks.measuring import (
    PARTIES,
    Result,
    Row,
    Tell,
    in_turn,
    middle,
    run_ours,
    run_stock,
    time_repeats,
)
from secure_sccvfl.runs.jobs import Progress

Array = npt.NDArray[Any]
Work = Mapping[str, Callable[..., Any]]
SHARED: Work = {"matmul": lambda x, y: x.matmul(y), "product": lambda x, y: x * y, "ltz": lambda x: x._ltz()}
"""Operations that ours and stock CrypTen write alike."""


@dataclass(frozen=True)
class Case:
    """One operation: its public inputs, and what it computes."""

    inputs: tuple[Array, ...]
    plain: Callable[..., Array]


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    return {
        "matmul": Case((rng.normal(size=(1120, 192)), rng.normal(size=(192, 2))), lambda x, y: x @ y),
        "product": Case((rng.normal(size=(1120, 64)), rng.normal(size=(1120, 64))), lambda x, y: x * y),
        "sigmoid": Case((rng.uniform(-12, 12, size=1120),), lambda x: 1 / (1 + np.exp(-x))),
        "ltz": Case((rng.normal(size=2000),), lambda x: (x < 0) * 1.0),
        "open": Case((rng.normal(size=(1120, 2)),), lambda x: x),
    }


def timed(
    work: Work,
    share: Callable[[Array, int], Any],
    reveal: Callable[[Any], Any],
    repeats: int,
    progress: Progress = lambda name, number, total: None,
    **clock: Any,
) -> list[Row]:
    """A row for each operation, its result checked. clock: for `time_repeats`; functions in it are called anew."""
    rows = []
    for number, (name, case) in enumerate(cases().items()):
        progress(name, number, len(work))
        inputs = [share(value, owner) for owner, value in enumerate(case.inputs)]
        passes = clock["passes"]() if "passes" in clock else None
        result, timing = time_repeats(partial(work[name], *inputs), repeats, **{**clock, "passes": passes})
        found = np.asarray(result if name == "open" else reveal(result), dtype=float)
        error = float(np.abs(found - case.plain(*case.inputs)).max())
        rows.append({"job": name, "max_error": error, **timing})
    return rows


class OperationsBenchmark:
    """Option: `repeats` of each operation. The dealer works ahead, as it does in training."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.repeats = int(config.options.get("repeats", 10))
        everyone = tuple(range(len(config.parties)))
        self.releases = {
            dimensions: Release(
                f"benchmark result, {dimensions} dimensions",
                everyone,
                (ANY,) * dimensions,
                "inputs are public",
                times=len(cases()) * (self.repeats + 2),
            )
            for dimensions in (1, 2)
        }

    def plan(self) -> ReleasePlan:
        return ReleasePlan(self.releases.values())

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        def reveal(tensor: Any) -> Any:
            return session.open(tensor, self.releases[len(tensor.size())])

        work = {**SHARED, "sigmoid": lambda x: session.sigmoid(x, bound=12), "open": reveal}
        rows = timed(
            work,
            lambda value, owner: session.share(value, owner=owner % session.parties, shape=value.shape),
            reveal,
            self.repeats,
            progress,
            barrier=session.barrier,
            rounds=lambda: session.total_cost.rounds,
            passes=lambda: session.repeat(self.repeats + 1),
        )
        return {"ok": True, "rows": rows}


def plain_rows(repeats: int) -> list[Row]:
    """Plain torch, one thread."""
    torch.set_num_threads(1)
    work = {**SHARED, "sigmoid": torch.sigmoid, "ltz": lambda x: (x < 0).float(), "open": torch.clone}
    rows = timed(work, lambda value, owner: torch.from_numpy(value).float(), lambda x: x, repeats)
    return [{**row, "loopback": 0.0} for row in rows]


def measure(repeats: int, blocks: int, tell: Tell) -> Result:
    """A row for each operation and system."""
    systems = {
        "ours": lambda: run_ours("bench-ops", {"repeats": repeats})[0][0],
        "crypten-tfp": lambda: run_stock("TFP", repeats, "ops"),
        "crypten-ttp": lambda: run_stock("TTP", repeats, "ops"),
        "plain": lambda: plain_rows(repeats),
    }
    rows: list[Row] = [
        {
            "job": job,
            "system": system,
            "seconds": middle(found, "seconds"),
            "rounds": found[-1]["rounds"],
            "bytes": round((middle(found, "loopback") or 0) / PARTIES),
            "max_error": max(block["max_error"] for block in found),
        }
        for (job, system), found in in_turn(systems, blocks, tell).items()
    ]
    ours = {row["job"]: row["seconds"] for row in rows if row["system"] == "ours"}
    columns = (
        Column("job"),
        Column("system"),
        Column("ms", "seconds", ".3f", 1e-3),
        Column("times ours", lambda row: f"{row['seconds'] / ours[row['job']]:.2f}"),
        Column("rounds"),
        Column("kB per party", "bytes", ".1f", 1e3),
        Column("max error", "max_error", ".1e"),
    )
    note = f"{PARTIES} parties, medians. `times ours`: above 1 is slower than ours."
    return Result({"parties": PARTIES, "rows": rows}, [note, Table.of(rows, columns)])
