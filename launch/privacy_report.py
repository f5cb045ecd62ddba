"""What was released about the records, what it cost, and what is left.

    python launch/privacy_report.py runs/2026-01-01
    python launch/privacy_report.py ledger.jsonl --out somewhere

RUN is the folder of a run, in which every party has party-K/ledger.jsonl, or one ledger. The
parties' ledgers must have the same lines. The program prints the report and writes
privacy_budget.json, .md and .html. Noisy figures of test records have their own ledger
(RUN/evaluation/party-K/evaluation.jsonl), and so evaluation_budget.json, .md and .html. If
RUN/report.json exists, the program reads the notes of the run from it (who made noise, what was
released without a charge).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launch.arguments import Parser
from secure_sccvfl.run.console import CHECK_FAILED, OK, guarded, say


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run, or a ledger")
    parser.add_argument("--out", type=Path, help="folder for the report (default: beside what is read)")
    parser.add_argument("--quiet", action="store_true", help="write the files, print nothing")
    options = parser.parse_args(arguments)
    return guarded("privacy_report", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from accounting.ledger import LedgerError
    from accounting.report import to_markdown
    from secure_sccvfl.report.privacy_report import write_budget_reports

    try:
        for made in write_budget_reports(options.run, options.out):
            if options.json:
                print(json.dumps(made.report))
            elif not options.quiet:
                print(to_markdown(made.report))
            if not made.vouched and made.report["ledgers"]["read"] == 1:
                say("privacy_report: no .head beside the ledger, so lines cut off its end would not show", error=True)
            for path in () if options.json or options.quiet else made.files:
                say(f"wrote {path}")
            if not made.sound:
                say("privacy_report: the accountants disagree; trust none of the figures", error=True)
                return CHECK_FAILED
    except LedgerError as error:
        say(f"privacy_report: {error}", error=True)
        return CHECK_FAILED
    return OK


if __name__ == "__main__":
    sys.exit(main())
