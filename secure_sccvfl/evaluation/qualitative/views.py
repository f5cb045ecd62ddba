"""Qualitative views as data: of a benchmark run for its page, and of the paper's methods for one seed."""

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
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.examples import heaviest
from secure_sccvfl.evaluation.fitted_judges import FittedJudges, fit_judges
from secure_sccvfl.evaluation.judges import FIRST
from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.evaluation.metrics import Predictor, flat, logits_of
from secure_sccvfl.evaluation.networks import TrainedNetwork
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, own_rows, prepare
from secure_sccvfl.evaluation.qualitative.information import agreement, information
from secure_sccvfl.evaluation.qualitative.mixing import Represented, at_most, mixing, read_s, used_by
from secure_sccvfl.evaluation.qualitative.people import Stage, Subject, cases, recourse, sizes
from secure_sccvfl.policy.card import named_card

SHOWN = ("erm_network", "uniform_cf", "policy_blind", "server_consistency", "paper", "scc")
"""The paper's methods and ours, by their names in the tables; the first is plain training."""
OURS = "scc"
PAPER = "paper"


def of_run(ready: Prepared, judges: FittedJudges, fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """What the page of a benchmark run shows, from the baselines that its harness has trained anyway.

    Scores of a run are released by the run itself, so only mutual information is measured here.
    """
    codes, rows = ready.data.protected[0].codes, ready.split.train
    parties = [party.take(rows) for party in ready.parties]
    ours, plain = fitted["plaintext_scc"], fitted["erm"]
    found: dict[str, Any] = {
        "information": information(parties, codes[rows], len(ready.data.protected[0].groups), ready.seed),
        "mixing": [
            *_fused(ready, {"erm": plain}),
            *_used(ready, {"erm": plain.predict, "plaintext_scc": ours.predict}),
        ],
        "cases": [],
        "recourse": [],
    }
    if ready.data.task == "binary" and judges.edits:
        stage, own = stage_of(ready, judges), own_rows(ready)
        subjects = {name: Subject(fitted[name].predict) for name in ("erm", "logistic", "drop_m") if name in fitted}
        subjects["plaintext_scc"] = Subject(ours.predict, *own)
        found["cases"] = cases(stage, subjects, "erm")
        found["recourse"] = recourse(stage, subjects["plaintext_scc"])
    return found


def stage_of(ready: Prepared, judges: FittedJudges) -> Stage:
    """The test part and the first judge's edits of it."""
    edited = judges.edits[FIRST]
    return Stage(
        ready.data.take(ready.split.test),
        ready.roles,
        judges.inputs,
        edited.inputs,
        edited.target,
        heaviest(edited),
    )


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
    judges = fit_judges(ready.data, ready.split, ready.roles, ready.seed, (FIRST,))
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
        "mixing": [*_fused(ready, fitted), *_used(ready, {name: f.predict for name, f in fitted.items()})],
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


def _figures(judges: FittedJudges, predict: Predictor) -> dict[str, float]:
    """Accuracy, and flips under the first judge with their null."""
    wanted = ("acc", f"fr_{FIRST}", f"fr_null_{FIRST}")
    return {name: value for name, value in flat(judges.score(predict)).items() if name in wanted}


def _fused(ready: Prepared, fitted: Mapping[str, Fitted]) -> list[dict[str, Any]]:
    """What the encoders of each method make of the records."""
    parts, inputs = _parts(ready), ready.inputs
    return [
        {"method": name, "space": "fused", **_mixed(ready, *(method.fused(inputs[rows]) for rows in parts))}
        for name, method in fitted.items()
        if method.fused is not None
    ]


def _used(ready: Prepared, predictors: Mapping[str, Predictor]) -> list[dict[str, Any]]:
    """What the decisions of each method take from the columns, and the logits alone."""
    layout, codes = Layout.of(ready.data.features), ready.data.protected[0].codes
    parts, inputs = _parts(ready), ready.inputs
    mean = inputs[ready.split.train].mean(axis=0)
    found = []
    for name, predict in predictors.items():
        told = _mixed(ready, *(used_by(predict, layout, inputs[rows], codes[rows], mean) for rows in parts))
        logits = _represented(ready, *(logits_of(predict, inputs[rows], codes[rows]) for rows in parts))
        found.append({"method": name, "space": "used", **told, "logits": read_s(logits, ready.seed)})
    return found


def _parts(ready: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """The training and test records that representations are judged by."""
    return at_most(ready.split.train, ready.seed), at_most(ready.split.test, ready.seed)


def _mixed(ready: Prepared, train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    return mixing(_represented(ready, train, test), ready.seed)


def _represented(ready: Prepared, train: np.ndarray, test: np.ndarray) -> Represented:
    codes = ready.data.protected[0].codes
    known, asked = _parts(ready)
    return Represented(train, test, codes[known], codes[asked])
