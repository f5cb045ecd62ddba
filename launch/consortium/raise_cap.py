"""Raise the cap of a consortium's ledger: a decision that every party signs with its own key.

    sccvfl raise-cap draft cap.toml --ledger sccvfl-ledgers/party-0 --epsilon 12 --reason "yearly review"
    sccvfl raise-cap sign cap.toml --certs certs --rank 0
    sccvfl raise-cap show cap.toml

One party drafts it, each signs the same file in turn, and all put it beside the session file, with
cap = "cap.toml" and the new epsilon among its options. The next session checks all signatures against
the certificates that the session file pins, and writes the decision into every ledger. A party that does
not sign is enough to keep the cap. --test is about the ledger of test records.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import asdict
from pathlib import Path

from launch.arguments import Parser
from secure_sccvfl.runs.console import OK, guarded, say


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    parser.add_argument("action", choices=("draft", "sign", "show"), help="what to do")
    parser.add_argument("file", type=Path, help="the decision, cap.toml")
    parser.add_argument("--ledger", type=Path, help="draft: the folder of a party's ledgers")
    parser.add_argument("--test", action="store_true", help="draft: the ledger of test records, not of training")
    parser.add_argument("--epsilon", type=float, help="draft: the new cap")
    parser.add_argument("--reason", help="draft: why, for everybody who reads the ledger later")
    parser.add_argument("--certs", type=Path, help="sign: the folder with this party's certificate and key")
    parser.add_argument("--rank", type=int, help="sign: this party's number")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return guarded("raise-cap", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from accounting.ledger import LedgerError
    from protocols.config import ConfigError
    from protocols.net.certificates import Credentials
    from secure_sccvfl.releases.caps import draft, read_decision, signed_by, write_decision
    from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER

    needed = {"draft": ("ledger", "epsilon", "reason"), "sign": ("certs", "rank"), "show": ()}[options.action]
    if missing := [name for name in needed if getattr(options, name) is None]:
        raise ConfigError(f"{options.action} needs --{missing[0]}")
    if options.action == "draft":
        if options.file.exists():
            raise ConfigError(f"{options.file} exists: a decision is drafted once, then signed")
        ledger = options.ledger / (EVALUATIONS if options.test else LEDGER)
        try:
            raised = draft(ledger, options.epsilon, options.reason, datetime.date.today().isoformat())
        except LedgerError as error:
            raise ConfigError(str(error)) from None
        write_decision(options.file, raised)
    else:
        raised = read_decision(options.file)
    if options.action == "sign":
        place = f"party-{options.rank}"
        raised = signed_by(raised, Credentials.of(options.certs, place), place)
        write_decision(options.file, raised)
    decision, places = raised.decision, sorted(raised.signed)
    if options.json:
        print(json.dumps({**asdict(decision), "digest": decision.digest, "signed": places}))
        return OK
    say(
        f"{decision.ledger}: from epsilon {decision.before:g} to {decision.after:g} at delta {decision.delta:g}, "
        f"{decision.date}: {decision.reason}"
    )
    say(f"signed by {', '.join(places) if places else 'nobody yet'}; digest {decision.digest}")
    return OK


if __name__ == "__main__":
    sys.exit(main())
