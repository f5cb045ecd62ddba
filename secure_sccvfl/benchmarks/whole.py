"""`bench.py run`: whole secure trainings beside the plaintext engine on the same releases.

The secure run is the default one (three parties as processes, dealer, mutual TLS; judges and baselines left
out). The plaintext engine then trains on the very tables that the secure run released, so that both take the
same steps; it runs in this process with one thread. Memory is of the largest process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from launch.console import OK
from secure_sccvfl.local.memory import PeakMemory

SIZES = ("german", "synthetic:1000", "synthetic:10000", "synthetic:100000")
PARTIES = (2, 3, 5)
ROUND_TRIP_MS = 20
SECURE_PHASES = ("inputs", "discovery and warm-up", "counterfactuals", "training")


def secure(dataset: str, parties: int, folder: Path, delay: float = 0.0) -> dict[str, Any]:
    """One secure training; what it took, as party 0 saw it. `delay`: seconds one way on every link."""
    from protocols.errors import ProtocolError
    from secure_sccvfl.local.processes import LocalSession
    from secure_sccvfl.local.whole_run import session_config

    config = session_config(folder, "train", parties, {"dataset": dataset}, deadline=120.0)
    start = time.perf_counter()
    with LocalSession(config, folder, delay=delay) as session:
        memory = PeakMemory({child.name: child.process.pid for child in session.children})
        ending = session.wait()
    if ending.code != OK:
        raise ProtocolError("; ".join(ending.failures))
    result = json.loads((folder / "party-0" / "result.json").read_text())
    phases = {name: result["cost"][name] for name in SECURE_PHASES}
    return {
        "seconds": sum(phase["seconds"] for phase in phases.values()),
        "wall_seconds": time.perf_counter() - start,
        "rounds": sum(phase["rounds"] for phase in phases.values()),
        "bytes": sum(phase["bytes"] for phase in phases.values()),
        "dealer_bytes": sum(phase["dealer_bytes"] for phase in phases.values()),
        "steps": result["steps"],
        "phases": {name: round(phase["seconds"], 3) for name, phase in phases.items()},
        "party_mb": round(max((v for k, v in memory.peaks.items() if k != "dealer"), default=0) / 1e3),
        "dealer_mb": round(memory.peaks.get("dealer", 0) / 1e3),
    }


def plain(dataset: str, parties: int, folder: Path) -> dict[str, Any]:
    """The plaintext engine on what the secure run in `folder` released."""
    import torch
    from threadpoolctl import threadpool_limits

    from secure_sccvfl.data.party import make_parties
    from secure_sccvfl.data.party_data import pooled
    from secure_sccvfl.data.splits import make_split
    from secure_sccvfl.discovery.plain_statistics import PlainStatistics, ReleasedTables
    from secure_sccvfl.discovery.roles import Roles
    from secure_sccvfl.modes.options import RunOptions
    from secure_sccvfl.run.model_files import load_model
    from secure_sccvfl.training.plain import PlainEngine
    from secure_sccvfl.training.trainer import train, warmup_steps

    data = pooled(dataset, parties)
    split, own = make_split(data, "iid", 0), make_parties(data)
    models = [load_model(folder / f"party-{p.rank}" / "model", p.layout) for p in own]
    statistics = PlainStatistics(ReleasedTables.of([m.sketches for m in models]))
    config, roles = RunOptions().train_config(), Roles(dict(models[0].roles))
    torch.set_num_threads(1)
    with threadpool_limits(1):
        start = time.perf_counter()
        model = train(PlainEngine(), statistics, data, split, config, 0, roles=roles, parties=own)
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "steps": warmup_steps(config) + sum(t.steps for t in model.trials)}


def pair(dataset: str, parties: int) -> list[dict[str, Any]]:
    """Ours and plain on one job."""
    print(f"{dataset}, {parties} parties", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        ours = secure(dataset, parties, folder)
        reference = plain(dataset, parties, folder)
    job = {"dataset": dataset, "parties": parties}
    ratio = round(ours["seconds"] / reference["seconds"], 1)
    return [{**job, "system": "ours-sealed", **ours, "times_plain": ratio}, {**job, "system": "plain", **reference}]


def delayed(dataset: str = "german", parties: int = 3) -> dict[str, Any]:
    """The same between hosts that are far apart (`secure_sccvfl/local/slow_link.py`)."""
    print(f"{dataset}, {parties} parties, {ROUND_TRIP_MS} ms round trip", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        ours = secure(dataset, parties, Path(place) / "run", ROUND_TRIP_MS / 2000)
    return {
        "dataset": dataset,
        "parties": parties,
        "system": "ours-sealed",
        "round_trip_ms": ROUND_TRIP_MS,
        **ours,
    }


def measure(sizes: tuple[str, ...] = SIZES) -> list[dict[str, Any]]:
    rows = [row for dataset in sizes for row in pair(dataset, 3)]
    for parties in PARTIES:
        if parties != 3:
            rows += pair("german", parties)
    return [*rows, delayed()]


def markdown(rows: list[dict[str, Any]], command: str, cores: int) -> str:
    """One table."""
    lines = [
        f"Made by `{command}` on {cores} cores. Seconds of training in secret (inputs, discovery with refreshes,",
        "counterfactuals, training), without the start of processes; plain: the plaintext engine, same releases.",
        "",
        "| data | parties | steps | ours s | plain s | times plain | rounds | MB sent | party MB | dealer MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["system"] != "ours-sealed":
            continue
        same = [r for r in rows if r["system"] == "plain" and r["dataset"] == row["dataset"]]
        other = next((r for r in same if r["parties"] == row["parties"]), None)
        name = row["dataset"] + (f", {row['round_trip_ms']} ms round trip" if "round_trip_ms" in row else "")
        reference = f"{other['seconds']:.2f}" if other and "times_plain" in row else ""
        lines.append(
            f"| {name} | {row['parties']} | {row['steps']} | {row['seconds']:.2f} | {reference} "
            f"| {row.get('times_plain', '')} | {row['rounds']} | {row['bytes'] / 1e6:.1f} | {row['party_mb']} "
            f"| {row['dealer_mb']} |"
        )
    return "\n".join(lines) + "\n"
