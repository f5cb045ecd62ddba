"""Cached DP releases: opened statistics of s that their owner keeps and uses again at no privacy cost.

What is computed from an opened noisy table is post-processing. So a run may assign roles by other thresholds or
another card, train with other lambdas or draw other counterfactuals without a release. `SecureStatistics` hands every
opened statistic to a file before it is used (`keep`), or answers from such a file (`cached`): then it opens, noises
and charges nothing. The rest of a run is the same with both.

A file is in `tables/` next to the ledger with the charges. Only its owner may read it. It has the tables of its
owner's columns, the name of every charge, and what the tables are about: digests of the description (columns, bins,
public ranges) and of the records of each part. Another description, other records or another split are refused. With
hidden alignment each party compares its own records with those of its own file: which records all have follows from
these, so the tables fit if every party's file does.

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

from secure_sccvfl.accounting.budget import Budget, BudgetError
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.discovery.statistics import Released, Statistic
from secure_sccvfl.protocols.errors import InputError
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.releases.catalogue import NOISY_TABLES

FOLDER, COMMON = "tables", "common records"
Parts = tuple[Mapping[str, np.ndarray], ...]
"""For each protected attribute: an array for each own feature."""


class CachedReleaseError(InputError):
    """Cached releases that cannot be used; the message says why."""


@dataclass(frozen=True)
class CachedRelease:
    """One opened statistic. key: of its charge. features: of all parties, where it is not about all of them.

    numbers: public numbers that a reader of the tables needs (`Released`), and the noisy number of common records.
    """

    key: str
    event: Event
    parts: Parts = field(repr=False)
    features: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


Keep = Callable[[str, CachedRelease], None]
"""Called with the name of a release and what was opened."""


@dataclass(frozen=True)
class CachedReleases:
    """One party's opened statistics of a run. runs: names of its sessions. records: digests of the parts.

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
        """The columns with a table of counts; empty: all."""
        return self.releases[NOISY_TABLES.charged_as(0)].features

    @property
    def common(self) -> int:
        """The noisy number of common records, if it was opened."""
        return max(int(release.numbers.get(COMMON, 0)) for release in self.releases.values())

    @property
    def facts(self) -> dict[str, Any]:
        paid = {
            name: {"key": r.key, "event": r.event.to_dict(), "features": list(r.features), "numbers": dict(r.numbers)}
            for name, r in sorted(self.releases.items())
        }
        settings = {k: getattr(self, k) for k in ("schema", "multiplier", "noise", "align")}
        return {**settings, "records": dict(sorted(self.records.items())), "releases": paid}

    @property
    def ids(self) -> bytes:
        """Identifies the releases that these tables come from; the same at every party."""
        local_keys = ("records",) if self.align == "hidden" else ()
        public = {name: value for name, value in self.facts.items() if name not in local_keys}
        for release in public["releases"].values():
            release["event"] = {name: value for name, value in release["event"].items() if name not in local_keys}
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).digest()

    def with_release(self, name: str, release: CachedRelease, run: str) -> CachedReleases:
        runs = self.runs if run in self.runs else (*self.runs, run)
        return replace(self, runs=runs, releases={**self.releases, name: release})

    def released(self, statistic: Statistic) -> Released:
        """What was opened of a statistic; BudgetError if it is not cached."""
        name = statistic.name
        if name not in self.releases:
            raise BudgetError(f"{name}: not among the cached releases; nothing is charged for it")
        cached = self.releases[name]
        if set(statistic.features) != set(cached.features):  # their noise follows from how many
            raise BudgetError(f"{name}: the cached release is of {', '.join(cached.features)}; nothing is charged")
        tables = tuple({k: values.astype(float) for k, values in part.items()} for part in cached.parts)
        return Released(tables, cached.numbers)

    def is_paid(self, budget: Budget) -> bool:
        """Whether the ledger has the charge of every release."""
        charges = {charge.key: charge.event for charge in budget.charges}
        return bool(self.releases) and all(charges.get(r.key) == r.event for r in self.releases.values())


def save_releases(ledger: Path, tables: CachedReleases) -> Path:
    """Write the file of a run next to the ledger, completely and durably or not at all."""
    folder = ledger / FOLDER
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
            raise CachedReleaseError(f"the cached releases {path.name} were changed: restore them, or release again")
        facts, releases = json.loads(text), {}
        for name, entry in facts["releases"].items():
            features = enumerate(facts["parts"][name])
            parts = tuple({k: arrays[f"{name}|{number}|{k}"] for k in own} for number, own in features)
            event, numbers = Event.from_dict(entry["event"]), entry["numbers"]
            releases[name] = CachedRelease(entry["key"], event, parts, tuple(entry["features"]), numbers)
        settings = {k: facts[k] for k in ("rank", "schema", "records", "multiplier", "noise")}
        align = facts.get("align", "exact")
        return CachedReleases(tuple(facts["runs"]), **settings, releases=releases, align=align)
    except (ValueError, KeyError, TypeError, OSError, EOFError, BadZipFile, zlib.error) as error:
        if isinstance(error, CachedReleaseError):
            raise
        raise CachedReleaseError(
            f"the cached releases {path.name} cannot be read: restore it, or release the tables again"
        ) from None


def _digest(facts: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def cached_files(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("*.npz"))
