"""Records from a formula, in any number: for benchmarks of speed and memory, never of quality.

There are twenty features at three parties and two groups. Five features follow s (one of them closely). The label
follows features of every party.
"""

from __future__ import annotations

import numpy as np

from secure_sccvfl.data.dataset import Dataset, Label, PartyTable, Protected
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.randomness import stream

FEATURES = 20
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LETTERS = ("a", "b", "c", "d", "e")


def read(name: str) -> Dataset:
    """`synthetic:ROWS`."""
    rows = name.removeprefix("synthetic:")
    if not rows.isdigit() or int(rows) < 100:
        raise DataError(f"synthetic data need a number of at least 100 rows, not {rows!r}")
    return make_synthetic(int(rows))


def make_synthetic(rows: int) -> Dataset:
    """Synthetic records; the same number of rows gives the same records."""
    rng = stream(rows, "synthetic")
    s = (rng.random(rows) < 0.4).astype(int)
    pull = np.array([0.45, 0.2, 0.15, 0.1, 0.1] + [0.0] * (FEATURES - 5))
    values = np.clip(rng.beta(2, 2, (rows, FEATURES)) + pull * (s[:, None] - 0.5), 0.0, 1.0)
    slope = rng.normal(0, 2.5, FEATURES)
    y = (rng.random(rows) < 1 / (1 + np.exp(-(values - 0.5) @ slope))).astype(int)
    features = []
    for k in range(FEATURES):
        if k % 2:
            features.append(Feature(f"x{k:02d}", "category", categories=LETTERS))
            values[:, k] = np.minimum((values[:, k] * len(LETTERS)).astype(int), len(LETTERS) - 1)
        else:
            features.append(Feature(f"x{k:02d}", "number", low=0.0, high=1.0, edges=EDGES))
    cuts = (0, 7, 14, FEATURES)
    parties = tuple(
        PartyTable(name, tuple(features[a:b]), values[:, a:b])
        for name, a, b in zip(("bank", "employer", "bureau"), cuts, cuts[1:], strict=False)
    )
    ids = np.array([f"r{k:08d}" for k in range(rows)])
    label = Label("bank", y, ("0", "1"))
    return Dataset("synthetic", "binary", ids, parties, label, (Protected("s", "employer", ("0", "1"), s),))
