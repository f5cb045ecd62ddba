"""Local counterfactual generators: edit M, copy N bit by bit, pass P through.

A party never holds s per record. It computes the edit for every hypothesised pair (from, to) from the
noisy tables that were opened to it; which one applies is selected inside the engine. `moments` shifts and
scales by group moments, `quantile` maps between the noisy histograms, `cvae` is in cvae_generator.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from secure_sccvfl.data.layout import Block, Layout, one_hot, unit_cuts
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.discovery import Moments
from secure_sccvfl.discovery.roles import Roles
from secure_sccvfl.discovery.scores import probabilities
from secure_sccvfl.model.cvae_generator import fit_cvae_generator

GeneratorKind = Literal["moments", "quantile", "cvae"]
Source = Literal["tables", "moments"]
FLOOR = 0.5
LEAST_VARIANCE = 1e-4


@dataclass(frozen=True)
class GeneratorConfig:
    """`thinning` is the share of the table's counts that a redrawn table keeps: the wider the tables are
    redrawn (known release noise, then sampling noise of a sample that much smaller), the more plausible
    edits the consistency loss covers. 0 uses the tables as released. `source`: what the `moments` generator
    reads numbers from, the tables (free) or a further release of group moments."""

    kind: GeneratorKind = "quantile"
    draws: int = 8
    thinning: float = 0.5
    scale: float = 1.0
    source: Source = "tables"

    def __post_init__(self) -> None:
        if self.source not in ("tables", "moments") or (self.source == "moments" and self.kind != "moments"):
            raise ValueError(f"source {self.source!r} does not fit generator {self.kind!r}; use tables")
        if self.kind not in ("moments", "quantile", "cvae"):
            raise ValueError(f"unknown generator {self.kind!r}; use moments, quantile or cvae")
        if self.draws < 1 or not 0 <= self.thinning <= 1 or not 0 < self.scale <= 1:
            raise ValueError(f"bad draws {self.draws}, thinning {self.thinning} or scale {self.scale}")


class Generator(Protocol):
    """Party step, local: what these rows would be if their group were `target` instead of `source`."""

    def __call__(self, units: np.ndarray, source: int, target: np.ndarray, draw: int) -> np.ndarray:
        """Edited copy in input space. `target` holds one public target group per row."""
        ...


def maximal_coupling(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Row-stochastic matrix that turns category distribution p into q and moves as few rows as possible."""
    stay = np.minimum(1.0, q / np.maximum(p, 1e-12))
    excess = np.clip(q - p, 0.0, None)
    total = excess.sum()
    if total <= 0:
        return np.eye(len(p))
    return np.diag(stay) + np.outer(1.0 - stay, excess / total)


@dataclass(frozen=True)
class TableGenerator:
    """`moments` and `quantile`: both need nothing but the party's own noisy tables."""

    layout: Layout
    tables: Mapping[str, np.ndarray]
    deviation: float
    edited: frozenset[str]
    config: GeneratorConfig
    seed: int
    moments: Moments | None = None

    def _table(self, block: Block, draw: int) -> np.ndarray:
        name = block.feature.name
        table = np.clip(self.tables[name], FLOOR, None)
        keep = self.config.thinning
        if keep > 0:
            rng = stream(self.seed, "redraw", name, draw)
            noisy = np.clip(self.tables[name] + rng.normal(0, self.deviation, table.shape), FLOOR, None)
            table = rng.poisson(noisy * keep) / keep
        return probabilities(table, FLOOR)

    def __call__(self, units: np.ndarray, source: int, target: np.ndarray, draw: int) -> np.ndarray:
        out = units.copy()
        for block in self.layout.blocks:
            if block.feature.name not in self.edited:
                continue
            table = self._table(block, draw)
            known = self._released_moments(block, draw)
            lot = stream(self.seed, "lot", block.feature.name, draw, source).random(len(units))
            for group in np.unique(target):
                rows = np.flatnonzero(target == group)
                p, q = table[:, source], table[:, group]
                columns = units[rows, block.columns]
                if known is not None:
                    out[rows, block.columns] = _shifted(columns, known[:, source], known[:, group])
                else:
                    out[rows, block.columns] = self._edit(block, columns, p, q, lot[rows])
        if self.config.scale < 1:
            out = units + self.config.scale * (out - units)
        return out

    def _edit(self, block: Block, columns: np.ndarray, p: np.ndarray, q: np.ndarray, lot: np.ndarray) -> np.ndarray:
        if self.config.kind == "moments":
            return self._moments(block, columns, p, q)
        if block.one_hot:
            steps = maximal_coupling(p, q).cumsum(axis=1)
            chosen = (lot[:, None] > steps[columns.argmax(axis=1)]).sum(axis=1).clip(0, block.width - 1)
            return one_hot(chosen, block.width)
        cuts = unit_cuts(block.feature)
        known = columns[:, 1] < 0.5 if block.width > 1 else np.ones(len(columns), bool)
        low, high = (np.concatenate([[0.0], np.cumsum(v[: len(cuts) - 1])]) for v in (p, q))
        low, high = low / max(low[-1], 1e-12), high / max(high[-1], 1e-12)
        out = columns.copy()
        out[known, 0] = np.interp(np.interp(columns[known, 0], cuts, low), high, cuts)
        return out

    @staticmethod
    def _moments(block: Block, columns: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        if block.one_hot:
            return np.clip(columns + q - p, 0.0, 1.0)
        cuts = unit_cuts(block.feature)
        middle = (cuts[:-1] + cuts[1:]) / 2
        found = []
        for v in (p, q):
            inner = v[: len(middle)] / max(v[: len(middle)].sum(), 1e-12)
            mean = inner @ middle
            found.append(np.array([mean, np.sqrt(inner @ (middle - mean) ** 2)]))
        return _shifted(columns, *found)

    def _released_moments(self, block: Block, draw: int) -> np.ndarray | None:
        """Mean and deviation (2 x groups) of a number from its noisy sums, redrawn within the known noise."""
        if self.moments is None or block.feature.name not in self.moments.sums:
            return None
        name = block.feature.name
        sums = self.moments.sums[name]
        if self.config.thinning > 0:
            sums = sums + stream(self.seed, "moments", name, draw).normal(0, self.moments.deviation, sums.shape)
        mean, square = np.clip(sums[1:] / np.maximum(sums[0], 1.0), 0.0, 1.0)
        return np.stack([mean, np.sqrt(np.clip(square - mean**2, LEAST_VARIANCE, 0.25))])


def _shifted(columns: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """A number moved from one mean and deviation to another; gaps stay."""
    known = columns[:, 1] < 0.5 if columns.shape[1] > 1 else np.ones(len(columns), bool)
    out = columns.copy()
    ratio = new[1] / max(old[1], 1e-3)
    out[known, 0] = np.clip(new[0] + (columns[known, 0] - old[0]) * ratio, 0.0, 1.0)
    return out


def shift_direction(layout: Layout, tables: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Change of the mean encoding of these features between the two most distant groups (plain columns).

    Party step, local, from its own noisy tables: the direction along which a proxy gives s away.
    """
    parts = []
    for block in layout.blocks:
        table = probabilities(tables[block.feature.name], FLOOR)
        far = np.unravel_index(
            np.abs(table[:, :, None] - table[:, None, :]).sum(axis=0).argmax(), (table.shape[1],) * 2
        )
        change = table[:, far[1]] - table[:, far[0]]
        if not block.one_hot:
            steps = len(unit_cuts(block.feature)) - 1
            upper = np.concatenate([np.cumsum(change[:steps][::-1])[::-1][1:], [0.0]])
            change = np.concatenate([upper + change[:steps] / 2, change[steps:]])
        parts.append(change if block.feature.name in names else np.zeros(len(change)))
    return np.concatenate(parts)


def make_generator(
    layout: Layout,
    tables: Mapping[str, np.ndarray],
    deviation: float,
    roles: Roles,
    config: GeneratorConfig,
    seed: int,
    units: np.ndarray,
    moments: Moments | None = None,
) -> Generator:
    """Party step, local: a generator over this party's mediators. `units` are its own training rows."""
    edited = frozenset(n for n in layout.names if roles.of[n] == "M")
    if config.kind == "cvae":
        return fit_cvae_generator(layout, units, tables, edited, config.scale, seed)
    return TableGenerator(layout, tables, deviation, edited, config, seed, moments)


def public_targets(rows: int, groups: int, seed: int, draw: int) -> np.ndarray:
    """Target group for every row and hypothesised source (rows x groups), the same at every party."""
    rng = stream(seed, "targets", draw)
    step = rng.integers(1, groups, size=(rows, groups))
    return (np.arange(groups)[None, :] + step) % groups
