"""The paper's qualitative analysis as data: its methods and ours on one seed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.counterfactual_models import FIRST
from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.evaluation.metrics import Predictor, flat, logits_of
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, own_rows, prepare
from secure_sccvfl.evaluation.qualitative.information import HIGH, SHUFFLES, information, ranks
from secure_sccvfl.evaluation.qualitative.people import Stage, Subject, cases, edit_sizes, recourse
from secure_sccvfl.evaluation.qualitative.views import fused_mixing, stage_of, used_mixing
from secure_sccvfl.evaluation.scoring import ScoringSet, fit_counterfactuals
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.research.paper.networks import TrainedNetwork

SHOWN = ("erm_network", "uniform_cf", "policy_blind", "server_consistency", "paper", "scc")
"""The paper's methods and ours, by their names in the tables; the first is plain training."""
OURS = "scc"
PAPER = "paper"


def history_of(fitted: Fitted) -> list[dict[str, float | None]]:
    """The training curve of a network, a record for each epoch; None: not defined. Empty for other methods."""
    if not isinstance(fitted.predict, TrainedNetwork):
        return []
    records = [asdict(record) for record in fitted.predict.history]
    return [{key: value if math.isfinite(value) else None for key, value in record.items()} for record in records]


def of_methods(dataset: str, split: SplitKind, seed: int, card: str = "") -> dict[str, Any]:
    """The paper's qualitative analysis on one seed: roles, representations, curves, people. One thread."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", DataWarning)
        data = load(dataset)
        ready = prepare(data, make_split(data, split, seed), seed, card=named_card(card, dataset))
        return _of_methods(ready)


def _of_methods(ready: Prepared) -> dict[str, Any]:
    judges = fit_counterfactuals(ready.data, ready.split, ready.roles, ready.seed, (FIRST,))
    fitted = {name: METHODS.get(name)(ready) for name in SHOWN}
    codes, rows = ready.data.protected[0].codes, ready.split.train
    groups, finding = ready.data.protected[0].groups, ready.model.finding
    known = information([p.take(rows) for p in ready.parties], codes[rows], len(groups), ready.seed)
    scores = {name: float(value) for name, value in finding.scores.items()}
    found: dict[str, Any] = {
        "roles": dict(ready.roles.of),
        "scores": scores,
        "information": known,
        "agreement": agreement(scores, known, ready.seed),
        "groups": list(groups),
        "mixing": [
            *fused_mixing(ready, fitted),
            *used_mixing(ready, {name: f.predict for name, f in fitted.items()}),
        ],
        "history": {name: curve for name, f in fitted.items() if (curve := history_of(f))},
        "trials": [asdict(trial) for trial in ready.model.trials],
        "lambda": ready.model.lam,
        "methods": {name: _figures(judges, f.predict) for name, f in fitted.items()},
        "cases": [],
        "recourse": [],
    }
    if ready.data.task == "binary" and judges.edits:
        stage = stage_of(ready, judges)
        subjects = {name: _subject(ready, name, f) for name, f in fitted.items()}
        found["cases"] = cases(stage, subjects, SHOWN[0])
        found["recourse"] = recourse(stage, subjects[OURS])
        found["edits"] = {name: told for name, s in subjects.items() if (told := sizes(stage, s))}
    return found


def _subject(ready: Prepared, name: str, fitted: Fitted) -> Subject:
    """A method with its own edits: of its network, or of the default run's generator."""
    mine, toward = own_rows(ready)
    if name == OURS:
        return Subject(fitted.predict, mine, toward)
    return Subject(fitted.predict, fitted.own(ready.split.test) if fitted.own is not None else None, toward)


def _figures(judges: ScoringSet, predict: Predictor) -> dict[str, float]:
    """Accuracy, and flips under the first judge with their null."""
    wanted = ("acc", f"fr_{FIRST}", f"fr_null_{FIRST}")
    return {name: value for name, value in flat(judges.score(predict)).items() if name in wanted}


def sizes(stage: Stage, subject: Subject) -> dict[str, float]:
    """Over all test records: the size of a method's own edits of mediators and of others, and how many flip."""
    if subject.own is None:
        return {}
    layout, edited = stage.layout, stage.roles.edited
    others = [name for name in layout.names if name not in edited]
    before = logits_of(subject.predict, stage.inputs, stage.codes)
    after = logits_of(subject.predict, subject.own, subject.toward)
    return {
        "mediators": float(edit_sizes(layout, edited, stage.inputs, subject.own).mean()),
        "others": float(edit_sizes(layout, others, stage.inputs, subject.own).mean()),
        "flips": float(((before[:, 0] > 0) != (after[:, 0] > 0)).mean()),
        "gap": float(np.abs(before[:, 0] - after[:, 0]).mean()),
    }


def agreement(scores: Mapping[str, float], found: Mapping[str, Mapping[str, float]], seed: int) -> dict[str, Any]:
    """Rank correlation (Spearman) of noisy scores with mutual information; control: columns shuffled."""
    names = sorted(found)
    score, mi = (ranks(np.array(values)) for values in ([scores[n] for n in names], [found[n]["mi"] for n in names]))
    rng = stream(seed, "agreement")
    null = [_correlation(rng.permutation(score), mi) for _ in range(SHUFFLES)]
    return {
        "rank_correlation": _correlation(score, mi),
        "null_high": float(np.quantile(null, HIGH)),
        "columns": len(names),
    }


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0
