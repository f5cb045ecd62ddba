"""Reviews of a card: answers to an appeal, or due by date, with what discovery proposes now and proposed before.

A review looks at the evidence and at the entry of the feature dictionary, and at what discovery proposes on new
records if it was run again. It may change a role, the evidence and the entry. What changed is in its event, and makes
a new version, which the next run follows (`--card`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from secure_sccvfl.policy.card import DISCOVERY, REVIEW_DAYS, Evidence, PolicyCard, as_date, entry_of
from secure_sccvfl.policy.roles import PolicyError, Role

Because = Literal["regular", "shift", "schema", "policy", "appeal"]
"""Why a card is reviewed: its date, other records, other columns, another law or rule, or an objection."""


@dataclass(frozen=True)
class Proposals:
    """What a later run of discovery proposes: by column its role, score and confidence; and where it was run."""

    proposed: Mapping[str, str]
    scores: Mapping[str, float]
    confidence: Mapping[str, float]
    about: str

    @classmethod
    def of(cls, result: Mapping[str, Any], source: str) -> Proposals:
        """From the result of the job `discovery`."""
        try:
            spent = result["privacy"]
            near = "about " if result.get("align") == "hidden" else ""
            about = (
                f"{source}: {near}{result['records']} records of {result['dataset']}, epsilon "
                f"{spent['epsilon_rdp']:.2f} of {spent['cap']:g} at {spent['delta']:g}"
            )
            return cls(dict(result["proposed"]), dict(result["scores"]), dict(result["confidence"]), about)
        except (KeyError, TypeError, ValueError):
            raise PolicyError(f"{source} is not the result of a discovery session") from None


@dataclass(frozen=True)
class Review:
    """What a review decided. `feature`: the column whose role, evidence or entry changes, if one does.

    `entry`: new texts of its dictionary entry. `proposals`: what discovery proposes now, if it was run again.
    """

    date: str
    who: str
    reason: str
    because: Because = "regular"
    appeal: str = ""
    feature: str = ""
    role: Role | None = None
    evidence: tuple[Evidence, ...] = ()
    entry: Mapping[str, str] = field(default_factory=dict)
    due: str = ""
    proposals: Proposals | None = None

    def __post_init__(self) -> None:
        if self.because not in get_args(Because):
            raise PolicyError(f"no cause of a review {self.because!r}; available: {', '.join(get_args(Because))}")
        if bool(self.appeal) != (self.because == "appeal"):
            raise PolicyError("a review because of an appeal names it (--appeal), and no other does")
        if self.role is not None and not self.evidence:
            raise PolicyError('a changed role needs evidence (--evidence "KIND: text")')
        if (self.role is not None or self.evidence or self.entry) and not (self.feature or self.appeal):
            raise PolicyError("name the column whose role, evidence or entry changes (--feature)")


def reviewed(card: PolicyCard, review: Review) -> PolicyCard:
    """The card after a review, with its event, the next date, and a new version if people changed something."""
    feature, more = _subject(card, review), dict[str, Any]()
    changed = card
    if feature:
        card.has(feature)
        more["feature"] = feature
        changed, log = _decided(card, feature, review)
        more |= log
    if review.appeal:
        more = {"answers": review.appeal, **more}
    if review.proposals is not None:
        more |= {"discovery": review.proposals.about, "deltas": deltas(card, review.proposals)}
        changed = _with_proposals(changed, review.proposals)
    elif review.because in ("regular", "shift", "schema"):
        more["discovery"] = "not run again"
    if changed.digest() != card.digest():
        version = next_version(card.version)
        changed, more = replace(changed, version=version, date=review.date), {**more, "version": version}
    due = review.due or (as_date(review.date) + datetime.timedelta(days=REVIEW_DAYS)).isoformat()
    logged = changed.logged("review", review.date, review.who, review.reason, because=review.because, **more)
    return replace(logged, review_due=due)


def _subject(card: PolicyCard, review: Review) -> str:
    """The column that a review is about: that of the appeal it answers, the one it names, or none."""
    if not review.appeal:
        return review.feature
    appeals = [e for e in card.open_appeals if e.get("number") == review.appeal]
    if not appeals:
        numbers = ", ".join(str(e.get("number")) for e in card.open_appeals) or "none"
        raise PolicyError(f"no open appeal {review.appeal!r}; open are: {numbers}")
    feature = str(appeals[0]["feature"])
    if review.feature not in ("", feature):
        raise PolicyError(f"appeal {review.appeal} is about {feature!r}, not about {review.feature!r}")
    return feature


def _decided(card: PolicyCard, feature: str, review: Review) -> tuple[PolicyCard, dict[str, Any]]:
    """The card with the new role, evidence and entry of a column, and what became of each for the log."""
    old, previous = card.decisions[feature], dict(card.dictionary.get(feature, {}))
    new, log = old, {"evidence": "kept", "entry": "kept"}
    if review.evidence:
        discovered = tuple(e for e in old.evidence if e.kind == DISCOVERY)
        new = replace(new, evidence=(*review.evidence, *discovered))
        before = "; ".join(e.words for e in old.by_people) or "none"
        log["evidence"] = f"{before} -> {'; '.join(e.words for e in review.evidence)}"
    if review.role is not None and review.role != old.role:
        new = replace(new, role=review.role, reason=review.reason)
        log["change"] = f"{old.role} -> {review.role}"
    entry = entry_of(feature, {**previous, **review.entry})
    if entry != previous:
        fields = [k for k in sorted({*entry, *previous}) if entry.get(k) != previous.get(k)]
        log["entry"] = "; ".join(f"{k}: {previous.get(k) or 'none'} -> {entry.get(k) or 'none'}" for k in fields)
    dictionary = {**card.dictionary, feature: entry} if entry != previous else card.dictionary
    return replace(card, decisions={**card.decisions, feature: new}, dictionary=dictionary), log


def deltas(card: PolicyCard, proposals: Proposals) -> dict[str, dict[str, Any]]:
    """Columns whose proposed role changed, or which are new or gone, with scores before and after.

    A column without a proposal on the card counts from its role there.
    """
    changes: dict[str, dict[str, Any]] = {}
    for name in sorted({*card.decisions, *proposals.proposed}):
        old = card.decisions.get(name)
        before, after = (old.proposed or old.role) if old is not None else None, proposals.proposed.get(name)
        if before != after:
            score = None if old is None else old.score
            changes[name] = {"proposed": [before, after], "score": [score, proposals.scores.get(name)]}
    return changes


def _with_proposals(card: PolicyCard, proposals: Proposals) -> PolicyCard:
    """The card with the proposals of the last discovery, next to roles that stay as people decided them."""
    decisions = dict(card.decisions)
    for name in decisions.keys() & proposals.proposed.keys():
        d, proposed, sure, score = (
            decisions[name],
            proposals.proposed[name],
            proposals.confidence[name],
            proposals.scores[name],
        )
        text = (
            f"discovery proposes {proposed} with confidence {100 * sure:.1f} %; score {score:.3f}; {proposals.about}"
        )
        evidence = (*d.by_people, Evidence(text, DISCOVERY))
        decisions[name] = replace(d, evidence=evidence, proposed=proposed, confidence=sure, score=score)
    return replace(card, decisions=decisions)


def next_version(version: str) -> str:
    """1 becomes 2, 2.7 becomes 2.8; anything else gets a number at its end."""
    head, dot, last = version.rpartition(".")
    return f"{head}{dot}{int(last) + 1}" if last.isdigit() else f"{version}.1"
