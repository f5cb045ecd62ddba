"""`bench.py discovery`: the secret group tables at growing size, and beside stock CrypTen at one size."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launch.console import OK
from secure_sccvfl.local.memory import PeakMemory

PARTIES, FEATURES, BINS = 3, 20, 5
ROWS = (1_000, 10_000, 100_000, 1_000_000)
GROUPS = (2, 9)
PEER_ROWS = 60_000


def measure(rows: int, groups: int, repeats: int) -> dict[str, Any]:
    """One session of ours, with TLS and the dealer."""
    from protocols.config import SessionConfig
    from protocols.errors import ProtocolError
    from secure_sccvfl.local.processes import LocalSession

    placeholder = tuple(f"127.0.0.1:{rank + 1}" for rank in range(PARTIES))
    options = {"rows": rows, "features": FEATURES, "bins": BINS, "groups": groups, "repeats": repeats}
    config = SessionConfig(parties=placeholder, job="bench-discovery", options=options)
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        with LocalSession(config, Path(folder) / "run") as session:
            memory = PeakMemory({child.name: child.process.pid for child in session.children})
            ending = session.wait()
        if ending.code != OK:
            raise ProtocolError("; ".join(ending.failures))
        results = [
            json.loads((Path(folder) / "run" / f"party-{rank}" / "result.json").read_text())["rows"][0]
            for rank in range(PARTIES)
        ]
    parties = [peak for name, peak in memory.peaks.items() if name != "dealer"]
    return {
        **results[0],
        "max_error": max(row["max_error"] for row in results),
        "sent": sum(row["sent"] for row in results),
        "party_mb": max(parties, default=0) / 1e3,
        "dealer_mb": memory.peaks.get("dealer", 0) / 1e3,
    }


def scale_rows(repeats: int) -> list[dict[str, Any]]:
    """Ours at growing size. Bytes: all frames that the parties sent, by their own counters."""
    rows = []
    for groups in GROUPS:
        for count in ROWS:
            print(f"{count} rows, {groups} groups", file=sys.stderr, flush=True)
            row = measure(count, groups, repeats)
            rows.append(
                {
                    "rows": count,
                    "groups": groups,
                    "seconds": statistics.median(row["seconds"]),
                    "sent": round(row["sent"]),
                    "rounds": row["rounds"],
                    "party_mb": round(row["party_mb"]),
                    "dealer_mb": round(row["dealer_mb"]),
                    "max_error_in_deviations": round(row["max_error"], 2),
                }
            )
    return rows


def peer_rows(stock: Callable[[str], list[dict[str, Any]]], repeats: int, blocks: int) -> list[dict[str, Any]]:
    """60,000 x 100 columns by 2 groups, sharing included, in turn with stock CrypTen."""
    systems: dict[str, Callable[[], dict[str, Any]]] = {
        "ours": lambda: measure(PEER_ROWS, 2, repeats),
        "crypten-tfp": lambda: stock("TFP")[0],
        "crypten-ttp": lambda: stock("TTP")[0],
    }
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    for block in range(blocks):
        for name, run in systems.items():
            print(f"block {block + 1} of {blocks}: {name}", file=sys.stderr, flush=True)
            measured[name].append(run())
    rows = []
    for name, found in measured.items():
        seconds = statistics.median(second for block in found for second in block["seconds"])
        loopback = statistics.median(block["loopback"] for block in found)
        rows.append({"system": name, "seconds": seconds, "bytes": round(loopback), "rounds": found[-1]["rounds"]})
    for row in rows:
        row["times_ours"] = round(row["seconds"] / rows[0]["seconds"], 2)
    return rows


def markdown(result: dict[str, Any]) -> str:
    """Two tables."""
    lines = [
        f"Made by `{result['command']}` on {os.cpu_count()} cores, {PARTIES} parties and the dealer, mutual TLS;",
        f"{FEATURES} features x {BINS} bins; load average {result['load']:.1f} when it ended. One release from",
        "columns to opened noisy tables. First table: bytes that the parties sent, by their counters; memory of",
        "the largest process. Second: bytes of all processes, read from the loopback device.",
        "",
    ]
    lines += _table(
        ("rows", "groups", "seconds", "MB", "rounds", "party MB", "dealer MB", "largest error / deviation"),
        [
            (
                f"{row['rows']:,}",
                row["groups"],
                f"{row['seconds']:.3f}",
                f"{row['sent'] / 1e6:.2f}",
                row["rounds"],
                row["party_mb"],
                row["dealer_mb"],
                row["max_error_in_deviations"],
            )
            for row in result["scale"]
        ],
    )
    lines += [
        "",
        f"{PEER_ROWS:,} x {FEATURES * BINS} columns by 2 groups, sharing included, stock CrypTen without TLS:",
        "",
    ]
    lines += _table(
        ("system", "seconds", "times ours", "MB", "rounds"),
        [
            (row["system"], f"{row['seconds']:.3f}", row["times_ours"], f"{row['bytes'] / 1e6:.1f}", row["rounds"])
            for row in result["peers"]
        ],
    )
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
