"""Make the page of a run again: report.html, one file that needs nothing else.

    python launch/report.py runs/2026-01-01
    python launch/report.py runs/2026-01-01 --party 0     for that party, with what its own generator does

A run makes its page at its end. The security evaluation makes it again with its curves. The page of
a party holds what was released to that party alone, so it goes into the party's folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launch.arguments import Parser
from secure_sccvfl.run.console import OK, guarded, say


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--party", type=int, help="make the page of this party (its number, from 0)")
    options = parser.parse_args(arguments)
    return guarded("report", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from secure_sccvfl.report.page import write_page
    from secure_sccvfl.report.run_log import LOG, record

    if options.party is None:
        path = write_page(options.run)
    else:
        from secure_sccvfl.report.edits import own_edits

        path = write_page(options.run, options.party, own_edits(options.run, options.party))
    if (options.run / LOG).exists():
        record(options.run, "page", {}, [path])
    say(json.dumps({"written": str(path)}) if options.json else f"wrote {path}")
    return OK


if __name__ == "__main__":
    sys.exit(main())
