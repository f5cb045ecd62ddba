"""`bench.py evaluation`: how far noisy figures of a test part lie from the exact ones.

It makes one secure training on public data, then many noisy evaluations of it, each by real processes and with
fresh noise. In between it removes what was recorded and paid, which on public data harms nobody. The exact figures
come from the shares of all parties, which lie on this machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accounting.tables import Table, page
from secure_sccvfl.reports.folders import result_of
from secure_sccvfl.research.benchmarks.systems import PARTIES, Tell
from secure_sccvfl.runs.local.processes import run_job, session_config

EPSILON = 2.0
LARGE_GROUP = 1000


def measure(dataset: str, runs: int, tell: Tell) -> list[dict[str, Any]]:
    """A row for each evaluation: errors of accuracy and of rates of large groups, and their stated noise."""
    noisy = {"dataset": dataset, "evaluation": "noisy", "evaluation_epsilon": EPSILON, "evaluations": 1}
    rows = []
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"

        def session(job: str, where: Path, **more: Any) -> None:
            run_job(session_config(where, job, PARTIES, {**noisy, **more}, deadline=120.0), where).check()

        session("train", folder)
        exact, sizes = exact_figures(dataset, folder)
        for number in range(runs):
            tell(f"{dataset}: evaluation {number + 1} of {runs}")
            session("evaluate", folder / "evaluation", model=str(folder))
            rows.append(errors(result_of(folder / "evaluation", 0), exact, sizes))
            forget(folder)
    return rows


def forget(folder: Path) -> None:
    """Remove an evaluation, its record and its payment."""
    shutil.rmtree(folder / "evaluation")
    for rank in range(PARTIES):
        party = folder / f"party-{rank}"
        (party / "model" / "evaluation.json").unlink()
        for path in party.glob("evaluation.jsonl*"):
            path.unlink()


def exact_figures(dataset: str, folder: Path) -> tuple[dict[str, Any], list[int]]:
    """Accuracy and rates of groups of the test part, in the clear, and sizes of the groups."""
    from protocols.session.saving import combined
    from secure_sccvfl.data.party import make_parties
    from secure_sccvfl.data.party_data import pooled
    from secure_sccvfl.data.splits import make_split
    from secure_sccvfl.evaluation.metrics import group_table, utility
    from secure_sccvfl.runs.model_files import load_model

    data = pooled(dataset, PARTIES)
    test = make_split(data, "iid", 0).test
    parties = [party.take(test) for party in make_parties(data)]
    models = [load_model(folder / f"party-{p.rank}" / "model", p.layout) for p in parties]
    encoded = np.hstack([m.encoder(p.inputs) for m, p in zip(models, parties, strict=True)])
    logits = encoded @ combined([m.weight for m in models]) + combined([m.bias for m in models])
    label, codes = data.label.values[test], data.protected[0].codes[test]
    table = group_table(logits, label, codes, data.task)
    groups = {int(row["group"]): row for row in table}
    accuracy = next(s.value for s in utility(logits, label, data.task) if s.metric == "acc")
    return {"acc": accuracy, "groups": groups}, np.bincount(codes, minlength=len(data.protected[0].groups)).tolist()


def errors(told: Mapping[str, Any], exact: Mapping[str, Any], sizes: list[int]) -> dict[str, Any]:
    """How far off one evaluation is: accuracy, and the worst rate over a large number of records."""
    from secure_sccvfl.metrics.group_rates import DENOMINATORS

    off = [
        abs(rate["value"] - exact["groups"][g][name])
        for g, group in enumerate(told["groups"])
        for name, rate in group["rates"].items()
        if exact["groups"][g][DENOMINATORS[name]] >= LARGE_GROUP
    ]
    return {
        "acc": abs(told["metrics"]["acc"] - exact["acc"]),
        "large_groups": max(off, default=None),
        "large_rates": len(off),
        "acc_noise": told["noise"]["acc"],
        "deviation": told["evaluation"]["deviation"],
        "epsilon": told["evaluation"]["epsilon_rdp"],
        "test_records": sum(sizes),
    }


def markdown(dataset: str, rows: list[dict[str, Any]], command: str) -> str:
    """What was asked, and what was observed."""
    accuracy = np.array([row["acc"] for row in rows])
    figures = [_line("accuracy", accuracy, 0.005)]
    groups = np.array([row["large_groups"] for row in rows if row["large_groups"] is not None])
    if len(groups):
        figures.append(_line(f"worst rate of a group resting on {LARGE_GROUP} records or more", groups, 0.02))
    covered = np.mean([row["acc"] <= row["acc_noise"] for row in rows])
    return page(
        f"Made by `{command}`. {len(rows)} noisy evaluations at epsilon {EPSILON:g} of one secure training on\n"
        f"{dataset}, {rows[0]['test_records']} test records; each sum carries noise of deviation "
        f"{rows[0]['deviation']:.2f}.",
        Table(("figure", "error, median", "95 %", "largest", "asked", "runs within"), figures),
        f"The interval that the report states for the noise held the exact accuracy in {covered:.0%} of runs.",
    )


def _line(name: str, off: np.ndarray, limit: float) -> tuple[str, ...]:
    shown = (f"{value:.4f}" for value in (np.median(off), np.quantile(off, 0.95), off.max()))
    return (name, *shown, f"{limit:g}", f"{np.mean(off <= limit):.0%}")
