"""What was released about the records, what it cost, and what is left.

    python launch/privacy_report.py runs/2026-01-01
    python launch/privacy_report.py ledger.jsonl --out somewhere

RUN is the folder of a run, in which every party has party-K/ledger.jsonl, or one ledger. The parties' ledgers
must have the same lines. Prints the report and writes privacy_budget.json, .md and .html. Reads the notes of
the run (who made the noise, what was released without a charge) from RUN/report.json if it is there.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from launch.console import CHECK_FAILED, OK, Parser, guarded
from protocols.config import ConfigError

if TYPE_CHECKING:
    from accounting.ledger import Entry
    from accounting.report import Notes


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run, or a ledger")
    parser.add_argument("--out", type=Path, help="folder for the report (default: beside what is read)")
    parser.add_argument("--quiet", action="store_true", help="write the files, print nothing")
    options = parser.parse_args(arguments)
    return guarded("privacy_report", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from accounting.account import read_account
    from accounting.ledger import FileSets, LedgerError
    from accounting.report import build_report, to_markdown, write_report

    ledgers = _ledgers(options.run)
    if not ledgers:
        raise ConfigError(f"{options.run}: neither a ledger nor a folder with party-K/ledger.jsonl")
    try:
        entries, vouched = _agreed(ledgers)
        account = read_account(entries, FileSets.beside(ledgers[0]))
    except LedgerError as error:
        print(f"privacy_report: {error}", file=sys.stderr)
        return CHECK_FAILED
    report = build_report(account, _notes(options.run / "report.json"))
    report["ledgers"] = {"read": len(ledgers), "lines": len(entries), "head": entries[-1]["hash"]}
    folder = options.out or (options.run if options.run.is_dir() else options.run.parent)
    folder.mkdir(parents=True, exist_ok=True)
    paths = write_report(folder, report)
    if options.json:
        print(json.dumps(report))
    elif not options.quiet:
        print(to_markdown(report))
    if not vouched and len(ledgers) == 1:
        print("privacy_report: no .head beside the ledger, so lines cut off its end would not show", file=sys.stderr)
    for path in () if options.json or options.quiet else paths:
        print(f"wrote {path}")
    if not report["accountants_agree"]:
        print("privacy_report: the accountants disagree; trust none of the figures", file=sys.stderr)
        return CHECK_FAILED
    return OK


def _ledgers(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.glob("party-*/ledger.jsonl"))


def _agreed(ledgers: list[Path]) -> tuple[list[Entry], bool]:
    """The lines that all ledgers have, or LedgerError saying where two differ; and whether all have a head."""
    from accounting.ledger import LedgerError, read_ledger

    read = {path: read_ledger(path) for path in ledgers}
    first, (entries, _) = next(iter(read.items()))
    for path, (other, _) in read.items():
        if other != entries:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(entries, other, strict=False)))
            raise LedgerError(
                f"{first.parent.name} ({len(entries)} lines) and {path.parent.name} ({len(other)} lines) differ from "
                f"line {same + 1} on; a party missed a charge or its ledger was set back: trust the longer one"
            )
    return entries, all(vouched for _, vouched in read.values())


def _notes(path: Path) -> Notes | None:
    from accounting.report import Notes

    if not path.is_file():
        return None
    try:
        return Notes.from_dict(json.loads(path.read_text(encoding="utf-8")).get("privacy", {}))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f'{path}: its "privacy" part is not of the form noise, uncharged: [name, purpose]'
        ) from None


if __name__ == "__main__":
    sys.exit(main())
