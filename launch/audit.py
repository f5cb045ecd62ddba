"""Can a finished run be trusted? Checks every log, digest and figure of its folder.

    python launch/audit.py verify runs/2026-01-01
    python launch/audit.py verify runs/2026-01-01 --seal 3f9c0a12d4e5    the seal that you noted when it ended
    python launch/audit.py verify out --certs certs --config session.toml   one party's host, by what all signed
    python launch/audit.py log runs/2026-01-01                           what was done, line by line

`verify` compares them with each other. It says in one line whether the run can be trusted, and
names what does not fit. Someone who can write every file of a run on one machine could make all of it
again; only the seal, kept by others, shows that. A seal from before an appeal or a new page still fits.
On a party's own host, the others' signatures show it: --certs names the consortium's authority
(ca.pem), --config the session file as you have it. Nothing is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launch.arguments import argument, program
from protocols.config import ConfigError
from secure_sccvfl.runs.console import CHECK_FAILED, OK, say


def run(options: argparse.Namespace) -> int:
    return _verify(options) if options.what == "verify" else _log(options)


def _verify(options: argparse.Namespace) -> int:
    from secure_sccvfl.reports.verify import unchecked, verify

    authority = None if options.certs is None else (options.certs / "ca.pem").read_bytes()
    checks = verify(options.run, options.seal, authority)
    if options.config is not None:
        checks["session file"] = _other_session(options.run, options.config)
    problems = [line for lines in checks.values() for line in lines]
    notes = [] if problems else unchecked(options.run, options.seal, authority)
    if options.json:
        print(json.dumps({"trusted": not problems, "checks": checks, "notes": notes}))
    elif not problems:
        say(f"{options.run} can be trusted: {', '.join(checks)} fit together")
        for line in notes:
            say(f"  note: {line}")
    else:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        say(f"{options.run} can NOT be trusted: {problems[0]}{more}")
        for line in problems[1:]:
            say(f"  {line}", error=True)
    return CHECK_FAILED if problems else OK


def _other_session(run: Path, known: Path) -> list[str]:
    """A problem if the run's session file is not the one that the reader has."""
    from secure_sccvfl.config.session_file import load_session

    same = load_session(run / "session.toml") == load_session(known)
    return [] if same else [f"session.toml is not {known}"]


def _log(options: argparse.Namespace) -> int:
    from secure_sccvfl.reports.run_log import read_log

    if not options.run.is_dir():
        raise ConfigError(f"no folder {options.run}: name the folder of a finished run")
    entries = read_log(options.run)
    if options.json:
        print(json.dumps(entries))
        return OK
    for entry in entries:
        facts = {k: v for k, v in entry.items() if k not in ("index", "previous", "hash", "event", "time", "files")}
        say(f"{entry['time']}  {entry['event']}: {len(entry['files'])} files, {json.dumps(facts)}")
    say(f"seal {entries[-1]['hash']}")
    return OK


main = program(
    "audit",
    run,
    argument("what", choices=("verify", "log"), help="check the run, or show its log"),
    argument("run", type=Path, help="the folder of a finished run"),
    argument("--seal", help="the seal noted when the run ended (at least its first 12 characters)"),
    argument("--certs", type=Path, help="a host's folder: folder with ca.pem, whose certificates count"),
    argument("--config", type=Path, help="a host's folder: the session file that all agreed on"),
)

if __name__ == "__main__":
    sys.exit(main())
