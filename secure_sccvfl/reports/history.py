"""Runs in a list, and some of them side by side, from their report.json and log alone. No numerical library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.charts import percent, tidy
from secure_sccvfl.metrics.rates import CERTIFIED
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.reports.figures import trusted
from secure_sccvfl.reports.results import REPORT, Report, ResultsError, read
from secure_sccvfl.reports.run_log import FINISHED, LOG

LISTED = ("date", "data", "mode", "epsilon", "accuracy", "flips", "certified")
"""What the list shows of each run; side by side there is more."""


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """The runs among these folders and in them, in the order of their names; ConfigError if there are none."""
    folders = list(folders)
    found = [folder for folder in folders if (folder / REPORT).is_file()]
    for folder in folders:
        if folder not in found:
            inside = sorted(path.parent for path in folder.glob(f"*/{REPORT}"))
            inside += sorted(path.parent for path in folder.glob(f"*/out/{REPORT}"))
            if not inside:
                raise ConfigError(f"no finished run in {folder}: name the folder of a run, or one with runs in it")
            found += inside
    return list(dict.fromkeys(found))


def summary(run: Path) -> dict[str, Any]:
    """The figures of a run that people compare; None where a run has none."""
    report = read(run)
    metrics, model = report.metrics, trusted(report)
    return {
        "run": str(run),
        "date": _finished(run),
        "data": report.dataset,
        "mode": report.mode,
        "epsilon": report.privacy.epsilon_rdp,
        "accuracy": metrics.get("acc"),
        "rmse": metrics.get("rmse"),
        "flips": metrics.get(f"fr_{model}"),
        "permuted": metrics.get(f"fr_null_{model}"),
        "certified": metrics.get(CERTIFIED),
        "group gap": metrics.get("dp_gap"),
        "counterfactual model": model,
        "majority": report.baselines.get("majority", {}).get("acc"),
        "cap": report.privacy.cap,
        "figures": "noisy" if report.noisy else "exact",
        "lambda": report.lam,
        "seed": report.seed,
        "parties": report.parties,
        "alignment": report.align,
        "security": report.security,
        "training records": report.rows.get("train"),
        "mediators": _columns(report, "M"),
        "proxies": _columns(report, "P"),
        "seconds": report.cost["total"].seconds if "total" in report.cost else None,
        "warnings": len(report.warnings),
    }


def listed(runs: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """The summaries of runs, the newest first, and a line for each whose report cannot be read."""
    rows, lost = [], []
    for run in runs:
        try:
            rows.append(summary(run))
        except ResultsError as error:
            lost.append(str(error))
    return sorted(rows, key=lambda row: row["date"], reverse=True), lost


def shown(name: str, value: Any) -> str:
    """A figure of a summary for people."""
    if value is None or value == "":
        return "-"
    if name in ("flips", "permuted", "certified"):
        return percent(value)
    return tidy(value, 3) if isinstance(value, float) else str(value)


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The figures that are not the same in all runs, and those that a list shows, in order."""
    return [name for name in rows[0] if name in LISTED or len({json.dumps(row[name]) for row in rows}) > 1]


def _columns(report: Report, role: str) -> str:
    return ", ".join(sorted(name for name, given in report.roles.items() if given == role))


def _finished(run: Path) -> str:
    """When a run ended, by its own log; "" without one. `audit verify` checks the log."""
    try:
        lines = [json.loads(line) for line in (run / LOG).read_text(encoding="utf-8").splitlines()]
        return next((str(line["time"])[:16] for line in lines if line["event"] == FINISHED), "")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
