"""A whole secure run on this machine: train in secret, judge, evaluate in secret, report.

Two sessions: the first trains and leaves each party its part of the model; the second loads these parts and
opens test metrics. In between, on public benchmark data, the harness makes the judges' edited records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.console import OK
from launch.processes import Ending, LocalSession
from protocols.config import ConfigError, SessionConfig
from secure_sccvfl.run_options import RunOptions

Event = Callable[[dict[str, Any]], None]


def session_config(folder: Path, job: str, parties: int, options: dict[str, Any], **settings: Any) -> SessionConfig:
    """A session on this machine; real addresses are chosen when the processes start."""
    placeholder = tuple(f"127.0.0.1:{rank + 1}" for rank in range(parties))
    return SessionConfig(parties=placeholder, name=folder.name, job=job, options=options, **settings)


def run_job(config: SessionConfig, folder: Path, certs: Path | None, event: Event, debug: bool) -> Ending:
    with LocalSession(config, folder, certs, event, debug) as session:
        return session.wait()


class WholeRun:
    """Training, evaluation and report of one run in one folder."""

    def __init__(self, folder: Path, config: SessionConfig, certs: Path | None, event: Event, debug: bool) -> None:
        self.folder, self.config, self.certs, self.event, self.debug = folder, config, certs, event, debug
        self.options = RunOptions.of(config.options)
        self.parties = len(config.parties)

    def train(self) -> Ending:
        """The first session; a folder with checkpoints is resumed if the options say so."""
        return run_job(self.config, self.folder, self.certs, self.event, self.debug)

    def finish(self, harness: bool = True) -> dict[str, Any]:
        """Judges, the second session, baselines, and the report's files; returns the report."""
        from secure_sccvfl.run_report import build, find_warnings, result_of

        trained = result_of(self.folder, 0)
        baselines: dict[str, dict[str, float]] = {}
        if self.options.pooled and harness:
            baselines = self._harness(trained)
        ending = self.evaluate()
        if ending.code != OK:
            raise RuntimeError("; ".join(ending.failures))
        evaluated = result_of(self.folder / "evaluation", 0)
        models = {f"party-{rank}": result_of(self.folder, rank)["model"] for rank in range(self.parties)}
        report = build(self.folder, trained, evaluated, baselines, models, [])
        report["warnings"] = find_warnings(report)
        (self.folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        self._privacy_report()
        return report

    def evaluate(self) -> Ending:
        options = {k: v for k, v in self.config.options.items() if k != "resume"}
        config = replace(self.config, job="evaluate", options={**options, "model": str(self.folder.resolve())})
        return run_job(config, self.folder / "evaluation", self.certs, self.event, self.debug)

    def _harness(self, trained: dict[str, Any]) -> dict[str, dict[str, float]]:
        import torch

        from secure_sccvfl import benchmark_harness
        from secure_sccvfl.noise import Budget
        from secure_sccvfl.party_data import pooled
        from secure_sccvfl.policy import Roles
        from secure_sccvfl.splits import make_split

        torch.set_num_threads(1)  # small networks: more threads are slower
        self.event({"step": "judges and baselines (plaintext harness)", "number": 0, "total": 1})
        options = self.options
        data = pooled(options.dataset, self.parties)
        split, roles = make_split(data, options.split, options.seed), Roles(trained["roles"])
        verdicts = benchmark_harness.make_verdicts(data, split, roles, options.seed)
        benchmark_harness.hand_out(data, verdicts, self.folder)
        budget = Budget(options.epsilon, options.delta, options.refreshes + 1 + options.conditional)
        return benchmark_harness.baselines(data, split, roles, verdicts, options.train_config(), budget, options.seed)

    def _privacy_report(self) -> None:
        from launch import privacy_report

        if privacy_report.main([str(self.folder), "--quiet"]) != OK:
            raise ConfigError("the parties' ledgers do not agree; see privacy_report")


def show_report(report: dict[str, Any], folder: Path) -> None:
    """The first screen: how good, how stable, at what cost, who learned what."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    head = f"{report['dataset']}, {report['parties']} parties, mode {report['mode']}, seed {report['seed']}"
    table = Table(title=head)
    metrics = [
        k
        for k in ("acc", "rmse", "logloss", "fr_ot", "fr_cvae", "fr_own", "scg_ot", "dp_gap")
        if k in report["metrics"]
    ]
    table.add_column("model")
    for name in metrics:
        table.add_column(name, justify="right")
    rows = {"secure run": report["metrics"], **report["baselines"]}
    for name, row in rows.items():
        table.add_row(name, *(f"{row[m]:.3f}" if m in row else "" for m in metrics))
    console.print(table)
    roles = report["roles"]
    for role, what in (("M", "edited with s"), ("P", "proxies, guarded"), ("N", "held fixed")):
        names = sorted(k for k, v in roles.items() if v == role)
        console.print(f"{role} ({what}): {', '.join(names) or 'none'}")
    privacy, total = report["privacy"], report["cost"]["total"]
    console.print(
        f"privacy of s: epsilon {privacy['epsilon_rdp']:.2f} (Rényi), {privacy['epsilon_pld']:.2f} (tight) of "
        f"{privacy['cap']:g} at delta {privacy['delta']:g}; "
        f"in secret: {total['seconds']:.1f} s, {total['rounds']} rounds, {total['bytes'] / 1e6:.1f} MB sent"
    )
    for warning in report["warnings"]:
        console.print(f"[yellow]note:[/] {warning}")
    console.print(f"everything else: {folder}")
