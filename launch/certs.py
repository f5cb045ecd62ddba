"""Certificates of a consortium. Each host makes its own key; an authority signs; a session file pins.

    sccvfl certs request certs --place party-0 --name bank      on each host: its key, which stays, and a request
    sccvfl certs authority authority                            once, at one place
    sccvfl certs sign request-party-0.pem --authority authority
    sccvfl certs install party-0.pem ca.pem certs
    sccvfl certs pin session.toml certs/party-0/cert.pem        whom the session file accepts
    sccvfl certs show certs                                     places, validity, fingerprints
    sccvfl certs request certs --place party-0 --name bank --renew
    sccvfl certs revoke authority/issued/party-0.pem --authority authority
    python launch/certs.py throwaway --parties 3                a whole set on one machine

`sccvfl certs COMMAND --help` tells more; docs/operating.md has all steps. Without a command, a whole
set is made in a new folder: all keys on one machine, for a test or a run on that machine. Its
authority's key is never written, so nobody can be added later.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launch.arguments import Parser
from launch.consortium import certificates
from secure_sccvfl.runs.console import OK, guarded


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in certificates.COMMANDS:
        return certificates.main(given)
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, help="a new folder for the set")
    parser.add_argument("--parties", type=int, default=3, help="number of parties (default 3)")
    parser.add_argument("--days", type=int, default=365, help="how long they are valid (default 365)")
    options = parser.parse_args(given)
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
