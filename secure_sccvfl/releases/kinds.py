"""What a kind of release is, and the public facts that a plan of releases follows from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from protocols.records.releases import ANY, Release

Receivers = Literal["all", "owner", "receiver"]
Basis = Literal["charged", "follows", "public", "exact", "uncharged", "asked"]
Stage = Literal[
    "alignment",
    "discovery",
    "inputs",
    "edits",
    "head",
    "validation",
    "split",
    "dp",
    "evaluation",
    "exact evaluation",
    "prediction",
]
Columns = Mapping[int, Mapping[str, int]]
"""Public: rank -> feature -> number of columns."""
REDRAWS = 32
"""How many redraws of each feature's numbers a party announces, for the confidence of roles."""


@dataclass(frozen=True)
class Facts:
    """The facts that a plan follows from. All of them are public before a session starts.

    bins: public bins of each party's features. groups: of each protected attribute. sizes: lengths that only one job
    knows. The other fields are options of a run, under their names (`with_settings`).
    """

    bins: Columns
    groups: tuple[int, ...] = ()
    sizes: Mapping[str, int] | None = None
    refreshes: int = 0
    late_refreshes: int = 0
    rule: str = ""
    score: str = ""
    conditional: bool = False
    gain: bool = False
    evaluation: str = ""
    lambdas: tuple[float, ...] = ()
    leak: bool = False
    controls: str = "none"
    tables: str = ""
    """Not empty where statistics of s are those of an earlier run."""
    align: str = "exact"
    private_model: bool = False
    consistency_from: str = ""

    def with_settings(self, *settings: object) -> Facts:
        """The same with what a plan follows from in these settings, by the names of their fields."""
        known = [f.name for f in fields(self)]
        named = {name: getattr(given, name) for given in settings for name in known if hasattr(given, name)}
        return replace(self, **named)

    def length(self, symbol: str, rank: int | None) -> int:
        """The length that a symbol in a kind's shape stands for; `rank` is the owner where there is one."""
        own = self.bins.get(rank, {}) if rank is not None else {}
        known = {
            "*": ANY,
            "1": 1,
            "2": 2,
            "4": 4,
            "lambdas": len(self.lambdas),
            "parties": len(self.bins),
            "other parties": len(self.bins) - 1,
            "features": sum(len(features) for features in self.bins.values()),
            "redraws": REDRAWS * sum(len(features) for features in self.bins.values()),
            "own features": len(own),
            "own bins": sum(own.values()),
            "own halves": 2 * len(own),
            "groups": sum(self.groups),
            "attributes": len(self.groups),
            "squares": len(self.groups) + 1,
            **(self.sizes or {}),
        }
        return known[symbol if rank is None or f"{symbol} {rank}" not in known else f"{symbol} {rank}"]


def once(facts: Facts) -> int:
    return 1


@dataclass(frozen=True)
class Kind:
    """One kind of value that leaves.

    title: its name in plans and logs; K stands for a number and P for a party. to: everybody, the party that owns the
    columns it is about, or one chosen receiver. shape: a symbol of `Facts.length` for each dimension. words: for the
    page. purpose: for the log. tells: for SECURITY.md. basis: why it may leave. charge: the event that pays for a
    charged kind, and `pays` its part of a release's declaration where charges are numbered and releases are not.
    follows: the kinds that it can be computed from. numbers: how many numbered releases there are (title with K).
    times: how often each is made; 0 where the settings of a run leave it out.
    """

    title: str
    to: Receivers
    stage: Stage
    shape: tuple[str, ...]
    basis: Basis
    words: str
    purpose: str
    tells: str
    charge: str | None = None
    pays: str | None = None
    follows: tuple[str, ...] = ()
    numbers: Callable[[Facts], int] = once
    times: Callable[[Facts], int] = once

    @property
    def name(self) -> str:
        """The title without places for a number and a party."""
        return re.sub(r"-K| for party P| P$", "", self.title)

    def titled(self, rank: int | None = None, number: int | None = None) -> str:
        """The name of one release in plans and logs."""
        title = self.title if number is None else self.title.replace("-K", f"-{number}")
        return title if rank is None else re.sub(r"P$", str(rank), title)

    def charged_as(self, number: int | None = None) -> str:
        """The name of the charge that pays for a release of this kind."""
        if self.charge is None:
            raise ValueError(f"a release of kind {self.name!r} is not charged")
        return self.charge if number is None else self.charge.replace("-K", f"-{number}")

    def releases(
        self, facts: Facts, *, receiver: int | None = None, times: int | None = None, detail: str = ""
    ) -> list[Release]:
        """All releases of this kind in a plan. `detail` is added to the purpose."""
        made_times = self.times(facts) if times is None else times
        if made_times < 1:
            return []
        numbers: Iterable[int | None] = range(self.numbers(facts)) if "-K" in self.title else (None,)
        return [
            self._release(facts, rank, number, receiver, made_times, detail)
            for number in numbers
            for rank in (facts.bins if self.to == "owner" else (None,))
            if rank is None or facts.bins[rank]
        ]

    def _release(
        self, facts: Facts, rank: int | None, number: int | None, receiver: int | None, times: int, detail: str
    ) -> Release:
        to = tuple(facts.bins) if self.to == "all" else (rank if receiver is None else receiver,)
        if None in to:
            raise ValueError(f"a release of kind {self.name!r} needs a receiver")
        event = None
        if self.charge is not None:
            event = self.charged_as(number) if self.pays is None else self.pays
        return Release(
            self.titled(rank, number),
            tuple(one for one in to if one is not None),
            tuple(facts.length(symbol, rank) for symbol in self.shape),
            f"{self.purpose}{detail}",
            event=event,
            times=times,
        )

    def is_name(self, name: str) -> bool:
        """Whether a release with this name has this kind."""
        pattern = re.escape(self.title).replace("\\-K", r"-\d+")
        return re.fullmatch(re.sub(r"P$", r"\\d+", pattern), name) is not None

    def row(self) -> str:
        """Its line in SECURITY.md."""
        who = {"all": "all", "owner": "P", "receiver": "the receiver"}[self.to]
        return f"| `{self.title}` | {who} | {self.tells} |"
