"""`bench.py discovery` and `bench.py align`: what precedes training.

`discovery`: one release of noisy group tables by number of records, and next to stock CrypTen: input checks, masks
and product in chunks, the agreement on the budget, noise, opening. The inputs are public one-hot bins, so that the
result can be checked here.

`align`: both alignments over real sessions. Every party holds the same number of ids; 60 % of them are common to all.
`hidden` includes the product of membership masks under MPC.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.accounting.tables import Column, Table
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums
from secure_sccvfl.protocols.alignment.hidden_intersection import HiddenIntersection
from secure_sccvfl.protocols.alignment.interface import Alignment, releases
from secure_sccvfl.protocols.alignment.psi import PrivateSetIntersection
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.matching import ABSENT
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import NOISY_TABLES, Columns, PlanFacts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.research.benchmarks.measuring import (
    PARTIES,
    PublicJob,
    Result,
    Row,
    Tell,
    compare,
    middle,
    run_ours,
    run_stock,
    table_of_systems,
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


def layout(parties: int) -> dict[int, dict[str, int]]:
    """Features assigned to the parties in turn."""
    return {rank: {f"x{number}": BINS for number in range(rank, FEATURES, parties)} for rank in range(parties)}


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


class DiscoveryBenchmark(PublicJob):
    """Options: `rows`, `groups`, `repeats`."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.rows, self.groups, self.repeats = (int(config.options[k]) for k in ("rows", "groups", "repeats"))
        self.columns = layout(len(config.parties))
        self.releases = NOISY_TABLES.releases(PlanFacts(self.columns, (self.groups,), refreshes=self.repeats))

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        progress("group tables", 0, 1)
        own, codes = synthetic({0: self.columns[session.rank]}, self.rows, self.groups)
        held = codes if session.rank == HOLDER else None
        budget = Budget.in_memory(1e6, min(1e-5, 1 / self.rows))
        records = RecordSet(np.arange(self.rows, dtype=np.uint64))
        charger = Charger(session, budget, MULTIPLIER, session.agree_on_name(), records)
        sensitivity = float(np.sqrt(FEATURES))
        passes = iter(range(self.repeats + 1))

        def release() -> dict[str, np.ndarray]:
            # A new object each time, so that nothing is kept from the pass before.
            statistics = SecureStatistics(session, self.columns, [HOLDER], self.rows, charger)
            name = NOISY_TABLES.charged_as(next(passes))
            return statistics.release(GroupSums(name, sensitivity), own, [held], [self.groups]).tables[0]

        before = session.total_cost.sent
        found, timing = time_repeats(release, self.repeats, session.barrier, lambda: session.total_cost.rounds)
        noise = SecureStatistics(session, self.columns, [HOLDER], self.rows, charger).deviation(sensitivity)
        indicators = one_hot(codes, self.groups)
        error = max(float(np.abs(table - own[k].T @ indicators).max()) for k, table in found.items())
        sent = (session.total_cost.sent - before) / (self.repeats + 1)
        row = {"job": "tables", "max_error": error / noise, "sent": sent, **timing}
        return {"ok": error < 8 * noise, "rows": [row]}


def _ours(rows: int, groups: int, repeats: int) -> Row:
    """One session of ours, with TLS and the dealer."""
    results, usage = run_ours("bench-discovery", {"rows": rows, "groups": groups, "repeats": repeats})
    every = [of_party[0] for of_party in results]
    largest, mean = max(row["max_error"] for row in every), sum(row["sent"] for row in every) / PARTIES
    return {**every[0], "max_error": largest, "sent": mean, **usage.megabytes}


def measure_discovery(repeats: int, blocks: int, tell: Tell) -> Result:
    """Ours at growing size; then one size in turn with stock CrypTen, sharing included."""
    scale: list[Row] = []
    for groups, rows in product(GROUPS, ROWS):
        tell(f"{rows} rows, {groups} groups")
        row = _ours(rows, groups, min(repeats, 3))
        figures = {name: row[name] for name in ("rounds", "party_mb", "dealer_mb")}
        figures |= {"seconds": middle([row], "seconds"), "sent": round(row["sent"] * PARTIES)}
        scale.append(
            {"rows": rows, "groups": groups, **figures, "max_error_in_deviations": round(row["max_error"], 2)}
        )
    systems = {
        "ours": lambda: [_ours(PEER_ROWS, 2, repeats)],
        "crypten-tfp": lambda: run_stock("TFP", "discovery", repeats=repeats),
        "crypten-ttp": lambda: run_stock("TTP", "discovery", repeats=repeats),
    }
    peers = compare(systems, blocks, tell)
    return Result(
        {"parties": PARTIES, "scale": scale, "peers": peers},
        [
            f"One release from columns to opened noisy tables, {PARTIES} parties and the dealer, mutual TLS;\n"
            f"{FEATURES} features x {BINS} bins. First table: bytes that the parties sent, by their counters;\n"
            "memory of the largest process. Second: bytes of a party, of stock\n"
            "CrypTen from the loopback device; the error of ours is in deviations of its noise.",
            Table.of(scale, SCALE),
            f"{PEER_ROWS:,} x {FEATURES * BINS} columns by 2 groups, sharing included, stock CrypTen without TLS:",
            table_of_systems(peers),
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

MODES = ("hidden", "revealed")
SIZES = (10_000, 100_000, 1_000_000)
CONSORTIA = (2, 3, 5)
COMMON = 0.6
CHECK = "benchmark: common records"


def ids_of(rank: int, count: int) -> list[str]:
    """Public ids: the first ones are everybody's."""
    common = int(COMMON * count)
    own = range(count * (rank + 1), count * (rank + 2) - common)
    return [f"{number:012d}" for number in (*range(common), *own)]


class AlignmentBenchmark(PublicJob):
    """Options: `mode`, `ids` (of each party)."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.mode, self.ids, everyone = config.options["mode"], config.options["ids"], range(len(config.parties))
        opened = releases(len(everyone), revealed=self.mode == "revealed")
        self.releases = [*opened, Release(CHECK, tuple(everyone), (1,), "public ids")]

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        ids, start, cpu = ids_of(session.rank, self.ids), time.perf_counter(), time.process_time()
        right = self._hidden(session, ids) if self.mode == "hidden" else self._revealed(session, ids, progress)
        row = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - start}
        return {"ok": right, "rows": [{**row, **self.traffic(session)}]}

    def _hidden(self, session: Session, ids: list[str]) -> bool:
        aligned = HiddenIntersection(session).align(ids)
        count = session.open(session.wrap(aligned.shares.sum(keepdims=True), 0), session.declared(CHECK))
        return count is not None and int(count) == int(COMMON * self.ids)

    def _revealed(self, session: Session, ids: list[str], progress: Progress) -> bool:
        alignment: Alignment = PrivateSetIntersection(session, progress)
        rows = alignment.align(ids).rows
        common = int(COMMON * self.ids)
        return bool(np.array_equal(rows[:common], np.arange(common)) and (rows[common:] == ABSENT).all())


def ours(mode: str, ids: int, parties: int) -> Row:
    """One session; the largest figures of its parties."""
    rows, usage = run_ours("bench-align", {"mode": mode, "ids": ids}, parties)
    most = {name: max(row[0][name] for row in rows) for name in rows[0][0]}
    return {"system": mode, "ids": ids, "parties": parties, **most, **usage.megabytes}


def measure_alignment(
    tell: Tell, lists: Sequence[str] | None = None, consortia: Sequence[int] | None = None
) -> Result:
    """A row for each list (mode, number of ids, perhaps the number of parties) and number of parties."""
    wanted = [parsed(text) for text in lists or [f"{mode}:{ids}" for mode in MODES for ids in SIZES]]
    rows = []
    for mode, ids, only in wanted:
        for parties in only or consortia or CONSORTIA:
            tell(f"{mode}, {ids} ids, {parties} parties")
            rows.append(ours(mode, ids, parties))
            tell(f"  {rows[-1]['cpu_seconds']:.1f} s of CPU a party, {rows[-1]['seconds']:.1f} s in all")
    note = (
        f"Each party has this many ids, {COMMON:.0%} of them common to all. CPU and bytes of the party with the\n"
        "most, `hidden` with the product of membership masks. Seconds: all processes share the cores."
    )
    return Result({"rows": rows}, [note, Table.of(rows, COLUMNS)])


def parsed(text: str) -> tuple[str, int, tuple[int, ...]]:
    """MODE:IDS or MODE:IDS:PARTIES as mode, ids, and the number of parties if it is given."""
    mode, *numbers = text.split(":")
    if mode not in MODES or len(numbers) not in (1, 2) or not all(number.isdigit() for number in numbers):
        raise ConfigError(
            f"--lists takes MODE:IDS or MODE:IDS:PARTIES with a mode of {', '.join(MODES)}, not {text!r}"
        )
    ids, *parties = map(int, numbers)
    if ids < 10 or not all(2 <= number <= max(CONSORTIA) for number in parties):
        raise ConfigError(f"--lists: 10 ids or more, and 2 to {max(CONSORTIA)} parties, not {text!r}")
    return mode, ids, tuple(parties)


COLUMNS = (
    Column("system"),
    Column("ids"),
    Column("parties"),
    Column("CPU s a party", "cpu_seconds", ".1f"),
    Column("s", "seconds", ".1f"),
    Column("MB to peers", "sent", ".1f", 1e6),
    Column("MB with dealer", "dealer", ".1f", 1e6),
    Column("party MB", "party_mb"),
    Column("dealer MB", "dealer_mb"),
)
