"""Cached DP releases: opened statistics of s that their owner keeps and uses again at no privacy cost.

Whatever is computed from an opened noisy table is post-processing. So a run may assign roles by other thresholds or
another card, train with other lambdas or draw other counterfactuals without a release. `RecordedStatistics` writes
every opened statistic to a file before it is used. `CachedStatistics` answers from such a file: it opens, noises and
charges nothing. The rest of a run is the same with both.

A file lies in `tables/` next to the ledger that paid. Only its owner may read it. It has the tables of its owner's
columns, the name of every charge, and what the tables are about: digests of the description (columns, bins, public
ranges) and of the records of each part. Another description, other records or another split are refused. With hidden
alignment each party compares its own records with those of its own file: which records all have follows from these,
so the tables fit if every party's file does.

| before | what each learns |
|---|---|
| each party has its own file | whether all have one that fits, or why not; whether all are of the same releases |

Two short rounds. A digest covers the public part: names of charges, description, records, noise; no table is sent.
With hidden alignment the digests of records stay local.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from accounting.budget import Budget, BudgetError
from accounting.events import Event, Sensitivity
from protocols.alignment.hidden_intersection import MembershipMask
from protocols.errors import InputError
from protocols.operations.noise import NoiseKind
from protocols.records.private import private
from secure_sccvfl.discovery.statistics import Arrays, Counts, Groups, Opened, Released, Statistic, Statistics, Tables
from secure_sccvfl.releases.catalogue import SKETCH
from secure_sccvfl.releases.charging import Charger

FOLDER, COMMON = "tables", "common records"
Parts = tuple[Mapping[str, np.ndarray], ...]
"""For each protected attribute: an array for each own feature."""


class CachedReleaseError(InputError):
    """Cached releases that cannot be used; the message says why."""


@dataclass(frozen=True)
class CachedRelease:
    """One opened statistic. key: of its charge. features: of all parties, where it is not about all of them.

    numbers: what else the statistic says (`Clipped`), and the length that tables were scaled to.
    """

    key: str
    event: Event
    parts: Parts = field(repr=False)
    features: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CachedReleases:
    """One party's opened statistics of a run. runs: the names of its sessions. records: digests of the parts.

    align: how records were brought together. With `hidden` the digests are those of this party's own records.
    """

    runs: tuple[str, ...]
    rank: int
    schema: str
    records: Mapping[str, str]
    multiplier: float
    noise: NoiseKind
    releases: Mapping[str, CachedRelease] = field(default_factory=dict)
    align: str = "exact"

    @property
    def tabled(self) -> tuple[str, ...]:
        """The columns that have a table of counts; empty: all."""
        return self.releases[SKETCH.charged_as(0)].features

    @property
    def common(self) -> int:
        """About how many records all parties have, where that was told with noise."""
        return max(int(release.numbers.get(COMMON, 0)) for release in self.releases.values())

    @property
    def facts(self) -> dict[str, Any]:
        """Everything but the tables."""
        paid = {
            name: {"key": r.key, "event": r.event.to_dict(), "features": list(r.features), "numbers": dict(r.numbers)}
            for name, r in sorted(self.releases.items())
        }
        own = {k: getattr(self, k) for k in ("schema", "multiplier", "noise", "align")}
        return {**own, "records": dict(sorted(self.records.items())), "releases": paid}

    @property
    def ids(self) -> bytes:
        """Stands for the releases that these tables are of; the same at every party."""
        own = ("records",) if self.align == "hidden" else ()
        public = {name: value for name, value in self.facts.items() if name not in own}
        for release in public["releases"].values():
            release["event"] = {name: value for name, value in release["event"].items() if name not in own}
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).digest()

    def with_release(self, name: str, release: CachedRelease, run: str) -> CachedReleases:
        runs = self.runs if run in self.runs else (*self.runs, run)
        return replace(self, runs=runs, releases={**self.releases, name: release})

    def is_paid(self, budget: Budget) -> bool:
        """Whether the ledger has the charge of every release."""
        charges = {charge.key: charge.event for charge in budget.charges}
        return bool(self.releases) and all(charges.get(r.key) == r.event for r in self.releases.values())


def save_releases(place: Path, tables: CachedReleases) -> Path:
    """Write the file of a run next to the ledger, completely and durably or not at all."""
    folder = place / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        f"{name}|{number}|{feature}": values
        for name, release in tables.releases.items()
        for number, part in enumerate(release.parts)
        for feature, values in part.items()
    }
    shapes = {name: [list(part) for part in release.parts] for name, release in tables.releases.items()}
    facts = {"runs": list(tables.runs), "rank": tables.rank, "parts": shapes, **tables.facts}
    text = json.dumps(facts, sort_keys=True)
    path = folder / f"{tables.runs[0]}.npz"
    fresh = path.with_suffix(f".{os.getpid()}")
    with open(fresh, "wb", opener=private) as file:
        np.savez(file, facts=np.array(text), digest=np.array(_digest(text, arrays)), **arrays)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return path


def load_releases(path: Path) -> CachedReleases:
    """The tables of a file, or CachedReleaseError if it is damaged or was changed."""
    try:
        with open(path, "rb") as opened, np.load(opened) as file:
            arrays = {name: file[name] for name in file.files}
        text, digest = str(arrays.pop("facts")), str(arrays.pop("digest"))
        if _digest(text, arrays) != digest:
            raise CachedReleaseError(f"the cached releases {path.name} were changed: restore the file, or pay again")
        facts = json.loads(text)
        releases = {
            name: CachedRelease(
                entry["key"],
                Event.from_dict(entry["event"]),
                tuple(
                    {feature: arrays[f"{name}|{number}|{feature}"] for feature in own}
                    for number, own in enumerate(facts["parts"][name])
                ),
                tuple(entry["features"]),
                entry["numbers"],
            )
            for name, entry in facts["releases"].items()
        }
        return CachedReleases(
            tuple(facts["runs"]),
            facts["rank"],
            facts["schema"],
            facts["records"],
            facts["multiplier"],
            facts["noise"],
            releases,
            facts.get("align", "exact"),
        )
    except (ValueError, KeyError, TypeError, OSError, EOFError, BadZipFile, zlib.error) as error:
        if isinstance(error, CachedReleaseError):
            raise
        raise CachedReleaseError(
            f"the cached releases {path.name} cannot be read: restore the file, or pay again"
        ) from None


def _digest(facts: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def cached_files(place: Path) -> list[Path]:
    """Files of cached releases next to a ledger."""
    return sorted((place / FOLDER).glob("*.npz"))


Keep = Callable[[str, CachedRelease], None]


@dataclass(frozen=True)
class _Around:
    """Noise and what is published are those of the inner statistics."""

    inner: Statistics

    def deviation(self, sensitivity: float | Sensitivity) -> float:
        return self.inner.deviation(sensitivity)

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        return self.inner.publish(name, values)

    def projected(
        self, tables: Tables, releases: int, counts: Counts, tabled: tuple[str, ...] = ()
    ) -> tuple[Opened, ...]:
        return self.inner.projected(tables, releases, counts, tabled)

    def bins(self, tables: Tables, tabled: tuple[str, ...] = ()) -> Mapping[str, int]:
        return self.inner.bins(tables, tabled)


@dataclass(frozen=True)
class RecordedStatistics(_Around):
    """The statistics of a run, each handed to `keep` as soon as it is opened.

    membership: with hidden alignment; the noisy number of common records is kept with the tables.
    """

    charger: Charger
    keep: Keep
    membership: MembershipMask | None = None

    def release(self, statistic: Statistic, columns: Arrays, groups: Groups, counts: Counts) -> Released:
        released = self.inner.release(statistic, columns, groups, counts)
        paid, numbers = self.charger.paid[statistic.name], dict(released.numbers)
        if self.membership is not None:
            numbers[COMMON] = self.membership.count
        release = CachedRelease(paid.receipt.charge, paid.event, released.tables, statistic.features, numbers)
        self.keep(statistic.name, release)
        return released


@dataclass(frozen=True)
class CachedStatistics(_Around):
    """The same interface from cached releases. Nothing is opened or charged; what is not cached is refused.

    `inner` publishes, and knows the noise: its charger must have the multiplier and the noise kind of the cache.
    """

    tables: CachedReleases

    def release(self, statistic: Statistic, columns: Arrays, groups: Groups, counts: Counts) -> Released:
        name = statistic.name
        if name not in self.tables.releases:
            raise BudgetError(f"{name}: not among the cached releases; nothing is charged for it")
        cached = self.tables.releases[name]
        if set(statistic.features) != set(cached.features):  # their noise follows from how many
            raise BudgetError(f"{name}: the cached release is of {', '.join(cached.features)}; nothing is charged")
        tables = tuple({k: values.astype(float) for k, values in part.items()} for part in cached.parts)
        return Released(tables, cached.numbers)
