"""Make the certificates of a consortium: a small authority, one for each party and the dealer.

    python launch/certs.py certs --parties 3

Give each host ca.pem and its own folder (party-0, party-1, ..., dealer) and nothing else. The
authority's key is never written, so nobody can add a member later; make a new set instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launch.arguments import Parser
from secure_sccvfl.run.console import OK, guarded


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, help="a new folder for the set")
    parser.add_argument("--parties", type=int, default=3, help="number of parties (default 3)")
    parser.add_argument("--days", type=int, default=365, help="how long they are valid (default 365)")
    options = parser.parse_args(arguments)
    return guarded("certs", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from protocols.net.certificates import make_certificates

    places = make_certificates(options.folder, options.parties, options.days)
    if options.json:
        print(json.dumps({"made": [str(place) for place in places]}))
    else:
        print("\n".join(f"made {place}" for place in places))
    return OK


if __name__ == "__main__":
    sys.exit(main())
