"""Discovery scores of one feature from its (noisy) contingency table with s. Post-processing only."""

from __future__ import annotations

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
