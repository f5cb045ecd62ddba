"""Approve the plan of a session: this party signs its digest with the key of its certificate.

    sccvfl approve session.toml --certs certs --rank 0
    sccvfl approve session.toml --certs certs --rank 0 --yes     without a question

It shows the plan, asks, and writes approvals/party-0.json next to the session file. Hand that file to
the other parties; it is public. `sccvfl party` starts only if all parties approved the plan as it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.arguments import answer, argument, program
from secure_sccvfl.runs.console import CHECK_FAILED, say


def run(options: argparse.Namespace) -> int:
    from protocols.config import ConfigError, node_folder
    from protocols.net.certificates import Credentials
    from secure_sccvfl.config.session_file import load_session
    from secure_sccvfl.runs.member.outlook import outlook, plan_lines
    from secure_sccvfl.runs.member.plan import approvals_folder, approve, check_own, make_plan

    config = load_session(options.session)
    if not options.yes and (options.json or not sys.stdin.isatty()):
        raise ConfigError("nobody can be asked here: --yes approves without a question")
    credentials = Credentials.of(options.certs, node_folder(options.rank, config.dealer))
    check_own(config, credentials, options.rank)
    plan = make_plan(config)
    if not options.json:
        for line in plan_lines(plan, outlook(config, plan, options.rank)):
            say(line)
    if not options.yes and input(f"approve it as {config.node_name(options.rank)}? yes or no: ").strip() != "yes":
        say("approve: nothing was signed", error=True)
        return CHECK_FAILED
    path = approve(config, plan, credentials, options.rank, approvals_folder(options.session))
    record = {"approval": str(path), "digest": plan.digest}
    return answer(options, record, f"signed {path}: hand it to the other parties")


main = program(
    "approve",
    run,
    argument("session", type=Path, help="the session file"),
    argument("--certs", type=Path, required=True, help="this host's folder of certificates"),
    argument("--rank", type=int, required=True, help="this party's place in the session file, from 0"),
    argument("--yes", action="store_true", help="approve without a question"),
)

if __name__ == "__main__":
    sys.exit(main())
