"""Raise the cap of a consortium's ledger: a decision that every party signs with its own key.

    sccvfl raise-cap draft cap.toml --ledger sccvfl-ledgers/party-0 --epsilon 12 --reason "yearly review"
    sccvfl raise-cap sign cap.toml --certs certs --rank 0
    sccvfl raise-cap show cap.toml

One party drafts it, each signs the same file in turn, and all put it next to the session file, with
cap = "cap.toml" and the new epsilon among its options. The next session checks all signatures against
the certificates that the session file pins, and writes the decision into every ledger. A party that does
not sign is enough to keep the cap. --test is about the ledger of test records.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from launch.arguments import answer, argument, program


def run(options: argparse.Namespace) -> int:
    from accounting.ledger import LedgerError
    from protocols.config import ConfigError
    from protocols.net.certificates import Credentials
    from secure_sccvfl.releases.ledgers import (
        EVALUATIONS,
        LEDGER,
        draft_decision,
        read_decision,
        signed_by,
        write_decision,
    )

    needed = {"draft": ("ledger", "epsilon", "reason"), "sign": ("certs", "rank"), "show": ()}[options.action]
    if missing := [name for name in needed if getattr(options, name) is None]:
        raise ConfigError(f"{options.action} needs --{missing[0]}")
    if options.action == "draft":
        if options.file.exists():
            raise ConfigError(f"{options.file} exists: a decision is drafted once, then signed")
        ledger = options.ledger / (EVALUATIONS if options.test else LEDGER)
        try:
            decision = draft_decision(ledger, options.epsilon, options.reason, datetime.date.today().isoformat())
        except LedgerError as error:
            raise ConfigError(str(error)) from None
        write_decision(options.file, decision)
    else:
        decision = read_decision(options.file)
    if options.action == "sign":
        folder = f"party-{options.rank}"
        decision = signed_by(decision, Credentials.of(options.certs, folder), folder)
        write_decision(options.file, decision)
    places = sorted(decision.signed)
    return answer(
        options,
        {**decision.content, "digest": decision.digest, "signed": places},
        f"{decision.ledger}: from epsilon {decision.before:g} to {decision.after:g} at delta {decision.delta:g}, "
        f"{decision.date}: {decision.reason}",
        f"signed by {', '.join(places) if places else 'nobody yet'}; digest {decision.digest}",
    )


main = program(
    "raise-cap",
    run,
    argument("action", choices=("draft", "sign", "show"), help="what to do"),
    argument("file", type=Path, help="the decision, cap.toml"),
    argument("--ledger", type=Path, help="draft: the folder of a party's ledgers"),
    argument("--test", action="store_true", help="draft: the ledger of test records, not of training"),
    argument("--epsilon", type=float, help="draft: the new cap"),
    argument("--reason", help="draft: why, for everybody who reads the ledger later"),
    argument("--certs", type=Path, help="sign: the folder with this party's certificate and key"),
    argument("--rank", type=int, help="sign: this party's number"),
)

if __name__ == "__main__":
    sys.exit(main())
