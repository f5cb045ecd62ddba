"""Start one party of a session by hand, on any host.

    python launch/run_party.py --rank 1 --config session.toml --certs certs --out out

Every host needs the same session file and this code, the folder of its own certificate
(certs/party-1) and certs/ca.pem. Start the parties and the dealer in any order. `connect` in the
session file says how many seconds they wait for each other (60, or 600 if it pins certificates).
If it pins certificates, all parties must have approved its plan (`sccvfl plan`, `sccvfl approve`).
`--status 8080` shows what goes on at http://127.0.0.1:8080/, and /metrics for Prometheus.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
from pathlib import Path

from launch.arguments import Parser, add_status, watching
from protocols.config import ConfigError, SessionConfig
from protocols.errors import InputError
from secure_sccvfl.consortium.approvals import approvals_beside, check_approvals
from secure_sccvfl.local.screens import show_concerns
from secure_sccvfl.run.console import OK, documented, guarded
from secure_sccvfl.run.process import PartyProcess


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument("--rank", type=int, required=True, help="this party's place in the session file, from 0")
    parser.add_argument("--config", type=Path, required=True, help="the session file")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem and party-RANK/ (not needed for gloo)")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for releases.jsonl and result.json")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="listen here instead of the address in the session file"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of this process (default 1)")
    parser.add_argument(
        "--transcript",
        type=Path,
        metavar="FOLDER",
        help="for a security evaluation: write all that this party sees, SHARES INCLUDED, to a new folder",
    )
    add_status(parser)
    parser.add_argument("--listen-fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
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
    with contextlib.suppress(InputError, ConfigError):  # the process itself says what is wrong
        session = SessionConfig.load(options.config)
        if session.job == "train":
            show_concerns(session.options)
    if (code := guarded(process.name, lambda: _approved(options.config), debug=options.debug)) != OK:
        return code
    listener = socket.socket(fileno=options.listen_fd) if options.listen_fd is not None else None
    return documented(process.run(listener))


def _approved(session: Path) -> int:
    """Refuse to start unless all parties approved the plan as it is here."""
    check_approvals(SessionConfig.load(session), approvals_beside(session))
    return OK


if __name__ == "__main__":
    sys.exit(main())
