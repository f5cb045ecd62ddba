"""Run a whole session on this machine: the dealer and m parties, one process each.

    python launch/run_mpc.py --parties 3
    python launch/run_mpc.py --parties 5 --selftest --size 2000
    python launch/run_mpc.py --parties 3 --transport gloo --json

Until training exists this runs the self-test: each kind of secret operation on random inputs
owned by different parties, checked against the plain computation. Throw-away certificates are
made for the run and removed as soon as all processes have met. For one process per host see
run_party.py and run_dealer.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

from launch.console import EXIT_CODES, OK, guarded


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", type=int, default=3, help="number of parties (default 3)")
    parser.add_argument("--selftest", action="store_true", help="the self-test (what runs by default for now)")
    parser.add_argument("--size", type=int, default=400, help="length of the self-test's vectors (default 400)")
    parser.add_argument("--repeat", type=int, default=1, help="how often the self-test runs (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the self-test's public inputs (default 0)")
    parser.add_argument("--transport", choices=("tls", "gloo"), default="tls", help="default tls")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds to wait for a peer (default 60)")
    parser.add_argument("--certs", type=Path, help="certificates made by certs.py, instead of throw-away ones")
    parser.add_argument("--out", type=Path, help="a new folder for logs and results (default runs/TIME)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--debug", action="store_true", help="tracebacks and debug messages in the logs")
    options = parser.parse_args(arguments)
    return guarded("run_mpc", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from launch.processes import LocalSession
    from protocols.config import ConfigError, SessionConfig

    if options.parties < 2:
        raise ConfigError(f"--parties must be at least 2, not {options.parties}")
    folder = options.out or _new_folder()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose a new folder for the run")
    # The real addresses are chosen when the processes start.
    placeholder = tuple(f"127.0.0.1:{rank + 1}" for rank in range(options.parties))
    config = SessionConfig(
        parties=placeholder,
        name=folder.name,
        transport=options.transport,
        deadline=options.deadline,
        job="selftest",
        options={"seed": options.seed, "size": options.size, "repeat": options.repeat},
    )
    with _Progress(quiet=options.json) as progress:
        with LocalSession(config, folder, options.certs, progress.event, options.debug) as session:
            ending = session.wait()
    result_file = folder / "party-0" / "result.json"
    result = json.loads(result_file.read_text()) if result_file.exists() else None
    if options.json:
        print(json.dumps({"exit_codes": ending.exit_codes, "failures": ending.failures, "result": result}))
    else:
        for line in ending.failures:
            print(line, file=sys.stderr)
        if result is not None:
            _show(result, folder)
        if ending.code != OK:
            print(f"logs are in {folder / 'logs'}", file=sys.stderr)
    return ending.code


def _new_folder() -> Path:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{now}-{os.getpid()}"


class _Progress:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        columns = SpinnerColumn(), TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn()
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self._task = self._bar.add_task("starting the processes", total=None)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def event(self, event: dict[str, Any]) -> None:
        if event.get("connected"):
            self._bar.update(self._task, description="all processes connected")
        elif "step" in event:
            self._bar.update(self._task, description=event["step"], completed=event["number"], total=event["total"])


def _show(result: dict[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
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
            "[green]ok[/]" if row["ok"] else "[red]WRONG[/]",
        )
    console.print(table)
    refused = "refused" if result["undeclared_openings_refused"] else "NOT REFUSED"
    console.print(f"undeclared openings: {refused}; result: {'all well' if result['ok'] else 'FAILED'}; {folder}")


if __name__ == "__main__":
    sys.exit(main())
