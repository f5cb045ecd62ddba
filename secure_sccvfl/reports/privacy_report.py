"""The privacy report of a run: what was released about its records, what it cost, and what is left.

The parties' ledgers must have the same lines, but for the records in them where each charges its own. Noisy figures
of test records have their own ledger, and so their own report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from accounting.budget import read_account
from accounting.ledger import Entry, LedgerError, comparable, read_ledger
from accounting.report import Notes, build_report, write_report
from protocols.config import ConfigError
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER
from secure_sccvfl.reports.folders import EVALUATE, TRAIN, RunFolder
from secure_sccvfl.reports.results import REPORT, Report, read

BUDGET, EVALUATION_BUDGET = "privacy_budget", "evaluation_budget"


@dataclass(frozen=True)
class BudgetReport:
    """What the ledgers of one kind say. `name`: of the files that say it."""

    name: str
    report: dict[str, Any]
    vouched: bool
    """Whether every ledger has its head, so that lines cut off its end would be noticed."""

    @property
    def sound(self) -> bool:
        """The accountants agree."""
        return bool(self.report["accountants_agree"])

    def write(self, folder: Path) -> tuple[Path, ...]:
        """NAME.json, .md and .html in this folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(write_report(folder, self.report, self.name))


def budget_reports(run: Path) -> Iterator[BudgetReport]:
    """The reports of a run's folder, or of one ledger. Nothing is written.

    The first is about the training records, the second about the test records if there is one. LedgerError if a
    ledger is damaged or two of them differ.
    """
    if run.is_file():
        yield _report([run], None, EVALUATION_BUDGET if run.name == EVALUATIONS else BUDGET)
        return
    folder, results = RunFolder.of(run), read(run) if (run / REPORT).is_file() else None
    ledgers = [run / TRAIN / LEDGER] if folder.host is not None else sorted(run.glob(f"party-*/{LEDGER}"))
    if not ledgers:
        raise ConfigError(f"{run}: neither a ledger nor a folder with party-K/{LEDGER}")
    yield _report(ledgers, results, BUDGET)
    evaluations = (
        [run / EVALUATE / EVALUATIONS] if folder.host is not None else run.glob(f"evaluation/party-*/{EVALUATIONS}")
    )
    if existing := sorted(path for path in evaluations if path.exists()):
        yield _report(existing, results, EVALUATION_BUDGET)


def _report(ledgers: list[Path], run: Report | None, name: str) -> BudgetReport:
    """The parties' ledgers of one kind, which must agree: the report is that of the first."""
    # With hidden alignment each party charged its own records, since nobody knows which all of them have.
    entries, vouched = _agreed(ledgers, run is not None and run.align == "hidden")
    account = read_account(ledgers[0])
    report = build_report(account, None if run is None else notes_of(run), held_out=name == EVALUATION_BUDGET)
    report["ledgers"] = {"read": len(ledgers), "lines": len(entries), "head": entries[-1]["hash"]}
    return BudgetReport(name, report, vouched)


def _agreed(ledgers: list[Path], own_records: bool) -> tuple[list[Entry], bool]:
    """The lines that all ledgers have, and whether all have a head; LedgerError says where two differ."""
    read = {path: read_ledger(path) for path in ledgers}
    first, (entries, _) = next(iter(read.items()))
    wanted = comparable(entries, own_records=own_records)
    for path, (lines, _) in read.items():
        other = comparable(lines, own_records=own_records)
        if other != wanted:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, other, strict=False)))
            raise LedgerError(
                f"{first.parent.name} ({len(entries)} lines) and {path.parent.name} ({len(other)} lines) differ from "
                f"line {same + 1} on; a party missed a charge or its ledger was set back: trust the longer one"
            )
    return entries, all(vouched for _, vouched in read.values())


def notes_of(report: Report) -> Notes:
    """What a run says about its noise and its uncharged releases."""
    return Notes(report.privacy.noise, tuple({"name": u.name, "purpose": u.purpose} for u in report.uncharged))
