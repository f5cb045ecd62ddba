"""`bench.py step`: one full-batch training step of every system (`steps/step.py`), and what it costs.

At the usual size all kinds of step are measured, at another one `sealed` alone.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from accounting.tables import Column, Table, page
from secure_sccvfl.research.benchmarks.peers.aby3 import run_spu
from secure_sccvfl.research.benchmarks.steps.step import Mode, Size, least_bytes, plain_rows
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell, in_turn, run_ours, run_stock

REFERENCE = {"sealed": "ours-sealed", "split": "ours-split"}
STOCK_REPEATS = 3
"""Repeats of a system whose step takes a second."""
LARGE = 10_000
"""From so many rows on, a step of stock CrypTen takes tens of seconds: it is repeated once, with one provider."""


def title(size: Size) -> str:
    return f"one training step, {size}, medians, {PARTIES} parties; `times ours` above 1: slower than ours"


def measure(
    repeats: int,
    blocks: int,
    tell: Tell,
    size: Size | None = None,
    spu: Path | None = None,
    cases: Sequence[str] = ("sealed", "sealed gram"),
) -> list[Row]:
    """A row for each kind of step and system. `spu`: the Python that has it. `cases`: of CrypTen, at another size."""
    size, usual = size or Size(), Size()
    modes: tuple[Mode, ...] = ("sealed", "split") if size == usual else ("sealed",)
    systems: dict[str, Callable[[], list[Row]]] = {f"ours-{mode}": _ours_of(mode, repeats, size) for mode in modes}
    shape = ("--rows", str(size.rows), "--width", str(size.width))
    chosen = () if size == usual else ("--cases", *cases)
    often = STOCK_REPEATS if size.rows < LARGE else 1
    systems["crypten-tfp"] = lambda: run_stock("TFP", often, "step", *shape, *chosen)
    if size.rows < LARGE:
        systems["crypten-ttp"] = lambda: run_stock("TTP", often, "step", *shape, *chosen)
    if spu is not None:
        systems["spu-aby3"] = lambda: run_spu(spu, repeats, size)
    systems["plain"] = lambda: [row for mode in modes for row in plain_rows(mode, repeats, size)]
    measured = in_turn(systems, blocks, tell)
    rows = [_summary(job, system, found, size) for (job, system), found in measured.items()]
    rows.sort(key=lambda row: (row["job"], list(systems).index(row["system"])))
    return rows


def _ours_of(mode: Mode, repeats: int, size: Size) -> Callable[[], list[Row]]:
    return lambda: ours(mode, repeats, size)


def ours(mode: Mode, repeats: int, size: Size, delay: float = 0.0) -> list[Row]:
    """One row: the slowest party's seconds, and the mean of what parties send and get from the dealer."""
    settings = {"mode": mode, "repeats": repeats, "rows": size.rows, "width": size.width}
    (rows,) = zip(*run_ours("bench-step", settings, delay=delay)[0], strict=True)
    slowest = max(rows, key=lambda row: statistics.median(row["seconds"]))
    mean = {name: statistics.mean(row[name] for row in rows) for name in ("sent", "dealer")}
    return [{**slowest, **mean, "memory": max(row["memory"] for row in rows)}]


def _summary(job: str, system: str, blocks: list[Row], size: Size) -> Row:
    """Medians. The bytes of stock CrypTen are read from the loopback device and include its provider."""

    def middle(name: str) -> float | None:
        return statistics.median(block[name] for block in blocks) if name in blocks[0] else None

    sent, loopback = middle("sent"), middle("loopback")
    busy = [second for block in blocks for second in block.get("processor", ())]
    mode: Mode = "split" if job == "split" else "sealed"
    return {
        "job": job,
        "system": system,
        "rows": size.rows,
        "columns": size.columns,
        "seconds": statistics.median(second for block in blocks for second in block["seconds"]),
        "processor": statistics.median(busy) if busy else None,
        "rounds": round(blocks[-1]["rounds"]),
        "bytes_to_peers": round(sent if sent is not None else (loopback or 0) / PARTIES),
        "least_bytes": least_bytes(mode, size) if system.startswith("ours") else None,
        "bytes_dealer": None if middle("dealer") is None else round(middle("dealer") or 0),
        "peak_memory": max(block["memory"] for block in blocks),
        "max_error": None if "softmax" in job else max(block["max_error"] for block in blocks),
    }


def table(rows: list[Row]) -> Table:
    """With the ratio to ours in the same mode. The process of `plain` did other work too: no memory is shown."""
    seconds = {row["system"]: row["seconds"] for row in rows}
    columns = (
        Column("job"),
        Column("system"),
        Column("ms", "seconds", ".2f", 1e-3),
        Column("times ours", lambda row: f"{row['seconds'] / seconds[REFERENCE[row['job'].split()[0]]]:.2f}"),
        Column("CPU ms", "processor", ".1f", 1e-3),
        Column("rounds"),
        Column("kB to peers", "bytes_to_peers", ".1f", 1e3),
        Column("least", "least_bytes", ".1f", 1e3),
        Column("kB dealer", "bytes_dealer", ".1f", 1e3),
        Column("MB memory", lambda row: None if row["system"] == "plain" else f"{row['peak_memory'] / 1e6:.0f}"),
        Column("error", "max_error", ".0e"),
    )
    return Table.of(rows, columns)


def markdown(rows: list[Row], command: str, size: Size, note: str) -> str:
    """What was measured, and one table. `note`: about SPU."""
    return page(
        f"Made by `{command}` on {os.cpu_count()} cores:\n"
        f"{size.rows} records with counterfactual rows, {PARTIES} parties x {size.width} columns, two classes, two\n"
        "groups. Ours with mutual TLS and a dealer, CrypTen over gloo and SPU over brpc without.",
        "- `sealed`: constant encodings, head update from task and consistency gradient. `split`: activations "
        "shared\n"
        "  anew, edits selected by the secret one-hot of s, head update, and each party's gradient opened to it.\n"
        "- Jobs without a suffix are the same mathematical step in all systems: sigmoid of the one logit.\n"
        "  `softmax` is CrypTen's over two logits; `gram` gives CrypTen the algebra of our sealed step.\n"
        f"- `spu-aby3`: the sealed step without consistency, which is less work. {note}.\n"
        "- `CPU ms`: of one party, without the dealer. `kB to peers`: what one party sends per step; ours counts\n"
        "  frames (`least` is their payload alone), CrypTen's is read from the loopback device, provider included.\n"
        "  `kB dealer`: from and to it, per party. `rounds` of SPU: messages that a party sends.\n"
        "- `error`: largest difference of a head weight from the same steps in the clear, at the end of a block.",
        table(rows),
    )
