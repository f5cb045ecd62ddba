"""The Statistics seam in plaintext: the reference for the secret side, with noise of the same scale and price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from accounting.events import Mechanism, Sensitivity
from protocols.steps.clipping import scaled
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.discovery.discovery import Sketch
from secure_sccvfl.discovery.hsic import Grid, dependence
from secure_sccvfl.discovery.inputs import (
    as_sensitivity,
    check_columns,
    check_groups,
    clipped_sensitivity,
    clipping_of,
    indicators,
    row_bound,
)
from secure_sccvfl.discovery.kept_tables import KeptTables
from secure_sccvfl.discovery.projected import projection
from secure_sccvfl.discovery.shrinkage import group_sizes
from secure_sccvfl.discovery.statistics import Arrays, Clipped, Counts, Groups, Opened, Tables, Widths
from secure_sccvfl.releases.noise import Noise


class PlainStatistics:
    """All parties in one process. It holds no data; noise and price come from the object it is given."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise

    def group_sums(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str, sensitivity: float, widths: Widths = None
    ) -> Tables:
        chosen = self._indicators(groups, counts)
        check_columns(columns, len(chosen), row_bound(sensitivity, len(columns), len(counts)))
        sums = {k: v.T @ chosen for k, v in columns.items()}
        noisy = self.noise.release(sums, name, Sensitivity.of_counts(sensitivity))
        cuts = pairwise(np.cumsum([0, *counts]))
        return tuple({k: v[:, low:high] for k, v in noisy.items()} for low, high in cuts)

    def clipped_sums(self, columns: Arrays, groups: Groups, counts: Counts, name: str, length: float) -> Clipped:
        chosen = self._indicators(groups, counts)
        check_columns(columns, len(chosen), 1.0)
        clipping = clipping_of([v.shape[1] for v in columns.values()], counts, len(chosen), length)
        sums = {k: scaled(v.T @ chosen, length) for k, v in columns.items()}
        moved = clipped_sensitivity(clipping, len(columns))
        noisy = self.noise.release(sums, name, moved, "paper")
        cuts = pairwise(np.cumsum([0, *counts]))
        tables = tuple({k: v[:, low:high] for k, v in noisy.items()} for low, high in cuts)
        return Clipped(tables, self.noise.deviation(moved), clipping.typical / length)

    def residual_dependence(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str
    ) -> tuple[dict[str, float], ...]:
        chosen = self._indicators(groups, counts)
        check_columns(columns, len(chosen), 1.0, whole=False)
        grid = Grid(len(chosen))
        cuts = list(pairwise(np.cumsum([0, *counts])))
        exact = {
            k: np.array([dependence(grid.features(v), chosen[:, low:high], grid) for low, high in cuts])
            for k, v in columns.items()
        }
        sensitivity = grid.joint(max(v.shape[1] for v in columns.values()), counts, len(columns))
        noisy = self.noise.release(exact, name, sensitivity)
        return tuple({k: float(v[j]) for k, v in noisy.items()} for j in range(len(counts)))

    def projected(
        self, tables: Tables, releases: int, counts: Counts, tabled: tuple[str, ...] = ()
    ) -> tuple[Opened, ...]:
        marginals = {k: float((table.sum(axis=1) ** 2).sum()) for k, table in tables[0].items()}
        found = []
        for part in tables:
            sizes = group_sizes(part.values())
            made = projection(sizes)
            squares = {k: float(((table @ made) ** 2).sum()) for k, table in part.items()}
            found.append(Opened(squares, marginals, sizes))
        return tuple(found)

    def bins(self, tables: Tables, tabled: tuple[str, ...] = ()) -> Mapping[str, int]:
        return {k: len(table) for k, table in tables[0].items()}

    def _indicators(self, groups: Sequence[AtHolder], counts: Sequence[int]) -> np.ndarray:
        """One-hot of all protected attributes, after the checks that precede any charge."""
        rows = len(groups[0]) if groups and groups[0] is not None else 0
        codes = [check_groups(values, count, rows) for values, count in zip(groups, counts, strict=True)]
        self.noise.check(rows)
        return indicators(codes, counts, slice(0, rows)).astype(float)

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
    def of(cls, parts: Sequence[Sequence[Sketch]]) -> ReleasedTables:
        """From the averaged sketches of every party; the scale is that of a single release."""
        tables: dict[str, np.ndarray] = {}
        for sketches in parts:
            for name in sketches[0].tables:
                tables[name] = np.hstack([sketch.tables[name] for sketch in sketches])
        first = parts[0][0]
        return cls(tables, first.deviation * math.sqrt(first.releases))

    def one_by_one(self, kept: Sequence[KeptTables]) -> ReleasedTables:
        """The same with the single releases that the parties have kept."""
        each: dict[str, dict[str, np.ndarray]] = {}
        for own in kept:
            for name, release in own.releases.items():
                found = {k: np.hstack([part[k] for part in release.parts]) for k in release.parts[0]}
                each.setdefault(name, {}).update(found)
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
