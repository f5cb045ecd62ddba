"""What is not in order with a card, in plain words: for `policy check`, the screen before training, and the page."""

from __future__ import annotations

import datetime

from secure_sccvfl.policy.approvals import unapproved, verdicts
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.entries import OWNERS


def concerns(card: PolicyCard, today: datetime.date) -> list[str]:
    """All of them, the gravest first. An empty list: nothing is missing and nothing is due."""
    return [
        *urgent(card, today),
        *_of_owners(card),
        *(f"no evidence for the role of {name}" for name in card.without_evidence),
        *_of_approvals(card),
    ]


def urgent(card: PolicyCard, today: datetime.date) -> list[str]:
    """What waits for somebody: broken approvals, a review that is overdue, open appeals."""
    return [
        *(v.words for v in verdicts(card) if v.problem),
        *([f"the review was due on {card.review_due}"] if card.overdue(today) else []),
        *(f"appeal {e.get('number', '')} about {e['feature']} is open" for e in card.open_appeals),
    ]


def _of_owners(card: PolicyCard) -> list[str]:
    missing = [kind for kind in OWNERS if kind not in {o.kind for o in card.owners}]
    lines = []
    if "affected" in missing:
        lines.append("no representative of affected people is named among the owners")
    if others := [OWNERS[kind] for kind in missing if kind != "affected"]:
        lines.append(f"not among the owners: {', '.join(others)}")
    if missing and (unknown := [o.name for o in card.owners if not o.kind]):
        lines[-1] += f" (of unknown kind: {', '.join(unknown)})"
    return lines


def _of_approvals(card: PolicyCard) -> list[str]:
    if not card.approved_on:
        return [f"nobody has approved version {card.version}"]
    kinds = unapproved(card)
    return [f"version {card.version} is not approved by {OWNERS.get(k, 'an owner of unknown kind')}" for k in kinds]
