"""One person of a public data set before and after a change of group, under SCC-VFL and under plain training.

Nobody has the model of a run in secret. What is shown is its plaintext twin: the same records, roles, settings, seed
and budget, and other noise. An edit is drawn by the twin's own generator. As who moves is drawn at random, the same
person is edited many times; the most frequent edit is shown, with how often decisions flip over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.evaluation.baselines import aware, erm, scc
from secure_sccvfl.evaluation.examples import AFTER, BEFORE, STILL, cells
from secure_sccvfl.evaluation.metrics import Predictor, logits_of
from secure_sccvfl.evaluation.prepared import Prepared, edited_rows, own_rows
from secure_sccvfl.evaluation.qualitative.people import moves, probability
from secure_sccvfl.training.plain import decisions

DRAWS = 50
OURS, PLAIN = "plaintext_scc", "erm"


def most_frequent(edits: np.ndarray, before: np.ndarray) -> int:
    """The place of the most frequent edit that changes anything; 0 if none does."""
    changed = np.flatnonzero(np.abs(edits - before).max(axis=1) > STILL)
    if not len(changed):
        return 0
    _, first, counts = np.unique(edits[changed], axis=0, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    return int(changed[first[order[0]]])


def explained(ready: Prepared, mode: str, row: int) -> dict[str, Any]:
    """Everything about one record, in the words of CSV files."""
    layout, attribute, data = Layout.of(ready.data.features), ready.data.protected[0], ready.data
    config = ready.config.generator
    rows = np.full(DRAWS, row)
    edits, targets = edited_rows(ready, ready.roles, config, rows, 0)
    before = ready.inputs[row]
    at = most_frequent(edits, before)
    codes = (int(attribute.codes[row]), int(targets[at]))
    moved = moves(layout, ready.roles, before, edits[at])
    models = {OURS: (aware if mode == "aware" else scc)(ready).predict, PLAIN: erm(ready).predict}
    told = {name: _judged(ready, predict, before, edits, targets, at, codes[0]) for name, predict in models.items()}
    for move in moved:
        move["pushes"] = {
            name: _push(ready, layout, predict, before, edits[at], codes[0], move["feature"])
            for name, predict in models.items()
        }
    return {
        "part": _part(ready, row),
        "groups": [attribute.groups[code] for code in codes],
        "label": _label(ready, row),
        "values": cells(data.features, data.values[row]),
        "moved": moved,
        "draws": DRAWS,
        "empty": int((np.abs(edits - before).max(axis=1) <= STILL).sum()),
        "models": told,
        "lambda": ready.model.lam,
    }


def _part(ready: Prepared, row: int) -> str:
    for name in ("train", "validation", "test"):
        if row in getattr(ready.split, name):
            return name
    return "none"


def _label(ready: Prepared, row: int) -> str:
    value = ready.data.label.values[row]
    return f"{value:.4g}" if ready.data.task == "regression" else ready.data.label.classes[int(value)]


def _judged(
    ready: Prepared,
    predict: Predictor,
    before: np.ndarray,
    edits: np.ndarray,
    targets: np.ndarray,
    at: int,
    code: int,
) -> dict[str, Any]:
    """Both decisions of one model about a person, how often it flips over all draws, and over all test records."""
    task, classes = ready.data.task, ready.data.label.classes
    old = logits_of(predict, before[None], np.array([code]))
    new = logits_of(predict, edits, targets)
    told: dict[str, Any] = {BEFORE: _outcome(old[0], task, classes), AFTER: _outcome(new[at], task, classes)}
    everyone, toward = own_rows(ready)
    test, codes = ready.inputs[ready.split.test], ready.data.protected[0].codes[ready.split.test]
    first, second = logits_of(predict, test, codes), logits_of(predict, everyone, toward)
    told["change"] = float(np.abs(new[at] - old[0]).sum())
    told["everyone"] = {"gap": float(np.abs(second - first).sum(axis=1).mean())}
    if task != "regression":
        told["flips"] = int((decisions(new, task) != decisions(old, task)).sum())
        told["everyone"]["flips"] = float((decisions(first, task) != decisions(second, task)).mean())
    return told


def _outcome(logits: np.ndarray, task: Task, classes: Sequence[str]) -> dict[str, Any]:
    """Decision, score and logit. Of several classes: those of the decision."""
    if task == "regression":
        return {"decision": f"{logits[0]:.4g}", "score": float(logits[0]), "logit": float(logits[0])}
    if task == "binary":
        return {"decision": classes[int(logits[0] > 0)], "score": probability(logits[0]), "logit": float(logits[0])}
    place, powers = int(logits.argmax()), np.exp(logits - logits.max())
    return {
        "decision": classes[place],
        "score": float(powers[place] / powers.sum()),
        "logit": float(logits[place]),
    }


def _push(
    ready: Prepared,
    layout: Layout,
    predict: Predictor,
    before: np.ndarray,
    after: np.ndarray,
    code: int,
    name: str,
) -> float:
    """How one moved column alone changes the logit (of several classes: of the class decided before)."""
    alone, columns = before.copy(), layout.columns([name])
    alone[columns] = after[columns]
    old, new = logits_of(predict, np.stack([before, alone]), np.array([code, code]))
    place = int(old.argmax()) if ready.data.task == "multiclass" else 0
    return float(new[place] - old[place])
