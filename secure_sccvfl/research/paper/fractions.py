"""Fractions rho_M and rho_P by validation (appendix C.2), and how often the paper's roles come again.

"Fractions are selected on validation, then fixed across seeds/methods for that dataset": each pair of a grid trains
the paper-faithful method on development seeds. The objective is that of early stopping, on validation records under
the run's own counterfactuals; the lowest mean is taken. The paper gives its own choice, .60 and .50, which the
settings have. This program says what the same rule chooses here.

Roles are compared between runs with other splits and noise, and between noise draws on one split. Chance: roles drawn
with the fractions of each party, which are fixed. The control without noise shows what splits alone change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from accounting.tables import Column, Table
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, prepare
from secure_sccvfl.policy.roles import ROLES, Roles
from secure_sccvfl.releases.noise import NoNoise
from secure_sccvfl.research.paper.methods import SWEEPS, paper_with
from secure_sccvfl.research.paper.roles import Masks
from secure_sccvfl.research.paper.settings import FLIP_WEIGHT, SCG_WEIGHT, settings_of
from secure_sccvfl.research.reproduction.summary import short_name

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


def parts(result: Mapping[str, Any]) -> list[object]:
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
