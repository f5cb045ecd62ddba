"""Make the page of a run again: report.html, one file that needs nothing else.

    python launch/report.py runs/2026-01-01

A run makes its page at its end. The security evaluation makes it again with its curves. The program
writes the page and a line in the run's log, and prints the new seal; nothing else changes. If the
page is the same as before, nothing is written. On a host where all jobs ended but the report was
not made, it makes the report.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.arguments import answer, argument, program


def run(options: argparse.Namespace) -> int:
    from secure_sccvfl.reports.folders import RunFolder
    from secure_sccvfl.reports.page import PAGE, render
    from secure_sccvfl.reports.run_log import LOG, record

    folder, seal = RunFolder.of(options.run), ""
    if folder.host is not None and not (options.run / "report.json").exists():
        from secure_sccvfl.runs.member.member import finish

        return finish(options.run)
    path = options.run / PAGE
    page = render(options.run)
    changed = not path.exists() or path.read_text(encoding="utf-8") != page
    if changed:
        path.write_text(page, encoding="utf-8")
        if (options.run / LOG).exists():
            seal = record(options.run, "page", {}, [path])
    lines = [f"wrote {path}" if changed else f"{path} is up to date"]
    lines += [f"seal, to be kept by every party: {seal}"] if seal else []
    return answer(options, {"written": str(path) if changed else None, "seal": seal or None}, *lines)


main = program(
    "report",
    run,
    argument("run", type=Path, help="the folder of a finished run"),
)

if __name__ == "__main__":
    sys.exit(main())
