"""Attack a finished run with what each place really saw, and audit its differential privacy.

    python launch/security_eval.py runs/2026-01-01              a run made with --transcript
    python launch/security_eval.py runs/new --fresh             make such a run first (German Credit)
    python launch/security_eval.py runs/new --fresh --dataset heart --seed 1
    python launch/security_eval.py runs/2026-01-01 --json       the result for a machine

Views: label holder, every party, every coalition of up to m-1, the dealer, the network (recorded TLS bytes), the
receiver of predictions (a real session opens the logits of the test records to it), and beside them the paper's
plaintext server. Attacks: s and y of training records, PGD on the model, telling shares of two secrets apart; and an
empirical lower bound on the epsilon of a sketch. Writes security.json, security.md and pictures into RUN, and its
page (report.html) anew.
Needs data that may be pooled: transcripts of all parties in one place give every secret away.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.console import CHECK_FAILED, OK, THREAD_VARIABLES, Parser, guarded, say

if TYPE_CHECKING:
    from secure_sccvfl.security.evaluation import ViewAttacks
    from secure_sccvfl.security.finished_run import FinishedRun

_FRESH = ("dataset", "seed", "parties", "mode")
_PRICED = (
    *("dataset", "split", "seed", "epsilon", "delta", "refreshes"),
    *("mode", "conditional", "generator", "source", "dp_steps", "dp_sampling"),
)
"""What the noise of a run follows from."""


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run made with --transcript")
    parser.add_argument("--fresh", action="store_true", help="make the run first; RUN must be a new folder")
    parser.add_argument("--dataset", help="with --fresh: as for run_mpc.py")
    parser.add_argument("--seed", help="with --fresh: as for run_mpc.py")
    parser.add_argument("--parties", help="with --fresh: as for run_mpc.py")
    parser.add_argument("--mode", help="with --fresh: as for run_mpc.py")
    parser.add_argument("--releases", type=int, default=400, help="sketches for the audit of each data set (400)")
    options = parser.parse_args(arguments)
    return guarded("security_eval", lambda: evaluate(options), debug=options.debug)


def evaluate(options: argparse.Namespace) -> int:
    from protocols.config import ConfigError

    given = [name for name in _FRESH if getattr(options, name) is not None]
    if given and not options.fresh:
        raise ConfigError(f"--{given[0]} goes with --fresh: a finished run has its own")
    if options.releases < 10:
        raise ConfigError(f"--releases must be at least 10, not {options.releases}")
    if options.fresh:
        from launch import run_mpc

        settings = [text for name in given for text in (f"--{name}", getattr(options, name))]
        with contextlib.redirect_stdout(sys.stderr):
            made = run_mpc.main(["--transcript", "--no-harness", "--out", str(options.run), *settings])
        if made != OK:
            return made
    elif (options.run / "session.toml").exists() and not (options.run / "dealer" / "transcript").is_dir():
        raise ConfigError(f"{options.run} has no transcripts: make a run with --transcript, or give --fresh")
    started = time.monotonic()
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        views = pool.submit(attack_views, options.run)
        with tempfile.TemporaryDirectory(prefix="sccvfl-") as work:
            report = _rest(options, Path(work), views.result, started)
    if options.json:
        print(json.dumps(report))
    else:
        print((options.run / "security.md").read_text())
    return OK if report["ok"] else CHECK_FAILED


def attack_views(folder: Path) -> ViewAttacks:
    """Attacks on what the run showed: in a process of its own, beside the sessions."""
    import torch

    from secure_sccvfl.security.evaluation import ViewAttacks
    from secure_sccvfl.security.finished_run import FinishedRun

    torch.set_num_threads(1)
    attacks = ViewAttacks(FinishedRun.load(folder))
    attacks.every_view(_say)
    return attacks


def _rest(options: argparse.Namespace, work: Path, views: Any, started: float) -> dict[str, Any]:
    """Sessions that the evaluation needs, attacks on them and on the model, and the report."""
    import torch

    from secure_sccvfl.security import evaluation, report
    from secure_sccvfl.security.dp_audit import of_results
    from secure_sccvfl.security.finished_run import FinishedRun

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run = FinishedRun.load(options.run)
    attacks = evaluation.ViewAttacks(run)
    _say("predictions of the test records")
    test = run.split.test
    evaluation.predictions(attacks, _predictions(run, work), test)
    _say("shares of two secrets")
    _session(run, work / "shares", "share-probe", {})
    evaluation.shares(attacks, work / "shares")
    _say("sketches with a canary's s kept and changed")
    settings = {k: getattr(run.options, k) for k in _PRICED}
    _session(run, work / "canary", "canary-audit", {**settings, "releases": options.releases})
    results = [json.loads((work / "canary" / f"party-{p.rank}" / "result.json").read_text()) for p in run.parties]
    audit = of_results(results, run.data, run.split)
    ready = evaluation.prepared(run)
    if run.options.mode == "sealed":
        attacks.rows += list(evaluation.white_box_rows(report.OURS, run.white_box(), ready))
    evaluation.contrasts(attacks, ready, _say)
    found = views()
    found.join(attacks)
    found.decide()
    made = report.assemble(run, found.rows, audit, time.monotonic() - started)
    _write(options.run, made)
    return made


def _write(run: Path, made: dict[str, Any]) -> None:
    """The report's files, the run's page with them, and a line in the run's log that they are part of it."""
    from secure_sccvfl.report.page import write_page
    from secure_sccvfl.report.run_log import LOG, record
    from secure_sccvfl.security import report

    names = ("security.json", "security.md", "security-views.svg", "security-curves.svg")
    data, text, views, curves = (run / name for name in names)
    data.write_text(json.dumps(made, indent=1) + "\n")
    text.write_text(report.markdown(made))
    report.draw_views(made["rows"], views)
    report.draw_curves(made["rows"], curves)
    page = write_page(run)
    if (run / LOG).exists():
        leaks = [f"{row['attack']}: {row['view']}" for row in made["rows"] if row["leak"]]
        record(run, "leakage", {"ok": made["ok"], "leaks": leaks}, [data, text, views, curves, page])


def _session(run: FinishedRun, folder: Path, job: str, options: dict[str, Any]) -> None:
    """A session of real processes on this machine, with as many parties as the run had."""
    from secure_sccvfl.local.whole_run import run_job, session_config

    ending = run_job(session_config(folder, job, len(run.parties), options), folder, None, lambda event: None, False)
    if ending.code != OK:
        from protocols.errors import ProtocolError

        raise ProtocolError("; ".join(ending.failures))


def _predictions(run: FinishedRun, work: Path) -> Any:
    """Logits of the test records as their receiver got them from a real session."""
    import numpy as np

    from secure_sccvfl.security.finished_run import write_records

    records, folder = work / "records.csv", work / "predictions"
    write_records(run.data, run.split.test, records)
    settings = {k: getattr(run.options, k) for k in ("dataset", "split", "seed")}
    settings |= {"model": str(run.folder.resolve()), "records": str(records.resolve()), "scores": True}
    _session(run, folder, "predict", settings)
    with (folder / f"party-{run.holder('y')}" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {row["id"]: [float(v) for k, v in row.items() if k.startswith("logit ")] for row in rows}
    return np.array([found[str(name)] for name in run.data.ids[run.split.test]])


def _say(what: str) -> None:
    if sys.stderr.isatty():
        say(what, error=True)


if __name__ == "__main__":
    sys.exit(main())
