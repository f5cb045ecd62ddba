"""What noise leaves of discovery: the order of its scores, and roles that come again in another run.

Scores are compared with the noise-free ones by Spearman's rank agreement. For roles, a run has its own split and its
own noise, and every ordered pair of runs is compared, column by column. The control is chance: how often two roles
would agree that are drawn anew with the frequencies of all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import Party, make_parties, part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig, Finding
from secure_sccvfl.discovery.discovery import Discovery, weigh
from secure_sccvfl.discovery.plain_statistics import PlainStatistics
from secure_sccvfl.discovery.sketches import Sketch, release_sketches
from secure_sccvfl.evaluation.summary import short_name
from secure_sccvfl.policy.roles import ROLES
from secure_sccvfl.privacy.noise import GaussianNoise, Noise, NoNoise, SpendingPlan
from secure_sccvfl.training.config import TrainConfig

REPETITIONS = 20
GAP = DiscoveryConfig(rule="fractions", score="gap")
"""The score that has no ties: the stable one is 0 for every column in which noise explains the difference."""
EDGES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Confidence is told in these steps; each includes its upper end."""


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


def proposed(data: Dataset, parties: tuple[Party, ...], seed: int) -> Finding:
    """Roles that the default discovery proposes on one split, after all refreshes, with their confidence."""
    config = TrainConfig()
    part = part_of(data, make_split(data, "iid", seed).train, parties)
    statistics = PlainStatistics(GaussianNoise(SpendingPlan(releases=config.charged), seed))
    features = len(data.features)
    discovery = Discovery(statistics, part.parties, part.protected, features, config.discovery, seed)
    sketches, finding = discovery.refresh(0)
    for refresh in range(1, config.refreshes + config.late_refreshes + 1):
        sketches, finding = discovery.refresh(refresh, sketches, finding)
    return discovery.judged(sketches, finding)


def compared(findings: Sequence[Finding]) -> dict[str, Any]:
    """Agreement over all ordered pairs of runs, by chance, and in each step of confidence."""
    sure, again = [], []
    for one in findings:
        for other in findings:
            if one is not other:
                sure += [one.confidence[name] for name in one.proposed]
                again += [one.proposed[name] == other.proposed[name] for name in one.proposed]
    confidence, same = np.array(sure), np.array(again)
    every = [role for finding in findings for role in finding.proposed.values()]
    steps = []
    for low, high in pairwise(EDGES):
        here = (confidence > low) & (confidence <= high) if low else confidence <= high
        if here.any():
            figures = {"share": here.mean(), "confidence": confidence[here].mean(), "again": same[here].mean()}
            steps.append({"above": low, "to": high, **{name: float(value) for name, value in figures.items()}})
    chance = sum((every.count(role) / len(every)) ** 2 for role in ROLES)
    return {"same": float(same.mean()), "chance": chance, "steps": steps}


def stability(dataset: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Roles of one data set over these seeds."""
    data = load(dataset)
    parties = make_parties(data)
    found = compared([proposed(data, parties, seed) for seed in seeds])
    return {"dataset": short_name(dataset), "seeds": list(seeds), **found}


def stability_markdown(rows: Sequence[dict[str, Any]], command: str) -> str:
    """A line for each data set and step of confidence."""
    lines = [
        f"Made by `{command}`. Roles that discovery proposes in two runs with other splits and noise, epsilon 8.",
        "`same`: columns with one role in both. `chance`: the same if roles were drawn with their frequencies.",
        "",
        "| data | runs | same | chance | confidence | share of roles | mean confidence | came again |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        whole = f"{row['dataset']} | {len(row['seeds'])} | {row['same']:.3f} | {row['chance']:.3f}"
        for step in row["steps"]:
            told = f"{step['above']:g} to {step['to']:g} | {100 * step['share']:.0f} %"
            lines.append(f"| {whole} | {told} | {step['confidence']:.2f} | {step['again']:.2f} |")
    return "\n".join(lines) + "\n"
