"""Policy cards: which role each column has, who answers for it, who approved it, what was objected and decided.

    python launch/policy.py show runs/2026-01-01
    python launch/policy.py show german                                  the card that is shipped for a data set
    python launch/policy.py check german                                 what is missing, and what is due
    python launch/policy.py approve runs/2026-01-01 --as bank            an owner's yes to the card as it is
    python launch/policy.py key --key board.pem                          a new key to sign approvals with (--key)
    python launch/policy.py appeal runs/2026-01-01 --feature housing --who "an applicant" --text "no choice" --wants N
    python launch/policy.py review runs/2026-01-01 --appeal 1 --who "policy board" --text "agreed" --role N \
--evidence "stakeholder: hearing of applicants"
    python launch/policy.py review runs/2026-01-01 --who "policy board" --text "as before" --dataset german
    python launch/policy.py status runs/2026-01-01 --dataset german --party 0
    python launch/policy.py diff old/policy_card.json runs/2026-01-01

    python launch/policy.py send out --certs certs --out card-party-0.json
    python launch/policy.py receive out card-party-0.json

On several hosts each has its own copy of the card. `send` signs this host's copy with the key of its
certificate and writes a file for the others (--out, default card-MEMBER.json); `receive` takes appeals,
reviews and approvals over from such a file, and refuses any other change.
CARD is a file (JSON; TOML to read only), the folder of a run, or a shipped name. docs/policy.md tells
the life of a card. `verify` says whether its approvals hold. A review with --dataset runs discovery
again on these records, under MPC, which is charged, and records what changed. It sets the next date,
a quarter later. A change makes a new version: train with `--card RUN/policy_card.json` to follow it.
Every change to the card of a run writes policy_card.*, report.html and the run's hash-chained log (audit.jsonl,
audit.head), and a review on records reviews/. The new seal is printed.
A seal that was noted before still fits: `audit verify RUN --seal OLD` names what came since.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from secure_sccvfl.launch.arguments import answer, argument, program
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.runs.console import CHECK_FAILED, OK, say

if TYPE_CHECKING:
    from secure_sccvfl.policy.card import PolicyCard

COMMANDS = ("show", "check", "approve", "verify", "key", "appeal", "review", "status", "diff", "send", "receive")
NOTES = ("meaning", "measurement", "manipulability", "confounders", "relation")


@program(
    "policy",
    argument("what", choices=COMMANDS),
    argument("card", nargs="?", help="a card: a file, the folder of a run, or a shipped name"),
    argument("newer", nargs="?", help="diff: the other card; receive: the file that another host sent"),
    argument("--certs", type=Path, help="send: this host's folder of certificates"),
    argument("--out", type=Path, help="send: the new file (default card-MEMBER.json)"),
    argument("--as", dest="owner", metavar="NAME", help="approve: the owner who approves"),
    argument("--key", type=Path, help="approve, key: file of the owner's private key (Ed25519, PEM)"),
    argument("--who", help="appeal, review: who says so"),
    argument("--text", help="appeal, review: why"),
    argument("--wants", choices=("N", "M", "P"), help="appeal: the role that is asked for"),
    argument("--feature", default="", help="appeal, review: the column that it is about"),
    argument("--appeal", default="", help="review: the number of the appeal that it answers"),
    argument(
        "--because",
        choices=("regular", "shift", "schema", "policy"),
        help="review: its cause, if it answers no appeal (default regular)",
    ),
    argument("--role", choices=("N", "M", "P"), help="review: the new role; without it, the role stays"),
    argument("--evidence", action="append", default=[], help='review: "KIND: text"; may be repeated'),
    *(argument(f"--{note}", help=f"review: the column's {note} in the feature dictionary") for note in NOTES),
    argument("--due", default="", help="review: date of the next one (default in a quarter, 91 days)"),
    argument("--dataset", help="review: run discovery again on these data; status: compare with these"),
    argument("--discovery", type=Path, help="review: the folder of a discovery session made for it"),
    argument("--party", type=int, help="status: this party's own columns are checked for a shift"),
)
def main(options: argparse.Namespace) -> int:
    from secure_sccvfl.policy.approvals import concerns
    from secure_sccvfl.reports.policy_card import card_markdown, find_card

    if options.what == "key":
        return _key(options)
    if options.card is None:
        raise ConfigError(f"{options.what} needs a card: a file, the folder of a run, or a shipped name")
    if options.what in ("send", "receive"):
        return {"send": _send, "receive": _receive}[options.what](options)
    card = find_card(options.card)
    if options.what in ("diff", "verify", "check", "status"):
        return {"diff": _diff, "verify": _verify, "check": _check, "status": _status}[options.what](options, card)
    if options.what != "show":
        card = _changed(options, card)
    if options.json:
        print(json.dumps(card.to_json()))
        return OK
    print(card_markdown(card))
    for line in concerns(card, datetime.date.today()):
        say(f"policy: {line}", error=True)
    return OK


def _changed(options: argparse.Namespace, card: PolicyCard) -> PolicyCard:
    """The card after an approval, an appeal or a review, written back to its place."""
    from secure_sccvfl.policy.approvals import approved, read_key
    from secure_sccvfl.reports.policy_card import keep_card

    path = Path(options.card)
    if not path.exists() or path.suffix == ".toml":
        raise ConfigError("only JSON cards are written: `policy show CARD --json > card.json` makes one of any card")
    today = datetime.date.today().isoformat()
    files: list[Path] = []
    if options.what == "approve":
        if not options.owner:
            raise ConfigError("approve needs --as, the owner who approves")
        card = approved(card, options.owner, today, None if options.key is None else read_key(options.key))
    elif not options.who or not options.text:
        raise ConfigError(f"{options.what} needs --who and --text")
    elif options.what == "appeal":
        if not options.feature:
            raise ConfigError("appeal needs --feature, the column whose role is objected to")
        card = card.appealed(options.feature, today, options.who, options.text, options.wants)
    else:
        card, files = _reviewed(options, card, path, today)
    if seal := keep_card(path, card, options.what, files):
        say(f"seal, to be kept by every party: {seal}", error=True)
    return card


def _reviewed(options: argparse.Namespace, card: PolicyCard, path: Path, today: str) -> tuple[PolicyCard, list[Path]]:
    """The card after a review, and the files of a discovery that was run for it."""
    from secure_sccvfl.policy.card import Evidence
    from secure_sccvfl.policy.reviews import Review, reviewed
    from secure_sccvfl.runs.local.card_review import discover_again, discovered

    if options.appeal and options.because:
        raise ConfigError("a review that answers an appeal has that as its cause: leave --because out")
    if options.dataset and options.discovery:
        raise ConfigError("--dataset runs discovery here, --discovery reads one that was run: give one of them")
    review = Review(
        today,
        options.who,
        options.text,
        "appeal" if options.appeal else options.because or "regular",
        options.appeal,
        options.feature,
        options.role,
        tuple(map(Evidence.parse, options.evidence)),
        {note: getattr(options, note) for note in NOTES if getattr(options, note) is not None},
        options.due,
    )
    request = reviewed(card, review)  # a wrong request is refused before discovery is run and charged
    if options.discovery is not None:
        return reviewed(card, replace(review, proposals=discovered(options.discovery))), []
    if options.dataset is None:
        return request, []
    if not path.is_dir():
        raise ConfigError("--dataset runs discovery with the settings of a run: name the folder of one")
    proposals, files = discover_again(path, options.dataset, request.events[-1]["number"])
    return reviewed(card, replace(review, proposals=proposals)), files


def _key(options: argparse.Namespace) -> int:
    from secure_sccvfl.policy.approvals import make_key

    if options.key is None:
        raise ConfigError("key needs --key, the new file that the private key is written to")
    public = make_key(options.key)
    return answer(
        options,
        {"public": public},
        f"{options.key} holds a private key: keep it, and show it to nobody",
        f'on the card, for its owner: key = "{public}"',
    )


def _send(options: argparse.Namespace) -> int:
    from secure_sccvfl.runs.member.card_updates import member_of, send

    if options.certs is None:
        raise ConfigError("send needs --certs, this host's folder of certificates: its key signs")
    out = options.out or Path(f"card-{member_of(Path(options.card))}.json")
    send(Path(options.card), options.certs, out)
    return answer(options, {"sent": str(out)}, f"wrote {out}: for the other parties, `policy receive RUN {out.name}`")


def _receive(options: argparse.Namespace) -> int:
    from secure_sccvfl.reports.policy_card import event_words
    from secure_sccvfl.runs.member.card_updates import receive

    if options.newer is None:
        raise ConfigError("receive needs the folder of the run and the file that another host sent")
    before, card, seal = receive(Path(options.card), Path(options.newer))
    events = [event_words(event) for event in card.events[len(before.events) :]]
    approvals = [f"approved by {a.who} on {a.date}" for a in card.approvals if a not in before.approvals]
    if seal:
        say(f"seal, to be kept by every party: {seal}", error=True)
    return answer(
        options,
        {"events": events, "approvals": approvals, "version": card.version, "seal": seal or None},
        *(events + approvals or ["nothing new"]),
    )


def _check(options: argparse.Namespace, card: PolicyCard) -> int:
    """What is not in order; a card that a run would refuse, or a broken approval, fails the check."""
    from secure_sccvfl.policy.approvals import concerns, verdicts

    problems = concerns(card, datetime.date.today())
    failed = bool(card.without_evidence) or any(v.problem for v in verdicts(card))
    head = f"card for {card.dataset}, version {card.version}: {'FAILS' if failed else 'can be followed'}"
    answer(options, {"fails": failed, "concerns": problems}, head, *(f"  {line}" for line in problems))
    return CHECK_FAILED if failed else OK


def _verify(options: argparse.Namespace, card: PolicyCard) -> int:
    from secure_sccvfl.policy.approvals import verdicts

    verdicts_ = verdicts(card)
    broken, held = any(v.problem for v in verdicts_), any(v.holds for v in verdicts_)
    records = [{"who": v.approval.who, "holds": v.holds, "problem": v.problem, "words": v.words} for v in verdicts_]
    state = "approvals are BROKEN" if broken else "approved" if held else "not approved"
    answer(
        options,
        {"digest": card.digest(), "approved": held and not broken, "approvals": records},
        *(f"{'holds' if v.holds else 'BROKEN' if v.problem else 'earlier'}: {v.words}" for v in verdicts_),
        f"version {card.version} ({card.digest()[:12]}): {state}",
    )
    return OK if held and not broken else CHECK_FAILED


def _status(options: argparse.Namespace, card: PolicyCard) -> int:
    """Is a review due? What is compared with other data needs the folder of a run."""
    from secure_sccvfl.data.features import DataError
    from secure_sccvfl.policy.shift import LEVEL
    from secure_sccvfl.runs.local.card_review import changed_schema, due_by_card, own_shift

    due, notes, run_folder = due_by_card(card, datetime.date.today()), [], Path(options.card)
    shift = None
    if options.dataset is not None:
        if not run_folder.is_dir():
            raise ConfigError("--dataset is compared with the data of a run: name the folder of one")
        due += changed_schema(run_folder, card, options.dataset)
        if options.party is not None:
            try:
                name, shifts = own_shift(run_folder, options.dataset, options.party)
                columns = {
                    s.column: {"distance": s.distance, "by_chance": s.by_chance, "alarm": s.alarm} for s in shifts
                }
                shift = {"party": name, "false_alarm_rate": LEVEL, "columns": columns}
                moved = [f"{s.column} moved by {s.distance:.3f} (by chance {s.by_chance:.3f})" for s in shifts]
                due += [f"shift: {line}" for line, s in zip(moved, shifts, strict=True) if s.alarm]
                notes.append(f"largest move of {name}: {moved[0]}; any false alarm has chance {LEVEL:g} at most")
            except DataError as error:
                notes.append(f"no check for a shift: {error}")
    elif options.party is not None:
        raise ConfigError("--party needs --dataset, the new records")
    return answer(
        options,
        {"review_due": card.review_due, "due": due, "shift": shift},
        f"card for {card.dataset}, version {card.version}, next review {card.review_due or 'not set'}",
        *(f"  {line}" for line in (*due, *notes)),
        "a review is due" if due else "no review is due",
    )


def _diff(options: argparse.Namespace, card: PolicyCard) -> int:
    from secure_sccvfl.reports.policy_card import find_card

    if options.newer is None:
        raise ConfigError("diff needs two cards")
    newer = find_card(options.newer)
    changed = card.diff(newer)
    lines = [f"version {card.version} -> {newer.version}: {len(changed)} roles differ"]
    for name, (old, new) in changed.items():
        reason = newer.decisions[name].reason if name in newer.decisions else "no longer on the card"
        lines.append(f"  {name}: {old or 'none'} -> {new or 'none'}: {reason}")
    return answer(options, {"from": card.version, "to": newer.version, "changed": changed}, *lines)


if __name__ == "__main__":
    sys.exit(main())
