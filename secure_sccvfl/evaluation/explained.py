"""One person of a public data set before and after a change of group, under SCC-VFL and under plain training.

Nobody has the model of a run under MPC. What is shown is its plaintext twin: the same records, roles, settings, seed
and budget, and other noise. A counterfactual is drawn by the twin's own generator. As the changed columns are drawn
at random, the same person is drawn many times; the most frequent counterfactual is shown, with how often decisions
flip over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.evaluation.baselines import aware, erm, scc
from secure_sccvfl.evaluation.examples import AFTER, BEFORE, STILL, cells, decoded
from secure_sccvfl.evaluation.metrics import Predictor, logits_of
from secure_sccvfl.evaluation.prepared import Prepared, edited_rows, own_rows
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.training.plain import decisions

DRAWS = 50
OURS, PLAIN = "plaintext_scc", "erm"


def column_sizes(layout: Layout, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """How far each column of each record moved, from 0 to 1: records x columns.

    A number counts by the share of its public range, a category by the share of its weight (1 when it changes).
    """
    change = np.abs(after - before)
    sizes = [
        change[:, b.columns].sum(axis=1) / 2 if b.one_hot else change[:, b.columns].max(axis=1) for b in layout.blocks
    ]
    return np.stack(sizes, axis=1)


def moves(layout: Layout, roles: Roles, before: np.ndarray, after: np.ndarray) -> list[dict[str, Any]]:
    """The columns of one record that a counterfactual changes, the largest first; from and to as in a CSV file."""
    sizes = column_sizes(layout, before[None], after[None])[0]
    changes = []
    for block, size in zip(layout.blocks, sizes, strict=True):
        if size > STILL:
            name = block.feature.name
            old, new = (
                cells([block.feature], np.array([decoded(block, record[block.columns])]))[name]
                for record in (before, after)
            )
            changes.append({"feature": name, "role": roles.of[name], "size": float(size), "from": old, "to": new})
    return sorted(changes, key=lambda change: -change["size"])


def most_frequent(edits: np.ndarray, before: np.ndarray) -> int:
    """The index of the most frequent counterfactual that changes anything; 0 if none does."""
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
    seen = {name: _decided(ready, predict, before, edits, targets, at, codes[0]) for name, predict in models.items()}
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
        "models": seen,
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


def _decided(
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
    seen: dict[str, Any] = {BEFORE: _outcome(old[0], task, classes), AFTER: _outcome(new[at], task, classes)}
    everyone, toward = own_rows(ready)
    test, codes = ready.inputs[ready.split.test], ready.data.protected[0].codes[ready.split.test]
    first, second = logits_of(predict, test, codes), logits_of(predict, everyone, toward)
    seen["change"] = float(np.abs(new[at] - old[0]).sum())
    seen["everyone"] = {"gap": float(np.abs(second - first).sum(axis=1).mean())}
    if task != "regression":
        seen["flips"] = int((decisions(new, task) != decisions(old, task)).sum())
        seen["everyone"]["flips"] = float((decisions(first, task) != decisions(second, task)).mean())
    return seen


def _outcome(logits: np.ndarray, task: Task, classes: Sequence[str]) -> dict[str, Any]:
    """Decision, score and logit. Of several classes: those of the decision."""
    if task == "regression":
        return {"decision": f"{logits[0]:.4g}", "score": float(logits[0]), "logit": float(logits[0])}
    if task == "binary":
        return {
            "decision": classes[int(logits[0] > 0)],
            "score": float(1 / (1 + np.exp(-logits[0]))),
            "logit": float(logits[0]),
        }
    index, powers = int(logits.argmax()), np.exp(logits - logits.max())
    return {
        "decision": classes[index],
        "score": float(powers[index] / powers.sum()),
        "logit": float(logits[index]),
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
    index = int(old.argmax()) if ready.data.task == "multiclass" else 0
    return float(new[index] - old[index])
