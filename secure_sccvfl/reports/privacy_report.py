"""The privacy report of a run: what was released about its records, what it cost, and what is left.

The parties' ledgers must have the same lines, but for the records in them where each charges its own. Noisy figures
of test records have their own ledger, and so their own report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from accounting.account import read_account
from accounting.ledger import Entry, FileSets, LedgerError, comparable, read_ledger
from accounting.report import Notes, build_report, write_report
from protocols.config import ConfigError
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER
from secure_sccvfl.reports.folders import EVALUATE, TRAIN, RunFolder

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
    folder, notes = RunFolder.of(run), run / "report.json"
    ledgers = [run / TRAIN / LEDGER] if folder.host is not None else sorted(run.glob(f"party-*/{LEDGER}"))
    if not ledgers:
        raise ConfigError(f"{run}: neither a ledger nor a folder with party-K/{LEDGER}")
    yield _report(ledgers, notes, BUDGET)
    told = (
        [run / EVALUATE / EVALUATIONS] if folder.host is not None else run.glob(f"evaluation/party-*/{EVALUATIONS}")
    )
    if found := sorted(path for path in told if path.exists()):
        yield _report(found, notes, EVALUATION_BUDGET)


def _report(ledgers: list[Path], notes: Path | None, name: str) -> BudgetReport:
    """The parties' ledgers of one kind, which must agree: the report is that of the first."""
    entries, vouched = _agreed(ledgers, notes is not None and _hidden(notes))
    account = read_account(entries, FileSets.beside(ledgers[0]))
    told = None if notes is None else _notes(notes)
    report = build_report(account, told, held_out=name == EVALUATION_BUDGET)
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


def _hidden(notes: Path) -> bool:
    """Whether each party charged its own records, since nobody knows which all of them have."""
    try:
        return json.loads(notes.read_text(encoding="utf-8")).get("align") == "hidden"
    except (OSError, ValueError, AttributeError):
        return False


def _notes(path: Path) -> Notes | None:
    """What a run says about its noise and its uncharged releases."""
    if not path.is_file():
        return None
    try:
        return Notes.from_dict(json.loads(path.read_text(encoding="utf-8")).get("privacy", {}))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f'{path}: its "privacy" part is not of the form noise, uncharged: [name, purpose]'
        ) from None
