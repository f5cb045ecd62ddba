"""Whole secure runs over seeds, with their baselines, as one table."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accounting.plain_text import code
from accounting.tables import Column, Table, page
from protocols.errors import ProtocolError
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.evaluation.judges import FIRST, HANDED_OUT
from secure_sccvfl.evaluation.summary import half_width
from secure_sccvfl.runs.console import OK
from secure_sccvfl.runs.local.processes import session_config
from secure_sccvfl.runs.local.whole_run import WholeRun

METRICS = (
    *("acc", "logloss"),
    *(f"{metric}_{judge}" for judge in HANDED_OUT for metric in ("fr", "fr_null", "net")),
    *(f"scg_{FIRST}", "dp_gap", "eo_gap"),
)


def run_secure_seeds(
    given: Mapping[str, Any], seeds: Sequence[int], out: Path, command: str, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run each seed through real processes; finished seeds in OUT are kept. Writes results.json and results.md.

    given: options of the runs, the data set among them.
    """
    out.mkdir(parents=True, exist_ok=True)
    parties = len(load(given["dataset"]).parties)
    for seed in seeds:
        kept = out / f"seed-{seed}.json"
        if kept.exists():
            continue
        tell(f"{given['dataset']}, seed {seed}")
        with tempfile.TemporaryDirectory(prefix="sccvfl-") as place:
            folder = Path(place) / "run"
            config = session_config(folder, "train", parties, {**given, "seed": seed}, deadline=60.0)
            whole = WholeRun(folder, config)
            ending = whole.train()
            if ending.code != OK:
                raise ProtocolError(ending.cause)
            report = whole.finish(seeds=0)
        models = {"secure run": report.metrics, **report.baselines}
        facts = {"seed": seed, "lambda": report.lam, "seconds": report.cost["total"].seconds}
        kept.write_text(json.dumps({**facts, "models": models}) + "\n")
    finished = [json.loads((out / f"seed-{seed}.json").read_text()) for seed in seeds]
    rows = summary(finished)
    made = {"command": command, "date": datetime.date.today().isoformat(), "seeds": list(seeds)}
    (out / "results.json").write_text(json.dumps({**made, "rows": rows}, indent=1) + "\n")
    (out / "results.md").write_text(markdown(rows, command, len(finished)))
    return rows


def summary(finished: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over seeds with a 95 % interval (Student's t), by model and metric."""
    rows = []
    for model in finished[0]["models"]:
        for metric in METRICS:
            values = [f["models"][model][metric] for f in finished if metric in f["models"].get(model, {})]
            if not values:
                continue
            mean, half = float(np.mean(values)), half_width(np.array(values))
            row = {"model": model, "metric": metric, "mean": mean, "low": mean - half, "high": mean + half}
            rows.append({**row, "seeds": len(values)})
    return rows


def markdown(rows: list[dict[str, Any]], command: str, seeds: int) -> str:
    """One line per model."""
    by_model: dict[str, dict[str, str]] = {}
    for row in rows:
        shown = f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        by_model.setdefault(row["model"], {"model": row["model"]})[row["metric"]] = shown
    return page(
        f"Made by {code(command)}: {seeds} whole runs in secret, real processes over TLS; mean and 95 % interval.\n"
        "Flips (fr) and net flips (net) under judges that training never saw; fr_null: flips after s was shuffled.\n"
        "Baselines in plaintext with the roles of the same run.",
        Table.of(by_model.values(), [Column("model"), *map(Column, METRICS)]),
    )
