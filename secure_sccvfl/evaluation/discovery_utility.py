"""How well noisy discovery scores keep the order of the true ones: Spearman's rank agreement over repetitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.discovery.discovery import weigh
from secure_sccvfl.discovery.plain_statistics import PlainStatistics
from secure_sccvfl.discovery.sketches import Sketch, release_sketches
from secure_sccvfl.privacy.noise import GaussianNoise, Noise, NoNoise, SpendingPlan

REPETITIONS = 20
GAP = DiscoveryConfig(rule="fractions", score="gap")
"""The score that has no ties: the stable one is 0 for every column in which noise explains the difference."""


def scores_of(
    data: Dataset, noise: Noise, releases: int = 1, config: DiscoveryConfig | None = None
) -> dict[str, float]:
    """Scores from this many releases, averaged, with this noise."""
    parties, statistics = make_parties(data), PlainStatistics(noise)
    merged: tuple[Sketch, ...] = ()
    for number in range(releases):
        fresh = release_sketches(statistics, parties, data.protected, f"sketch-{number}", len(data.features))
        merged = tuple(a.merged(b) for a, b in zip(merged, fresh, strict=True)) if merged else fresh
    owners = [party.layout.names for party in parties]
    return dict(weigh(merged, config or GAP, 0, owners).scores)


def agreement(data: Dataset, epsilon: float, releases: int = 1) -> list[float]:
    """Rank agreement with the noise-free scores, one figure per repetition.

    With `dealer` the noise is the same as with `dealer+holder`: one copy then has the deviation of both.
    """
    truth = scores_of(data, NoNoise())
    budget = SpendingPlan(epsilon=epsilon, releases=releases)
    found = [scores_of(data, GaussianNoise(budget, seed), releases) for seed in range(REPETITIONS)]
    return [float(spearmanr(list(truth.values()), [scores[k] for k in truth])[0]) for scores in found]


def measure() -> list[dict[str, Any]]:
    """German and COMPAS, all records and training parts, one release and five."""
    rows = []
    for name, epsilons in (("german", (1.0, 2.0, 4.0, 8.0)), ("compas", (1.0, 2.0))):
        data = load(name)
        parts = {"all": np.arange(data.n)}
        parts |= {f"training part, seed {seed}": make_split(data, "iid", seed).train for seed in range(3)}
        for part, picked in parts.items():
            for epsilon in epsilons:
                for releases in (1, 5):
                    found = agreement(data.take(picked), epsilon, releases)
                    half = 1.96 * float(np.std(found, ddof=1)) / len(found) ** 0.5
                    rows.append(
                        {
                            "dataset": name,
                            "part": part,
                            "records": len(picked),
                            "epsilon": epsilon,
                            "releases": releases,
                            "spearman": round(float(np.mean(found)), 3),
                            "half_width": round(half, 3),
                        }
                    )
    return rows


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    """One line per part and epsilon."""
    lines = [
        f"Made by `{command}`. Spearman's agreement of noisy scores (`score = gap`) with the noise-free ones.",
        f"Means of {REPETITIONS} repetitions with 95 % intervals; total epsilon at delta 1e-5, at once or in five",
        "refreshes.",
        "",
        "| data | part | records | epsilon | once | five |",
        "|---|---|---|---|---|---|",
    ]
    by_line: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        key = (row["dataset"], row["part"], row["records"], f"{row['epsilon']:g}")
        by_line.setdefault(key, []).append(f"{row['spearman']:.2f} ± {row['half_width']:.2f}")
    lines += ["| " + " | ".join(map(str, (*key, *cells))) + " |" for key, cells in by_line.items()]
    return "\n".join(lines) + "\n"
