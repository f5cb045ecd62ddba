"""Synthetic records in any number: for benchmarks of speed and memory, not of quality.

`synthetic:ROWS`, `synthetic:ROWSxFEATURES` or `synthetic:ROWSxFEATURESxCLASSES`: twenty features and two classes if
nothing else is said, three parties and two groups. A quarter of the features follow s (one of them closely). The
label follows features of every party.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Dataset, Label, PartyTable, Protected
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.randomness import stream

FEATURES, CLASSES = 20, 2
FEWEST = (100, 3, 2)
"""Rows, features, classes."""
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LETTERS = ("a", "b", "c", "d", "e")
PULLS = (0.45, 0.2, 0.15, 0.1, 0.1)


def read(name: str) -> Dataset:
    parts = name.removeprefix("synthetic:").split("x")
    numbers = [int(part) for part in parts if part.isdigit()]
    if len(numbers) != len(parts) or len(parts) > len(FEWEST) or any(map(int.__lt__, numbers, FEWEST)):
        raise DataError(
            "synthetic data are named by ROWS, ROWSxFEATURES or ROWSxFEATURESxCLASSES, at least 100, 3 and 2, not "
            f"{name.removeprefix('synthetic:')!r}"
        )
    return make_synthetic(*numbers)


def words(name: str) -> dict[str, Any]:
    """No words, so that no data set has to be made for them."""
    return {"label": {"meaning": ""}, "protected": [{"meaning": ""}]}


def make_synthetic(rows: int, width: int = FEATURES, classes: int = CLASSES) -> Dataset:
    """Synthetic records; the same numbers give the same records."""
    rng = stream(rows, "synthetic")
    s = (rng.random(rows) < 0.4).astype(int)
    pull = np.zeros(width)
    pull[: max(1, width // 4)] = np.resize(PULLS, max(1, width // 4))
    values = np.clip(rng.beta(2, 2, (rows, width)) + pull * (s[:, None] - 0.5), 0.0, 1.0)
    slope = rng.normal(0, 2.5, width)
    score, chance = (values - 0.5) @ slope, rng.random(rows)
    y = (chance < 1 / (1 + np.exp(-score))).astype(int)
    if classes > 2:
        noisy = score + np.log(chance / (1 - chance))
        y = np.digitize(noisy, np.quantile(noisy, np.arange(1, classes) / classes))
    features = []
    for k in range(width):
        if k % 2:
            features.append(Feature(f"x{k:02d}", "category", categories=LETTERS))
            values[:, k] = np.minimum((values[:, k] * len(LETTERS)).astype(int), len(LETTERS) - 1)
        else:
            features.append(Feature(f"x{k:02d}", "number", low=0.0, high=1.0, edges=EDGES))
    cuts = (0, *(-(-width * part // 3) for part in (1, 2)), width)
    parties = tuple(
        PartyTable(name, tuple(features[a:b]), values[:, a:b])
        for name, a, b in zip(("bank", "employer", "bureau"), cuts, cuts[1:], strict=False)
    )
    ids = np.array([f"r{k:08d}" for k in range(rows)])
    label = Label("bank", y, tuple(map(str, range(classes))))
    protected = (Protected("s", "employer", ("0", "1"), s),)
    return Dataset("synthetic", "binary" if classes == 2 else "multiclass", ids, parties, label, protected)
