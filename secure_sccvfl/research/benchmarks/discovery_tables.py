"""`bench.py discovery`: the secret group tables at growing size, and beside stock CrypTen at one size."""

from __future__ import annotations

import os
import statistics
from typing import Any

from accounting.tables import Column, Table, page
from secure_sccvfl.research.benchmarks.discovery import BINS, FEATURES, PEER_ROWS
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell, in_turn, run_ours, run_stock

ROWS = (1_000, 10_000, 100_000, 1_000_000)
GROUPS = (2, 9)


def measure(repeats: int, blocks: int, tell: Tell) -> dict[str, Any]:
    """The rows of both tables, and how busy the machine was at the end."""
    scale, peers = _scale_rows(min(repeats, 3), tell), _peer_rows(repeats, blocks, tell)
    return {"parties": PARTIES, "scale": scale, "peers": peers, "load": os.getloadavg()[1]}


def _ours(rows: int, groups: int, repeats: int) -> Row:
    """One session of ours, with TLS and the dealer."""
    options = {"rows": rows, "features": FEATURES, "bins": BINS, "groups": groups, "repeats": repeats}
    found, peaks = run_ours("bench-discovery", options)
    results = [of_party[0] for of_party in found]
    parties = [peak for name, peak in peaks.items() if name != "dealer"]
    return {
        **results[0],
        "max_error": max(row["max_error"] for row in results),
        "sent": sum(row["sent"] for row in results),
        "party_mb": max(parties, default=0) / 1e3,
        "dealer_mb": peaks.get("dealer", 0) / 1e3,
    }


def _scale_rows(repeats: int, tell: Tell) -> list[Row]:
    """Ours at growing size. Bytes: all frames that the parties sent, by their own counters."""
    rows = []
    for groups in GROUPS:
        for count in ROWS:
            tell(f"{count} rows, {groups} groups")
            row = _ours(count, groups, repeats)
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


def _peer_rows(repeats: int, blocks: int, tell: Tell) -> list[Row]:
    """60,000 x 100 columns by 2 groups, sharing included, in turn with stock CrypTen."""
    systems = {
        "ours": lambda: [{**_ours(PEER_ROWS, 2, repeats), "job": "tables"}],
        "crypten-tfp": lambda: run_stock("TFP", repeats, "discovery"),
        "crypten-ttp": lambda: run_stock("TTP", repeats, "discovery"),
    }
    rows: list[Row] = []
    for (_, name), found in in_turn(systems, blocks, tell).items():
        seconds = statistics.median(second for block in found for second in block["seconds"])
        loopback = statistics.median(block["loopback"] for block in found)
        rows.append({"system": name, "seconds": seconds, "bytes": round(loopback), "rounds": found[-1]["rounds"]})
    for row in rows:
        row["times_ours"] = round(row["seconds"] / rows[0]["seconds"], 2)
    return rows


SCALE = (
    Column("rows", form=","),
    Column("groups"),
    Column("seconds", form=".3f"),
    Column("MB", "sent", ".2f", 1e6),
    Column("rounds"),
    Column("party MB", "party_mb"),
    Column("dealer MB", "dealer_mb"),
    Column("largest error / deviation", "max_error_in_deviations"),
)
PEERS = (
    Column("system"),
    Column("seconds", form=".3f"),
    Column("times ours", "times_ours"),
    Column("MB", "bytes", ".1f", 1e6),
    Column("rounds"),
)


def markdown(result: dict[str, Any], command: str) -> str:
    """Two tables."""
    return page(
        f"Made by `{command}` on {os.cpu_count()} cores, {PARTIES} parties and the dealer, mutual TLS;\n"
        f"{FEATURES} features x {BINS} bins; load average {result['load']:.1f} when it ended. One release from\n"
        "columns to opened noisy tables. First table: bytes that the parties sent, by their counters; memory of\n"
        "the largest process. Second: bytes of all processes, read from the loopback device.",
        Table.of(result["scale"], SCALE),
        f"{PEER_ROWS:,} x {FEATURES * BINS} columns by 2 groups, sharing included, stock CrypTen without TLS:",
        Table.of(result["peers"], PEERS),
    )
