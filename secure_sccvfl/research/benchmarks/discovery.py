"""`bench.py discovery`: one release of noisy group tables by number of records, and next to stock CrypTen.

A pass is everything that a first release takes: input checks, masks and product in chunks, the agreement on the
budget, noise, opening. The inputs are public one-hot bins, so that the result can be checked here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accounting.budget import Budget
from accounting.records import RecordSet
from accounting.tables import Column, Table
from protocols.config import ConfigError, SessionConfig
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums
from secure_sccvfl.releases.catalogue import SKETCH, Columns, Facts
from secure_sccvfl.releases.charging import Charger
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

FEATURES, BINS = 20, 5
PEER_ROWS = 60_000
"""The size at which stock CrypTen does the same work."""
HOLDER = 1
MULTIPLIER = 4.0
ROWS = (1_000, 10_000, 100_000, 1_000_000)
GROUPS = (2, 9)


def layout(features: int, bins: int, parties: int) -> dict[int, dict[str, int]]:
    """Features assigned to the parties in turn."""
    return {
        rank: {f"x{number}": bins for number in range(features) if number % parties == rank}
        for rank in range(parties)
    }


def synthetic(columns: Columns, rows: int, groups: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """One-hot bins of these features, each a little dependent on the group; and the groups."""
    codes = np.random.default_rng(0).integers(0, groups, rows)
    blocks = {}
    for own in columns.values():
        for name, bins in own.items():
            rng = np.random.default_rng([1, int(name[1:])])
            drawn = rng.integers(0, bins, rows, dtype=np.uint8)
            drawn[rng.random(rows) < 0.1] = 0
            blocks[name] = one_hot(drawn, bins, np.uint8)
    return blocks, codes


class DiscoveryBenchmark:
    """Options: `rows`, `features`, `bins`, `groups`, `repeats`."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        sizes = {"rows": 1000, "features": 20, "bins": 5, "groups": 2, "repeats": 3, **config.options}
        if len(sizes) != 5 or min(sizes.values()) < 1:
            raise ConfigError(f"bad options for the discovery benchmark: {config.options}")
        self.rows, self.features, self.bins = sizes["rows"], sizes["features"], sizes["bins"]
        self.groups, self.repeats = sizes["groups"], sizes["repeats"]
        self.columns = layout(self.features, self.bins, len(config.parties))

    def plan(self) -> ReleasePlan:
        return ReleasePlan(SKETCH.releases(Facts(self.columns, (self.groups,), refreshes=self.repeats)))

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        progress("group tables", 0, 1)
        own, codes = synthetic({0: self.columns[session.rank]}, self.rows, self.groups)
        held = codes if session.rank == HOLDER else None
        budget = Budget.in_memory(1e6, min(1e-5, 1 / self.rows))
        records = RecordSet(np.arange(self.rows, dtype=np.uint64))
        charger = Charger(session, budget, MULTIPLIER, session.agree_on_name(), records)
        sensitivity = float(np.sqrt(self.features))
        passes = iter(range(self.repeats + 1))

        def release() -> dict[str, np.ndarray]:
            # A new object each time, so that nothing is kept from the pass before.
            statistics = SecureStatistics(session, self.columns, [HOLDER], self.rows, charger)
            name = SKETCH.charged_as(next(passes))
            return statistics.release(GroupSums(name, sensitivity), own, [held], [self.groups]).tables[0]

        before = session.total_cost.sent
        found, timing = time_repeats(release, self.repeats, session.barrier, lambda: session.total_cost.rounds)
        noise = SecureStatistics(session, self.columns, [HOLDER], self.rows, charger).deviation(sensitivity)
        indicators = one_hot(codes, self.groups)
        error = max(float(np.abs(table - own[k].T @ indicators).max()) for k, table in found.items())
        row = {
            "job": f"{self.rows} x {self.features * self.bins} by {self.groups}",
            "max_error": error / noise,
            "sent": (session.total_cost.sent - before) / (self.repeats + 1),
            **timing,
        }
        return {"ok": error < 8 * noise, "rows": [row]}


def _ours(rows: int, groups: int, repeats: int) -> Row:
    """One session of ours, with TLS and the dealer."""
    options = {"rows": rows, "features": FEATURES, "bins": BINS, "groups": groups, "repeats": repeats}
    results, usage = run_ours("bench-discovery", options)
    rows_of_parties = [rows_of_party[0] for rows_of_party in results]
    return {
        **rows_of_parties[0],
        "job": "tables",
        "max_error": max(row["max_error"] for row in rows_of_parties),
        "sent": sum(row["sent"] for row in rows_of_parties),
        **usage.megabytes,
    }


def _at_size(rows: int, groups: int, repeats: int, tell: Tell) -> Row:
    tell(f"{rows} rows, {groups} groups")
    row = _ours(rows, groups, repeats)
    return {
        "rows": rows,
        "groups": groups,
        "seconds": middle([row], "seconds"),
        "sent": round(row["sent"]),
        **{name: row[name] for name in ("rounds", "party_mb", "dealer_mb")},
        "max_error_in_deviations": round(row["max_error"], 2),
    }


def measure(repeats: int, blocks: int, tell: Tell) -> Result:
    """Ours at growing size; then one size in turn with stock CrypTen, sharing included."""
    scale = [_at_size(rows, groups, min(repeats, 3), tell) for groups in GROUPS for rows in ROWS]
    systems = {
        "ours": lambda: [_ours(PEER_ROWS, 2, repeats)],
        "crypten-tfp": lambda: run_stock("TFP", repeats, "discovery"),
        "crypten-ttp": lambda: run_stock("TTP", repeats, "discovery"),
    }
    peers: list[Row] = [
        {
            "system": system,
            "seconds": middle(found, "seconds"),
            "bytes": round(middle(found, "loopback") or 0),
            "rounds": found[-1]["rounds"],
        }
        for (_, system), found in in_turn(systems, blocks, tell).items()
    ]
    for row in peers:
        row["times_ours"] = round(row["seconds"] / peers[0]["seconds"], 2)
    return Result(
        {"parties": PARTIES, "scale": scale, "peers": peers},
        [
            f"One release from columns to opened noisy tables, {PARTIES} parties and the dealer, mutual TLS;\n"
            f"{FEATURES} features x {BINS} bins. First table: bytes that the parties sent, by their counters;\n"
            "memory of the largest process. Second: bytes of all processes, read from the loopback device.",
            Table.of(scale, SCALE),
            f"{PEER_ROWS:,} x {FEATURES * BINS} columns by 2 groups, sharing included, stock CrypTen without TLS:",
            Table.of(peers, PEERS),
        ],
    )


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
