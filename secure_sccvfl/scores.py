"""Discovery scores of one feature from its (noisy) contingency table with s. Post-processing only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def probabilities(table: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Group-conditional bin probabilities (bins x groups) of a noisy table; negative counts are cut."""
    counts = np.clip(table, floor, None)
    total = counts.sum(axis=0, keepdims=True)
    return np.where(total > 0, counts / np.where(total > 0, total, 1.0), 1.0 / len(table))


def total_variation(table: np.ndarray) -> float:
    """Largest gap between two groups' bin probabilities (total variation), 0..1."""
    p = probabilities(table)
    groups = p.shape[1]
    gaps = [0.5 * np.abs(p[:, a] - p[:, b]).sum() for a in range(groups) for b in range(a)]
    return float(max(gaps))


def normalised_hsic(table: np.ndarray) -> float:
    """HSIC with delta kernels over the product of the two self-HSICs' roots (like a correlation), 0..1."""
    joint = np.clip(table, 0, None)
    total = joint.sum()
    if total <= 0:
        return 0.0
    joint = joint / total
    p, q = joint.sum(axis=1), joint.sum(axis=0)
    cross = float(((joint - np.outer(p, q)) ** 2).sum())
    own_p = float(((np.diag(p) - np.outer(p, p)) ** 2).sum())
    own_q = float(((np.diag(q) - np.outer(q, q)) ** 2).sum())
    scale = float(np.sqrt(own_p * own_q))
    return cross / scale if scale > 1e-12 else 0.0


def table_score(table: np.ndarray) -> float:
    """The default score: total variation plus normalised HSIC."""
    return total_variation(table) + normalised_hsic(table)


def denoised(tables: Mapping[str, np.ndarray], deviation: float) -> dict[str, np.ndarray]:
    """Tables of one owner with one attribute, with as little of the known noise as can be had for free.

    All tables have the same group sizes, so these are averaged over them; then each column is moved to the nearest
    one without negative counts; then the deviation from independence is shrunk by what noise alone would
    give (positive-part James-Stein), so that many bins do not look like dependence. Without noise nothing changes.
    """
    sizes = np.mean([t.sum(axis=0) for t in tables.values()], axis=0)
    out = {}
    for name, table in tables.items():
        level = table + (sizes - table.sum(axis=0)) / len(table)
        counts = np.column_stack([_nearest_counts(column) for column in level.T])
        total = counts.sum()
        free = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
        noise = (table.shape[0] - 1) * (table.shape[1] - 1) * deviation**2
        found = ((counts - free) ** 2).sum()
        out[name] = free + max(0.0, 1.0 - noise / found) * (counts - free) if found > 0 else counts
    return out


def _nearest_counts(column: np.ndarray) -> np.ndarray:
    """The nearest column of non-negative numbers with the same sum (at least 1)."""
    total = max(float(column.sum()), 1.0)
    falling = np.sort(column)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(column) + 1)
    return np.clip(column - excess[np.flatnonzero(falling > excess)[-1]], 0.0, None)
