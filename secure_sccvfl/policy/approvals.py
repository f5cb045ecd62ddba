"""Approvals of a card, signed or not, whether they are valid, and everything that is not in order with a card.

An approval names who approved, when, and the digest of what was approved. Any later change of the card gives it
another digest, so the approval no longer holds. A signature (Ed25519) is over all fields of the approval and the name
of the data set.

An owner's private key is in a file of that owner and in no card, log or message. Public key and signature are on the
card. A signature shows that the holder of the key approved exactly this content. That the key is this owner's is
shown only if the card names it (`key` of the owner), which the digest covers. Without a signature an approval shows
no more than that somebody who could write the card wrote it.
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from secure_sccvfl.policy.card import OWNERS, Approval, PolicyCard, as_date
from secure_sccvfl.policy.roles import PolicyError
from secure_sccvfl.protocols.records.private import private

PURPOSE = b"sccvfl approval of a policy card\n"
"""What the signed bytes begin with, so that a signature is good for nothing else."""


def make_key(path: Path) -> str:
    """A new private key in a new file, readable by its owner alone; returns the public key."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    if path.exists():
        raise PolicyError(f"{path} is there already; keys are not written over")
    with open(path, "xb", opener=private) as file:
        file.write(text)
        os.fsync(file.fileno())
    return key.public_key().public_bytes_raw().hex()


def read_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file. No message shows what the file holds."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise PolicyError(f"cannot read the key {path}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PolicyError(f"{path} holds no private key in PEM without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise PolicyError(f"{path} holds another kind of key than Ed25519")
    return key


def signed_bytes(card: PolicyCard, approval: Approval) -> bytes:
    """The bytes that a signature is over."""
    content = {k: v for k, v in asdict(approval).items() if k != "signature"} | {"dataset": card.dataset}
    return PURPOSE + json.dumps(content, sort_keys=True).encode()


def approved(card: PolicyCard, who: str, date: str, key: Ed25519PrivateKey | None = None) -> PolicyCard:
    """The card with an owner's approval of it as it is now."""
    as_date(date)
    owner = next((o for o in card.owners if o.name == who), None)
    if owner is None:
        raise PolicyError(f"{who!r} is no owner of the card; it has {', '.join(o.name for o in card.owners)}")
    public = "" if key is None else key.public_key().public_bytes_raw().hex()
    if owner.key and public != owner.key:
        raise PolicyError(f"the card names a key for {who!r}: sign with that one (--key)")
    card.check_evidence()
    approval = Approval(who, owner.kind, date, card.version, card.digest(), public)
    if key is not None:
        approval = replace(approval, signature=key.sign(signed_bytes(card, approval)).hex())
    others = tuple(a for a in card.approvals if (a.who, a.digest) != (who, approval.digest))
    return replace(card, approvals=(*others, approval))


@dataclass(frozen=True)
class Verdict:
    """What an approval is worth. `holds`: for the card as it is. `problem`: forged, or the card was changed."""

    approval: Approval
    holds: bool
    problem: bool
    words: str


def verdicts(card: PolicyCard) -> list[Verdict]:
    """Every approval on the card, looked at."""
    return [_verdict(card, approval) for approval in card.approvals]


def _verdict(card: PolicyCard, approval: Approval) -> Verdict:
    owner = next((o for o in card.owners if o.name == approval.who), None)
    who = f"{approval.who} on {approval.date}"

    def broken(why: str) -> Verdict:
        return Verdict(approval, False, True, f"{who}: {why}")

    if approval.signature or approval.key:
        try:
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(approval.key))
            public.verify(bytes.fromhex(approval.signature), signed_bytes(card, approval))
        except (InvalidSignature, ValueError):
            return broken("the signature does not fit: forged, or changed since")
    if approval.digest != card.digest():
        if approval.version == card.version:
            return broken("the card was changed after this approval")
        return Verdict(approval, False, False, f"{who}: of version {approval.version}, not of {card.version}")
    if owner is None:
        return broken("no owner of the card")
    if approval.kind != owner.kind:
        return broken(f"approved as {approval.kind!r}, but the owner is {owner.kind!r}")
    if owner.key and approval.key != owner.key:
        return broken("not signed with the key that the card names for this owner")
    signed = "signed, by a key that the card names for nobody" if approval.signature else "not signed"
    how = "signed with the key that the card names" if owner.key else signed
    return Verdict(approval, True, False, f"{who}: {how}")


def unapproved(card: PolicyCard) -> list[str]:
    """Kinds of owners on the card that lack a valid approval; "" stands for owners without a kind."""
    good = {v.approval.kind for v in verdicts(card) if v.holds}
    return [kind for kind in (*OWNERS, "") if kind in {o.kind for o in card.owners} - good]


def concerns(card: PolicyCard, today: datetime.date) -> list[str]:
    """All of them, the gravest first. An empty list: nothing is missing and nothing is due."""
    return [
        *urgent(card, today),
        *_owner_concerns(card),
        *(f"no evidence for the role of {name}" for name in card.without_evidence),
        *_approval_concerns(card),
        *([] if card.contest else ["no contact and deadline for contesting a decision (contest) on the card"]),
    ]


def urgent(card: PolicyCard, today: datetime.date) -> list[str]:
    """What waits for somebody: broken approvals, a review that is overdue, open appeals."""
    return [
        *(v.words for v in verdicts(card) if v.problem),
        *([f"the review was due on {card.review_due}"] if card.overdue(today) else []),
        *(f"appeal {e.get('number', '')} about {e['feature']} is open" for e in card.open_appeals),
    ]


def _owner_concerns(card: PolicyCard) -> list[str]:
    missing = [kind for kind in OWNERS if kind not in {o.kind for o in card.owners}]
    lines = []
    if "affected" in missing:
        lines.append("no representative of affected people is named among the owners")
    if others := [OWNERS[kind] for kind in missing if kind != "affected"]:
        lines.append(f"not among the owners: {', '.join(others)}")
    if missing and (unknown := [o.name for o in card.owners if not o.kind]):
        lines[-1] += f" (of unknown kind: {', '.join(unknown)})"
    return lines


def _approval_concerns(card: PolicyCard) -> list[str]:
    if not card.approved_on:
        return [f"nobody has approved version {card.version}"]
    kinds = unapproved(card)
    return [f"version {card.version} is not approved by {OWNERS.get(k, 'an owner of unknown kind')}" for k in kinds]
