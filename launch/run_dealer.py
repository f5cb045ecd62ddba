"""Start the dealer of a session by hand, on a host that no party controls.

    python launch/run_dealer.py --config session.toml --certs certs

The dealer makes correlated randomness. It sees shapes and counts, never data, needs no open
port (it dials the parties), and must not work together with any party.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from launch.console import OK, Parser, check_transcript, guarded, keep_freed_memory, start_logging


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument("--config", type=Path, required=True, help="the session file")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem and dealer/ (not needed for gloo)")
    parser.add_argument(
        "--transcript",
        type=Path,
        metavar="FOLDER",
        help="for a security evaluation: write all that the dealer sees and sends to a new folder",
    )
    options = parser.parse_args(arguments)
    start_logging(options.debug)
    keep_freed_memory()
    return guarded("dealer", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from protocols.config import SessionConfig
    from protocols.net.certificates import Credentials
    from protocols.session.node import serve_as_dealer

    config = SessionConfig.load(options.config)
    if options.transcript is not None:
        check_transcript(config.options)
    credentials = Credentials.of(options.certs, "dealer") if options.certs is not None else None
    made = serve_as_dealer(config, credentials, options.transcript)
    logging.getLogger("dealer").info("done, %d tuples made", made)
    return OK


if __name__ == "__main__":
    sys.exit(main())
