"""Statistics of s that were paid for, kept by their owner: recorded as they are opened, and used again for nothing.

Whatever is computed from an opened noisy table is post-processing: it costs nothing, however often. So a run may
decide roles by other thresholds or another card, train with other lambdas or draw other edits without a release. Here
both sides meet the `Statistics` seam. `Recorded` hands every opened statistic to a file, before anything is made of
it. `Replayed` answers from such a file and opens, noises and charges nothing. The rest of a run does not notice.

A file lies in `tables/` beside the ledger that paid. Only its owner may read it. It has the tables of its owner's
columns, the name of every charge, and what the tables are about: digests of the description (columns, bins, public
ranges) and of the records of each part. Another description, other records or another split are refused. Where
records overlap in secret, each party compares its own records with those of its own file: which records all have
follows from these, so the tables fit if every party's file does.

| before | what each learns |
|---|---|
| each party has its own file | whether all have one that fits, or why not; whether all are of the same releases |

Two short rounds. A digest covers the public part: names of charges, description, records, noise; no table is sent.
Where records overlap in secret, their digests stay at home.
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
from protocols.alignment.presence import Presence
from protocols.errors import InputError
from protocols.operations.noise import NoiseKind
from protocols.records.private import private
from secure_sccvfl.discovery.statistics import Arrays, Clipped, Counts, Groups, Opened, Statistics, Tables, Widths
from secure_sccvfl.releases.catalogue import SKETCH
from secure_sccvfl.releases.charging import Charger

FOLDER, COMMON = "tables", "common records"
Parts = tuple[Mapping[str, np.ndarray], ...]
"""For each protected attribute: an array for each own feature."""


class TablesError(InputError):
    """Kept tables that cannot be used; the message says why."""

    for_operator = True


@dataclass(frozen=True)
class KeptRelease:
    """One opened statistic. key: of its charge. features: of all parties, where it is not about all of them.

    numbers: what else the statistic says (`Clipped`), and the length that tables were scaled to.
    """

    key: str
    event: Event
    parts: Parts = field(repr=False)
    features: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptTables:
    """One party's opened statistics of a run. runs: the names of its sessions. records: digests of the parts.

    align: how records were brought together. With `hidden` the digests are those of this party's own records.
    """

    runs: tuple[str, ...]
    rank: int
    schema: str
    records: Mapping[str, str]
    multiplier: float
    noise: NoiseKind
    releases: Mapping[str, KeptRelease] = field(default_factory=dict)
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

    def with_release(self, name: str, release: KeptRelease, run: str) -> KeptTables:
        runs = self.runs if run in self.runs else (*self.runs, run)
        return replace(self, runs=runs, releases={**self.releases, name: release})

    def is_paid(self, budget: Budget) -> bool:
        """Whether the ledger has the charge of every release."""
        charges = {charge.key: charge.event for charge in budget.charges}
        return bool(self.releases) and all(charges.get(r.key) == r.event for r in self.releases.values())


def save_tables(place: Path, tables: KeptTables) -> Path:
    """Write the file of a run beside the ledger; complete and durable, or not there."""
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


def load_tables(path: Path) -> KeptTables:
    """The tables of a file, or TablesError if it is damaged or was changed."""
    try:
        with open(path, "rb") as opened, np.load(opened) as file:
            arrays = {name: file[name] for name in file.files}
        text, told = str(arrays.pop("facts")), str(arrays.pop("digest"))
        if _digest(text, arrays) != told:
            raise TablesError(f"the kept tables {path.name} were changed: bring back the file, or pay anew")
        facts = json.loads(text)
        releases = {
            name: KeptRelease(
                found["key"],
                Event.from_dict(found["event"]),
                tuple(
                    {feature: arrays[f"{name}|{number}|{feature}"] for feature in own}
                    for number, own in enumerate(facts["parts"][name])
                ),
                tuple(found["features"]),
                found["numbers"],
            )
            for name, found in facts["releases"].items()
        }
        return KeptTables(
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
        if isinstance(error, TablesError):
            raise
        raise TablesError(f"the kept tables {path.name} cannot be read: bring back the file, or pay anew") from None


def _digest(facts: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def known_tables(place: Path) -> list[Path]:
    """Files of kept tables beside a ledger."""
    return sorted((place / FOLDER).glob("*.npz"))


Keep = Callable[[str, KeptRelease], None]


@dataclass(frozen=True)
class _Around:
    """Noise and what is published are those of the statistics inside."""

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
class Recorded(_Around):
    """The statistics of a run, each handed to `keep` as soon as it is opened.

    presence: where records overlap in secret; the noisy number of those that all have is kept with the tables.
    """

    charger: Charger
    keep: Keep
    presence: Presence | None = None

    def group_sums(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str, sensitivity: float, widths: Widths = None
    ) -> Tables:
        found = self.inner.group_sums(columns, groups, counts, name, sensitivity, widths)
        self._keep(name, found, tuple(widths) if isinstance(widths, Mapping | tuple) else ())
        return found

    def clipped_sums(self, columns: Arrays, groups: Groups, counts: Counts, name: str, length: float) -> Clipped:
        found = self.inner.clipped_sums(columns, groups, counts, name, length)
        numbers = {"length": length, "deviation": found.deviation, "counts": found.counts}
        self._keep(name, found.tables, numbers=numbers)
        return found

    def residual_dependence(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str
    ) -> tuple[dict[str, float], ...]:
        found = self.inner.residual_dependence(columns, groups, counts, name)
        self._keep(name, tuple({k: np.array(v) for k, v in part.items()} for part in found))
        return found

    def _keep(
        self,
        name: str,
        parts: Parts,
        features: tuple[str, ...] = (),
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        paid, told = self.charger.paid[name], dict(numbers or {})
        if self.presence is not None:
            told[COMMON] = self.presence.count
        self.keep(name, KeptRelease(paid.receipt.charge, paid.event, parts, features, told))


@dataclass(frozen=True)
class Replayed(_Around):
    """The same seam from kept tables. Nothing is opened or charged; what was not kept is refused like by a ledger.

    `inner` publishes, and knows the noise: its charger must have the multiplier and the kind of the kept tables.
    """

    tables: KeptTables

    def group_sums(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str, sensitivity: float, widths: Widths = None
    ) -> Tables:
        kept = self._kept(name)
        named = set(widths) if isinstance(widths, Mapping | tuple) else set()
        if named != set(kept.features):  # their noise follows from how many
            raise BudgetError(f"{name}: those that were kept are of {', '.join(kept.features)}; nothing is charged")
        return tuple({k: values.astype(float) for k, values in part.items()} for part in kept.parts)

    def clipped_sums(self, columns: Arrays, groups: Groups, counts: Counts, name: str, length: float) -> Clipped:
        kept = self._kept(name)
        tables = tuple(dict(part) for part in kept.parts)
        return Clipped(tables, kept.numbers["deviation"], kept.numbers["counts"])

    def residual_dependence(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str
    ) -> tuple[dict[str, float], ...]:
        return tuple({k: float(v) for k, v in part.items()} for part in self._kept(name).parts)

    def _kept(self, name: str) -> KeptRelease:
        if name not in self.tables.releases:
            raise BudgetError(f"{name}: is not among the kept tables; nothing is charged for it")
        return self.tables.releases[name]
