"""Benchmark of the secret group tables: one release of synthetic one-hot bins, from columns to opened tables.

A pass is everything that a first release takes: input checks, masks and product in chunks, the agreement on the
budget, noise, opening. The inputs are public, so the result can be checked here. The runner of stock CrypTen uses
`synthetic` too, so that both do the same work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accounting.budget import Budget
from accounting.records import RecordSet
from protocols.config import ConfigError, SessionConfig
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.kinds import Columns, Facts
from secure_sccvfl.releases.releases import SKETCH
from secure_sccvfl.research.benchmarks.operations import time_repeats
from secure_sccvfl.runs.jobs import Progress

FEATURES, BINS = 20, 5
PEER_ROWS = 60_000
"""The size at which stock CrypTen does the same work."""
HOLDER = 1
MULTIPLIER = 4.0


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
            **timing.__dict__,
        }
        return {"ok": error < 8 * noise, "rows": [row]}
