"""Whole runs under MPC over seeds: `reproduce.py secure` and `runtime-secret`.

Real processes over TLS on this machine. Times are of a shared machine; rounds and bytes are exact. There is no
server: what the paper counts as messages of features and of the model is here what all parties send to each other.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.accounting.tables import Column, Table, page
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.evaluation.counterfactual_models import FIRST, RUN_MODELS
from secure_sccvfl.evaluation.scoring import deviation, half_width
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.reports.folders import result_of
from secure_sccvfl.research.results import origin, provenance, write_results
from secure_sccvfl.runs.console import OK
from secure_sccvfl.runs.local.processes import run_job, session_config
from secure_sccvfl.runs.local.whole_run import WholeRun, natural_parties

Row = dict[str, Any]
Tell = Callable[[str], None]
METRICS = (
    *("acc", "logloss"),
    *(f"{metric}_{model}" for model in RUN_MODELS for metric in ("fr", "fr_null", "net")),
    *(f"scg_{FIRST}", "dp_gap", "eo_gap"),
)
WAYS: Mapping[str, Mapping[str, str]] = {
    "split, the paper's method": {"mode": "split", "method": "paper"},
    "sealed, the default": {"mode": "sealed"},
}
TRAINING = "training"
COSTS = {
    "seconds": "s in all",
    "training_seconds": "s of steps",
    "steps": "steps",
    "ms_per_step": "ms a step",
    "rounds_per_step": "rounds a step",
    "kb_per_step": "kB a step",
    "step_mb": "MB of steps",
    "mb": "MB in all",
    "dealer_mb": "MB from the dealer",
}


def kept(path: Path, make: Callable[[Path], Row]) -> Row:
    """The result of one run: read from `path`, or made in a temporary folder and written there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sccvfl-") as folder:
            result = make(Path(folder) / "run")
        path.write_text(json.dumps(result) + "\n")
    row: Row = json.loads(path.read_text())
    return row


def publish(out: Path, command: str, seeds: Sequence[int], rows: list[Row], note: str, table: Table) -> None:
    """Write results.json and results.md."""
    made = provenance(command)
    write_results(out / "results.json", {**made, "seeds": list(seeds), "rows": rows}, page(origin(made), note, table))


def secure_seeds(given: Mapping[str, Any], seeds: Sequence[int], out: Path, command: str, tell: Tell) -> list[Row]:
    """Run each seed with its evaluation and baselines. given: options of the runs, the data set among them."""
    parties = len(load(given["dataset"]).parties)
    finished = []
    for seed in seeds:
        tell(f"{given['dataset']}, seed {seed}")

        def run(folder: Path, seed: int = seed) -> Row:
            config = session_config(folder, "train", parties, {**given, "seed": seed}, deadline=60.0)
            whole = WholeRun(folder, config)
            ending = whole.train()
            if ending.code != OK:
                raise ProtocolError(ending.cause)
            report = whole.finish(seeds=0)
            facts = {"seed": seed, "lambda": report.lam, "seconds": report.cost["total"].seconds}
            return {**facts, "models": {"secure run": report.metrics, **report.baselines}}

        finished.append(kept(out / f"seed-{seed}.json", run))
    rows = summary(finished)
    by_model: dict[str, dict[str, str]] = {}
    for row in rows:
        shown = f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        by_model.setdefault(row["model"], {"model": row["model"]})[row["metric"]] = shown
    note = (
        f"{len(finished)} whole runs under MPC, real processes over TLS; mean and 95 % interval. Flip rates (fr)\n"
        "and net flip rates (net) under counterfactual models that training never saw;\n"
        "fr_null: after s was permuted. Baselines in plaintext with the roles of the same run."
    )
    publish(out, command, seeds, rows, note, Table.of(by_model.values(), [Column("model"), *map(Column, METRICS)]))
    return rows


def summary(finished: list[Row]) -> list[Row]:
    """Mean over seeds with a 95 % interval (Student's t), by model and metric."""
    rows = []
    for model in finished[0]["models"]:
        for metric in METRICS:
            values = [f["models"][model][metric] for f in finished if metric in f["models"].get(model, {})]
            if values:
                mean, half = float(np.mean(values)), half_width(np.array(values))
                row = {"model": model, "metric": metric, "mean": mean, "low": mean - half, "high": mean + half}
                rows.append({**row, "seeds": len(values)})
    return rows


def secure_runtime(dataset: str, seeds: Sequence[int], out: Path, command: str, tell: Tell) -> list[Row]:
    """Cost of a training by step: the paper's method in mode `split`, and the default in `sealed`."""
    parties, rows = natural_parties(dataset), []
    by_way: dict[str, Row] = {}
    for way, given in WAYS.items():
        finished = []
        for seed in seeds:
            tell(f"{way}, {dataset}, seed {seed}")

            def run(folder: Path, seed: int = seed, given: Mapping[str, str] = given) -> Row:
                options = {"dataset": dataset, "seed": seed, **given}
                run_job(session_config(folder, "train", parties, options, deadline=120.0), folder).check()
                return costs([result_of(folder, rank) for rank in range(parties)])

            finished.append(kept(out / "seeds" / f"{given['mode']}-{Path(dataset).stem}-{seed}.json", run))
        by_way[way] = {"way": way, "seeds": len(finished)}
        for metric in COSTS:
            values = np.array([one[metric] for one in finished])
            mean, sd = float(values.mean()), deviation(values)
            figures = {"mean": mean, "sd": sd, "seeds": len(values)}
            rows.append({"dataset": dataset, "way": way, "metric": metric, **figures})
            by_way[way][metric] = f"{mean:.2f} ± {sd:.2f}"
    note = (
        "Trainings under MPC without evaluation: real processes over TLS on one machine. Mean ± standard deviation\n"
        "over seeds. kB and MB are what all parties send to each other. There is no server. The paper, in plaintext\n"
        "on another machine: 7.10 ± 1.04 ms a step, 2.87 MB of model-side and 125 to 147 MB of feature-side messages."
    )
    columns = [Column("way"), Column("seeds"), *(Column(title, metric) for metric, title in COSTS.items())]
    publish(out, command, seeds, rows, note, Table.of(by_way.values(), columns))
    return rows


def costs(results: Sequence[Mapping[str, Any]]) -> Row:
    """Cost of one training; bytes are the sum of what all parties sent, times and rounds those of party 0."""
    cost, steps = results[0]["cost"], max(int(results[0]["steps"]), 1)
    sent = sum(r["cost"][TRAINING]["bytes"] for r in results)
    return {
        "seconds": sum(phase["seconds"] for phase in cost.values()),
        "training_seconds": cost[TRAINING]["seconds"],
        "steps": steps,
        "ms_per_step": 1000 * cost[TRAINING]["seconds"] / steps,
        "rounds_per_step": cost[TRAINING]["rounds"] / steps,
        "kb_per_step": sent / steps / 1e3,
        "step_mb": sent / 1e6,
        "mb": sum(phase["bytes"] for r in results for phase in r["cost"].values()) / 1e6,
        "dealer_mb": sum(phase["dealer_bytes"] for r in results for phase in r["cost"].values()) / 1e6,
    }
