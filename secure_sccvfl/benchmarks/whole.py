"""`bench.py run`: whole secure trainings beside the plaintext engine on the same releases.

The secure run is the default one (three parties as processes, dealer, mutual TLS) without judges and baselines. The
plaintext engine then trains on the very tables that the secure run released, so that both take the same steps. It
runs in this process with one thread. Memory is that of the largest process.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from secure_sccvfl.benchmarks.results import table
from secure_sccvfl.benchmarks.systems import PARTIES, Tell
from secure_sccvfl.local.memory import PeakMemory
from secure_sccvfl.local.processes import LocalSession, session_config
from secure_sccvfl.report.results import result_of

SIZES = ("german", "synthetic:1000", "synthetic:10000", "synthetic:100000")
CONSORTIA = (2, 3, 5)
ROUND_TRIP_MS = 20
SECURE_PHASES = ("inputs", "discovery and warm-up", "counterfactuals", "training")


def secure(dataset: str, parties: int, folder: Path, delay: float = 0.0, leak: bool = True) -> dict[str, Any]:
    """One secure training; what it took, as party 0 saw it. `delay`: seconds one way on every link."""
    config = session_config(folder, "train", parties, {"dataset": dataset, "leak": leak}, deadline=120.0)
    start = time.perf_counter()
    with LocalSession(config, folder, delay=delay) as session:
        memory = PeakMemory({child.name: child.process.pid for child in session.children})
        ending = session.wait()
    ending.check()
    result = result_of(folder, 0)
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
    from secure_sccvfl.modes.options import RunOptions
    from secure_sccvfl.policy.roles import Roles
    from secure_sccvfl.run.model_files import load_model
    from secure_sccvfl.training.plain import PlainEngine
    from secure_sccvfl.training.trainer import train

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
    return {"seconds": seconds, "steps": config.warm_steps(model.task) + config.steps_along_grid(model.task)}


def pair(dataset: str, parties: int, tell: Tell) -> list[dict[str, Any]]:
    """Ours and plain on one job."""
    tell(f"{dataset}, {parties} parties")
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        ours = secure(dataset, parties, folder)
        reference = plain(dataset, parties, folder)
    job = {"dataset": dataset, "parties": parties}
    ratio = round(ours["seconds"] / reference["seconds"], 1)
    return [{**job, "system": "ours-sealed", **ours, "times_plain": ratio}, {**job, "system": "plain", **reference}]


def delayed(tell: Tell, dataset: str = "german", parties: int = PARTIES) -> dict[str, Any]:
    """One secure training between distant hosts (`secure_sccvfl/local/slow_link.py`)."""
    tell(f"{dataset}, {parties} parties, {ROUND_TRIP_MS} ms round trip")
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        ours = secure(dataset, parties, Path(place) / "run", ROUND_TRIP_MS / 2000)
    return {
        "dataset": dataset,
        "parties": parties,
        "system": "ours-sealed",
        "round_trip_ms": ROUND_TRIP_MS,
        **ours,
    }


def measure(tell: Tell, dataset: str | None = None) -> list[dict[str, Any]]:
    """All sizes and numbers of parties, and a slow network; or one data set with three parties."""
    if dataset is not None:
        return pair(dataset, PARTIES, tell)
    rows = [row for size in SIZES for row in pair(size, PARTIES, tell)]
    for parties in CONSORTIA:
        if parties != PARTIES:
            rows += pair("german", parties, tell)
    return [*rows, delayed(tell)]


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    """One table."""
    head = (
        "data",
        "parties",
        "steps",
        "ours s",
        "plain s",
        "times plain",
        "rounds",
        "MB sent",
        "party MB",
        "dealer MB",
    )
    cells = []
    for row in rows:
        if row["system"] != "ours-sealed":
            continue
        same = [r for r in rows if r["system"] == "plain" and r["dataset"] == row["dataset"]]
        other = next((r for r in same if r["parties"] == row["parties"]), None)
        name = row["dataset"] + (f", {row['round_trip_ms']} ms round trip" if "round_trip_ms" in row else "")
        reference = f"{other['seconds']:.2f}" if other and "times_plain" in row else ""
        seconds, sent = f"{row['seconds']:.2f}", f"{row['bytes'] / 1e6:.1f}"
        cells.append(
            (
                *(name, row["parties"], row["steps"], seconds, reference, row.get("times_plain", "")),
                *(row["rounds"], sent, row["party_mb"], row["dealer_mb"]),
            )
        )
    lines = [
        f"Made by `{command}` on {os.cpu_count() or 1} cores. Seconds of training in secret (inputs, discovery with "
        "refreshes,",
        "counterfactuals, training), without the start of processes; plain: the plaintext engine, same releases.",
        "",
        *table(head, cells),
    ]
    return "\n".join(lines) + "\n"
