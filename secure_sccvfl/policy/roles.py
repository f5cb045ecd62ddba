"""The role of every column, and what becomes of proxies.

N is held fixed. M is edited under a change of s. P is a proxy: it is kept under a proxy penalty, so that the model
does not rely on it; a card may have proxies edited with the mediators, or dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from secure_sccvfl.protocols.errors import InputError

Role = Literal["N", "M", "P"]
ROLES: tuple[Role, ...] = ("N", "M", "P")
Proxies = Literal["guard", "edit", "drop"]
"""What becomes of proxies: held fixed under a proxy penalty, edited with the mediators, or left out of the model."""


class PolicyError(InputError):
    """A policy card that cannot be followed; the message names the entry."""


@dataclass(frozen=True)
class Roles:
    """The role of every feature, and what becomes of proxies."""

    of: Mapping[str, Role]
    proxies: Proxies = "guard"

    def __post_init__(self) -> None:
        bad = {k: v for k, v in self.of.items() if v not in ROLES}
        if bad:
            raise PolicyError(f"unknown roles {bad}; use N, M or P")
        check_proxies(self.proxies)

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
    def penalized(self) -> tuple[str, ...]:
        """Proxies that the model sees, held fixed."""
        return self.named("P") if self.proxies == "guard" else ()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Proxies that the model does not see."""
        return self.named("P") if self.proxies == "drop" else ()

    def digest(self) -> str:
        """The version of a mask: stands for the role of every feature, and for what becomes of proxies."""
        content = dict(self.of) if self.proxies == "guard" else [dict(self.of), self.proxies]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def with_role(self, role: Role, names: tuple[str, ...]) -> Roles:
        """The same roles with these features moved to one role."""
        return Roles({**self.of, **dict.fromkeys(names, role)}, self.proxies)


def check_proxies(value: object) -> None:
    if value not in get_args(Proxies):
        raise PolicyError(f"proxies = {value!r} on a policy card; use {', '.join(get_args(Proxies))}")
