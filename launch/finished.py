"""Finished runs: make the page again, explain one record, verify what is on record."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from secure_sccvfl.launch.arguments import answer, argument, program
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.runs.console import CHECK_FAILED, OK, say


@program("report", argument("run", type=Path, help="the folder of a finished run"))
def report(options: argparse.Namespace) -> int:
    """Make the page of a run again: report.html, one file that needs nothing else.

        sccvfl report runs/2026-01-01

    A run makes its page at its end. The security evaluation makes it again with its curves. The program
    writes the page and a line in the run's log (audit.jsonl, audit.head), and prints the new seal. If the
    page is the same as before, nothing is written. On a host where all jobs ended but the report was
    not made, it makes the report, with all files that `sccvfl party --help` names.
    """
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


@program(
    "runs",
    argument("folders", nargs="*", type=Path, default=[Path("runs")], help="runs, or folders of runs (default runs)"),
)
def runs(options: argparse.Namespace) -> int:
    """List finished runs, or compare some side by side.

        sccvfl runs                                  every run in runs/, the newest first
        sccvfl runs somewhere/else                   every run in another folder
        sccvfl runs runs/2026-01-01 runs/2026-02-01  side by side: every figure and setting in which they differ
        sccvfl runs --json                           all figures

    Date, data, mode, epsilon, accuracy, flip rate (under the counterfactual model that claims rest on) and
    the share of certified decisions. It reads report.json and the log of each run and writes no file;
    `sccvfl audit verify RUN` checks them. Figures of two runs are comparable only on the same test records.
    """
    from rich.table import Column, Table

    from secure_sccvfl.reports.history import LISTED, differing, listed, runs_in, shown
    from secure_sccvfl.runs.console import screen

    rows, lost = listed(runs_in(options.folders))
    for line in lost:
        say(f"runs: {line}", error=True)
    if options.json:
        print(json.dumps(rows))
    elif len(rows) > 1 and len(rows) == len(options.folders):
        side = Table("")
        for row in rows:
            side.add_column(row["run"], overflow="fold")
        for name in differing(rows):
            if name != "run":
                side.add_row(name, *(shown(name, row[name]) for row in rows))
        screen().print(side)
    elif rows:
        table = Table(Column("run", overflow="fold"), *LISTED)
        for row in rows:
            table.add_row(row["run"], *(shown(name, row[name]) for name in LISTED))
        screen().print(table)
    return CHECK_FAILED if lost else OK


@program(
    "explain",
    argument("run", type=Path, help="the folder of a finished run, or one party's own folder"),
    argument("--record", required=True, help="the id of the record"),
    argument("--party", type=int, help="only what this party (its number, from 0) can see"),
    argument("--config", type=Path, help="with --party: the session file, if it is not in the folder"),
    argument("--predictions", type=Path, help="with --party: predictions that it received"),
)
def explain(options: argparse.Namespace) -> int:
    """Walk one person through a run in six steps: holders, roles, counterfactual, both decisions, why, what it means.

        sccvfl explain runs/2026-01-01 --record g0374
        sccvfl explain runs/2026-01-01 --record g0374 --party 1     as that party sees it

    On public data everything is shown, by plaintext twins of the model: nobody has the model of a run in
    secret. Of a consortium's records a party sees its own columns and what its own generator does to
    them, with --party; in the folder of its own host it sees that without. `--config` names the session
    file if it is elsewhere. `--predictions FILE` adds the decision that it received.
    """
    import torch

    from secure_sccvfl.reports.explain import explain as explain_record
    from secure_sccvfl.reports.explain import explain_to_party, walk
    from secure_sccvfl.reports.folders import RunFolder

    torch.set_num_threads(1)  # small models: more threads are slower
    party = RunFolder.of(options.run).host if options.party is None else options.party
    if party is not None:
        explanation = explain_to_party(options.run, options.record, party, options.config, options.predictions)
    elif options.config is not None or options.predictions is not None:
        raise ConfigError("--config and --predictions are for one party: name it with --party")
    else:
        explanation = explain_record(options.run, options.record)
    return answer(options, explanation, *walk(explanation).splitlines())


@program(
    "audit",
    argument("what", choices=("verify", "log"), help="check the run, or show its log"),
    argument("run", type=Path, help="the folder of a finished run"),
    argument("--seal", help="the seal noted when the run ended (at least its first 12 characters)"),
    argument("--certs", type=Path, help="a host's folder: folder with ca.pem, whose certificates count"),
    argument("--config", type=Path, help="a host's folder: the session file that all agreed on"),
)
def audit(options: argparse.Namespace) -> int:
    """Can a finished run be trusted? Checks every log, digest and figure of its folder.

        sccvfl audit verify runs/2026-01-01
        sccvfl audit verify runs/2026-01-01 --seal 3f9c0a12d4e5    the seal that you noted when it ended
        sccvfl audit verify out --certs certs --config session.toml   one party's host, by what all signed
        sccvfl audit log runs/2026-01-01                           what was done, line by line

    `verify` compares them with each other. It says in one line whether the run can be trusted, and
    names what does not fit. Someone who can write every file of a run on one machine could make all of it
    again; only the seal, kept by others, shows that. A seal from before an appeal or a new page still fits.
    On a party's own host, the others' signatures show it: --certs names the consortium's authority
    (ca.pem), --config the session file as you have it. Nothing is written.
    """
    return _verify(options) if options.what == "verify" else _log(options)


def _verify(options: argparse.Namespace) -> int:
    from secure_sccvfl.reports.results import read
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
        say(f"  {read(options.run).security_words}")
        for line in notes:
            say(f"  note: {line}")
    else:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        say(f"{options.run} can NOT be trusted: {problems[0]}{more}")
        for line in problems[1:]:
            say(f"  {line}", error=True)
    return CHECK_FAILED if problems else OK


def _other_session(run: Path, expected: Path) -> list[str]:
    """A problem if the run's session file is not the one that the reader has."""
    from secure_sccvfl.config.session_file import load_session

    same = load_session(run / "session.toml") == load_session(expected)
    return [] if same else [f"session.toml is not {expected}"]


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
