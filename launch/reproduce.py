"""Run an experiment of the method over seeds, on the plaintext engine, judged in common.

    python launch/reproduce.py main --dataset german --split iid --seeds 10 --jobs 2 --out results/german
    python launch/reproduce.py main --dataset german --first-seed 200 --seeds 10 --out results/fresh
    python launch/reproduce.py main --dataset my-data.toml --out results/mine
    python launch/reproduce.py discovery --out results
    python launch/reproduce.py secure --dataset german --first-seed 200 --seeds 10 --out results/secure-german

Finished seeds are kept in OUT/seeds, so a run that was stopped goes on where it was. OUT gets
results.json (data), results.md (tables with 95 % intervals) and plots.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from launch.console import OK, Parser, guarded
from secure_sccvfl.data.catalogue import dataset_help, load
from secure_sccvfl.evaluation.experiments import EXPERIMENTS, Job, run_job, summarise
from secure_sccvfl.report.plots import draw
from secure_sccvfl.report.tables import markdown


def _store(folder: Path, job: Job, result: dict[str, Any]) -> None:
    """Write a finished seed whole or not at all."""
    path = folder / f"{job.key}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    os.replace(part, path)


def _local(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    if workers == 1:
        for job in jobs:
            yield job, run_job(job)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(run_job, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _ray(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Seeds on a Ray cluster (RAY_ADDRESS), or on a local one with this many workers."""
    try:
        import ray
    except ImportError as error:
        raise SystemExit("--engine ray needs the extra: pip install 'secure-sccvfl[ray]'") from error
    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS")
        extra: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, **extra)
    try:
        remote = ray.remote(num_cpus=1)(run_job)
        waiting = {remote.remote(job): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(ready[0]), ray.get(ready[0])
    finally:
        if started:
            ray.shutdown()


RUNNERS: dict[str, Callable[[Sequence[Job], int], Iterator[tuple[Job, dict[str, Any]]]]] = {
    "local": _local,
    "ray": _ray,
}


def reproduce(
    experiment: str,
    datasets: Sequence[str],
    splits: Sequence[str],
    seeds: range,
    workers: int,
    out: Path,
    engine: str,
) -> list[dict[str, Any]]:
    """Run what is missing, then write results.json, results.md and plots over all seeds asked for."""
    kept = out / "seeds"
    kept.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(experiment, dataset, split, seed)  # type: ignore[arg-type]
        for dataset in datasets
        for split in splits
        for seed in seeds
    ]
    missing = [job for job in jobs if not (kept / f"{job.key}.json").exists()]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(experiment, total=len(jobs), completed=len(jobs) - len(missing))
        for job, result in RUNNERS[engine](missing, workers):
            _store(kept, job, result)
            bar.advance(task)
    finished = [json.loads((kept / f"{job.key}.json").read_text("utf-8")) for job in jobs]
    rows = summarise(finished)
    text = json.dumps({"experiment": experiment, "rows": rows}, indent=1)
    (out / "results.json").write_text(text + "\n", encoding="utf-8")
    (out / "results.md").write_text(markdown(experiment, rows), encoding="utf-8")
    draw(experiment, rows, out)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument(
        "experiment", choices=(*EXPERIMENTS, "discovery", "secure"), help="which table; secure: whole runs in secret"
    )
    parser.add_argument("--dataset", action="append", help=f"may be given twice; {dataset_help()}")
    parser.add_argument("--split", action="append", choices=("iid", "shift"), help="may be given twice; default iid")
    parser.add_argument("--seeds", type=int, default=10, help="how many (default 10)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--jobs", type=int, default=max(os.cpu_count() or 1, 1), help="processes (default: cores)")
    parser.add_argument("--out", type=Path, required=True, help="folder for results; finished seeds in it are kept")
    parser.add_argument("--engine", choices=tuple(RUNNERS), default="local", help="ray: on a Ray cluster")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1 or options.first_seed < 0:
        parser.error("--seeds and --jobs must be at least 1, --first-seed at least 0")
    return guarded("reproduce", lambda: run(options), debug=options.debug)


def run_discovery(out: Path) -> int:
    """Rank agreement of noisy scores, as OUT/discovery-utility.json and .md."""
    from secure_sccvfl.evaluation import discovery_utility

    rows, command = discovery_utility.measure(), "python launch/reproduce.py discovery --out results"
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": command, "rows": rows}, indent=1)
    (out / "discovery-utility.json").write_text(text + "\n", encoding="utf-8")
    (out / "discovery-utility.md").write_text(discovery_utility.markdown(rows, command), encoding="utf-8")
    print((out / "discovery-utility.md").read_text("utf-8"))
    return OK


def run_secure_seeds(options: argparse.Namespace) -> int:
    from launch.reproduce_secure import run_secure

    dataset, split = (options.dataset or ["german"])[0], (options.split or ["iid"])[0]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    command = f"python launch/reproduce.py secure --dataset {dataset} --split {split} "
    command += f"--first-seed {options.first_seed} --seeds {options.seeds}"
    run_secure(dataset, split, seeds, options.out, command)
    print((options.out / "results.md").read_text("utf-8"))
    return OK


def run(options: argparse.Namespace) -> int:
    if options.experiment == "discovery":
        return run_discovery(options.out)
    if options.experiment == "secure":
        return run_secure_seeds(options)
    datasets = options.dataset or (["mobility"] if options.experiment == "folktables" else ["german"])
    for name in datasets:
        load(name)  # a name or a file that is wrong is told before work is handed out
    rows = reproduce(
        options.experiment,
        datasets,
        options.split or ["iid"],
        range(options.first_seed, options.first_seed + options.seeds),
        options.jobs,
        options.out,
        options.engine,
    )
    print(json.dumps(rows) if options.json else (options.out / "results.md").read_text("utf-8"))
    return OK


if __name__ == "__main__":
    sys.exit(main())
