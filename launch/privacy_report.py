"""What was released about the records, what it cost, and what is left.

    python launch/privacy_report.py runs/2026-01-01
    python launch/privacy_report.py ledger.jsonl --out somewhere

RUN is the folder of a run, of all parties or of one on its own host, or one ledger. The parties'
ledgers must have the same lines. The program prints the report. With --out it also writes
privacy_budget.* (json, md, html) there; it never writes into what it reads. Noisy figures of test
records have their own ledger, and so evaluation_budget.*. If RUN/report.json
exists, the program reads the notes of the run from it (who made noise, what was released without a
charge).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from secure_sccvfl.launch.arguments import argument, program
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.runs.console import CHECK_FAILED, OK, say


@program(
    "privacy_report",
    argument("run", type=Path, help="the folder of a run, or a ledger"),
    argument("--out", type=Path, help="write the report's files to this folder"),
    argument("--quiet", action="store_true", help="with --out: write the files, print nothing"),
)
def main(options: argparse.Namespace) -> int:
    from secure_sccvfl.accounting.ledger import LedgerError
    from secure_sccvfl.accounting.report import to_markdown
    from secure_sccvfl.reports.collect import budget_reports

    if options.quiet and options.out is None:
        raise ConfigError("--quiet prints nothing, so it needs --out, the folder to write to")
    try:
        for budget_report in budget_reports(options.run):
            files = () if options.out is None else budget_report.write(options.out)
            if options.json:
                print(json.dumps(budget_report.report))
            elif not options.quiet:
                print(to_markdown(budget_report.report))
            if not budget_report.vouched and budget_report.report["ledgers"]["read"] == 1:
                say("privacy_report: no .head next to the ledger: lines cut off its end would not show", error=True)
            for path in () if options.json or options.quiet else files:
                say(f"wrote {path}")
            if not budget_report.sound:
                say("privacy_report: the accountants disagree; trust none of the figures", error=True)
                return CHECK_FAILED
    except LedgerError as error:
        say(f"privacy_report: {error}", error=True)
        return CHECK_FAILED
    return OK


if __name__ == "__main__":
    sys.exit(main())
