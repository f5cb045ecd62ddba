"""Single records and their counterfactuals, with the secure model's decision for both.

For public benchmark data alone, where the pooled evaluation sees all records anyway. It draws test records at random
among those that a counterfactual model changed, and writes both versions to a file that a secure `predict`
session scores. That session opens the calibrated logit of these records to the holder of the label.

`explained`: one person before and after a change of group, under SCC-VFL and under plain training. Nobody has the
model of a run under MPC. What is shown is its plaintext twin: the same records, roles, settings, seed and budget, and
other noise. The twin's own generator draws the same person many times; the most frequent counterfactual is shown,
with how often decisions flip over all of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Dataset, Task
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Block, Layout
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.counterfactual_models import Counterfactuals
from secure_sccvfl.evaluation.methods import Prepared, aware, edited_rows, erm, own_rows, scc
from secure_sccvfl.evaluation.scoring import Predictor, logits_of
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.training.plain import decisions

DRAWN = 24
SHOWN = 4
BEFORE, AFTER = "before", "after"
STILL = 1e-9
"""A smaller change in input space is rounding."""
Cells = dict[str, str]


def cells(features: Sequence[Feature], values: np.ndarray) -> Cells:
    """A record as the text of a CSV file, by the public dictionary."""
    return {feature.name: feature.text(value) for feature, value in zip(features, values, strict=True)}


def decoded(block: Block, inputs: np.ndarray) -> float:
    """A value of one feature, read back from input space; a code becomes the middle of its public bin."""
    feature = block.feature
    if block.one_hot:
        code = int(inputs.argmax())
        if feature.missing and code == feature.bins - 1:
            return math.nan
        return float(code) if feature.kind == "category" else feature.middle(code)
    if feature.missing and inputs[1] > 0.5:
        return math.nan
    return float(feature.low + inputs[0] * (feature.high - feature.low))


def versions(layout: Layout, values: np.ndarray, inputs: np.ndarray) -> tuple[Cells, Cells]:
    """A record as it is, and with the features that a counterfactual in input space changes."""
    old, new = layout.encode(values[None])[0], values.copy()
    for number, block in enumerate(layout.blocks):
        if np.abs(inputs[block.columns] - old[block.columns]).max() > STILL:
            new[number] = decoded(block, inputs[block.columns])
    features = [block.feature for block in layout.blocks]
    return cells(features, values), cells(features, new)


def heaviest(changed: Counterfactuals) -> dict[int, int]:
    """By held-out record its counterfactual of the largest weight; the first of several."""
    copy_of: dict[int, int] = {}
    for copy in np.argsort(-changed.weight, kind="stable"):
        copy_of.setdefault(int(changed.source[copy]), int(copy))
    return copy_of


def draw(data: Dataset, test: np.ndarray, changed: Counterfactuals, seed: int) -> list[dict[str, Any]]:
    """Random test records that the model changed, as cells before and after."""
    layout, first = Layout.of(data.features), data.protected[0]
    held_out = data.take(test)
    copies = heaviest(changed)
    examples: list[dict[str, Any]] = []
    for row in stream(seed, "examples").permutation(sorted(copies)):
        copy = copies[int(row)]
        before, after = versions(layout, held_out.values[row], changed.inputs[copy])
        if before != after and len(examples) < DRAWN:
            groups = [first.groups[int(code)] for code in (first.codes[test][row], changed.target[copy])]
            examples.append({"id": str(held_out.ids[row]), "groups": groups, BEFORE: before, AFTER: after})
    return examples


def write_records(path: Path, drawn: Sequence[Mapping[str, Any]], group: str = "") -> None:
    """The file that `predict` reads: both versions of each record.

    `group`: the column of s, for a model that uses it.
    """
    with open(path, "w", newline="", encoding="utf-8", opener=private) as file:
        writer = csv.DictWriter(file, ["id", *drawn[0][BEFORE], *([group] if group else [])])
        writer.writeheader()
        for number, record in enumerate(drawn):
            for when, of in zip((BEFORE, AFTER), record["groups"], strict=True):
                held = {group: of} if group else {}
                writer.writerow({"id": f"{number:03d}-{when}", **record[when], **held})


def read_predictions(path: Path) -> dict[str, dict[str, Any]]:
    """Decision and, for classes, the probability of each, by the id in the file of records."""
    predictions: dict[str, dict[str, Any]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if "prediction" in row:
                predictions[row["id"]] = {"decision": float(row["prediction"]), "score": float(row["prediction"])}
                continue
            logits = [float(v) for k, v in row.items() if k.startswith("logit ")]
            predictions[row["id"]] = {"decision": row["decision"], "score": _top(logits)}
    return predictions


def _top(logits: Sequence[float] | np.ndarray) -> float:
    """Two classes: the probability of the second. More: that of the chosen one."""
    if len(logits) == 1:
        return float(1 / (1 + np.exp(-logits[0])))
    powers = np.exp(np.array(logits) - max(logits))
    return float(powers.max() / powers.sum())


def scored(
    records: Sequence[Mapping[str, Any]], predictions: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Decisions for both versions of each record, in the order of the file, and what differs in them."""
    pairs = []
    for number, record in enumerate(records):
        old, new = (dict(predictions[f"{number:03d}-{when}"]) for when in (BEFORE, AFTER))
        moved = [
            {"feature": name, "from": value, "to": record[AFTER][name]}
            for name, value in record[BEFORE].items()
            if value != record[AFTER][name]
        ]
        change = abs(new["score"] - old["score"])
        flipped = isinstance(old["decision"], str) and old["decision"] != new["decision"]
        pairs.append(
            {**{k: record[k] for k in ("id", "groups")}, BEFORE: old, AFTER: new, "moved": moved}
            | {"change": change, "flipped": flipped}
        )
    return pairs


def choose(people: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A few records to show, and why each: flips, the largest change, the one in the middle, the smallest."""
    by_change = sorted(people, key=lambda e: -e["change"])
    picked: dict[str, dict[str, Any]] = {}
    named = [
        *((e, "the decision flips") for e in by_change if e["flipped"]),
        (by_change[0], "the largest change"),
        (by_change[len(by_change) // 2], "a typical one"),
        (by_change[-1], "the smallest change"),
    ]
    for example, why in named:
        if len(picked) < SHOWN:
            picked.setdefault(example["id"], {**example, "why": why})
    return {
        "drawn": len(people),
        "flipped": sum(e["flipped"] for e in people),
        "scores": [[e[when]["score"] for when in (BEFORE, AFTER)] for e in people],
        "shown": list(picked.values()),
        "people": list(people),
    }


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


def most_frequent(counterfactuals: np.ndarray, before: np.ndarray) -> int:
    """The index of the most frequent counterfactual that changes anything; 0 if none does."""
    changed = np.flatnonzero(np.abs(counterfactuals - before).max(axis=1) > STILL)
    if not len(changed):
        return 0
    _, first, counts = np.unique(counterfactuals[changed], axis=0, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    return int(changed[first[order[0]]])


def explained(ready: Prepared, mode: str, row: int) -> dict[str, Any]:
    """Everything about one record, in the words of CSV files."""
    layout, attribute, data = Layout.of(ready.data.features), ready.data.protected[0], ready.data
    config = ready.config.generator
    rows = np.full(DRAWS, row)
    trained = [party.take(ready.config.training_rows(ready.split)) for party in ready.parties]
    exact = tuple(one.with_marginals(trained) for one in ready.model.noisy_tables)  # pooled data: nothing leaves
    sharper = replace(ready, model=replace(ready.model, noisy_tables=exact))
    counterfactuals, targets = edited_rows(sharper, ready.roles, config, rows, 0)
    before = ready.inputs[row]
    at = most_frequent(counterfactuals, before)
    codes = (int(attribute.codes[row]), int(targets[at]))
    moved = moves(layout, ready.roles, before, counterfactuals[at])
    models = {OURS: (aware if mode == "aware" else scc)(ready).predict, PLAIN: erm(ready).predict}
    own, (everyone, toward) = np.array(codes[:1]), own_rows(ready)

    def decided(predict: Predictor) -> dict[str, Any]:
        """Both decisions of one model, how often it flips over all draws, and over all test records."""
        task, classes = data.task, data.label.classes
        old, new = logits_of(predict, before[None], own), logits_of(predict, counterfactuals, targets)
        seen: dict[str, Any] = {BEFORE: _outcome(old[0], task, classes), AFTER: _outcome(new[at], task, classes)}
        test = logits_of(predict, ready.inputs[ready.split.test], attribute.codes[ready.split.test])
        moved_test = logits_of(predict, everyone, toward)
        seen["change"] = float(np.abs(new[at] - old[0]).sum())
        seen["everyone"] = {"gap": float(np.abs(moved_test - test).sum(axis=1).mean())}
        if task != "regression":
            seen["flips"] = int((decisions(new, task) != decisions(old, task)).sum())
            seen["everyone"]["flips"] = float((decisions(test, task) != decisions(moved_test, task)).mean())
        return seen

    def push(predict: Predictor, name: str) -> float:
        """How one moved column alone changes the logit (of several classes: of the class decided before)."""
        alone, columns = before.copy(), layout.columns([name])
        alone[columns] = counterfactuals[at][columns]
        old, new = logits_of(predict, np.stack([before, alone]), np.repeat(own, 2))
        index = int(old.argmax()) if data.task == "multiclass" else 0
        return float(new[index] - old[index])

    seen = {name: decided(predict) for name, predict in models.items()}
    for move in moved:
        move["pushes"] = {name: push(predict, move["feature"]) for name, predict in models.items()}
    return {
        "part": _part(ready, row),
        "groups": [attribute.groups[code] for code in codes],
        "label": _label(ready, row),
        "values": cells(data.features, data.values[row]),
        "moved": moved,
        "draws": DRAWS,
        "empty": int((np.abs(counterfactuals - before).max(axis=1) <= STILL).sum()),
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


def _outcome(logits: np.ndarray, task: Task, classes: Sequence[str]) -> dict[str, Any]:
    """Decision, score and logit. Of several classes: those of the decision."""
    if task == "regression":
        return {"decision": f"{logits[0]:.4g}", "score": float(logits[0]), "logit": float(logits[0])}
    index = int(logits[0] > 0) if task == "binary" else int(logits.argmax())
    return {"decision": classes[index], "score": _top(logits), "logit": float(logits.max())}
