"""Start one party of a session by hand, on any host.

    python launch/run_party.py --rank 1 --config session.toml --certs certs --out out

Every host needs the same session file and this code, the folder of its own certificate
(certs/party-1) and certs/ca.pem. Start the parties and the dealer in any order; `connect` in
the session file says how many seconds they wait for each other (60).
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import sys
from pathlib import Path

from launch.console import CHECK_FAILED, OK, Parser, check_transcript, guarded, keep_freed_memory, start_logging


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
    parser.add_argument("--listen-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--progress", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    start_logging(options.debug)
    keep_freed_memory()
    return guarded(f"party {options.rank}", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    import torch

    from protocols.config import ConfigError, SessionConfig
    from protocols.net.certificates import Credentials, node_folder
    from protocols.net.rendezvous import listen
    from protocols.records.chain import unused_name
    from protocols.records.private import private
    from protocols.session.node import open_session
    from secure_sccvfl.run.jobs import make_job

    log = logging.getLogger("party")
    if options.threads < 1:
        raise ConfigError(f"--threads must be at least 1, not {options.threads}")
    torch.set_num_threads(options.threads)
    config = SessionConfig.load(options.config)
    if options.transcript is not None:
        check_transcript(config.options)
    job = make_job(config, options.rank)
    credentials = None
    if options.certs is not None:
        credentials = Credentials.of(options.certs, node_folder(options.rank, config.dealer))
    listener = None
    if options.listen_fd is not None:
        listener = socket.socket(fileno=options.listen_fd)
    elif options.listen is not None:
        listener = listen(options.listen)

    def progress(step: str, number: int, total: int) -> None:
        log.info("%s (%d of %d)", step, number + 1, total)
        if options.progress:
            print(json.dumps({"step": step, "number": number, "total": total}), flush=True)

    releases = options.out / "releases.jsonl"
    if config.options.get("resume"):
        releases = unused_name(releases)
    session = open_session(config, options.rank, credentials, job.plan(), releases, listener, options.transcript)
    with session:
        if options.progress:
            print(json.dumps({"connected": True}), flush=True)
        log.info("connected; running %s", config.job)
        result = job.run(session, progress)
    with open(options.out / "result.json", "w", opener=private) as file:  # tables that went to this party alone
        file.write(json.dumps(result, indent=1) + "\n")
    log.info("done, %s", "all well" if result["ok"] else "a check failed")
    return OK if result["ok"] else CHECK_FAILED


if __name__ == "__main__":
    sys.exit(main())
