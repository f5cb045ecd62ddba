"""The policy card of a data set: it fixes or overrides roles, with a reason and evidence for each.

People decide the roles; discovery only proposes. A card has a version and its date, owners, a reason and the evidence
for each role, the feature dictionary, approvals (`approvals`), a review date, and the log of appeals and reviews
(`reviews`). Cards written by hand are TOML or JSON and belong under version control. An owner may be written as a
name and evidence as a text, as in cards of earlier versions; its kind is then not known. The card of a run is in its
folder, and every change of it goes to the run's hash-chained log (`secure_sccvfl.reports.run_log`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from secure_sccvfl.data.features import MANIPULABLE, NOTES
from secure_sccvfl.policy.roles import ROLES, PolicyError, Proxies, Role, Roles, check_proxies

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
LARGEST = 1 << 20
"""Characters of a card's file."""


def _table(what: str, raw: Any, first: str, keys: tuple[str, ...]) -> dict[str, str]:
    """An entry that is a text or a table of texts, as a table."""
    table = {first: raw} if isinstance(raw, str) else raw
    if (
        not isinstance(table, Mapping)
        or set(table) - set(keys)
        or any(not isinstance(v, str) for v in table.values())
    ):
        raise PolicyError(f"{what} is a text, or a table of texts with {', '.join(keys)}; got {raw!r}")
    if not table.get(first, "").strip():
        raise PolicyError(f"{what} needs a {first}, got {raw!r}")
    return dict(table)


def _kind(what: str, kind: str, kinds: Mapping[str, str]) -> None:
    if kind and kind not in kinds:
        raise PolicyError(f"no kind of {what} {kind!r}; available: {', '.join(kinds)}")


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
        for name, value in asdict(self).items():
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"[aware] needs {name} in words, got {value!r}")
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


@dataclass(frozen=True)
class Contest:
    """How a person contests a decision: whom to write to, and until how many days after it."""

    contact: str
    days: int

    @classmethod
    def of(cls, raw: Any) -> Contest:
        wrong = not isinstance(raw, Mapping) or set(raw) != set(_names(cls))
        if wrong or not isinstance(raw["contact"], str) or not raw["contact"].strip():
            raise PolicyError(f'contest is {{ contact = "appeals@bank.example", days = 30 }}; got {raw!r}')
        if not isinstance(raw["days"], int) or isinstance(raw["days"], bool) or raw["days"] < 1:
            raise PolicyError(f"contest: days is a whole number, at least 1; got {raw['days']!r}")
        return cls(**raw)

    @property
    def words(self) -> str:
        return f"To contest a decision: {self.contact}, within {self.days} days of it"


EventKind = Literal["appeal", "review", "decision"]
Event = Mapping[str, Any]
REVIEW_DAYS = 91
"""A card is reviewed every quarter unless people set another date."""


@dataclass(frozen=True)
class Approval:
    """One owner's yes to one content of a card: who, when, of which version and digest; signed or not."""

    who: str
    kind: str
    date: str
    version: str
    digest: str
    key: str = ""
    signature: str = ""

    @classmethod
    def of(cls, raw: Any) -> Approval:
        try:
            return raw if isinstance(raw, cls) else cls(**{k: str(v) for k, v in raw.items()})
        except (TypeError, AttributeError):
            raise PolicyError(f"an approval has who, kind, date, version and digest; got {raw!r}") from None

    def to_json(self) -> dict[str, str]:
        return {k: v for k, v in asdict(self).items() if v or k == "kind"}


_ALWAYS = ("dataset", "version", "owners", "proxies", "decisions", "events", "review_due", "run")
_OPTIONAL = ("date", "aware", "dictionary", "approvals", "follows", "contest")
"""Entries of a card's file, and those that it has only if they say something."""


def _json(value: Any) -> Any:
    if is_dataclass(value):
        return value.to_json() if hasattr(value, "to_json") else asdict(value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return {key: _json(one) for key, one in value.items()}
    return [_json(one) for one in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class PolicyCard:
    """Version, owners, decisions, the log of appeals and reviews, the next review date, and its run.

    `proxies`: what becomes of the columns with role P. `aware`: the entry that declares a use of s at decisions, if
    there is one. `dictionary`: what people should know of each column. `date`: of this version. `follows`: of a run's
    card, the version, digest and date of approval of the card that the run was given. `contest`: whom a person writes
    to who contests a decision, and until when.
    """

    dataset: str
    version: str
    owners: tuple[Owner, ...]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    review_due: str = ""
    run: str = ""
    aware: AwareEntry | None = None
    proxies: Proxies = "guard"
    dictionary: Mapping[str, Entry] = field(default_factory=dict)
    approvals: tuple[Approval, ...] = ()
    date: str = ""
    follows: Mapping[str, str] = field(default_factory=dict)
    contest: Contest | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "owners", tuple(map(Owner.of, self.owners)))
        object.__setattr__(self, "dictionary", {k: entry_of(k, v) for k, v in self.dictionary.items()})
        if not self.version or not self.owners:
            raise PolicyError(f"card for {self.dataset!r}: version and owners are needed")
        check_proxies(self.proxies)
        for date in filter(None, (self.review_due, self.date)):
            as_date(date)

    @property
    def roles(self) -> Roles:
        """The roles that the card decides."""
        return Roles({k: d.role for k, d in self.decisions.items()}, self.proxies)

    def rules(self) -> str:
        """Everything that a run follows, as its checkpoints carry it."""
        decided = sorted(self.roles.of.items())
        return repr((decided, self.proxies, self.aware))

    def digest(self) -> str:
        """Stands for all that people decide on a card: what is approved, and what the parties of a run compare.

        Not in it: what discovery found, the log of events, the next review date, and the approvals themselves.
        """
        content = {
            **{key: getattr(self, key) for key in ("dataset", "version", "date", "proxies")},
            "owners": [o.to_json() for o in self.owners],
            "decisions": {
                k: [d.role, d.reason, [e.to_json() for e in d.by_people]] for k, d in self.decisions.items()
            },
            "dictionary": {k: dict(v) for k, v in self.dictionary.items()},
            "aware": None if self.aware is None else self.aware.as_record(),
            **({} if self.contest is None else {"contest": asdict(self.contest)}),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def check(self, features: Collection[str], dataset: str) -> None:
        """Raise, before anything is opened, if the card does not fit these columns, or leaves nothing to edit."""
        if unknown := sorted(set(self.decisions) - set(features)):
            raise PolicyError(f"the policy card names {unknown[0]!r}, which is no column of {dataset}")
        if set(self.decisions) == set(features) and not self.roles.edited:
            raise PolicyError(
                f"the policy card for {dataset} decides every column and makes none a mediator, so there is "
                "nothing to keep consistent: give some column role M, or leave it to discovery"
            )

    @property
    def without_evidence(self) -> tuple[str, ...]:
        """Columns whose role rests on no evidence."""
        return tuple(sorted(k for k, d in self.decisions.items() if d.lacks_evidence))

    def check_evidence(self) -> None:
        """Raise if a role has no evidence.

        Whether a decision overrides discovery is known only after discovery, which costs privacy. So a card that a
        run is given needs evidence for every decision, and is refused before anything is opened.
        """
        for name in self.without_evidence:
            d = self.decisions[name]
            why = f"discovery proposed {d.proposed}, so {d.role}" if d.is_override else f"role {d.role}"
            raise PolicyError(
                f"no evidence for {name!r} on the policy card for {self.dataset}: {why} needs some, such as "
                'evidence = { kind = "guideline", text = "..." }'
            )

    def apply(self, proposed: Roles) -> Roles:
        """The card's decisions over what discovery proposed."""
        self.check(proposed.of, self.dataset)
        return Roles({**proposed.of, **self.roles.of}, self.proxies)

    def logged(self, kind: EventKind, date: str, who: str, text: str, **more: Any) -> PolicyCard:
        """The card with one more event; only `reviews.reviewed` changes roles, with a reason and a new version."""
        if kind not in ("appeal", "review", "decision") or not text.strip() or not who.strip():
            raise PolicyError(f"an event is an appeal, a review or a decision by someone, with a text, got {kind!r}")
        as_date(date)
        event = {"kind": kind, "number": str(len(self.events) + 1), "date": date, "who": who, "text": text, **more}
        return replace(self, events=(*self.events, event))

    def appealed(self, feature: str, date: str, who: str, text: str, wants: Role | None = None) -> PolicyCard:
        """The card with an objection to a role."""
        self.has(feature)
        if wants is not None and wants not in ROLES:
            raise PolicyError(f"unknown role {wants!r}; use N, M or P")
        return self.logged("appeal", date, who, text, feature=feature, **({"wants": wants} if wants else {}))

    @property
    def open_appeals(self) -> tuple[Event, ...]:
        """Appeals that no review has answered."""
        answered = {e.get("answers") for e in self.events if e["kind"] == "review"}
        return tuple(e for e in self.events if e["kind"] == "appeal" and e.get("number") not in answered)

    def overdue(self, today: datetime.date) -> bool:
        return bool(self.review_due) and as_date(self.review_due) < today

    @property
    def approved_on(self) -> str:
        """The date of the last approval of this very content; empty without one."""
        now = self.digest()
        return max((a.date for a in self.approvals if a.digest == now), default="")

    def has(self, feature: str) -> None:
        """Raise unless the card decides this column."""
        if feature not in self.decisions:
            raise PolicyError(f"the card has no feature {feature!r}; it has {', '.join(sorted(self.decisions))}")

    def diff(self, newer: PolicyCard) -> dict[str, tuple[str | None, str | None]]:
        """Features whose role differs between two versions: (old, new)."""
        old = {k: d.role for k, d in self.decisions.items()}
        new = {k: d.role for k, d in newer.decisions.items()}
        return {k: (old.get(k), new.get(k)) for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)}

    def to_json(self) -> dict[str, Any]:
        content = {key: _json(getattr(self, key)) for key in (*_ALWAYS, *_OPTIONAL)}
        return {key: value for key, value in content.items() if value or key in _ALWAYS}

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> PolicyCard:
        for key in ("dataset", "version", "owners", "decisions"):
            if key not in raw:
                raise PolicyError(f"the card has no {key!r}")
        try:
            decisions = {k: Decision.of(d) for k, d in raw["decisions"].items()}
            more: dict[str, Any] = {key: dict(raw[key]) for key in ("dictionary", "follows") if key in raw}
        except PolicyError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PolicyError('each decision of a card is { role = "N", reason = "why", evidence = "..." }') from None
        if not isinstance(raw["owners"], (list, tuple)):
            raise PolicyError(f"owners of a card are a list, got {raw['owners']!r}")
        try:
            more |= {"aware": AwareEntry.of(raw["aware"])} if "aware" in raw else {}
        except ValueError as error:
            raise PolicyError(str(error)) from None
        more |= {key: str(raw[key]) for key in ("review_due", "run", "date") if key in raw}
        more |= {"proxies": raw["proxies"]} if "proxies" in raw else {}
        more |= {"contest": Contest.of(raw["contest"])} if "contest" in raw else {}
        more |= {
            "events": tuple(raw.get("events", ())),
            "approvals": tuple(map(Approval.of, raw.get("approvals", ()))),
        }
        return cls(raw["dataset"], str(raw["version"]), tuple(raw["owners"]), decisions, **more)


def as_date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise PolicyError(f"{text!r} is no date; write it as 2026-01-31") from None


def read_limited(path: Path) -> str:
    """The text of a card, or of a change of one; PolicyError if it has more than `LARGEST` characters."""
    with path.open(encoding="utf-8") as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise PolicyError(f"larger than {LARGEST >> 20} MiB: a policy card is a short file that people read")
    return text


def read_card(path: Path) -> PolicyCard:
    """A card from a TOML or JSON file."""
    try:
        text = read_limited(path)
        return PolicyCard.of(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text))
    except OSError as error:
        raise PolicyError(f"cannot read the policy card {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, PolicyError):
            raise PolicyError(f"{path.name}: {error}") from None
        raise PolicyError(f"{path.name} is neither valid TOML nor JSON: {error}") from None


def shipped_card(name: str) -> PolicyCard:
    """The card that is shipped under this name, or for this data set; census records by path have one for all."""
    from secure_sccvfl.data.embedded import embedded_file  # slow to import, and few runs need it

    task = re.split("[:@]", name)[0]
    with embedded_file(f"{task}.policy.toml") as path:
        if not path.exists():
            raise PolicyError(f"no card is shipped for {task!r}, and there is no such file: name the file of a card")
        return read_card(path)


def named_card(name: str, dataset: str) -> PolicyCard | None:
    """The card that a user names for a run: a file, "shipped" for that of the data set, or a shipped name.

    None if the name is empty. Each of its decisions must have evidence.
    """
    if not name:
        return None
    path = Path(name)
    is_file = path.suffix in (".toml", ".json") or path.exists()
    card = read_card(path) if is_file else shipped_card(dataset if name == "shipped" else name)
    card.check_evidence()
    return card
