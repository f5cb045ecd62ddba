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


@dataclass(frozen=True)
class BudgetReport:
    """What the ledgers of one kind say, and the files that say it."""

    report: dict[str, Any]
    files: tuple[Path, ...]
    vouched: bool
    """Whether every ledger has its head, so that lines cut off its end would be noticed."""

    @property
    def sound(self) -> bool:
        """The accountants agree."""
        return bool(self.report["accountants_agree"])


def write_budget_reports(run: Path, out: Path | None = None) -> Iterator[BudgetReport]:
    """Write the reports of a run's folder, or of one ledger, into `out` (default: beside what is read).

    The first report is about the training records, the second about the test records if there is one. LedgerError
    if a ledger is damaged or two of them differ.
    """
    ledgers = [run] if run.is_file() else sorted(run.glob("party-*/ledger.jsonl"))
    if not ledgers:
        raise ConfigError(f"{run}: neither a ledger nor a folder with party-K/ledger.jsonl")
    folder = out or (run if run.is_dir() else run.parent)
    notes = run / "report.json"
    yield _write(ledgers, notes, folder, "privacy_budget")
    if told := sorted(run.glob("evaluation/party-*/evaluation.jsonl")):
        yield _write(told, notes, folder, "evaluation_budget")


def _write(ledgers: list[Path], notes: Path, folder: Path, name: str) -> BudgetReport:
    """Read the parties' ledgers of one kind, which must agree, and write their report: that of the first."""
    entries, vouched = _agreed(ledgers, _hidden(notes))
    report = build_report(read_account(entries, FileSets.beside(ledgers[0])), _notes(notes))
    report["ledgers"] = {"read": len(ledgers), "lines": len(entries), "head": entries[-1]["hash"]}
    folder.mkdir(parents=True, exist_ok=True)
    return BudgetReport(report, tuple(write_report(folder, report, name)), vouched)


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
