"""What `run_mpc.py` shows on the terminal: a progress bar, and the first screen of a result."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.budget import HEAD
from secure_sccvfl.accounting.charts import number, percent, tidy
from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.evaluation.counterfactual_models import OWN
from secure_sccvfl.metrics.rates import CERTIFIED
from secure_sccvfl.protocols.config import ACTIVE
from secure_sccvfl.reports.figures import SECURE, plain_words, tiles, trusted
from secure_sccvfl.reports.policy_card import PROXIES
from secure_sccvfl.reports.results import Report
from secure_sccvfl.reports.run_log import last_seal
from secure_sccvfl.runs.console import say, screen


class Progress:
    """On a terminal a progress bar; elsewhere a plain line for each phase, without control characters."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        text = TextColumn("{task.description:<28}", markup=False)
        console = Console(stderr=True)
        self._lines, self._phase = not quiet and not console.is_terminal, ""
        self._bar = Bar(
            SpinnerColumn(),
            text,
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=quiet or self._lines,
        )
        self._task = self._bar.add_task("starting the processes", total=None)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def event(self, event: dict[str, Any]) -> None:
        if event.get("connected"):
            self._show("all processes connected")
        elif "step" in event:
            self._show(plain(event["step"]), completed=event["number"], total=event["total"])

    def _show(self, phase: str, **progress: Any) -> None:
        self._bar.update(self._task, description=phase, **progress)
        if self._lines and phase != self._phase:
            say(phase, error=True)
        self._phase = phase


def show_concerns(settings: Mapping[str, Any]) -> None:
    """Before training: what is not in order with the policy card that a run is given, a line each."""
    from secure_sccvfl.policy.approvals import concerns
    from secure_sccvfl.policy.card import named_card

    card = named_card(str(settings.get("card", "")), str(settings.get("dataset", "")))
    for line in concerns(card, datetime.date.today()) if card is not None else ():
        say(f"policy card: {line}", error=True)


def show_report(report: Report, folder: Path) -> None:
    """The first screen: the headline of the page, other models, roles, budgets and warnings in plain words."""
    from rich.text import Text

    console, s = screen(), report.data.attribute
    groups = "; ".join(" / ".join(f"“{label}”" for label in a.labels) for a in report.data.protected)
    console.print(f"the protected attribute s is {s} ({groups}); figures are for {report.rows['test']} test records")
    for tile in tiles(report):
        shown = Text(f"{plain(tile.name)}: ", "green").append(plain(tile.value), "bold")
        console.print(shown, f"({'; '.join(tile.below)})")
    _show_models(console, report)
    meanings = {
        "M": f"columns that follow from {s} and may count (mediators, M)",
        "P": f"columns that stand for {s} (proxies, P; {PROXIES[report.proxies]})",
        "N": "columns that stay as they are (N)",
    }
    for role, what in meanings.items():
        names = sorted(k for k, v in report.roles.items() if v == role)
        console.print(f"{what}: {', '.join(names) or 'none'}")
    for line in _budget_lines(report):
        console.print(line)
    for warning in report.warnings:
        console.print(Text("note:", "yellow"), warning)
    console.print(f"the page: {folder / 'report.html'}; all other results are in the same folder")
    if seal := last_seal(folder):
        console.print(f"seal, to be kept by every party: {seal}")


def _budget_lines(report: Report) -> Iterator[str]:
    privacy, parts = report.privacy, report.privacy.parts
    alone = f" (alone: {', '.join(f'{part} {e:.2f}' for part, e in parts.items())})" if len(parts) > 1 else ""
    yield (
        f"privacy of {'training records' if HEAD in parts else 's'}: epsilon {privacy.epsilon_rdp:.2f} (Rényi), "
        f"{privacy.epsilon_pld:.2f} (tight) of {privacy.cap:g} at delta {privacy.delta:g} for a record replaced"
        f"{alone}"
    )
    if report.tables is not None:
        cached, source = len(report.tables["releases"]), report.tables["runs"][-1][:12]
        yield (
            f"statistics of s: {cached} cached releases of run {source}, charged before; this run released none and "
            "was not charged for them"
        )
    elif privacy.releases_in_ledger > privacy.releases:
        yield f"this run made {privacy.releases} of the {privacy.releases_in_ledger} noisy releases in the ledger"
    if report.security == ACTIVE:
        yield report.security_words
    evaluation = report.evaluation
    if evaluation is not None and report.noisy:
        first, half = next(iter(report.noise.items()))
        yield (
            f"test records: figures carry noise ({first} ± {half:.3f}, 95 %); epsilon {evaluation.epsilon_rdp:.2f} "
            f"of {evaluation.cap:g} at delta {evaluation.delta:g} is spent on them"
        )
    elif evaluation is not None:
        yield "test records: figures are exact, not private"


def _show_models(console: Any, report: Report) -> None:
    """A line for each model. Flips have their permutation baseline; a failed validity check is named."""
    from rich.table import Table

    model, show = trusted(report), percent
    columns = {"acc": "correct", "rmse": "typical error", f"fr_{model}": "flips", f"fr_null_{model}": "by chance"}
    columns |= {CERTIFIED: "certified", "dp_gap": "gap between groups"}
    shown = [name for name in columns if name in report.metrics]
    table = Table("model", title=f"{report.dataset}, {report.parties} parties, seed {report.seed}")
    for name in shown:
        table.add_column(columns[name], justify="right")
    words = plain_words(report)
    for name, row in {SECURE: report.metrics, **report.baselines}.items():
        cells = [(number if m == "rmse" else show)(row[m]) if m in row else "" for m in shown]
        table.add_row(words.get(name, name), *cells)
    console.print(table)
    if f"fr_{model}" in shown:
        own = " (the run's own, of training)" if model == OWN else ""
        console.print(
            f"flips: decisions that change when the group is changed by a counterfactual model{own}; by chance: the "
            "same with groups permuted"
        )
    if report.baseline_noise:
        console.print("the other models were computed under MPC, with noise too")


def show_job_result(job: str, result: dict[str, Any], folder: Path) -> None:
    """Print the result of a job that has no report. `show_report` prints that of a whole run."""
    from rich.text import Text

    from secure_sccvfl.runs.predict import REFUSED_FILE

    console = screen()
    if job == "predict":
        path = next(iter(sorted(folder.glob("party-*/predictions.csv"))))
        count = json.loads((path.parent / "result.json").read_text(encoding="utf-8")).get("refused", 0)
        console.print(
            f"{result['records'] - count} of {result['records']} records scored under MPC; {result['receiver']} "
            f"alone has the predictions: {path}"
        )
        for refused in sorted(folder.glob(f"party-*/{REFUSED_FILE}")) if count else ():
            console.print(Text("refused:", "yellow"), f"the records of {refused}, with the reason")
        if result["note"]:
            console.print(Text("note:", "yellow"), result["note"])
    elif job == "discovery":
        for name in sorted(result["scores"], key=lambda k: -result["scores"][k]):
            console.print(f"{result['roles'][name]}  {tidy(result['scores'][name], 3)}  {name}")
        privacy = result["privacy"]
        console.print(
            f"epsilon {privacy['epsilon_rdp']:.2f} of {privacy['cap']:g} at delta {privacy['delta']:g}; {folder}"
        )
    else:
        _show_selftest(console, result, folder)


def _show_selftest(console: Any, result: dict[str, Any], folder: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"self-test, {result['parties']} parties, seen from party 0")
    for column in ("operation", "rounds", "kB sent", "kB dealer", "ms", "max error", "allowed", ""):
        table.add_column(column, justify="left" if column in ("operation", "") else "right")
    for row in result["rows"]:
        table.add_row(
            row["name"],
            str(row["rounds"]),
            f"{row['bytes'] / 1e3:.1f}",
            f"{row['dealer_bytes'] / 1e3:.1f}",
            f"{row['seconds'] * 1e3:.1f}",
            f"{row['max_error']:.1e}",
            f"{row['tolerance']:.1e}",
            Text("ok", "green") if row["ok"] else Text("WRONG", "red"),
        )
    console.print(table)
    refused = "refused" if result["undeclared_openings_refused"] else "NOT REFUSED_FILE"
    console.print(f"undeclared openings: {refused}; result: {'all well' if result['ok'] else 'FAILED'}; {folder}")
