"""`reproduce.py roles`: how often discovery proposes the same roles in another run, and what noise does to ranks.

A run has its own split and its own noise. Every ordered pair of runs is compared, column by column. The control is
chance: how often two roles would agree that are drawn with the frequencies of all runs. Scores are compared with the
noise-free ones by Spearman's rank correlation.

`reproduce.py letter-roles`: the same for the paper's discovery, and its fractions by validation (appendix C.2).
"Fractions are selected on validation, then fixed across seeds/methods for that dataset": each pair of a grid trains
the paper-faithful method on development seeds. The objective is that of early stopping, on validation records under
the run's own counterfactuals; the lowest mean is taken. The paper gives .60 and .50, which the settings have. Roles
are compared between runs with other splits and noise, and between noise draws on one split. Chance: roles drawn with
the fixed fractions of each party. The control without noise shows what splits alone change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any, Literal, get_args

import numpy as np
from scipy import stats
from scipy.stats import spearmanr

from secure_sccvfl.accounting.tables import Column, Row, Table
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import Party, make_parties, part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig, RoleAssignment
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.scores import ScoreKind
from secure_sccvfl.evaluation.methods import Fitted, Prepared, default_run, prepare
from secure_sccvfl.evaluation.scoring import half_width
from secure_sccvfl.policy.roles import ROLES, Roles
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.research.paper.methods import SWEEPS, paper_with
from secure_sccvfl.research.paper.roles import Masks
from secure_sccvfl.research.paper.settings import FLIP_WEIGHT, SCG_WEIGHT, settings_of
from secure_sccvfl.research.results import short_name
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


def run_settings(data: Dataset, budget: Budget, score: ScoreKind) -> tuple[TrainConfig, SpendingPlan]:
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
    config, plan = run_settings(data, budget, score)
    part = part_of(data, config.training_rows(make_split(data, "iid", seed)), parties)
    discovery = Discovery.plain(GaussianNoise(plan, seed), part, len(data.features), config.discovery, seed)
    return discovery.proposed(config.refreshes + config.late_refreshes + 1)


def ranked(data: Dataset, parties: tuple[Party, ...], seed: int, score: ScoreKind) -> float:
    """Spearman's agreement of one release's scores at epsilon RANKED with noise-free ones, on one training part."""
    config = DiscoveryConfig(score=score)
    part = part_of(data, make_split(data, "iid", seed).train, parties)
    found = []
    for noise in (NoNoise(), GaussianNoise(SpendingPlan(epsilon=RANKED, releases=1), seed)):
        found.append(Discovery.plain(noise, part, len(data.features), config, seed).refresh(0)[1].scores)
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
        epsilon = run_settings(data, budget, SCORES[0])[1].epsilon
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


RHO_M = SWEEPS["rho_m"]
RHO_P = (0.25, 0.50, 0.75)
DEVELOPMENT = range(730, 740)
"""Seeds on which fractions are chosen; no table is made of them."""
DRAWS = 20
"""Noise draws on the split of the first seed."""
WAYS = {
    "section 3.2: HSIC for M, gap for P": {},
    "Eq. C.6: S_j for both": {"partition": "score"},
}


def validation_objective(fitted: Fitted) -> float:
    """Of the kept epoch: log loss, SCG and flips on validation, as in early stopping."""
    seen = fitted.predict.history[fitted.predict.kept_epoch]  # type: ignore[attr-defined]
    return float(seen.validation_loss + SCG_WEIGHT * seen.scg + FLIP_WEIGHT * seen.fr)


def by_validation(readies: Mapping[int, Prepared]) -> list[dict[str, Any]]:
    """All pairs of the grid with their objectives by seed, the lowest mean first.

    A pair that leaves a seed nothing to edit has no SCG there: it has no objective and comes last.
    """
    rows = []
    for rho_m in RHO_M:
        for rho_p in RHO_P:
            method = paper_with(rho_m=rho_m, rho_p=rho_p)
            found = {seed: round(validation_objective(method(ready)), 5) for seed, ready in readies.items()}
            mean = float(np.mean([*found.values()]))
            named = {"rho_m": rho_m, "rho_p": rho_p, "objective": None if np.isnan(mean) else mean}
            rows.append({**named, "seeds": {k: None if np.isnan(v) else v for k, v in found.items()}})
    return sorted(rows, key=lambda row: (row["objective"] is None, row["objective"]))


def agreement(runs: Sequence[Roles], owners: Mapping[str, str]) -> dict[str, float]:
    """Columns with the same role in two runs, over all pairs, and by chance."""
    pairs = [np.mean([a.of[k] == b.of[k] for k in a.of]) for a, b in combinations(runs, 2)]
    chance = []
    for k in owners:
        drawn = [run.of[j] for run in runs for j in owners if owners[j] == owners[k]]
        chance.append(sum((drawn.count(role) / len(drawn)) ** 2 for role in ROLES))
    return {"same": float(np.mean(pairs)), "chance": float(np.mean(chance)), "pairs": len(pairs)}


def measure(dataset: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Agreement of roles over these seeds with the roles themselves, and fractions by validation."""
    data = load(dataset)
    readies = {seed: prepare(data, make_split(data, "iid", seed), seed) for seed in (*seeds, *DEVELOPMENT)}
    settings, owners = settings_of(data.name), data.owners
    rows, roles = [], {}
    for name, changes in WAYS.items():
        changed = replace(settings, **changes)  # type: ignore[arg-type]
        first = readies[seeds[0]]
        ways = {
            "other splits and noise": [Masks(readies[seed], changed).roles for seed in seeds],
            "one split, other noise": [Masks(replace(first, seed=k), changed).roles for k in range(DRAWS)],
            "other splits, no noise": [Masks(readies[seed], changed, NoNoise()).roles for seed in seeds],
        }
        roles[name] = {seed: dict(run.of) for seed, run in zip(seeds, ways["other splits and noise"], strict=True)}
        rows += [{"roles": name, "between": way, **agreement(runs, owners)} for way, runs in ways.items()]
    chosen = by_validation({seed: readies[seed] for seed in DEVELOPMENT})
    facts = {"dataset": short_name(dataset), "seeds": list(seeds), "development_seeds": list(DEVELOPMENT)}
    return {**facts, "rows": rows, "fractions": chosen, "per_seed": roles}


def paper_page(result: Mapping[str, Any]) -> list[object]:
    """The page of these figures."""
    seeds, development = result["seeds"], result["development_seeds"]
    agreed = [*map(Column, ("roles", "between", "pairs")), *(Column(name, form=".3f") for name in ("same", "chance"))]
    fractions = [
        (f"{r['rho_m']:g}", f"{r['rho_p']:g}", "nothing to edit" if (v := r["objective"]) is None else f"{v:.4f}")
        for r in result["fractions"]
    ]
    return [
        f"# Roles of the paper's own discovery on {result['dataset']}",
        "Plaintext engine, epsilon 8, from clipped, noisy tables alone, before any refresh. Seeds\n"
        f"{seeds[0]} to {seeds[-1]}; noise draws on the split of seed {seeds[0]}. `same`: columns with one role in\n"
        "two runs. `chance`: roles drawn with the fractions of each party. Roles by seed are in the JSON file.",
        Table.of(result["rows"], agreed),
        "# Fractions by validation",
        f"Objective of early stopping on validation, mean of seeds {development[0]} to {development[-1]}, the\n"
        "lowest first. The paper's choice is .60 and .50.",
        Table(("rho_M", "rho_P", "objective"), fractions),
    ]
