"""An experiment over seeds, on the plaintext engine: in processes of this machine, or on a Ray cluster.

Finished seeds are kept, so a stopped experiment continues where it was.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path
from typing import Any

from protocols.config import ConfigError, code_digest
from secure_sccvfl.reports.tables import markdown
from secure_sccvfl.research.plots import draw
from secure_sccvfl.research.reproduction.experiments import SeedRun, run_seed
from secure_sccvfl.research.reproduction.summary import short_name, summarise, title_of

Finished = Iterator[tuple[SeedRun, dict[str, Any]]]


def _on_this_machine(seeds: Sequence[SeedRun], workers: int) -> Finished:
    if workers == 1:
        for seed in seeds:
            yield seed, run_seed(seed)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(run_seed, seed): seed for seed in seeds}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _on_ray(seeds: Sequence[SeedRun], workers: int) -> Finished:
    """On a Ray cluster (RAY_ADDRESS), or on a local one with this many workers."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--engine ray needs the extra: pip install 'secure-sccvfl[ray]'") from None
    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS")
        extra: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, **extra)
    try:
        remote = ray.remote(num_cpus=1)(run_seed)
        waiting = {remote.remote(seed): seed for seed in seeds}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(ready[0]), ray.get(ready[0])
    finally:
        if started:
            ray.shutdown()


ENGINES: dict[str, Callable[[Sequence[SeedRun], int], Finished]] = {"local": _on_this_machine, "ray": _on_ray}


def command_line(
    experiment: str, datasets: Sequence[str], splits: Sequence[str], card: str, seeds: range, out: str = ""
) -> str:
    """The command that makes a table. A file's folder is left out: it is of one machine."""
    named = [f"{kind}:{Path(path).name}" if path else kind for kind, _, path in (d.partition(":") for d in datasets)]
    words = ["python launch/reproduce.py", experiment, *(f"--dataset {name}" for name in named)]
    words += [f"--split {split}" for split in splits]
    words += [f"--card {card}"] if card else []
    words += [f"--first-seed {seeds.start} --seeds {len(seeds)}"]
    return " ".join([*words, *([f"--out {out}"] if out else [])])


def reproduce(
    experiment: str,
    datasets: Sequence[str],
    splits: Sequence[str],
    seeds: range,
    workers: int,
    out: Path,
    engine: str,
    *,
    card: str = "",
    command: str = "",
    note: str = "",
    progress: Callable[[int, int], None] = lambda finished, total: None,
) -> list[dict[str, Any]]:
    """Run the missing seeds, then write results.json, results.md and plots over all requested seeds.

    `command`: what made them, and `note`: what a reader must know of them, for the files.
    """
    kept = out / "seeds"
    kept.mkdir(parents=True, exist_ok=True)
    asked = [
        SeedRun(experiment, dataset, split, seed, card)  # type: ignore[arg-type]
        for dataset in datasets
        for split in splits
        for seed in seeds
    ]
    missing = [one for one in asked if not (kept / f"{one.key}.json").exists()]
    done = len(asked) - len(missing)
    progress(done, len(asked))
    for number, (one, result) in enumerate(ENGINES[engine](missing, workers), start=done + 1):
        _store(kept, one, result)
        progress(number, len(asked))
    finished = [json.loads((kept / f"{one.key}.json").read_text("utf-8")) for one in asked]
    rows = summarise(finished)
    titles = {short_name(name): title_of(name) for name in datasets}
    date = datetime.date.today().isoformat()
    made = {"command": command, "date": date, **versions(), "seeds": list(seeds), "note": note, "titles": titles}
    found = {"experiment": experiment, **made, "rows": rows, "per_seed": per_seed(finished)}
    text = json.dumps(found, indent=1)
    (out / "results.json").write_text(text + "\n", encoding="utf-8")
    told = f"Made by `{command}` on {date}.\n\n" if command else ""
    told += f"{note}\n\n" if note else ""
    (out / "results.md").write_text(told + markdown(experiment, rows, titles), encoding="utf-8")
    draw(experiment, rows, out)
    return rows


PER_SEED = ("acc", "auc", "logloss", "fr_all", "fr_kr_all", "fr_null_all", "fr_null_kr_all", "fr_own", "dp_gap")
"""Figures that are kept for each seed."""


def per_seed(finished: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Data set and seed -> method -> figure."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for seed in finished:
        job = seed["job"]
        here = found.setdefault(f"{short_name(job['dataset'])} {job['seed']}", {})
        for score in seed["scores"]:
            name = score["metric"] if score["judge"] is None else f"{score['metric']}_{score['judge']}"
            if name in PER_SEED and score["method"] != "(edits)":
                here.setdefault(score["method"], {})[name] = round(score["value"], 5)
    return found


def versions() -> dict[str, Any]:
    """The code and the packages that made a result; the commit is empty outside a checkout."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    packages = {name: metadata.version(name) for name in ("torch", "crypten", "numpy", "scikit-learn")}
    return {"commit": asked.stdout.strip(), "code": code_digest().hex()[:16], "versions": packages}


def _store(folder: Path, seed: SeedRun, result: dict[str, Any]) -> None:
    """Write a finished seed atomically."""
    path = folder / f"{seed.key}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    os.replace(part, path)
