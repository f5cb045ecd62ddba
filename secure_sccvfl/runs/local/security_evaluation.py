"""The security evaluation of a finished run: the sessions that it needs on this machine, all attacks, its report.

Attacks on what the run showed take long and run in their own process, next to the sessions. The sessions give the
receiver's predictions, shares of two secrets, and noisy statistics with a canary.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from secure_sccvfl.audit import evaluation, report
from secure_sccvfl.audit.bounds import Audit
from secure_sccvfl.audit.canaries import canaries_of, charged_kinds, of_results
from secure_sccvfl.audit.evaluation import ViewAttacks
from secure_sccvfl.audit.finished_run import FinishedRun, write_records
from secure_sccvfl.config.sections import wire_names
from secure_sccvfl.reports.folders import result_of
from secure_sccvfl.reports.page import write_page
from secure_sccvfl.reports.run_log import LOG, record
from secure_sccvfl.runs.local.processes import run_job, session_config
from secure_sccvfl.runs.process import THREAD_VARIABLES

Tell = Callable[[str], None]
"""Called with what is being done. It must be a function of a module: another process calls it too."""

_PRICED = (
    *("dataset", "split", "seed", "pooled", "epsilon", "delta", "refreshes", "late_refreshes"),
    *("mode", "generator", "dp_steps", "dp_sampling", *wire_names("discovery")),
    *("evaluation", "evaluation_epsilon", "evaluation_delta", "evaluations"),
)
"""The settings that the noise of a run depends on."""


def evaluate_run(folder: Path, releases: int, tell: Tell) -> dict[str, Any]:
    """Attack a run made with transcripts; writes the report's files into its folder and returns the report.

    `releases`: number of releases of each kind from each data set in the audit.
    """
    started = time.monotonic()
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        views = pool.submit(attack_views, folder, tell)
        with tempfile.TemporaryDirectory(prefix="sccvfl-") as work, threadpool_limits(1):
            rest, audits, skipped = _attack_the_rest(folder, Path(work), releases, tell)
        attacks = views.result()
    attacks.join(rest)
    attacks.decide()
    result = report.assemble(rest.run, attacks.rows, audits, time.monotonic() - started, skipped)
    _write(folder, result)
    return result


def attack_views(folder: Path, tell: Tell) -> ViewAttacks:
    """Attacks on what the run showed. It runs in its own process, next to the sessions."""
    torch.set_num_threads(1)
    attacks = ViewAttacks(FinishedRun.load(folder))
    attacks.every_view(tell)
    return attacks


def _attack_the_rest(
    folder: Path, work: Path, releases: int, tell: Tell
) -> tuple[ViewAttacks, dict[str, Audit], dict[str, str]]:
    """Attacks on the model and on sessions that this starts; DP audits; attacks that do not apply, and why."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run = FinishedRun.load(folder)
    attacks = ViewAttacks(run)
    tell("predictions of the test records")
    answers = _predictions(run, work)
    evaluation.predictions(attacks, answers, run.split.test)
    evaluation.further_models(attacks, tell)
    tell("shares of two secrets")
    _session(run, work / "shares", "share-probe", {})
    evaluation.shares(attacks, work / "shares")
    audits = _canaries(run, work / "canary", releases, tell)
    ready = evaluation.prepared(run)
    if run.options.training.mode != "aware":
        run.check_white_box(answers)
    skipped = evaluation.attack_model(attacks, ready, answers, tell)
    evaluation.attack_baselines(attacks, ready, tell)
    return attacks, audits, skipped


def _canaries(run: FinishedRun, folder: Path, releases: int, tell: Tell) -> dict[str, Audit]:
    """Audits of the noise, by release: on constructed records, with the noise of this run."""
    schema = run.options.schema(len(run.parties))
    canaries = canaries_of(charged_kinds(run.options, schema), run.options, schema)
    if not canaries:
        return {}
    tell("noisy releases with a canary kept and changed")
    settings = {k: v for k, v in run.options.flat().items() if k in _PRICED}
    _session(run, folder, "canary-audit", {**settings, "releases": releases})
    results = [result_of(folder, party.rank) for party in run.parties]
    return of_results(results, canaries)


def _session(run: FinishedRun, folder: Path, job: str, options: dict[str, Any]) -> None:
    run_job(session_config(folder, job, len(run.parties), options), folder).check()


def _predictions(run: FinishedRun, work: Path) -> np.ndarray:
    """Logits of the test records as their receiver got them from a real session."""
    records, folder = work / "records.csv", work / "predictions"
    write_records(run.data, run.split.test, records)
    same = ("dataset", "split", "seed", "pooled", "security")
    settings = {k: v for k, v in run.options.flat().items() if k in same}
    settings |= {"model": str(run.folder.resolve()), "records": str(records.resolve()), "scores": True}
    _session(run, folder, "predict", settings)
    with (folder / f"party-{run.holder('y')}" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    logits = {row["id"]: [float(v) for k, v in row.items() if k.startswith("logit ")] for row in rows}
    return np.array([logits[str(name)] for name in run.data.ids[run.split.test]])


def _write(run: Path, result: dict[str, Any]) -> None:
    """Write the report's files and the run's page with them, and record them in the run's log."""
    data, text = run / "security.json", run / "security.md"
    data.write_text(json.dumps(result, indent=1) + "\n")
    text.write_text(report.markdown(result))
    page = write_page(run)
    if (run / LOG).exists():
        leaks = [f"{row['attack']}: {row['view']}" for row in result["rows"] if row["leak"]]
        record(run, "leakage", {"ok": result["ok"], "leaks": leaks}, [data, text, page])


def unheard(line: str) -> None:
    """Ignore progress: for callers that want none."""


if __name__ == "__main__":
    evaluate_run(Path(sys.argv[1]), int(sys.argv[2]), unheard)
