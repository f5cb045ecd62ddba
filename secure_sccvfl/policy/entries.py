"""The entries of a policy card: who answers for it, on what evidence, the role of a column, and what it means.

Each may be written short, as in cards of earlier versions: an owner as a name, evidence as a text. Its kind is then
not known.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from secure_sccvfl.data.features import MANIPULABLE, NOTES
from secure_sccvfl.policy.roles import ROLES, PolicyError, Role

OWNERS = {
    "affected": "a representative of affected people",
    "board": "an institutional policy board",
    "expert": "a domain expert",
    "regulator": "a regulator or compliance lead",
}
"""Kinds of owners, and who that is."""
EVIDENCE = {
    "statute": "a written law",
    "policy": "a rule of the institution",
    "guideline": "a guideline of the domain",
    "stakeholder": "documented input of stakeholders",
    "empirical": "an empirical check",
}
"""Kinds of evidence that people bring."""
DISCOVERY = "discovery"
"""What a run's discovery found: evidence too, but not for another role than it proposes."""


def _table(what: str, raw: Any, first: str, known: tuple[str, ...]) -> dict[str, str]:
    """An entry that is a text or a table of texts, as a table."""
    table = {first: raw} if isinstance(raw, str) else raw
    if (
        not isinstance(table, Mapping)
        or set(table) - set(known)
        or any(not isinstance(v, str) for v in table.values())
    ):
        raise PolicyError(f"{what} is a text, or a table of texts with {', '.join(known)}; got {raw!r}")
    if not table.get(first, "").strip():
        raise PolicyError(f"{what} needs a {first}, got {raw!r}")
    return dict(table)


def _kind(what: str, kind: str, known: Mapping[str, str]) -> None:
    if kind and kind not in known:
        raise PolicyError(f"no kind of {what} {kind!r}; available: {', '.join(known)}")


@dataclass(frozen=True)
class Owner:
    """One who answers for a card. `key`: the public key that this owner's approvals are signed with, if any."""

    name: str
    kind: str = ""
    contact: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        _kind("owner", self.kind, OWNERS)
        if self.key and not re.fullmatch(r"[0-9a-f]{64}", self.key):
            raise PolicyError(f"the key of owner {self.name!r} must be a public Ed25519 key in 64 hexadecimal digits")

    @classmethod
    def of(cls, raw: Any) -> Owner:
        return raw if isinstance(raw, cls) else cls(**_table("an owner", raw, "name", _names(cls)))

    @property
    def words(self) -> str:
        more = ", ".join(filter(None, (self.kind, self.contact)))
        return f"{self.name} ({more})" if more else self.name

    def to_json(self) -> str | dict[str, str]:
        return _short(self, "name")


@dataclass(frozen=True)
class Evidence:
    """What a decision rests on."""

    text: str
    kind: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        _kind("evidence", self.kind, {**EVIDENCE, DISCOVERY: ""})

    @classmethod
    def of(cls, raw: Any) -> Evidence:
        return raw if isinstance(raw, cls) else cls(**_table("evidence", raw, "text", _names(cls)))

    @classmethod
    def all_of(cls, raw: Any) -> tuple[Evidence, ...]:
        """One entry, a list of them, or none (an empty text)."""
        if raw == "":
            return ()
        return tuple(map(cls.of, raw)) if isinstance(raw, (list, tuple)) else (cls.of(raw),)

    @classmethod
    def parse(cls, text: str) -> Evidence:
        """From a command line: `statute: the text`."""
        kind, colon, rest = text.partition(":")
        if not colon or kind.strip() not in EVIDENCE or not rest.strip():
            raise PolicyError(f'evidence is "KIND: text" with a kind of {", ".join(EVIDENCE)}; got {text!r}')
        return cls(rest.strip(), kind.strip())

    @property
    def words(self) -> str:
        text = f"{self.kind}: {self.text}" if self.kind not in ("", DISCOVERY) else self.text
        return f"{text} ({self.link})" if self.link else text

    def to_json(self) -> str | dict[str, str]:
        return _short(self, "text")


def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _short(entry: Any, first: str) -> str | dict[str, str]:
    """An entry as a table without what is empty, or as a text if only that is known."""
    texts: dict[str, str] = {k: v for k, v in asdict(entry).items() if v}
    return texts[first] if set(texts) == {first} else texts


@dataclass(frozen=True)
class Decision:
    """One line of a card: a role, why, and on what evidence.

    The card of a run also says what discovery proposed, how likely another run proposes the same, and the score that
    this rests on.
    """

    role: Role
    reason: str
    evidence: tuple[Evidence, ...] = ()
    proposed: str = ""
    confidence: float | None = None
    score: float | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PolicyError(f"unknown role {self.role!r}; use N, M or P")
        if not self.reason.strip():
            raise PolicyError("every role on a policy card needs a written reason")
        object.__setattr__(self, "evidence", Evidence.all_of(self.evidence))

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Decision:
        more = {key: raw[key] for key in ("proposed", "confidence", "score") if key in raw}
        return cls(raw["role"], raw.get("reason", ""), raw.get("evidence", ""), **more)

    @property
    def by_people(self) -> tuple[Evidence, ...]:
        """The evidence that people brought."""
        return tuple(e for e in self.evidence if e.kind != DISCOVERY)

    @property
    def is_override(self) -> bool:
        """Whether the role is known to differ from what discovery proposed."""
        return bool(self.proposed) and self.proposed != self.role

    @property
    def lacks_evidence(self) -> bool:
        """No evidence at all, or for an override none but what discovery found."""
        return not (self.by_people if self.is_override or not self.proposed else self.evidence)

    @property
    def words_of_evidence(self) -> str:
        return "; ".join(e.words for e in self.evidence)

    def to_json(self) -> dict[str, Any]:
        decided = {"role": self.role, "reason": self.reason, "evidence": [e.to_json() for e in self.evidence]}
        discovered = {"proposed": self.proposed, "confidence": self.confidence, "score": self.score}
        return decided | ({k: v for k, v in discovered.items() if v is not None} if self.proposed else {})


Entry = Mapping[str, str]
"""What the feature dictionary says of a column: `meaning` and the notes of `data.features`."""
ENTRY = ("meaning", *NOTES)


def entry_of(feature: str, raw: Any) -> dict[str, str]:
    """An entry of the dictionary on a card, checked; empty texts are left out."""
    wrong = not isinstance(raw, Mapping) or set(raw) - set(ENTRY) or any(not isinstance(v, str) for v in raw.values())
    if wrong:
        raise PolicyError(f"the entry of {feature!r} is a table of texts with {', '.join(ENTRY)}; got {raw!r}")
    if raw.get("manipulability", "") not in ("", *MANIPULABLE):
        raise PolicyError(f"{feature}: manipulability is {', '.join(MANIPULABLE)}; got {raw['manipulability']!r}")
    return {key: raw[key] for key in ENTRY if raw.get(key)}


USES_S = "this model uses s"
LEGAL_NOTE = (
    "Secret use of s is still use of s. It may be unlawful, for example in decisions about credit or hiring; ask "
    "before you decide with it."
)


@dataclass(frozen=True)
class AwareEntry:
    """A declared use of s at decisions; ValueError for an entry that says too little.

    On a card it is the table [aware] with purpose, legal_basis, owner and review_due (2027-01-31). Without it, or
    after its review date, mode `aware` is refused.
    """

    purpose: str
    legal_basis: str
    owner: str
    review_due: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"[aware] needs {field.name} in words, got {value!r}")
        self._due()

    @classmethod
    def of(cls, raw: Any) -> AwareEntry:
        """From a card: all four lines, and no others."""
        if not isinstance(raw, Mapping) or set(raw) != set(_names(cls)):
            got = ", ".join(sorted(map(str, raw))) if isinstance(raw, Mapping) else repr(raw)
            raise ValueError(f"[aware] needs purpose, legal_basis, owner and review_due, and nothing else; got {got}")
        due = raw["review_due"]
        return cls(**{**raw, "review_due": due.isoformat() if isinstance(due, datetime.date) else due})

    def _due(self) -> datetime.date:
        try:
            return datetime.date.fromisoformat(self.review_due)
        except ValueError:
            raise ValueError(f"[aware] review_due {self.review_due!r} is no date; write it as 2027-01-31") from None

    def overdue(self, today: datetime.date) -> bool:
        return self._due() < today

    def as_record(self) -> dict[str, str]:
        return asdict(self)

    def words(self) -> str:
        """For people: what is done, what for, who answers for it, and the legal note."""
        texts = (self.purpose, self.legal_basis, self.owner)
        purpose, basis, owner = (text.strip().rstrip(".") for text in texts)
        return (
            f"{USES_S.capitalize()}. Purpose: {purpose}. Legal basis: {basis}. Owner: {owner}. Review due: "
            f"{self.review_due}. {LEGAL_NOTE}"
        )
