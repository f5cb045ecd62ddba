"""Policy cards: which role each column has, who answers for it, and what was objected and decided.

    python launch/policy.py show runs/2026-01-01
    python launch/policy.py show german                                  the card that is shipped for a data set
    python launch/policy.py appeal runs/2026-01-01 --feature housing --who "an applicant" --text "no choice" --wants N
    python launch/policy.py review runs/2026-01-01 --appeal 1 --who "policy board" --text "agreed" --role N
    python launch/policy.py review runs/2026-01-01 --who "policy board" --text "nothing to change" --due 2027-06-30
    python launch/policy.py diff old/policy_card.json runs/2026-01-01

CARD is a file (JSON; TOML to read only), the folder of a run, or a shipped name. A review sets the
next date. A changed role makes a new version: train with `--card RUN/policy_card.json` to follow
it. Every change to the card of a run goes to the run's hash-chained log.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launch.arguments import Parser
from protocols.config import ConfigError
from secure_sccvfl.run.console import OK, guarded, say

if TYPE_CHECKING:
    from secure_sccvfl.discovery.roles import PolicyCard


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("what", choices=("show", "appeal", "review", "diff"))
    parser.add_argument("card", help="a card: a file, the folder of a run, or a shipped name")
    parser.add_argument("newer", nargs="?", help="diff: the other card")
    parser.add_argument("--feature", help="appeal: the column whose role is objected to")
    parser.add_argument("--who", help="appeal, review: who says so")
    parser.add_argument("--text", help="appeal, review: why")
    parser.add_argument("--wants", choices=("N", "M", "P"), help="appeal: the role that is asked for")
    parser.add_argument("--appeal", default="", help="review: the number of the appeal that it answers")
    parser.add_argument("--role", choices=("N", "M", "P"), help="review: the new role; without it, roles stay")
    parser.add_argument("--due", default="", help="review: date of the next one (default in a year)")
    options = parser.parse_args(arguments)
    return guarded("policy", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from secure_sccvfl.report.policy_card import card_markdown, find_card

    card = find_card(options.card)
    if options.what == "diff":
        return _diff(options, card)
    if options.what != "show":
        card = _changed(options, card)
    if options.json:
        print(json.dumps(card.to_json()))
        return OK
    print(card_markdown(card))
    if card.overdue(datetime.date.today()):
        say(f"policy: the review was due on {card.review_due}", error=True)
    for appeal in card.open_appeals:
        say(f"policy: appeal {appeal['number']} about {appeal['feature']} is open", error=True)
    return OK


def _changed(options: argparse.Namespace, card: PolicyCard) -> PolicyCard:
    """The card after an appeal or a review, written back to its place."""
    from secure_sccvfl.report.policy_card import keep_card

    place = Path(options.card)
    if not place.exists() or place.suffix == ".toml":
        raise ConfigError("only JSON cards are written: `policy show CARD --json > card.json` makes one of any card")
    if not options.who or not options.text:
        raise ConfigError(f"{options.what} needs --who and --text")
    today = datetime.date.today().isoformat()
    if options.what == "appeal":
        if not options.feature:
            raise ConfigError("appeal needs --feature, the column whose role is objected to")
        card = card.appealed(options.feature, today, options.who, options.text, options.wants)
    else:
        card = card.reviewed(today, options.who, options.text, options.appeal, options.role, options.due)
    keep_card(place, card, options.what)
    return card


def _diff(options: argparse.Namespace, card: PolicyCard) -> int:
    from secure_sccvfl.report.policy_card import find_card

    if options.newer is None:
        raise ConfigError("diff needs two cards")
    newer = find_card(options.newer)
    changed = card.diff(newer)
    if options.json:
        print(json.dumps({"from": card.version, "to": newer.version, "changed": changed}))
        return OK
    say(f"version {card.version} -> {newer.version}: {len(changed)} roles differ")
    for name, (old, new) in changed.items():
        reason = newer.decisions[name].reason if name in newer.decisions else "no longer on the card"
        say(f"  {name}: {old or 'none'} -> {new or 'none'}: {reason}")
    return OK


if __name__ == "__main__":
    sys.exit(main())
