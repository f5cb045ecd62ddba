"""The frontier between accuracy and consistency: every lambda of a run's grid, over several seeds in plaintext.

One run under MPC has one split, so its figures have no interval. On public benchmark data the plaintext engine runs
the same method, card, settings and budget on further seeds. Points are every lambda, the lambda that the rule takes
in each seed, at that lambda some weights kappa of the range penalty and (of a private model) some total budgets, and
for comparison plain training, dropping the mediators and the paper-faithful method. Each point has flip rates and the
share of certified decisions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.audit.attacks.perturbation import subspace_pgd_curve
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.certified import certificate_scores
from secure_sccvfl.evaluation.counterfactual_models import RUN_MODELS
from secure_sccvfl.evaluation.methods import (
    METHODS,
    Fitted,
    Prepared,
    fitted_model,
    prepare,
    with_epsilon,
    with_kappa,
)
from secure_sccvfl.evaluation.scoring import (
    RATES,
    Scored,
    fit_counterfactuals,
    flat,
    interval,
    one_thread,
    reduction,
    signed,
    with_failed_checks,
)
from secure_sccvfl.evaluation.views import white_box_view
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training.config import TrainConfig

BESIDE = ("majority", "erm", "drop_m", "drop_m_guard", "paper")
PLAIN = "erm"
RULE = "scc"
"""Our method at the lambda that the rule takes in each seed."""
KAPPAS = (0.03, 0.1, 0.3)
"""Weights of the range penalty at that lambda."""
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Total epsilon of tables and head at that lambda, of a private model."""


@dataclass(frozen=True)
class FrontierSeed:
    """One further seed of a run under MPC: the same data, card, settings and budget."""

    dataset: str
    parties: int
    split: SplitKind
    seed: int
    config: TrainConfig
    budget: SpendingPlan
    card: PolicyCard | None = None


def along(ready: Prepared) -> dict[float, Fitted]:
    """The model at every lambda of its grid. Temperatures are left out: they change no decision."""
    model = ready.model
    return {
        lam: fitted_model(replace(model, head=head, lam=lam, temperature=1.0), ready) for lam, head in model.frontier
    }


def run_frontier_seed(run: FrontierSeed) -> dict[str, Any] | None:
    """Scores of every point on one seed, and the validity checks, as plain data. One thread.

    None if no mediator was found: then there is nothing to keep consistent.
    """
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = pooled(run.dataset, run.parties)
        ready = prepare(data, make_split(data, run.split, run.seed), run.seed, run.config, run.budget, run.card)
        return _scored(ready) if ready.roles.named("M") else None


def _scored(ready: Prepared) -> dict[str, Any]:
    data, split, lam = ready.data, ready.split, ready.model.lam
    scoring = fit_counterfactuals(data, split, ready.roles, ready.seed, RUN_MODELS)
    points = along(ready)
    others = {name: METHODS.get(name)(ready) for name in BESIDE}
    training = (ready.inputs[split.train], data.protected[0].codes[split.train])
    quality = scoring.quality(training, ready.columns(ready.roles.named("M")), others[PLAIN].predict)
    ranges = {f"kappa={kappa:g}": with_kappa(ready, kappa) for kappa in KAPPAS}
    budgets = {f"epsilon={at:g}": with_epsilon(ready, at) for at in BUDGETS if ready.config.private}
    every = {**others, **{f"{RULE} {lam:g}": fitted for lam, fitted in points.items()}, **ranges, **budgets}
    scores = {
        name: flat([*scoring.score(fitted.predict), *certificate_scores(ready, fitted), *pgd_scores(ready, fitted)])
        for name, fitted in every.items()
    }
    return {
        "seed": ready.seed,
        "lambda": lam,
        "points": {**scores, RULE: scores[f"{RULE} {lam:g}"]},
        "gates": {model: with_failed_checks(figures) for model, figures in quality.items()},
    }


def pgd_scores(ready: Prepared, fitted: Fitted) -> list[Scored]:
    """How many decisions an attacker flips who knows the model and may move mediators by a fifth of their range."""
    if ready.data.task == "regression":
        return []
    box = white_box_view("white box", fitted.white_box, ready, brief=True)
    return [Scored(None, ATTACKS.get("pgd_paper").main, subspace_pgd_curve(box, ready.seed)[-1].rate)]


def joined(seeds: Iterable[Mapping[str, Any] | None], rule: str, taken: float | None) -> dict[str, Any]:
    """Means with 95 % intervals over seeds. rule: how lambda is chosen, in words. taken: the run's own lambda.

    `gain`: accuracy of the rule's choice above each other method, paired by seed. `cut`: by which share flip rates
    are below those of plain training.
    """
    finished = sorted((one for one in seeds if one is not None), key=lambda one: one["seed"])
    if not finished:
        return {}
    names = list(dict.fromkeys(name for one in finished for name in one["points"]))
    rows = {name: [one["points"][name] for one in finished if name in one["points"]] for name in names}

    def values(name: str, metric: str) -> np.ndarray:
        return np.array([one[metric] for one in rows[name]])

    checks = {model: _mean_checks([one["gates"][model] for one in finished]) for model in RUN_MODELS}
    cuts = {model: reduction(values(RULE, f"fr_{model}"), values(PLAIN, f"fr_{model}")) for model in RUN_MODELS}
    return {
        "seeds": [one["seed"] for one in finished],
        "rule": rule,
        "lambdas": [one["lambda"] for one in finished],
        "points": [_point(name, values_of, taken) for name, values_of in rows.items()],
        "gain": {name: _named(signed(values(RULE, "acc") - values(name, "acc"))) for name in BESIDE if name in rows},
        "cut": {model: _named(cut) for model, cut in cuts.items()},
        "nulls": {model: figures["edit_erm_null"] for model, figures in checks.items()},
        "failed": {model: with_failed_checks(figures)["failed"] for model, figures in checks.items()},
        "checks": {model: with_failed_checks(figures) for model, figures in checks.items()},
    }


def _mean_checks(figures: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Figures of the validity checks of a model, on average over the seeds."""
    return {k: float(np.mean([f[k] for f in figures])) for k in figures[0] if k != "failed"}


def _named(figures: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), figures, strict=True))


def _point(name: str, values: Sequence[Mapping[str, float]], taken: float | None) -> dict[str, Any]:
    method, _, lam = name.partition(" ")
    figures = {}
    for metric in values[0]:
        seen = np.array([one[metric] for one in values if metric in one])
        figures[metric] = _named(interval(seen, metric.startswith(RATES)))
    weight = float(lam) if lam else None
    return {"method": method, "lambda": weight, "chosen": bool(lam) and weight == taken, "figures": figures}
