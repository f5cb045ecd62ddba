"""The plaintext engine for statistics of s: the reference for the secure one, with noise of equal scale and price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from accounting.events import Mechanism, Sensitivity
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.discovery.cached_releases import CachedReleases
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.projected import projection
from secure_sccvfl.discovery.scores import group_sizes
from secure_sccvfl.discovery.statistics import (
    Arrays,
    Counts,
    Groups,
    Opened,
    Released,
    Shape,
    Statistic,
    Tables,
    as_sensitivity,
    check_groups,
    column_slices,
)
from secure_sccvfl.releases.noise import Noise


class PlainStatistics:
    """All parties in one process. It holds no data; noise and price come from the object it is given."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise

    def release(self, statistic: Statistic, columns: Arrays, groups: Groups, counts: Counts) -> Released:
        rows = len(groups[0]) if groups and groups[0] is not None else 0
        codes = [check_groups(values, count, rows) for values, count in zip(groups, counts, strict=True)]
        self.noise.check(rows)
        members = np.hstack([one_hot(own, count) for own, count in zip(codes, counts, strict=True)])
        shape = Shape(rows, [block.shape[1] for block in columns.values()], counts)
        statistic.check(columns, shape)
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
    """Returns what another run released, whatever is requested: to compare engines on the same releases.

    each: the tables of every release by its name, where they matter one by one; `tables` are their mean.
    """

    tables: Mapping[str, np.ndarray]
    scale: float
    each: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Sequence[Sequence[NoisyTables]]) -> ReleasedTables:
        """From the averaged sketches of every party; the scale is that of a single release."""
        tables: dict[str, np.ndarray] = {}
        for sketches in parts:
            for name in sketches[0].tables:
                tables[name] = np.hstack([sketch.tables[name] for sketch in sketches])
        first = parts[0][0]
        return cls(tables, first.deviation * math.sqrt(first.releases))

    def one_by_one(self, caches: Sequence[CachedReleases]) -> ReleasedTables:
        """The same with the single releases that the parties have kept."""
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
        known = self.each[name] if self.each else self.tables
        return {key: known[key].astype(float) for key in sums}
