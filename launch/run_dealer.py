"""Start the dealer of a session by hand, on a host that no party controls.

    python launch/run_dealer.py --config session.toml --certs certs

The dealer makes correlated randomness. It sees shapes and counts, never data. It needs no open port
(it dials the parties). It must not work together with any party. `--status 8080` shows what goes on
at http://127.0.0.1:8080/.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch.arguments import Parser, add_status, watching
from secure_sccvfl.run.console import documented
from secure_sccvfl.run.process import DealerProcess


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
    add_status(parser)
    options = parser.parse_args(arguments)
    process = DealerProcess(
        options.config, options.certs, options.transcript, options.debug, watching(parser, options)
    )
    return documented(process.run())


if __name__ == "__main__":
    sys.exit(main())
