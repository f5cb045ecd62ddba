"""`bench.py wan`: how long training takes between distant hosts, through a relay that delays every byte.

The relay (`secure_sccvfl/runs/local/relay.py`) limits no bandwidth. Whole trainings of ours, then one sealed
step of
each system. SPU's links go through the same relay. Those of stock CrypTen can not: gloo tells its own addresses. For
it the least is computed from what was measured without delay: every round waits for a message at least once.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from accounting.tables import Column, Table, page
from secure_sccvfl.research.benchmarks.peers.aby3 import run_spu
from secure_sccvfl.research.benchmarks.steps import step_table
from secure_sccvfl.research.benchmarks.steps.step import Size, plain_rows
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell, run_stock
from secure_sccvfl.research.benchmarks.trainings import whole
from secure_sccvfl.research.benchmarks.trainings.whole import MEMORY, sent, took

DELAYS_MS = (0, 20, 100)
REPEATS = 2


def measure(dataset: str, blocks: int, tell: Tell, spu: Path | None = None) -> dict[str, list[Row]]:
    """Trainings (the middle one of several) and steps at every delay."""
    trainings = [{"round_trip_ms": delay, **whole.middle(dataset, blocks, delay, tell)} for delay in DELAYS_MS]
    return {"trainings": trainings, "steps": steps(Size(), tell, spu)}


def steps(size: Size, tell: Tell, spu: Path | None = None) -> list[Row]:
    """One sealed step of each system at every delay; seconds of CrypTen are computed where there is one."""
    found: list[Row] = []
    for delay in DELAYS_MS:
        tell(f"one sealed step, {size}, {delay} ms round trip")
        systems = {"ours-sealed": step_table.ours("sealed", REPEATS, size, delay / 2000)}
        if spu is not None:
            systems["spu-aby3"] = run_spu(spu, REPEATS, size, delay / 2000)
        found += [_row(system, delay, rows[0]) for system, rows in systems.items()]
    shape = ("--rows", str(size.rows), "--width", str(size.width), "--cases", "sealed")
    for provider in ("TFP", "TTP"):
        tell(f"one sealed step, {size}, stock CrypTen, {provider}")
        row = _row(f"crypten-{provider.lower()}", 0, run_stock(provider, REPEATS, "step", *shape)[0])
        for delay in DELAYS_MS:
            late = {"seconds": row["seconds"] + row["rounds"] * delay / 2000, "computed": delay > 0}
            found.append({**row, "round_trip_ms": delay, **late})
    return [*found, _row("plain", 0, plain_rows("sealed", REPEATS, size)[0])]


def _row(system: str, delay: int, measured: Row) -> Row:
    return {
        "system": system,
        "round_trip_ms": delay,
        "seconds": statistics.median(measured["seconds"]),
        "rounds": round(measured["rounds"]),
        "computed": False,
    }


DELAY = Column("round trip ms", "round_trip_ms")
TRAININGS = (DELAY, *took(), Column("rounds"), *sent(), Column("CPU s", "processor", ".1f"), *MEMORY)
STEPS = (
    *(Column("system"), DELAY),
    Column("ms", lambda row: ("at least " if row["computed"] else "") + f"{row['seconds'] * 1e3:.1f}"),
    Column("rounds"),
)


def markdown(dataset: str, result: dict[str, list[Row]], command: str, note: str) -> str:
    """Trainings, and steps by system and delay."""
    return page(
        f"Made by `{command}` on {os.cpu_count() or 1} cores, {PARTIES} parties.\n"
        f"Whole secure trainings of {dataset} with discovery, penalty and one private head. `plain s`: the\n"
        "plaintext engine on the same releases. A relay delays every byte; bandwidth is not limited.",
        Table.of(result["trainings"], TRAININGS),
        f"One sealed step, {Size()}: a whole training of stock CrypTen takes too long here. {note}; its\n"
        "step has no consistency. Stock CrypTen can not go through the relay: `at least` is its time without delay\n"
        "and half a round trip for each round. `rounds` of SPU: messages that a party sends.",
        Table.of(result["steps"], STEPS),
    )
