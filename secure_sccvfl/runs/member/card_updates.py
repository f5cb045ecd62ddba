"""Appeals, reviews and approvals of a run's card on their way to the other hosts, as signed files.

Each host has its own copy of the card. `send` signs the copy of one host with the key of its pinned certificate;
`receive` takes it over at another host if it is the same run's card with later appeals, reviews or approvals, and
nothing else. Approvals that this host has stay; new ones are taken over from owners alone whose key the card names,
because others could be written by anybody. A file is public among the parties and shows that this member sent this
card. Nobody has to receive one, and cards that grew apart are refused.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from secure_sccvfl.policy.approvals import verdicts
from secure_sccvfl.policy.card import DISCOVERY, PolicyCard, read_card, read_limited
from secure_sccvfl.policy.roles import PolicyError
from secure_sccvfl.protocols.config import ConfigError, SessionConfig, node_folder
from secure_sccvfl.protocols.net.certificates import Credentials, fingerprint, is_signed, sign
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.policy_card import CARD, keep_card
from secure_sccvfl.runs.member.plan import canonical

PURPOSE = "card"
SIGNED = ("run", "place", "time", "card")
FIXED = ("dataset", "run", "owners", "proxies", "aware", "follows", "contest")
"""What no appeal, review or approval changes."""


def send(run: Path, certs: Path, out: Path) -> None:
    """Sign this host's card of a run into a new file."""
    host, config = _host(run)
    place = node_folder(host, config.dealer)
    credentials, card = Credentials.of(certs, place), read_card(run / CARD)
    certificate = credentials.certificate.read_text(encoding="ascii")
    if fingerprint(certificate.encode()) != config.certificates[place]:
        raise ConfigError(f"{credentials.certificate} is not the certificate that the run pins for {place}")
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    update: dict[str, Any] = {"run": card.run, "place": place, "time": time, "card": card.to_json()}
    signature = sign(credentials, PURPOSE, canonical(update))
    if out.exists():
        raise ConfigError(f"{out} is there already; name a new file with --out")
    out.write_text(
        json.dumps({**update, "certificate": certificate, "signature": signature}, indent=1) + "\n", encoding="utf-8"
    )


def member_of(run: Path) -> str:
    """The member on whose host the folder of a run is."""
    host, config = _host(run)
    return node_folder(host, config.dealer)


def receive(run: Path, file: Path) -> tuple[PolicyCard, PolicyCard, str]:
    """Take over the card of a signed file at this host: the card before, the card now, and the new seal.

    The seal is empty if the file has nothing new. PolicyError if it is not what a member of this run signed, or
    changes more than appeals, reviews and approvals do.
    """
    _, config = _host(run)
    own = read_card(run / CARD)
    update = _read(file)
    place, certificate = update["place"], update["certificate"].encode()
    if config.certificates.get(place) != fingerprint(certificate):
        raise PolicyError(f"{file.name} is not signed with the certificate that the run pins for {place!r}")
    if not is_signed(certificate, PURPOSE, canonical({key: update[key] for key in SIGNED}), update["signature"]):
        raise PolicyError(f"{file.name}: the signature does not fit: it is forged, or the file was changed")
    card = PolicyCard.of(update["card"])
    _check_successor(own, card, file.name)
    card = _with_own_discovery(own, card)
    keyed = {owner.name for owner in own.owners if owner.key}
    new_approvals = (a for a in card.approvals if a not in own.approvals and a.who in keyed)
    card = replace(card, approvals=(*own.approvals, *new_approvals))
    if card == own:
        return own, own, ""
    new = card.events[len(own.events) :]
    kind = str(new[-1]["kind"]) if new else "approve"
    received = {"from": place, "time": update["time"], "signature": update["signature"]}
    return own, card, keep_card(run, card, kind, received=received)


def _check_successor(own: PolicyCard, card: PolicyCard, name: str) -> None:
    """Raise unless a card follows from ours by later events and approvals alone."""
    try:
        _check_events(own, card, name)
    except (KeyError, TypeError, AttributeError):
        raise PolicyError(f"{name}: its events cannot be read; it was not taken over") from None


def _check_events(own: PolicyCard, card: PolicyCard, name: str) -> None:
    if card.run != own.run:
        raise PolicyError(f"{name} is about another run than this folder")
    if own.events != card.events[: len(own.events)]:
        ours = [e for e in own.events if e not in card.events]
        odd = f"{ours[0]['kind']} {ours[0].get('number', '')} by {ours[0]['who']}" if ours else "its events"
        raise PolicyError(f"{name} lacks what is on this host's card ({odd}): let its sender receive ours first")
    if changed := [field for field in FIXED if getattr(card, field) != getattr(own, field)]:
        raise PolicyError(f"{name} changes {changed[0]}, which no appeal or review changes; it was not taken over")
    new = card.events[len(own.events) :]
    reviews = [event for event in new if event["kind"] == "review"]
    reviewed, roles = {str(event.get("feature", "")) for event in reviews}, dict[str, str](own.roles.of)
    for event in reviews:
        if "change" in event:
            before, _, after = str(event["change"]).partition(" -> ")
            if roles.get(event["feature"]) != before:
                raise PolicyError(f"{name}: a review changes a role that {event['feature']!r} does not have")
            roles[event["feature"]] = after
    moved = [k for k, d in card.decisions.items() if k in own.decisions and d.by_people != own.decisions[k].by_people]
    if roles != dict(card.roles.of) or set(moved) - reviewed:
        raise PolicyError(f"{name} changes a role or evidence without a review of it; it was not taken over")
    dated = ("review_due", "version", "date")
    if not reviews and (card.digest() != own.digest() or any(getattr(card, k) != getattr(own, k) for k in dated)):
        raise PolicyError(f"{name} changes the card without a review; it was not taken over")
    said = [{k: (d.reason, one.dictionary.get(k)) for k, d in one.decisions.items()} for one in (own, card)]
    others = [{k: v for k, v in one.dictionary.items() if k not in one.decisions} for one in (own, card)]
    if others[0] != others[1] or {k for k, words in said[1].items() if words != said[0][k]} - reviewed:
        raise PolicyError(f"{name} changes a reason or an entry without a review of it; it was not taken over")
    if broken := [verdict.words for verdict in verdicts(card) if verdict.problem]:
        raise PolicyError(f"{name}: a broken approval ({broken[0]}); it was not taken over")


def _with_own_discovery(own: PolicyCard, card: PolicyCard) -> PolicyCard:
    """What discovery found is of each host (its budget is named there), unless a review has run it again since."""
    if any(event["kind"] == "review" and "deltas" in event for event in card.events[len(own.events) :]):
        return card
    decisions = {}
    for name, decision in card.decisions.items():
        before = own.decisions.get(name, decision)
        found = tuple(evidence for evidence in before.evidence if evidence.kind == DISCOVERY)
        figures = {key: getattr(before, key) for key in ("proposed", "confidence", "score")}
        decisions[name] = replace(decision, evidence=(*decision.by_people, *found), **figures)
    return replace(card, decisions=decisions)


def _host(run: Path) -> tuple[int, SessionConfig]:
    folder = RunFolder.of(run)
    if folder.host is None:
        raise ConfigError(f"{run} is not the folder of one party's own host: its card has no other copies")
    config = folder.session()
    if not config.certificates:
        raise ConfigError(f"the session file of {run} pins no certificates: nobody could tell who signed")
    return folder.host, config


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_limited(path))
        update = {name: content[name] for name in (*SIGNED, "certificate", "signature")}
        if not all(isinstance(update[name], str) for name in update if name != "card"):
            raise TypeError
        fingerprint(update["certificate"].encode())
        return update
    except OSError as error:
        raise PolicyError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, ConfigError, RecursionError):
        raise PolicyError(f"{path.name} is not what `sccvfl policy send` writes, or was damaged") from None
