"""Show the plan of a session before anything starts: who takes part, what is opened to whom, and its price.

    sccvfl plan session.toml
    sccvfl plan session.toml --certs certs --rank 0             with this party's own records, ledgers and certificate
    sccvfl plan session.toml --rows 20000 --round-trip 20       costs for so many records and 20 ms between hosts
    sccvfl plan session.toml --json --out plan.json

It reads public things: the session file, the description and the card that it names, the code. With
--rank also this party's own file and ledgers, which change nothing that is agreed. All parties find
the same digest; compare it by voice. `sccvfl approve` signs it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launch.arguments import answer, argument, program


def run(options: argparse.Namespace) -> int:
    from protocols.config import ConfigError, node_folder
    from protocols.net.certificates import Credentials
    from secure_sccvfl.config.session_file import load_session, moved_options
    from secure_sccvfl.runs.member.outlook import outlook, plan_lines
    from secure_sccvfl.runs.member.plan import approval_problem, approvals_folder, check_own, make_plan

    config = load_session(options.session)
    if options.rank is not None and not 0 <= options.rank < config.dealer:
        raise ConfigError(f"rank must be from 0 to {config.dealer - 1}, not {options.rank}")
    if options.rows is not None and options.rows < 1:
        raise ConfigError(f"--rows must be at least 1, not {options.rows}")
    if options.certs is not None and options.rank is not None:
        check_own(config, Credentials.of(options.certs, node_folder(options.rank, config.dealer)), options.rank)
    plan = make_plan(config)
    here = outlook(config, plan, options.rank, options.rows, options.round_trip / 1000)
    record = {**plan.as_record(), "here": here}
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    approvals = []
    if config.needs_approval:
        for rank in range(config.dealer):
            problem, approval = approval_problem(config, plan, approvals_folder(options.session), rank)
            approvals.append(f"{config.node_name(rank)}: {problem or 'approved at ' + approval['time']}")
    notice = moved_options(options.session)
    return answer(options, record, *plan_lines(plan, here), *([notice] if notice else []), *approvals)


main = program(
    "plan",
    run,
    argument("session", type=Path, help="the session file"),
    argument("--certs", type=Path, help="this host's folder of certificates: is its own one pinned?"),
    argument("--rank", type=int, help="this party's place: adds its own records and ledgers"),
    argument("--rows", type=int, help="estimate costs for this many records"),
    argument("--round-trip", type=float, default=0.0, metavar="MS", help="between hosts (default 0)"),
    argument("--out", type=Path, help="write the plan here as JSON"),
)

if __name__ == "__main__":
    sys.exit(main())
