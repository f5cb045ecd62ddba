"""Statistics over seeds: mean, standard deviation and 95 % interval."""

from __future__ import annotations

import numpy as np
from scipy import stats

from secure_sccvfl.audit.attacks.catalogue import ATTACKS

RATES = (
    *("acc", "auc", "bacc", "fr", "net", "positive_rate", "dp_gap", "eo_gap"),
    *(attack.stem for _, attack in ATTACKS.items()),
)
"""Prefixes of metrics that are rates, so at most 1."""


def deviation(values: np.ndarray) -> float:
    """Standard deviation over seeds, as papers print it; 0 for a single seed."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def half_width(values: np.ndarray) -> float:
    """Half of the 95 % t-interval of a mean over seeds; 0 for a single seed."""
    if len(values) < 2:
        return 0.0
    return float(stats.t.ppf(0.975, len(values) - 1) * deviation(values) / np.sqrt(len(values)))


def interval(values: np.ndarray, bounded: bool) -> tuple[float, float, float]:
    """Mean and 95 % t-interval over seeds of what is not negative. Rates (`bounded`) stay below 1."""
    mean, half = float(values.mean()), half_width(values)
    if half == 0.0:
        return mean, mean, mean
    high = mean + half
    return mean, max(mean - half, 0.0), min(high, 1.0) if bounded else high


def signed(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % t-interval of differences, which may be negative."""
    mean, half = float(values.mean()), half_width(values)
    return mean, mean - half, mean + half


def reduction(values: np.ndarray, plain: np.ndarray) -> tuple[float, float, float]:
    """1 - mean / mean of plain, with the 95 % interval of a ratio paired by seed."""
    base = max(float(plain.mean()), 1e-12)
    ratio = float(values.mean()) / base
    half = half_width(values - ratio * plain) / base
    return 1 - ratio, 1 - ratio - half, 1 - ratio + half
