"""Qualitative views of a benchmark run as data, for its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.evaluation.counterfactual_models import FIRST
from secure_sccvfl.evaluation.examples import heaviest
from secure_sccvfl.evaluation.metrics import Predictor, logits_of
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, own_rows
from secure_sccvfl.evaluation.qualitative.information import information
from secure_sccvfl.evaluation.qualitative.mixing import Represented, at_most, mixing, read_s, used_by
from secure_sccvfl.evaluation.qualitative.people import Stage, Subject, cases, recourse
from secure_sccvfl.evaluation.scoring import ScoringSet


def of_run(ready: Prepared, judges: ScoringSet, fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """What the page of a benchmark run shows, from the baselines that its harness has trained anyway.

    Scores of a run are released by the run itself, so only mutual information is measured here.
    """
    codes, rows = ready.data.protected[0].codes, ready.split.train
    parties = [party.take(rows) for party in ready.parties]
    ours, plain = fitted["plaintext_scc"], fitted["erm"]
    found: dict[str, Any] = {
        "information": information(parties, codes[rows], len(ready.data.protected[0].groups), ready.seed),
        "mixing": [
            *fused_mixing(ready, {"erm": plain}),
            *used_mixing(ready, {"erm": plain.predict, "plaintext_scc": ours.predict}),
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


def stage_of(ready: Prepared, judges: ScoringSet) -> Stage:
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


def fused_mixing(ready: Prepared, fitted: Mapping[str, Fitted]) -> list[dict[str, Any]]:
    """What the encoders of each method make of the records."""
    parts, inputs = _parts(ready), ready.inputs
    return [
        {"method": name, "space": "fused", **_mixed(ready, *(method.fused(inputs[rows]) for rows in parts))}
        for name, method in fitted.items()
        if method.fused is not None
    ]


def used_mixing(ready: Prepared, predictors: Mapping[str, Predictor]) -> list[dict[str, Any]]:
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
