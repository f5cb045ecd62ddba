"""Roles and the policy card that fixes or overrides them, with a written reason for each.

N is held fixed, M is edited under a change of s, P is a proxy: passed through and not to be relied on.
Which is which is a decision of people; discovery only proposes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

Role = Literal["N", "M", "P"]
ROLES: tuple[Role, ...] = ("N", "M", "P")


class PolicyError(ValueError):
    """A policy card that can not be followed; the message names the entry."""

    for_operator = True


@dataclass(frozen=True)
class Roles:
    """The role of every feature."""

    of: Mapping[str, Role]

    def __post_init__(self) -> None:
        bad = {k: v for k, v in self.of.items() if v not in ROLES}
        if bad:
            raise PolicyError(f"unknown roles {bad}; use N, M or P")

    def named(self, role: Role) -> tuple[str, ...]:
        return tuple(sorted(k for k, v in self.of.items() if v == role))

    def with_role(self, role: Role, names: tuple[str, ...]) -> Roles:
        """The same roles with these features moved to one role."""
        return Roles({**self.of, **dict.fromkeys(names, role)})


@dataclass(frozen=True)
class Decision:
    """One line of a card: a role, why, and on what evidence."""

    role: Role
    reason: str
    evidence: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PolicyError(f"unknown role {self.role!r}; use N, M or P")
        if not self.reason.strip():
            raise PolicyError("every role on a policy card needs a written reason")


@dataclass(frozen=True)
class PolicyCard:
    """Version, owners, decisions, and the log of appeals and reviews."""

    dataset: str
    version: str
    owners: tuple[str, ...]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    events: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.version or not self.owners:
            raise PolicyError(f"card for {self.dataset!r}: version and owners are needed")

    def apply(self, proposed: Roles) -> Roles:
        """Decisions of the card over what discovery proposed; an unknown feature is an error."""
        unknown = sorted(set(self.decisions) - set(proposed.of))
        if unknown:
            raise PolicyError(f"card for {self.dataset!r} names unknown features {unknown}")
        return Roles({**proposed.of, **{k: d.role for k, d in self.decisions.items()}})

    def logged(self, kind: Literal["appeal", "review", "decision"], date: str, who: str, text: str) -> PolicyCard:
        """The card with one more event; roles change only by a new version with its own reasons."""
        if kind not in ("appeal", "review", "decision") or not text.strip():
            raise PolicyError(f"an event is an appeal, a review or a decision with a text, got {kind!r}")
        event = {"kind": kind, "date": date, "who": who, "text": text}
        return replace(self, events=(*self.events, event))

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
            "decisions": {
                k: {"role": d.role, "reason": d.reason, "evidence": d.evidence} for k, d in self.decisions.items()
            },
            "events": [dict(e) for e in self.events],
        }

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> PolicyCard:
        for key in ("dataset", "version", "owners", "decisions"):
            if key not in raw:
                raise PolicyError(f"the card has no {key!r}")
        decisions = {
            k: Decision(d["role"], d.get("reason", ""), d.get("evidence", "")) for k, d in raw["decisions"].items()
        }
        events = tuple(raw.get("events", ()))
        return cls(raw["dataset"], str(raw["version"]), tuple(raw["owners"]), decisions, events)


def read_card(path: Path) -> PolicyCard:
    """A card from a TOML or JSON file."""
    text = path.read_text(encoding="utf-8")
    return PolicyCard.of(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text))


def shipped_card(dataset: str) -> PolicyCard:
    """The paper's example roles for German, Heart and COMPAS."""
    with resources.as_file(resources.files("secure_sccvfl") / "data_files") as folder:
        path = folder / f"{dataset}.policy.toml"
        if not path.exists():
            raise PolicyError(f"no card is shipped for {dataset!r}")
        return read_card(path)
