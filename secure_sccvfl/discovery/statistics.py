"""Released statistics of s: noisy, charged, and defined once for the plaintext and the secure engine.

A `Statistic` says what one release is: the public columns it is about, what one record moves, the checks of inputs
before anything is charged, and how it follows from a table of sums by group, in plaintext and under MPC. An engine
(`PlainStatistics`, `SecureStatistics`) multiplies, charges, adds noise and opens. So a further statistic is one more
subclass, an entry of the release catalogue and its canary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from secure_sccvfl.accounting.events import Mechanism, Sensitivity
from secure_sccvfl.accounting.paper import clipped
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.discovery.scores import Opened, group_sizes, projection
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.records.releases import Receipt
from secure_sccvfl.protocols.session.rows import applied
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.clipping import Clipping, clip, scaled
from secure_sccvfl.releases.catalogue import Columns
from secure_sccvfl.releases.noise import Noise

if TYPE_CHECKING:
    from secure_sccvfl.discovery.cached_releases import CachedReleases
    from secure_sccvfl.discovery.noisy_tables import NoisyTables

Arrays = Mapping[str, np.ndarray]
"""Columns of each feature, by its name."""
Groups = Sequence[AtHolder]
"""For each protected attribute: the records' groups, at its holder."""
Counts = Sequence[int]
"""For each protected attribute: how many groups there are."""
Tables = tuple[dict[str, np.ndarray], ...]
"""For each protected attribute: a table of columns by groups for each feature."""
Secret = Any
"""A CrypTen tensor."""


@dataclass(frozen=True)
class Shape:
    """Public sizes of a release: records, columns of each feature of all parties, groups of each attribute."""

    rows: int
    widths: Sequence[int]
    counts: Counts

    @property
    def features(self) -> int:
        return len(self.widths)

    @property
    def parts(self) -> list[slice]:
        """The columns of each attribute's groups in a table."""
        return column_slices(self.counts)


@dataclass(frozen=True)
class Released:
    """What a release opened, by attribute. `numbers`: public numbers that a reader of the tables needs."""

    tables: Tables
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Statistic:
    """One release of statistics of all features with all attributes; each result goes to its feature's owner.

    `refused_hidden`: why it cannot be released where the number of records is secret; empty if it can.
    """

    name: str
    mechanism: ClassVar[Mechanism] = "gaussian"
    refused_hidden: ClassVar[str] = ""

    @property
    def counts_records(self) -> bool:
        """Whether these are tables of bins, each of which counts every record once."""
        return False

    @property
    def features(self) -> tuple[str, ...]:
        """The features it covers; empty: all."""
        return ()

    def layout(self, bins: Columns) -> Columns:
        """The public columns of every party in this release, from the bins of all features."""
        return bins

    def sensitivity(self, shape: Shape) -> Sensitivity:
        """The joint change of all results by one record."""
        raise NotImplementedError

    def whole(self, columns: Arrays, shape: Shape) -> dict[str, np.ndarray]:
        """Owner, local: the whole numbers that are summed by group under MPC.

        Raises DataError, before anything is charged, if own columns may move more than the sensitivity.
        """
        raise NotImplementedError

    def exact(self, columns: np.ndarray, groups: np.ndarray, shape: Shape) -> np.ndarray:
        """In plaintext: the results of one feature without noise (rows x columns of all attributes)."""
        raise NotImplementedError

    def unit(self, shape: Shape) -> float:
        """The value of one unit of the integers opened under MPC."""
        return 1.0

    def largest(self, shape: Shape) -> float:
        """A bound for the sums of a table under MPC, in units."""
        return 2.0**61

    def of_table(self, session: Session, table: Secret, shape: Shape) -> Secret:
        """Run by all parties: the results of all features from the secret table of sums, in units."""
        return table

    def results(self, layout: Columns, counts: Counts) -> tuple[Columns, Counts]:
        """Rows of each feature and columns of each attribute that are opened."""
        return layout, counts

    def numbers(self, shape: Shape, deviation: float) -> dict[str, float]:
        """Public numbers of a release; `deviation`: of its noise."""
        return {}


@dataclass(frozen=True)
class GroupSums(Statistic):
    """Noisy sums over records of each column by group.

    Columns are whole numbers, none negative. `norm` bounds the l2 norm of what one record adds to all sums, an equal
    part of its square for each feature and attribute; a replaced record moves the sums by sqrt(2) times that.
    `widths`: columns of features by name, a number of columns for every feature, or features with their bins;
    None: the bins of all features.
    """

    norm: float
    widths: Mapping[str, int] | int | tuple[str, ...] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(self.widths) if isinstance(self.widths, Mapping | tuple) else ()

    @property
    def counts_records(self) -> bool:
        return self.widths is None or isinstance(self.widths, tuple)

    def layout(self, bins: Columns) -> Columns:
        if self.widths is None:
            return bins
        if isinstance(self.widths, tuple):
            return {rank: {k: v for k, v in widths.items() if k in self.features} for rank, widths in bins.items()}
        if isinstance(self.widths, int):
            return {rank: dict.fromkeys(widths, self.widths) for rank, widths in bins.items()}
        return {rank: {k: self.widths[k] for k in widths if k in self.widths} for rank, widths in bins.items()}

    def sensitivity(self, shape: Shape) -> Sensitivity:
        return Sensitivity.of_counts(self.norm)

    def _bound(self, shape: Shape) -> float:
        """The largest norm of one feature's row: with this bound for all rows, the joint l2 norm is `norm`."""
        return self.norm / float(np.sqrt(shape.features * len(shape.counts)))

    def whole(self, columns: Arrays, shape: Shape) -> dict[str, np.ndarray]:
        if self.counts_records and self._bound(shape) < 1 - 1e-9:  # also where this party has no columns
            raise DataError(
                f"{self.name}: the charged sensitivity is for fewer features than the {shape.features} of the "
                "description; a party announced a wrong number of its features"
            )
        return check_columns(columns, shape.rows, self._bound(shape))

    def exact(self, columns: np.ndarray, groups: np.ndarray, shape: Shape) -> np.ndarray:
        return columns.T @ groups

    def largest(self, shape: Shape) -> float:
        return shape.rows * self._bound(shape)


@dataclass(frozen=True)
class ClippedSums(Statistic):
    """Noisy tables of one-hot columns by group, each scaled to `length` before noise is added, as in the paper.

    A table has all groups of all attributes in one array, and is priced as what it is (`accounting.paper`). Its own
    length stays secret, so `counts`, how many records one of its units may stand for, is the ratio for a length in
    the middle of what is possible.
    """

    length: float
    mechanism: ClassVar[Mechanism] = "paper"
    refused_hidden: ClassVar[str] = "tables that are scaled under MPC"

    def clipping(self, shape: Shape) -> Clipping:
        return clipping_of(shape.widths, shape.counts, shape.rows, self.length)

    def sensitivity(self, shape: Shape) -> Sensitivity:
        clipping = self.clipping(shape)
        joint = joint_norm(1.0, shape.features, len(clipping.groups))
        return clipped(joint, clipping.length, joint_norm(clipping.distance, shape.features, 1), clipping.unit)

    def whole(self, columns: Arrays, shape: Shape) -> dict[str, np.ndarray]:
        return check_columns(columns, shape.rows, 1.0)

    def exact(self, columns: np.ndarray, groups: np.ndarray, shape: Shape) -> np.ndarray:
        return scaled(columns.T @ groups, self.length)

    def unit(self, shape: Shape) -> float:
        return self.clipping(shape).unit

    def of_table(self, session: Session, table: Secret, shape: Shape) -> Secret:
        with session.measure("clipping"):
            return clip(session, table, shape.widths, self.clipping(shape))

    def numbers(self, shape: Shape, deviation: float) -> dict[str, float]:
        counts = self.clipping(shape).typical / self.length
        return {"length": self.length, "deviation": deviation, "counts": counts}


class Statistics(Protocol):
    """An engine for released statistics of s: in plaintext, under MPC, or from cached releases."""

    def release(self, statistic: Statistic, columns: Arrays, groups: Groups, counts: Counts) -> Released:
        """Charge and open one release. `columns`: those of the features of this process, by feature."""
        ...

    def projected(
        self, tables: Tables, releases: int, counts: Counts, tabled: tuple[str, ...] = ()
    ) -> tuple[Opened, ...]:
        """For each attribute, what is opened about every feature; it follows from noisy tables only.

        `tables`: the means of so many releases, of the features of this process. `tabled`: the features of all
        parties that have one; empty: all.
        """
        ...

    def bins(self, tables: Tables, tabled: tuple[str, ...] = ()) -> Mapping[str, int]:
        """The public number of bins of every such feature of all parties."""
        ...

    def deviation(self, sensitivity: float | Sensitivity) -> float:
        """Standard deviation of the noise in a release of this sensitivity; a number: the norm of counts."""
        ...

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        """Announce named numbers to all parties (scores, counts); returns those of all parties.

        Only for values that are public or follow from a noisy release; they are declared, not charged.
        """
        ...


def open_to_all(session: Session, value: Secret, name: str, receipt: Receipt | None = None) -> np.ndarray:
    """Run by all parties: open a secret value to every party, as the declared release of this name."""
    opened = session.open(value, session.declared(name), receipt)
    if opened is None:
        raise DataError(f"{name} must go to every party")
    return opened.numpy().astype(float)


def column_slices(counts: Iterable[int]) -> list[slice]:
    return [slice(low, high) for low, high in pairwise(np.cumsum([0, *counts]).tolist())]


def as_sensitivity(sensitivity: float | Sensitivity) -> Sensitivity:
    """The sensitivity itself; a bare number is read as the sensitivity of counts."""
    return sensitivity if isinstance(sensitivity, Sensitivity) else Sensitivity.of_counts(sensitivity)


def clipping_of(bins: Sequence[int], counts: Sequence[int], rows: int, length: float) -> Clipping:
    try:
        return Clipping(rows, max(bins), tuple(counts), length)
    except RangeError as error:
        raise DataError(f"sketch clipped: {error}") from None


def joint_norm(row: float, features: int, attributes: int) -> float:
    """What one record adds to all sums (l2 norm), if its row of every feature is no longer than `row`."""
    return row * float(np.sqrt(features * attributes))


def check_columns(columns: Arrays, rows: int, bound: float, whole: bool = True) -> dict[str, np.ndarray]:
    """The same columns, each checked: one row per record, no gap, no row longer than `bound`.

    If `whole`, entries must be whole and not negative. Without negative numbers a replaced record moves sums by
    sqrt(2) times the bound, not twice (`Sensitivity`). Rows that a worker of row shards makes are checked there.
    """
    for name, block in columns.items():
        if len(block.shape) != 2 or len(block) != rows:
            raise DataError(f"{name}: {rows} records are needed, the columns are {block.shape}")
    check = {name: partial(_checked, name, bound, whole) for name in columns}
    return {name: applied(check[name], block, block.shape[1]) for name, block in columns.items()}


def _checked(name: str, bound: float, whole: bool, block: np.ndarray) -> np.ndarray:
    real = np.issubdtype(block.dtype, np.floating)
    if real and not np.isfinite(block).all():
        raise DataError(f"{name}: NaN or infinite values; a gap needs a separate bin")
    if whole and real and not (block == np.rint(block)).all():
        raise DataError(f"{name}: a statistic of s is summed over whole numbers (bins, or a public grid)")
    if whole and block.min(initial=0) < 0:
        raise DataError(f"{name}: a statistic of s has no negative numbers; is a value outside the public range?")
    longest = float(np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64).max(initial=0.0)))
    if longest > bound * (1 + 1e-9):
        raise DataError(
            f"{name}: a record adds {longest:.3g} where the charged sensitivity allows {bound:.3g}; "
            "is a value outside the public range?"
        )
    return block


def check_groups(codes: AtHolder, count: int, rows: int) -> np.ndarray:
    """Check group codes of a protected attribute at its holder: one per record, among the public groups.

    A group may have no record. All parties learn of a refusal, so it depends on malformed input only, not on the
    values of s.
    """
    if codes is None:
        raise DataError("the holder of a protected attribute gave no values of it")
    values = np.asarray(codes)
    if values.shape != (rows,) or not np.issubdtype(values.dtype, np.integer):
        raise DataError(f"a protected attribute needs one whole number for each of {rows} records")
    if count < 2 or rows == 0 or values.min() < 0 or values.max() >= count:
        raise DataError(f"group codes must lie between 0 and {count - 1}, and there must be two groups")
    return values


class PlainStatistics:
    """The plaintext engine, the reference for the secure one: all parties in one process.

    It holds no data; noise and price come from the object it is given.
    """

    def __init__(self, noise: Noise) -> None:
        self.noise = noise

    def release(self, statistic: Statistic, columns: Arrays, groups: Groups, counts: Counts) -> Released:
        rows = len(groups[0]) if groups and groups[0] is not None else 0
        codes = [check_groups(values, count, rows) for values, count in zip(groups, counts, strict=True)]
        self.noise.check(rows)
        members = np.hstack([one_hot(group_codes, count) for group_codes, count in zip(codes, counts, strict=True)])
        shape = Shape(rows, [block.shape[1] for block in columns.values()], counts)
        statistic.whole(columns, shape)
        exact = {k: statistic.exact(block, members, shape) for k, block in columns.items()}
        moved = statistic.sensitivity(shape)
        noisy = self.noise.release(exact, statistic.name, moved, statistic.mechanism)
        parts = column_slices(statistic.results({}, counts)[1])
        tables = tuple({k: v[:, part] for k, v in noisy.items()} for part in parts)
        return Released(tables, statistic.numbers(shape, self.noise.deviation(moved)))

    def projected(
        self, tables: Tables, releases: int, counts: Counts, tabled: tuple[str, ...] = ()
    ) -> tuple[Opened, ...]:
        marginals = {k: float((table.sum(axis=1) ** 2).sum()) for k, table in tables[0].items()}
        opened = []
        for part in tables:
            sizes = group_sizes(part.values())
            projector = projection(sizes)
            squares = {k: float(((table @ projector) ** 2).sum()) for k, table in part.items()}
            opened.append(Opened(squares, marginals, sizes))
        return tuple(opened)

    def bins(self, tables: Tables, tabled: tuple[str, ...] = ()) -> Mapping[str, int]:
        return {k: len(table) for k, table in tables[0].items()}

    def deviation(self, sensitivity: float | Sensitivity) -> float:
        return self.noise.deviation(as_sensitivity(sensitivity))

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        return dict(values)


@dataclass(frozen=True)
class ReleasedTables:
    """Returns what another run released, for any request: to compare engines on the same releases.

    each: the tables of every release by its name, where they matter one by one; `tables` are their mean.
    """

    tables: Mapping[str, np.ndarray]
    scale: float
    each: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Sequence[Sequence[NoisyTables]]) -> ReleasedTables:
        """From the averaged tables of every party; the scale is that of a single release."""
        tables: dict[str, np.ndarray] = {}
        for party_tables in parts:
            for name in party_tables[0].tables:
                tables[name] = np.hstack([one.tables[name] for one in party_tables])
        first = parts[0][0]
        return cls(tables, first.deviation * math.sqrt(first.releases))

    def one_by_one(self, caches: Sequence[CachedReleases]) -> ReleasedTables:
        """The same with the single releases that the parties saved."""
        each: dict[str, dict[str, np.ndarray]] = {}
        for cache in caches:
            for name, release in cache.releases.items():
                tables = {k: np.hstack([part[k] for part in release.parts]) for k in release.parts[0]}
                each.setdefault(name, {}).update(tables)
        return replace(self, each=each)

    def check(self, rows: int) -> None:
        """Nothing is charged."""

    def deviation(self, sensitivity: Sensitivity) -> float:
        return self.scale

    def release(
        self, sums: dict[str, np.ndarray], name: str, sensitivity: Sensitivity, mechanism: Mechanism = "gaussian"
    ) -> dict[str, np.ndarray]:
        cached = self.each[name] if self.each else self.tables
        return {key: cached[key].astype(float) for key in sums}
