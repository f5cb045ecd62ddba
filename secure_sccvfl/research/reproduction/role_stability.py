"""`reproduce.py roles`: how often discovery proposes the same roles in another run, and what noise does to ranks.

A run has its own split and its own noise. Every ordered pair of runs is compared, column by column. The control is
chance: how often two roles would agree that are drawn with the frequencies of all runs. Scores are compared with the
noise-free ones by Spearman's rank correlation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from scipy import stats
from scipy.stats import spearmanr

from accounting.tables import Column, Row, Table
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import Party, make_parties, part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig, RoleAssignment
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.scores import ScoreKind
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.prepared import default_run
from secure_sccvfl.evaluation.summary import half_width
from secure_sccvfl.policy.roles import ROLES
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.research.reproduction.summary import short_name
from secure_sccvfl.training.config import TrainConfig, head_plan

EDGES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Intervals of confidence; each includes its upper end."""
Budget = Literal["tables alone", "default run"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
"""Epsilon 8 for the tables of the training part, or what a default run leaves for them next to its private model."""
SCORES: tuple[ScoreKind, ...] = ("stable", "hsic")
"""The former default, and today's."""
RANKED = 2.0
"""Epsilon, for tables alone, at which scores are compared with noise-free ones."""


def settings_of(data: Dataset, budget: Budget, score: ScoreKind) -> tuple[TrainConfig, SpendingPlan]:
    """Settings of a run with this score, and its budget."""
    config = TrainConfig()
    plan = SpendingPlan(releases=config.charged)
    if budget == "default run":
        config, plan = default_run(data)
        layouts = [party.layout for party in make_parties(data)]
        plan = replace(plan, head=head_plan(config, layouts, data.task, data.outputs))
    return replace(config, discovery=replace(config.discovery, score=score)), plan


def proposed(
    data: Dataset,
    parties: tuple[Party, ...],
    seed: int,
    budget: Budget = "tables alone",
    score: ScoreKind = "hsic",
) -> RoleAssignment:
    """Roles that discovery proposes on one split, after all refreshes, with their confidence."""
    config, plan = settings_of(data, budget, score)
    part = part_of(data, config.training_rows(make_split(data, "iid", seed)), parties)
    given = (PlainStatistics(GaussianNoise(plan, seed)), part.parties, part.protected, len(data.features))
    discovery = Discovery(*given, config.discovery, seed)
    sketches, finding = discovery.refresh(0)
    for refresh in range(1, config.refreshes + config.late_refreshes + 1):
        sketches, finding = discovery.refresh(refresh, sketches, finding)
    return discovery.with_confidence(sketches, finding)


def ranked(data: Dataset, parties: tuple[Party, ...], seed: int, score: ScoreKind) -> float:
    """Spearman's agreement of one release's scores at epsilon RANKED with noise-free ones, on one training part."""
    config = DiscoveryConfig(score=score)
    part = part_of(data, make_split(data, "iid", seed).train, parties)
    found = []
    for noise in (NoNoise(), GaussianNoise(SpendingPlan(epsilon=RANKED, releases=1), seed)):
        given = (PlainStatistics(noise), part.parties, part.protected, len(data.features), config, seed)
        found.append(Discovery(*given).refresh(0)[1].scores)
    truth, noisy = found
    return float(spearmanr(list(truth.values()), [noisy[k] for k in truth])[0])


def same_roles(findings: Sequence[RoleAssignment]) -> np.ndarray:
    """For each pair of runs the share of columns with the same role; the diagonal is not a pair."""
    roles = np.array([[finding.proposed[name] for name in sorted(findings[0].proposed)] for finding in findings])
    same: np.ndarray = (roles[:, None, :] == roles[None, :, :]).mean(axis=-1)
    np.fill_diagonal(same, np.nan)
    return same


def jackknife(pairs: np.ndarray) -> tuple[float, float]:
    """The mean over pairs of runs (a matrix, or the difference of two), and half of its 95 % t-interval.

    Pairs that share a run are not independent, so each run is left out in turn. Runs re-split the same records: the
    interval says what other splits and noise change, not what other records would.
    """
    runs, whole = len(pairs), float(np.nanmean(pairs))
    if runs < 3:
        return whole, float("nan")
    left = [float(np.nanmean(np.delete(np.delete(pairs, k, 0), k, 1))) for k in range(runs)]
    deviation = float(np.sqrt((runs - 1) / runs * np.sum((np.array(left) - np.mean(left)) ** 2)))
    return whole, float(stats.t.ppf(0.975, runs - 1)) * deviation


def compared(findings: Sequence[RoleAssignment]) -> dict[str, Any]:
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


def stability(dataset: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Roles of one data set over these seeds: a row for each budget and score, with the roles of each seed.

    `gain`: how much more often roles come again than with the first score, on the same splits and noise.
    """
    data = load(dataset)
    parties = make_parties(data)
    facts = {"dataset": short_name(dataset), "seeds": list(seeds)}
    ranks = {score: [ranked(data, parties, seed, score) for seed in seeds] for score in SCORES}
    rows: list[dict[str, Any]] = []
    for budget in BUDGETS:
        before: np.ndarray | None = None
        epsilon = settings_of(data, budget, SCORES[0])[1].epsilon
        for score in SCORES:
            runs = [proposed(data, parties, seed, budget, score) for seed in seeds]
            pairs = same_roles(runs)
            row = {**facts, "budget": budget, "epsilon": epsilon, "score": score, **compared(runs)}
            row["half_width"] = jackknife(pairs)[1]
            if before is None:
                before = pairs
            else:
                row["gain"], row["gain_half_width"] = jackknife(pairs - before)
            row["rank"], row["rank_half_width"] = float(np.mean(ranks[score])), half_width(np.array(ranks[score]))
            row["ranks"] = dict(zip(seeds, ranks[score], strict=True))
            row["roles"] = {seed: dict(run.proposed) for seed, run in zip(seeds, runs, strict=True)}
            rows.append(row)
    return rows


def _within(value: str, deviation: str, form: str) -> Column:
    """A figure with half the width of its interval; empty where a row has none."""

    def cell(row: Row) -> str | None:
        return f"{row[value]:{form}} ± {row[deviation]:{form.lstrip('+')}}" if value in row else None

    return Column(value, cell)


AGREEMENT = (
    *(Column("data", "dataset"), Column("budget"), Column("epsilon", form="g")),
    *(Column("runs", lambda row: len(row["seeds"])), Column("score")),
    *(_within("same", "half_width", ".3f"), _within("gain", "gain_half_width", "+.3f")),
    *(Column("chance", form=".3f"), _within("rank", "rank_half_width", ".2f")),
)
CONFIDENCE = (
    *(Column("data", "dataset"), Column("budget")),
    Column("confidence", lambda row: f"{row['above']:g} to {row['to']:g}"),
    Column("share of roles", lambda row: f"{100 * row['share']:.0f} %"),
    *(Column("mean confidence", "confidence", ".2f"), Column("came again", "again", ".2f")),
)


def parts(rows: Sequence[dict[str, Any]]) -> list[object]:
    """The page: a line for each data set, budget and score; then one for each interval of confidence."""
    steps = [{**row, **step} for row in rows if row["score"] == SCORES[-1] for step in row["steps"]]
    return [
        "Roles that discovery proposes in two runs with other splits and noise. `same`: columns with one role in\n"
        "both, mean over pairs of runs with a 95 % jackknife interval over runs. `gain`: `hsic` less `stable`, the\n"
        "former score, on the same splits and noise. `chance`: the same if roles were drawn with their frequencies.\n"
        f"`rank`: Spearman's correlation of scores at epsilon {RANKED:g}, for one release of tables alone, with\n"
        "noise-free ones. `tables alone`: the whole epsilon is for the tables of the training part. `default run`:\n"
        "a private model takes its share, and tables are of the records that it is trained with. The JSON file has\n"
        "the roles of every seed.",
        Table.of(rows, AGREEMENT),
        "Roles by their confidence, score `hsic`:",
        Table.of(steps, CONFIDENCE),
    ]
