"""`bench.py step`: one full-batch training step of every system (`benchmarks/step.py`), and what it costs."""

from __future__ import annotations

import os
import statistics

from secure_sccvfl.benchmarks.results import table
from secure_sccvfl.benchmarks.step import Mode, least_bytes, plain_rows
from secure_sccvfl.benchmarks.systems import PARTIES, Row, Tell, in_turn, run_ours, run_stock

TITLE = f"one training step, medians, {PARTIES} parties; `times ours` above 1: slower than ours"
COLUMNS = ("job", "system", "ms", "times ours", "rounds", "kB to peers", "least", "kB dealer", "MB memory", "error")
REFERENCE = {"sealed": "ours-sealed", "split": "ours-split"}
STOCK_REPEATS = 3
"""Repeats of a system whose step takes a second."""


def measure(repeats: int, blocks: int, tell: Tell) -> list[Row]:
    """A row for each kind of step and system."""
    systems = {
        "ours-sealed": lambda: _ours("sealed", repeats),
        "ours-split": lambda: _ours("split", repeats),
        "crypten-tfp": lambda: run_stock("TFP", STOCK_REPEATS, "step"),
        "crypten-ttp": lambda: run_stock("TTP", STOCK_REPEATS, "step"),
        "plain": lambda: [*plain_rows("sealed", repeats), *plain_rows("split", repeats)],
    }
    measured = in_turn(systems, blocks, tell)
    rows = [_summary(job, system, found) for (job, system), found in measured.items()]
    rows.sort(key=lambda row: (row["job"], list(systems).index(row["system"])))
    return rows


def _ours(mode: Mode, repeats: int) -> list[Row]:
    """One row: the slowest party's seconds, and the mean of what parties send and get from the dealer."""
    (rows,) = zip(*run_ours("bench-step", {"mode": mode, "repeats": repeats})[0], strict=True)
    slowest = max(rows, key=lambda row: statistics.median(row["seconds"]))
    mean = {name: statistics.mean(row[name] for row in rows) for name in ("sent", "dealer")}
    return [{**slowest, **mean, "memory": max(row["memory"] for row in rows)}]


def _summary(job: str, system: str, blocks: list[Row]) -> Row:
    """Medians. The bytes of stock CrypTen are read from the loopback device and include its provider."""

    def middle(name: str) -> float | None:
        return statistics.median(block[name] for block in blocks) if name in blocks[0] else None

    sent, loopback = middle("sent"), middle("loopback")
    return {
        "job": job,
        "system": system,
        "seconds": statistics.median(second for block in blocks for second in block["seconds"]),
        "rounds": round(blocks[-1]["rounds"]),
        "bytes_to_peers": round(sent if sent is not None else (loopback or 0) / PARTIES),
        "least_bytes": least_bytes("split" if job == "split" else "sealed") if system.startswith("ours") else None,
        "bytes_dealer": None if middle("dealer") is None else round(middle("dealer") or 0),
        "peak_memory": max(block["memory"] for block in blocks),
        "max_error": None if "softmax" in job else max(block["max_error"] for block in blocks),
    }


def cells(rows: list[Row]) -> list[list[str]]:
    """The rows as text, with the ratio to ours in the same mode."""
    seconds = {row["system"]: row["seconds"] for row in rows}

    def shown(value: float | None, scale: float, form: str) -> str:
        return "" if value is None else format(value / scale, form)

    return [
        [
            row["job"],
            row["system"],
            f"{row['seconds'] * 1e3:.2f}",
            f"{row['seconds'] / seconds[REFERENCE[row['job'].split()[0]]]:.2f}",
            str(row["rounds"]),
            shown(row["bytes_to_peers"], 1e3, ".1f"),
            shown(row["least_bytes"], 1e3, ".1f"),
            shown(row["bytes_dealer"], 1e3, ".1f"),
            shown(row["peak_memory"], 1e6, ".0f"),
            shown(row["max_error"], 1, ".0e"),
        ]
        for row in rows
    ]


def markdown(rows: list[Row], command: str) -> str:
    """What was measured, and one table."""
    lines = [
        f"Made by `{command}` on {os.cpu_count()} cores: 560 records with counterfactual rows, {PARTIES} parties",
        "x 64 columns, two classes, two groups. Ours with mutual TLS and a dealer, CrypTen over gloo without.",
        "",
        "- `sealed`: constant encodings, head update from task and consistency gradient. `split`: activations shared",
        "  anew, edits selected by the secret one-hot of s, head update, and each party's gradient opened to it.",
        "- Jobs without a suffix are the same mathematical step in all systems: sigmoid of the one logit.",
        "  `softmax` is CrypTen's over two logits; `gram` gives CrypTen the algebra of our sealed step.",
        "- `kB to peers`: what one party sends per step; ours counts frames (`least` is their payload alone),",
        "  CrypTen's is read from the loopback device, provider included. `kB dealer`: from and to it, per party.",
        "- `error`: largest difference of a head weight from the same steps in the clear, at the end of a block.",
        "",
        *table(COLUMNS, cells(rows)),
    ]
    return "\n".join(lines) + "\n"
