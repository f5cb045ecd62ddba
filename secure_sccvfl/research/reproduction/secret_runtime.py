"""What a training in secret takes, step by step: the paper's method in mode `split`, and the default in `sealed`.

Real processes over TLS on this machine. Times are of a shared machine; rounds and bytes are exact. There is no
server: what the paper counts as messages of features and of the model is here what all parties send to each other.
"""

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
from secure_sccvfl.evaluation.summary import deviation
from secure_sccvfl.reports.folders import result_of
from secure_sccvfl.runs.local.processes import run_job, session_config
from secure_sccvfl.runs.local.whole_run import natural_parties

WAYS: Mapping[str, Mapping[str, str]] = {
    "split, the paper's method": {"mode": "split", "method": "paper"},
    "sealed, the default": {"mode": "sealed"},
}
TRAINING = "training"
COLUMNS = {
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


def one_run(dataset: str, given: Mapping[str, str], seed: int) -> dict[str, float]:
    """One training; bytes are the sum of what all parties sent, times and rounds those of party 0."""
    parties = natural_parties(dataset)
    with tempfile.TemporaryDirectory(prefix="sccvfl-") as place:
        folder = Path(place) / "run"
        options = {"dataset": dataset, "seed": seed, **given}
        run_job(session_config(folder, "train", parties, options, deadline=120.0), folder).check()
        results = [result_of(folder, rank) for rank in range(parties)]
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


def secret_runtime(
    dataset: str, seeds: Sequence[int], out: Path, command: str, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run the missing seeds of each way, then write results.json and results.md."""
    kept = out / "seeds"
    kept.mkdir(parents=True, exist_ok=True)
    rows = []
    for way, given in WAYS.items():
        found = []
        for seed in seeds:
            path = kept / f"{given['mode']}-{Path(dataset).stem}-{seed}.json"
            if not path.exists():
                tell(f"{way}, {dataset}, seed {seed}")
                path.write_text(json.dumps(one_run(dataset, given, seed)) + "\n")
            found.append(json.loads(path.read_text()))
        for metric in COLUMNS:
            values = np.array([one[metric] for one in found])
            figures = {"mean": float(values.mean()), "sd": deviation(values), "seeds": len(values)}
            rows.append({"dataset": dataset, "way": way, "metric": metric, **figures})
    made = {"command": command, "date": datetime.date.today().isoformat(), "seeds": list(seeds)}
    (out / "results.json").write_text(json.dumps({**made, "rows": rows}, indent=1) + "\n")
    (out / "results.md").write_text(markdown(rows, command, made["date"]))
    return rows


def markdown(rows: Sequence[Mapping[str, Any]], command: str, date: Any) -> str:
    """One line per way."""
    by_way: dict[str, dict[str, Any]] = {}
    for row in rows:
        way = by_way.setdefault(row["way"], {"way": row["way"], "seeds": row["seeds"]})
        way[row["metric"]] = f"{row['mean']:.2f} ± {row['sd']:.2f}"
    columns = [Column("way"), Column("seeds"), *(Column(title, metric) for metric, title in COLUMNS.items())]
    return page(
        f"Made by {code(command)} on {date}. Trainings in secret: real processes over TLS on one machine, without\n"
        "judges and evaluation. Mean ± standard deviation over seeds. kB and MB are what all parties send to each\n"
        "other. There is no server. The paper, in plaintext on another machine: 7.10 ± 1.04 ms a step, 2.87 MB of\n"
        "model-side and 125 to 147 MB of feature-side messages.",
        Table.of(by_way.values(), columns),
    )
