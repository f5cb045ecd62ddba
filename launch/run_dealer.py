"""Start the dealer of a session by hand, on a host that no party controls.

    python launch/run_dealer.py --config session.toml --certs certs
    python launch/run_dealer.py --config session.toml --certs certs --resume     as the parties do
    python launch/run_dealer.py predict --config session.toml --certs certs      for one prediction; or serve

The dealer makes correlated randomness. It sees shapes and counts, never data. It needs no open port
(it dials the parties). It must not work together with any party. `--status 8080` shows what goes on
at http://127.0.0.1:8080/. It serves the jobs of the session
file one after the other, and ends with them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from secure_sccvfl.launch.arguments import Parser, add_status, watching
from secure_sccvfl.runs.console import documented
from secure_sccvfl.runs.process import DealerProcess


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument("job", nargs="?", choices=("predict", "serve"), help="as the parties do")
    parser.add_argument("--config", type=Path, required=True, help="the session file")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem and dealer/")
    parser.add_argument("--resume", action="store_true", help="the parties go on with a run that was stopped")
    parser.add_argument(
        "--transcript",
        type=Path,
        metavar="FOLDER",
        help="for a security evaluation: write all that the dealer sees and sends to a new folder",
    )
    add_status(parser)
    options = parser.parse_args(arguments)
    process = DealerProcess(
        config=options.config,
        certs=options.certs,
        transcript=options.transcript,
        debug=options.debug,
        job=options.job or "",
        resume=options.resume,
        watching=watching(parser, options),
    )
    return documented(process.run())


if __name__ == "__main__":
    sys.exit(main())
