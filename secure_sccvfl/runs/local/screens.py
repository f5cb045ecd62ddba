"""What `run_mpc.py` shows on the terminal: a progress bar, and the first screen of a result."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accounting.account import HEAD
from accounting.plain_text import plain
from secure_sccvfl.reports.charts import tidy
from secure_sccvfl.runs.console import say, screen
from secure_sccvfl.runs.scoring.new_records import REFUSED


class Progress:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
        )
        console = Console(stderr=True)
        self._bar = Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self._task = self._bar.add_task("starting the processes", total=None)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def event(self, event: dict[str, Any]) -> None:
        if event.get("connected"):
            self._bar.update(self._task, description="all processes connected")
        elif "step" in event:
            step, number, total = plain(event["step"]), event["number"], event["total"]
            self._bar.update(self._task, description=step, completed=number, total=total)


def show_concerns(settings: Mapping[str, Any]) -> None:
    """Before training: what is not in order with the policy card that a run is given, a line each."""
    from secure_sccvfl.policy.card import named_card
    from secure_sccvfl.policy.concerns import concerns

    card = named_card(str(settings.get("card", "")), str(settings.get("dataset", "")))
    for line in concerns(card, datetime.date.today()) if card is not None else ():
        say(f"policy card: {line}", error=True)


def show_report(report: dict[str, Any], folder: Path) -> None:
    """The first screen: what was gained, how good and how stable, at what cost, who learned what."""
    from rich.text import Text

    from secure_sccvfl.reports.frontier import gain

    console = screen()
    if summary := gain(report):
        console.print(Text("in short:", "green"), summary)
    _show_models(console, report)
    for role, meaning in (("M", "changed with s"), ("P", "proxies, penalised"), ("N", "held fixed")):
        names = sorted(name for name, assigned in report["roles"].items() if assigned == role)
        console.print(f"{role} ({meaning}): {', '.join(names) or 'none'}")
    privacy, total, evaluation = report["privacy"], report["cost"]["total"], report["evaluation"]
    parts = privacy.get("parts", {})
    alone = f" (alone: {', '.join(f'{part} {e:.2f}' for part, e in parts.items())})" if len(parts) > 1 else ""
    console.print(
        f"privacy of {'training records' if HEAD in parts else 's'}: epsilon {privacy['epsilon_rdp']:.2f} (Rényi), "
        f"{privacy['epsilon_pld']:.2f} (tight) of {privacy['cap']:g} at delta {privacy['delta']:g} for a record "
        f"replaced{alone}; "
        f"under MPC: {total['seconds']:.1f} s, {total['rounds']} rounds, {total['bytes'] / 1e6:.1f} MB sent"
    )
    if tables := report.get("tables"):
        console.print(
            f"statistics of s: {len(tables['releases'])} cached releases of run {tables['runs'][-1][:12]}; this run "
            "opened none and was not charged for them"
        )
    elif privacy.get("releases_in_ledger", 0) > privacy.get("releases", 0):
        console.print(
            f"this run made {privacy['releases']} of the {privacy['releases_in_ledger']} noisy releases in the ledger"
        )
    if evaluation.get("kind") == "noisy":
        first, half = next(iter(report["noise"].items()))
        console.print(
            f"test records: figures carry noise ({first} ± {half:.3f}, 95 %); "
            f"epsilon {evaluation['epsilon_rdp']:.2f} of {evaluation['cap']:g} at delta {evaluation['delta']:g} is "
            "spent on them"
        )
    elif evaluation:
        console.print("test records: figures are exact, not private")
    for warning in report["warnings"]:
        console.print(Text("note:", "yellow"), warning)
    console.print(f"the page: {folder / 'report.html'}; everything else is next to it")
    console.print(f"seal, to be kept by every party: {report['seal']}")


def _show_models(console: Any, report: dict[str, Any]) -> None:
    """A line for each model. A flip rate has its null next to it, and a judge that fails a gate is marked."""
    from rich.table import Table
    from rich.text import Text

    from secure_sccvfl.evaluation.counterfactual_models import OWN
    from secure_sccvfl.reports.judged import asked, failed

    judges, unrest = asked(report), "scg" if "rmse" in report["metrics"] else "fr"
    word = "flips" if unrest == "fr" else "shift"
    columns = {"acc": "acc", "rmse": "rmse"}
    for judge in judges:
        columns |= {f"{unrest}_{judge}": f"{word}\n{judge}", f"{unrest}_null_{judge}": f"null\n{judge}"}
    columns |= {f"net_{judge}": f"net\n{judge}" for judge in judges[:1]}
    if not judges:
        columns |= {f"{unrest}_{OWN}": f"{word}\n{OWN}", f"{unrest}_null_{OWN}": f"null\n{OWN}"}
    columns["dp_gap"] = "dp_gap"
    columns_shown = [name for name in columns if name in report["metrics"]]
    head = f"{report['dataset']}, {report['parties']} parties, mode {report['mode']}, seed {report['seed']}"
    table = Table("model", title=head)
    for name in columns_shown:
        table.add_column(Text(columns[name]), justify="right")
    for name, row in {"secure run": report["metrics"], **report["baselines"]}.items():
        table.add_row(name, *(tidy(row[m], 3) if m in row else "" for m in columns_shown))
    console.print(table)
    if judges:
        verdicts = [
            f"{j} fails {', '.join(gates)}" if (gates := failed(report, j)) else f"{j} passes" for j in judges
        ]
        console.print(f"null: {word} with s shuffled over the records, which are a judge's own noise")
        console.print(f"gates of the judges: {'; '.join(verdicts)}")
    elif f"{unrest}_{OWN}" in columns_shown:
        null = f"{unrest}_null_{OWN}" in columns_shown
        control = "null: the same with tables and groups shuffled" if null else "it has no null control"
        console.print(f"{word} are by the run's own generator; {control}")
    if "baseline_noise" in report:
        console.print("majority and drop_m (without mediators and proxies) are computed under MPC, with noise too")


def show_result(job: str, result: dict[str, Any], folder: Path) -> None:
    """Show the result of a session other than training."""
    from rich.text import Text

    console = screen()
    if job == "predict":
        file = next(iter(sorted(folder.glob("party-*/predictions.csv"))))
        refused_records = json.loads((file.parent / "result.json").read_text(encoding="utf-8")).get("refused", 0)
        console.print(
            f"{result['records'] - refused_records} of {result['records']} records scored under MPC; "
            f"{result['receiver']} alone has the predictions: {file}"
        )
        for refused in sorted(folder.glob(f"party-*/{REFUSED}")) if refused_records else ():
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
    refused = "refused" if result["undeclared_openings_refused"] else "NOT REFUSED"
    console.print(f"undeclared openings: {refused}; result: {'all well' if result['ok'] else 'FAILED'}; {folder}")
