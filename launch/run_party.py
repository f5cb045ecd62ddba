"""Start one party of a session by hand, on any host.

    python launch/run_party.py --rank 1 --config session.toml --certs certs --out out
    python launch/run_party.py --rank 1 --config session.toml --certs certs --out out --resume
    python launch/run_party.py predict --rank 1 --config session.toml --certs certs --out out --records new.csv

Every host needs the same session file and this code, the folder of its own certificate
(certs/party-1) and certs/ca.pem. Start the parties and the dealer in any order. `connect` in the
session file says how many seconds they wait for each other (60, or 600 if it pins certificates).
If it pins certificates, all parties must have approved its plan (`sccvfl plan`, `sccvfl approve`).
--require-approval refuses a session file that does without approvals.
`--status 8080` shows what goes on at http://127.0.0.1:8080/, and /metrics for Prometheus.

The jobs of the session file (`jobs = ["selftest", "train", "evaluate"]`) run one after the other, each
in its folder out/JOB (align, selftest, train, evaluate, predict, predict-1, serve). At the end of each all parties
sign what they have on record. out/ also gets session.toml, approvals.json, audit.jsonl and audit.head (log and seal)
and, after the last job, report.html, report.json, policy_card.*, privacy_budget.* and evaluation_budget.*. Ledgers
are in sccvfl-ledgers next to the description.
--resume goes on where an interrupted sequence stopped; every party and the dealer must say so.
`predict` decides about new records with the model in --out; each host names its own file. `serve` keeps the
session open and decides about single people of these files, for whom the receiver's software asks at 127.0.0.1.
See docs/operating.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

from secure_sccvfl.config.sections import ANSWERS, BY_WIRE
from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.launch.arguments import Parser, add_status, watching
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import InputError
from secure_sccvfl.runs.console import OK, documented, guarded
from secure_sccvfl.runs.local.screens import show_concerns
from secure_sccvfl.runs.process import PartyProcess

REQUIRED = "SCCVFL_REQUIRE_APPROVAL"
"""A host's own setting, outside any session file: 1 is as good as --require-approval."""


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument(
        "job",
        nargs="?",
        choices=("predict", "serve"),
        help="predict: decide about new records; serve: one at a time, while the session stays open",
    )
    parser.add_argument("--rank", type=int, required=True, help="this party's rank in the session file, from 0")
    parser.add_argument("--config", type=Path, required=True, help="the session file")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem and party-RANK/")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for all that this party keeps")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out that was stopped")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="listen here instead of the address in the session file"
    )
    parser.add_argument(
        "--require-approval",
        action="store_true",
        default=os.environ.get(REQUIRED, "") not in ("", "0"),
        help=f"start no session whose plan is not approved, whatever its file says (also {REQUIRED}=1)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of this process (default 1)")
    predict = parser.add_argument_group("predict and serve")
    predict.add_argument("--records", type=Path, help="CSV with the id column and this party's columns")
    predict.add_argument("--model", type=Path, help="folder of the run whose model decides (default: --out)")
    predict.add_argument("--card", help="a policy card with the model's roles that was approved since")
    predict.add_argument("--port", type=int, help="serve: port of the receiver's endpoint on 127.0.0.1 (8490)")
    for name in ANSWERS:
        BY_WIRE[name].add_to(predict, shown=True)
    parser.add_argument(
        "--transcript",
        type=Path,
        metavar="FOLDER",
        help="for a security evaluation: write all that this party sees, SHARES INCLUDED, to a new folder",
    )
    add_status(parser)
    parser.add_argument("--listen-fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if wrong := _wrong(options):
        parser.error(wrong)
    process = PartyProcess(
        rank=options.rank,
        config=options.config,
        out=options.out,
        certs=options.certs,
        listen=options.listen,
        threads=options.threads,
        transcript=options.transcript,
        debug=options.debug,
        watching=watching(parser, options),
    )
    listener = socket.socket(fileno=options.listen_fd) if options.listen_fd is not None else None
    session: SessionConfig | None = None
    with contextlib.suppress(InputError, ConfigError):  # the process itself says what is wrong
        session = load_session(options.config)
        if "train" in (session.jobs or (session.job,)) and options.job is None:
            show_concerns(session.options)
    approvals: list[dict[str, Any]] = []
    if (code := guarded(process.name, lambda: _approved(options, approvals), debug=options.debug)) != OK:
        return code
    if options.job is None and not options.resume and (session is None or not session.jobs):
        return documented(process.run(listener))
    from secure_sccvfl.runs.member.member import Member

    member = Member(
        process, options.resume, approvals, _predict(options) if options.job else None, options.job or "predict"
    )
    return documented(member.run(listener))


def _wrong(options: argparse.Namespace) -> str:
    """What does not go together."""
    given = [name for name in ("records", "model", "card", "port", *ANSWERS) if getattr(options, name)]
    if options.job is None and given:
        flag = BY_WIRE[given[0]].flag or given[0]
        return f"--{flag} goes with predict and serve"
    if options.job is not None and options.records is None:
        return f"{options.job} needs --records FILE, this party's columns of the new records"
    return "a prediction is not resumed: start it again" if options.job is not None and options.resume else ""


def _predict(options: argparse.Namespace) -> dict[str, Any]:
    """What a prediction is given on this host. Paths are no part of what the hosts compare; the rest they compare."""
    given = {name: value for name in ("card", "port", *ANSWERS) if (value := getattr(options, name)) is not None}
    if options.model is not None:
        given["model"] = str(options.model.resolve())
    return {"scores": False, **given, "records": str(options.records.resolve())}


def _approved(options: argparse.Namespace, approvals: list[dict[str, Any]]) -> int:
    """Refuse to start unless all parties approved the plan as it is here. Adds their approvals to `found`."""
    config = load_session(options.config)
    from secure_sccvfl.runs.member.plan import approvals_folder, check_approvals, check_rank  # slow to import

    if config.jobs:
        check_rank(config, options.rank)
    approvals += check_approvals(config, approvals_folder(options.config), options.require_approval)
    return OK


if __name__ == "__main__":
    sys.exit(main())
