"""The pooled plaintext evaluation of a secure run on public benchmark data: counterfactuals and simple baselines.

It sees the pooled data, which a consortium never does. It makes counterfactuals of the test records by models that
training never saw, under true and under permuted s, and gives each party its columns of them. It also trains the
baselines of every table, in plaintext, with the roles of the secure run, and checks the validity of the models.

Mutual information of each column with s (`mutual_information_with_s`) shows how well roles agree with the data. It is
estimated from counts over public bins, in nats. Such an estimate is above zero by chance, so its control is next to
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import Split
from secure_sccvfl.evaluation.counterfactual_models import RUN_MODELS, CounterfactualError
from secure_sccvfl.evaluation.coupling_bounds import guarantee_scores
from secure_sccvfl.evaluation.methods import Prepared, aware, drop_m, erm, logistic, majority, scc, train_plainly
from secure_sccvfl.evaluation.scoring import (
    ScoringSet,
    fit_counterfactuals,
    flat,
    held_out_rows,
    with_failed_checks,
)
from secure_sccvfl.metrics.rates import NULL
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training.config import TrainConfig

BASELINES = {"majority": majority, "logistic": logistic, "drop_m": drop_m, "erm": erm, "plaintext_scc": scc}


@dataclass(frozen=True)
class Comparison:
    """By baseline its metrics; by counterfactual model its figures and failed checks.

    information: mutual information of each column with s, by column (`evaluation.pooled`).
    """

    baselines: dict[str, dict[str, float]]
    judges: dict[str, dict[str, Any]]
    information: dict[str, dict[str, float]]


def run_counterfactuals(data: Dataset, split: Split, roles: Roles, seed: int) -> ScoringSet:
    """What a run is scored on; without counterfactuals if there is nothing to change."""
    try:
        return fit_counterfactuals(data, split, roles, seed, RUN_MODELS)
    except CounterfactualError:
        return held_out_rows(data, split)


def hand_out(data: Dataset, scoring: ScoringSet, folder: Path) -> None:
    """Write each party's columns of the counterfactuals into its folder of a run.

    With two groups, the group that a record moves to reveals its own. So it goes to the holder of s alone, who gives
    it to a model that uses s.
    """
    parties, holder = make_parties(data), data.protected[0].holder
    cuts = np.cumsum([p.layout.width for p in parties])[:-1]
    named = {**scoring.counterfactuals, **{f"{NULL}{kind}": edited for kind, edited in scoring.nulls.items()}}
    for kind, edited in named.items():
        target = np.full(len(scoring.inputs), -1)
        target[edited.source] = edited.target
        for party, inputs in zip(parties, np.split(edited.inputs, cuts, axis=1), strict=True):
            arrays: dict[str, Any] = {"units": inputs, "source": edited.source, "weight": edited.weight}
            if party.name == holder and kind in scoring.counterfactuals:
                arrays["target"] = target
            with open(folder / f"party-{party.rank}" / f"judge-{kind}.npz", "wb", opener=private) as file:
                np.savez(file, **arrays)


def ready_with(
    data: Dataset,
    split: Split,
    roles: Roles,
    config: TrainConfig,
    budget: SpendingPlan,
    seed: int,
    card: PolicyCard | None = None,
) -> Prepared:
    """A run in plaintext: the same records, roles, card, settings and budget, and other noise."""
    parties = make_parties(data)
    given = (data, split, parties, config, budget, seed)
    model, noise = train_plainly(*given, roles=roles, tabled=None if card is None else card.roles)
    return Prepared(data, split, parties, seed, noise.plan, config, model, ())


def compare(
    data: Dataset,
    split: Split,
    roles: Roles,
    scoring: ScoringSet,
    config: TrainConfig,
    budget: SpendingPlan,
    seed: int,
    mode: str = "sealed",
    *,
    card: PolicyCard | None = None,
) -> Comparison:
    """Each baseline on the same test part, counterfactuals and roles; and the validity checks of the models.

    mode, card: of the run.
    """
    ready = ready_with(data, split, roles, config, budget, seed, card if mode != "aware" else None)
    metrics: dict[str, dict[str, float]] = {}
    validity: dict[str, dict[str, Any]] = {}
    codes = data.protected[0].codes[split.train]
    same = {"plaintext_scc": aware} if mode == "aware" else {}
    for name, method in {**BASELINES, **same}.items():
        if name == "drop_m" and not roles.named("M"):
            continue
        fitted = method(ready)
        predict = fitted.predict
        metrics[name] = flat([*scoring.score(predict), *guarantee_scores(ready, fitted)])
        if name == "erm":
            quality = scoring.quality((ready.inputs[split.train], codes), ready.columns(roles.named("M")), predict)
            validity = {model: with_failed_checks(figures) for model, figures in quality.items()}
    parties = [party.take(split.train) for party in ready.parties]
    about = mutual_information_with_s(parties, codes, len(data.protected[0].groups), seed)
    return Comparison(metrics, validity, about)


SHUFFLES = 200
HIGH = 0.95


def mutual_information(counts: np.ndarray) -> float:
    """Of a table of counts (bins x groups), in nats."""
    joint = counts.astype(float) / counts.sum()
    alone = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    seen = joint > 0
    return max(0.0, float((joint[seen] * np.log(joint[seen] / alone[seen])).sum()))


def mutual_information_with_s(
    parties: Sequence[Party], codes: np.ndarray, groups: int, seed: int, shuffles: int = SHUFFLES
) -> dict[str, dict[str, float]]:
    """By column: `mi` with s, and `null` and `null_high`, its mean and 95 % quantile under permuted s."""
    bins = {name: columns for party in parties for name, columns in party.bins().items()}
    stacked = np.ascontiguousarray(np.hstack(list(bins.values())).T, dtype=np.float32)  # counts below 2^24
    cuts = np.cumsum([columns.shape[1] for columns in bins.values()])[:-1]

    def each(s: np.ndarray) -> list[float]:
        return [mutual_information(c) for c in np.split(stacked @ one_hot(s, groups, np.float32), cuts)]

    rng = stream(seed, "information")
    null = np.array([each(rng.permutation(codes)) for _ in range(shuffles)])
    return {
        name: {"mi": mi, "null": float(column.mean()), "null_high": float(np.quantile(column, HIGH))}
        for name, mi, column in zip(bins, each(codes), null.T, strict=True)
    }
