"""Roles and the policy card that fixes or overrides them, with a written reason for each.

N is held fixed. M is edited under a change of s. P is a proxy: it is passed through and guarded, so that the model
does not rely on it; a card may have proxies edited with the mediators, or dropped. People decide the roles; discovery
only proposes. A card has a version, owners, a reason and the evidence for each role, a review date, and the log of
appeals and reviews. Cards written by hand are TOML or JSON and belong under
version control. The card of a run is in its folder, and every change of it goes to the run's hash-chained log
(`secure_sccvfl.report.run_log`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from protocols.errors import InputError
from secure_sccvfl.discovery.aware_entry import AwareEntry

Role = Literal["N", "M", "P"]
EventKind = Literal["appeal", "review", "decision"]
ROLES: tuple[Role, ...] = ("N", "M", "P")
Proxies = Literal["guard", "edit", "drop"]
"""What becomes of proxies: held fixed and guarded, edited with the mediators, or left out of the model."""
REVIEW_DAYS = 365


class PolicyError(InputError):
    """A policy card that cannot be followed; the message names the entry."""

    for_operator = True


@dataclass(frozen=True)
class Roles:
    """The role of every feature, and what becomes of proxies."""

    of: Mapping[str, Role]
    proxies: Proxies = "guard"

    def __post_init__(self) -> None:
        bad = {k: v for k, v in self.of.items() if v not in ROLES}
        if bad:
            raise PolicyError(f"unknown roles {bad}; use N, M or P")
        _check_proxies(self.proxies)

    def named(self, role: Role) -> tuple[str, ...]:
        return tuple(sorted(k for k, v in self.of.items() if v == role))

    @property
    def descendants(self) -> tuple[str, ...]:
        """Every feature that may follow from s: mediators and proxies."""
        return tuple(sorted(k for k, v in self.of.items() if v != "N"))

    @property
    def edited(self) -> tuple[str, ...]:
        """What a change of s may change: the mediators, and the proxies if a card says so."""
        return self.descendants if self.proxies == "edit" else self.named("M")

    @property
    def guarded(self) -> tuple[str, ...]:
        """Proxies that the model sees, held fixed."""
        return self.named("P") if self.proxies == "guard" else ()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Proxies that the model does not see."""
        return self.named("P") if self.proxies == "drop" else ()

    def digest(self) -> str:
        """The version of a mask: stands for the role of every feature, and for what becomes of proxies."""
        told = dict(self.of) if self.proxies == "guard" else [dict(self.of), self.proxies]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def with_role(self, role: Role, names: tuple[str, ...]) -> Roles:
        """The same roles with these features moved to one role."""
        return Roles({**self.of, **dict.fromkeys(names, role)}, self.proxies)


@dataclass(frozen=True)
class Decision:
    """One line of a card: a role, why, and on what evidence.

    The card of a run also says what discovery proposed, and how likely another run proposes the same.
    """

    role: Role
    reason: str
    evidence: str = ""
    proposed: str = ""
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PolicyError(f"unknown role {self.role!r}; use N, M or P")
        if not self.reason.strip():
            raise PolicyError("every role on a policy card needs a written reason")

    def to_json(self) -> dict[str, Any]:
        found = {"role": self.role, "reason": self.reason, "evidence": self.evidence}
        return found | ({"proposed": self.proposed, "confidence": self.confidence} if self.proposed else {})


@dataclass(frozen=True)
class PolicyCard:
    """Version, owners, decisions, the log of appeals and reviews, the next review date, and its run.

    `proxies`: what becomes of the columns with role P. `aware`: the entry that declares a use of s at decisions, if
    there is one.
    """

    dataset: str
    version: str
    owners: tuple[str, ...]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    events: tuple[Mapping[str, str], ...] = ()
    review_due: str = ""
    run: str = ""
    aware: AwareEntry | None = None
    proxies: Proxies = "guard"

    def __post_init__(self) -> None:
        if not self.version or not self.owners:
            raise PolicyError(f"card for {self.dataset!r}: version and owners are needed")
        _check_proxies(self.proxies)
        if self.review_due:
            _date(self.review_due)

    @property
    def roles(self) -> Roles:
        """The roles that the card decides."""
        return Roles({k: d.role for k, d in self.decisions.items()}, self.proxies)

    def rules(self) -> str:
        """Everything that a run follows, as the parties compare it."""
        decided = sorted(self.roles.of.items())
        return repr((decided, self.proxies, self.aware))

    def check(self, features: Collection[str], dataset: str) -> None:
        """Raise, before anything is opened, if the card does not fit these columns, or leaves nothing to edit."""
        if unknown := sorted(set(self.decisions) - set(features)):
            raise PolicyError(f"the policy card names {unknown[0]!r}, which is no column of {dataset}")
        if set(self.decisions) == set(features) and not self.roles.edited:
            raise PolicyError(
                f"the policy card for {dataset} decides every column and makes none a mediator, so there is "
                "nothing to keep consistent: give some column role M, or leave it to discovery"
            )

    def apply(self, proposed: Roles) -> Roles:
        """The card's decisions over what discovery proposed."""
        self.check(proposed.of, self.dataset)
        return Roles({**proposed.of, **self.roles.of}, self.proxies)

    def logged(self, kind: EventKind, date: str, who: str, text: str, **more: str) -> PolicyCard:
        """The card with one more event; only `decided` changes roles, with a reason and a new version."""
        if kind not in ("appeal", "review", "decision") or not text.strip() or not who.strip():
            raise PolicyError(f"an event is an appeal, a review or a decision by someone, with a text, got {kind!r}")
        _date(date)
        event = {"kind": kind, "number": str(len(self.events) + 1), "date": date, "who": who, "text": text, **more}
        return replace(self, events=(*self.events, event))

    def appealed(self, feature: str, date: str, who: str, text: str, wants: Role | None = None) -> PolicyCard:
        """The card with an objection to a role."""
        self._has(feature)
        if wants is not None and wants not in ROLES:
            raise PolicyError(f"unknown role {wants!r}; use N, M or P")
        return self.logged("appeal", date, who, text, feature=feature, **({"wants": wants} if wants else {}))

    @property
    def open_appeals(self) -> tuple[Mapping[str, str], ...]:
        """Appeals that no review has answered."""
        answered = {e.get("answers") for e in self.events if e["kind"] == "review"}
        return tuple(e for e in self.events if e["kind"] == "appeal" and e.get("number") not in answered)

    def reviewed(
        self, date: str, who: str, reason: str, appeal: str = "", role: Role | None = None, due: str = ""
    ) -> PolicyCard:
        """The answer to an appeal, or a regular review without one: it keeps the roles, or changes one.

        It sets the next date. A changed role makes a new version, which the next run follows (`--card`).
        """
        more: dict[str, str] = {}
        if appeal:
            asked = [e for e in self.open_appeals if e.get("number") == appeal]
            if not asked:
                numbers = ", ".join(str(e.get("number")) for e in self.open_appeals) or "none"
                raise PolicyError(f"no open appeal {appeal!r}; open are: {numbers}")
            more = {"answers": appeal, "feature": asked[0]["feature"]}
        elif role is not None:
            raise PolicyError("a role is changed in answer to an appeal: name it")
        card = self
        if role is not None:
            feature, old = more["feature"], self.decisions[more["feature"]]
            new = replace(old, role=role, reason=reason)
            more["change"] = f"{old.role} -> {role}"
            card = replace(self, decisions={**self.decisions, feature: new}, version=next_version(self.version))
        due = due or (_date(date) + datetime.timedelta(days=REVIEW_DAYS)).isoformat()
        return replace(card.logged("review", date, who, reason, **more), review_due=due)

    def overdue(self, today: datetime.date) -> bool:
        return bool(self.review_due) and _date(self.review_due) < today

    def _has(self, feature: str) -> None:
        if feature not in self.decisions:
            raise PolicyError(f"the card has no feature {feature!r}; it has {', '.join(sorted(self.decisions))}")

    def diff(self, newer: PolicyCard) -> dict[str, tuple[str | None, str | None]]:
        """Features whose role differs between two versions: (old, new)."""
        old = {k: d.role for k, d in self.decisions.items()}
        new = {k: d.role for k, d in newer.decisions.items()}
        return {k: (old.get(k), new.get(k)) for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)}

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "version": self.version,
            "owners": list(self.owners),
            "proxies": self.proxies,
            "decisions": {k: d.to_json() for k, d in self.decisions.items()},
            "events": [dict(e) for e in self.events],
            "review_due": self.review_due,
            "run": self.run,
            **({} if self.aware is None else {"aware": self.aware.as_record()}),
        }

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> PolicyCard:
        for key in ("dataset", "version", "owners", "decisions"):
            if key not in raw:
                raise PolicyError(f"the card has no {key!r}")
        try:
            decisions = {
                k: Decision(
                    d["role"], d.get("reason", ""), d.get("evidence", ""), d.get("proposed", ""), d.get("confidence")
                )
                for k, d in raw["decisions"].items()
            }
        except (KeyError, TypeError, AttributeError):
            raise PolicyError('each decision of a card is { role = "N", reason = "why" }') from None
        try:
            aware = AwareEntry.of(raw["aware"]) if "aware" in raw else None
        except ValueError as error:
            raise PolicyError(str(error)) from None
        return cls(
            raw["dataset"],
            str(raw["version"]),
            tuple(raw["owners"]),
            decisions,
            tuple(raw.get("events", ())),
            str(raw.get("review_due", "")),
            str(raw.get("run", "")),
            aware,
            raw.get("proxies", "guard"),
        )


def next_version(version: str) -> str:
    """1 becomes 2, 2.7 becomes 2.8; anything else gets a number at its end."""
    head, dot, last = version.rpartition(".")
    return f"{head}{dot}{int(last) + 1}" if last.isdigit() else f"{version}.1"


def _check_proxies(value: object) -> None:
    if value not in get_args(Proxies):
        raise PolicyError(f"proxies = {value!r} on a policy card; use {', '.join(get_args(Proxies))}")


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise PolicyError(f"{text!r} is no date; write it as 2026-01-31") from None


def read_card(path: Path) -> PolicyCard:
    """A card from a TOML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
        return PolicyCard.of(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text))
    except OSError as error:
        raise PolicyError(f"cannot read the policy card {path}: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, PolicyError):
            raise PolicyError(f"{path.name}: {error}") from None
        raise PolicyError(f"{path.name} is neither valid TOML nor JSON: {error}") from None


def shipped_card(name: str) -> PolicyCard:
    """The card that is shipped under this name, or for this data set; census records by path have one for all."""
    from secure_sccvfl.data.embedded import embedded_file  # slow to import, and few runs need it

    task = re.split("[:@]", name)[0]
    with embedded_file(f"{task}.policy.toml") as path:
        if not path.exists():
            raise PolicyError(f"no card is shipped for {task!r}; name the file of one, or leave --card out")
        return read_card(path)


def named_card(name: str, dataset: str) -> PolicyCard | None:
    """The card that a user names: a file, "shipped" for that of the data set, or a shipped name; none if empty."""
    if not name:
        return None
    path = Path(name)
    if path.suffix in (".toml", ".json") or path.exists():
        return read_card(path)
    return shipped_card(dataset if name == "shipped" else name)
