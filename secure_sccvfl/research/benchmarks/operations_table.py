"""`bench.py ops`: single secret operations of every system (`benchmarks/operations.py`), and what they cost."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial

import torch

from accounting.tables import Column, Table, page
from secure_sccvfl.research.benchmarks.operations import cases, time_repeats
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell, in_turn, run_ours, run_stock

TITLE = f"medians, {PARTIES} parties; `times ours` above 1: slower than ours"


def measure(repeats: int, blocks: int, tell: Tell) -> list[Row]:
    """A row for each operation and system."""
    systems = {
        "ours": lambda: run_ours("bench-ops", {"repeats": repeats})[0][0],
        "crypten-tfp": lambda: run_stock("TFP", repeats, "ops"),
        "crypten-ttp": lambda: run_stock("TTP", repeats, "ops"),
        "plain": lambda: _plain_rows(repeats),
    }
    measured = in_turn(systems, blocks, tell)
    rows = [_summary(job, system, found) for (job, system), found in measured.items()]
    order = list(dict.fromkeys(job for job, _ in measured))
    rows.sort(key=lambda row: (order.index(row["job"]), list(systems).index(row["system"])))
    return rows


def _plain_rows(repeats: int) -> list[Row]:
    """Plain torch, one thread."""
    torch.set_num_threads(1)
    work: dict[str, Callable[..., torch.Tensor]] = {
        "matmul": torch.matmul,
        "product": torch.mul,
        "sigmoid": torch.sigmoid,
        "ltz": lambda x: (x < 0).float(),
        "open": torch.clone,
    }
    rows = []
    for name, case in cases().items():
        inputs = [torch.from_numpy(value).float() for value in case.inputs]
        result, timing = time_repeats(partial(work[name], *inputs), repeats)
        error = float((result.double() - torch.from_numpy(case.plain(*case.inputs))).abs().max())
        rows.append({"job": name, "max_error": error, **vars(timing), "loopback": 0.0})
    return rows


def _summary(job: str, system: str, blocks: list[Row]) -> Row:
    return {
        "job": job,
        "system": system,
        "seconds": statistics.median(second for block in blocks for second in block["seconds"]),
        "rounds": blocks[-1]["rounds"],
        "bytes": round(statistics.median(block["loopback"] for block in blocks) / PARTIES),
        "max_error": max(block["max_error"] for block in blocks),
    }


def table(rows: list[Row]) -> Table:
    """With the ratio to ours."""
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
    return Table.of(rows, columns)


def markdown(rows: list[Row], command: str) -> str:
    """One table."""
    head = f"Made by `{command}` on {os.cpu_count()} cores, {PARTIES} parties. `times ours`: above 1 is slower."
    return page(head, table(rows))
