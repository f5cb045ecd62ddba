"""Each party signs the digest of the plan; a party starts only if all have signed the plan as it is now.

Who holds what: a party's key is on its own host. An approval (place, digest, certificate, time, signature) is public
and is handed to the others in any way; it lies in `approvals/` next to the session file. What is learned: that the
holder of the pinned certificate agreed to this very plan at this time. It takes no rounds: nothing is connected yet.

Why it holds: a signature covers place, digest, fingerprint and time, for the purpose "plan" alone. Its certificate
must be the one that the plan pins, so neither another member nor the authority can sign for a party. Each party makes
the plan again from its own copies of session file, description, card and code. So a change of any of them after
approval, at any host, stops that host before it connects.

The dealer does not approve. It sees no data and learns nothing of what is opened, so there is nothing for it to agree
to. Its certificate is in the plan: the parties approve who it is. An approval holds for its plan however often all
parties start it; what repeated runs may cost is bounded by the ledgers. Another `name` needs new approvals.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from protocols.config import ConfigError, SessionConfig, node_folder
from protocols.net.certificates import Credentials, fingerprint, is_signed, sign
from protocols.net.enrolment import SHOWN
from secure_sccvfl.runs.member.plan import Plan, canonical, digest_of, make_plan

APPROVALS = "approvals"
"""The folder of approvals, next to the session file."""
PURPOSE = "plan"
SIGNED = ("place", "digest", "fingerprint", "time")
FIELDS = (*SIGNED, "name", "digests", "certificate", "signature")
WORDS = {
    "session": "the session file",
    "data": "the data description",
    "card": "the policy card",
    "code": "the code",
    "openings": "what is opened",
    "budget": "the prices",
    "predictions": "the predictions that are allowed",
}


class ApprovalError(ConfigError):
    """The plan is not approved by all parties as it is now."""


def approvals_beside(session: Path) -> Path:
    """The folder of the approvals of a session file."""
    return session.resolve().parent / APPROVALS


def approve(config: SessionConfig, plan: Plan, credentials: Credentials, rank: int, folder: Path) -> Path:
    """Sign the plan with this party's key; returns the file for the others."""
    check_own(config, credentials, rank)
    place, certificate = node_folder(rank, config.dealer), credentials.certificate.read_bytes()
    approval: dict[str, Any] = {
        "place": place,
        "digest": plan.digest,
        "fingerprint": fingerprint(certificate),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "name": config.names[rank] if config.names else "",
        "digests": plan.digests,
        "certificate": certificate.decode(),
    }
    approval["signature"] = sign(credentials, PURPOSE, _covered(approval))
    folder.mkdir(exist_ok=True)
    path = folder / f"{place}.json"
    path.write_text(json.dumps(approval, indent=1) + "\n", encoding="utf-8")
    return path


def check_own(config: SessionConfig, credentials: Credentials, rank: int) -> None:
    """Raise unless this is a party, and the session file pins its certificate."""
    if not 0 <= rank < config.dealer:
        raise ConfigError(f"rank must be from 0 to {config.dealer - 1}, not {rank}: the parties approve")
    if not config.certificates:
        raise ConfigError("the session file pins no certificates: nobody could tell who approved (`certs pin`)")
    presented = fingerprint(credentials.certificate.read_bytes())
    pin = config.certificates[node_folder(rank, config.dealer)]
    if presented != pin:
        raise ConfigError(
            f"{credentials.certificate} is {presented[:SHOWN]}, but the session file pins {pin[:SHOWN]}"
        )


def check_approvals(config: SessionConfig, folder: Path, required: bool = False) -> list[dict[str, Any]]:
    """The approvals of all parties, for a report; ApprovalError says in one line what is wrong.

    Without pinned certificates, or with `approval = "none"`, none are needed and the list is empty. required: this
    host asks for them whatever the session file says.
    """
    if not config.needs_approval:
        if required:
            says = "pins no certificates" if not config.certificates else 'says approval = "none"'
            raise ApprovalError(f"this host requires an approved plan, and the session file {says}: do not start it")
        return []
    plan = make_plan(config)
    verdicts = [judged(config, plan, folder, rank) for rank in range(config.dealer)]
    wrong: dict[str, list[str]] = {}
    for rank, (problem, _) in enumerate(verdicts):
        if problem:
            wrong.setdefault(problem, []).append(config.node_name(rank))
    if wrong:
        raise ApprovalError("; ".join(f"{', '.join(who)}: {problem}" for problem, who in wrong.items()))
    return [approval for _, approval in verdicts]


def judged(config: SessionConfig, plan: Plan, folder: Path, rank: int) -> tuple[str, dict[str, Any]]:
    """What is wrong with a party's approval of this plan (empty if nothing), and the approval."""
    place = node_folder(rank, config.dealer)
    path = folder / f"{place}.json"
    if not path.exists():
        return f"no approval of the plan is in {APPROVALS}/", {}
    known = _read(path)
    if known is None:
        return "what is there is no approval, or was damaged", {}
    shown, pin = fingerprint(known["certificate"].encode()), config.certificates[place]
    if known["place"] != place or known["fingerprint"] != shown:
        return "what is there is the approval of somebody else", {}
    if shown != pin:
        return f"approved with certificate {shown[:SHOWN]}, but the session file pins {pin[:SHOWN]}", {}
    if not is_signed(known["certificate"].encode(), PURPOSE, _covered(known), known["signature"]):
        return "the signature does not fit: it is forged, or the approval was changed", {}
    if known["digest"] == plan.digest:  # of what is not signed the plan has the truth
        return "", {**known, "name": config.names[rank] if config.names else "", "digests": plan.digests}
    if digest_of(known["digests"]) != known["digest"]:
        return "approved another plan, and what differs cannot be told", {}
    return f"the plan changed since the approval: {_changed(plan, known['digests'])}", {}


def _read(path: Path) -> dict[str, Any] | None:
    """The fields of an approval, of the right kinds; None if they are not there."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: content[name] for name in FIELDS}
        fingerprint(fields["certificate"].encode())
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None
    texts = all(isinstance(fields[name], str) for name in FIELDS if name != "digests")
    return fields if texts and isinstance(fields["digests"], dict) else None


def _changed(plan: Plan, approved: dict[str, str]) -> str:
    """The sections that differ; openings and prices follow from the others, so they are named only if alone."""
    now = plan.digests
    differing = [words for name, words in WORDS.items() if now.get(name) != approved.get(name)]
    causes = [words for words in differing if words not in (WORDS["openings"], WORDS["budget"])]
    return " and ".join(causes or differing)


def _covered(approval: dict[str, Any]) -> bytes:
    return canonical({name: approval[name] for name in SIGNED})
