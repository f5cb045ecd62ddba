"""Single records and their counterfactuals, with the secure model's decision for both.

For public benchmark data alone, where the pooled evaluation sees all records anyway. It draws test records at random
among those that the first counterfactual model changed, and writes both versions to a file that a secure `predict`
session scores. That session opens the calibrated logit of these records to the holder of the label.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocols.records.private import private
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Block, Layout
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.counterfactual_models import Counterfactuals

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
        return float(code) if feature.kind == "category" else float(feature.cuts[code : code + 2].mean())
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


def heaviest(judged: Counterfactuals) -> dict[int, int]:
    """By held-out record its counterfactual of the largest weight; the first of several."""
    found: dict[int, int] = {}
    for copy in np.argsort(-judged.weight, kind="stable"):
        found.setdefault(int(judged.source[copy]), int(copy))
    return found


def draw(data: Dataset, test: np.ndarray, judged: Counterfactuals, seed: int) -> list[dict[str, Any]]:
    """Random test records that the model changed, as cells before and after."""
    layout, first = Layout.of(data.features), data.protected[0]
    held_out = data.take(test)
    copies = heaviest(judged)
    found: list[dict[str, Any]] = []
    for row in stream(seed, "examples").permutation(sorted(copies)):
        copy = copies[int(row)]
        before, after = versions(layout, held_out.values[row], judged.inputs[copy])
        if before != after and len(found) < DRAWN:
            groups = [first.groups[int(code)] for code in (first.codes[test][row], judged.target[copy])]
            found.append({"id": str(held_out.ids[row]), "groups": groups, BEFORE: before, AFTER: after})
    return found


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
    found: dict[str, dict[str, Any]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if "prediction" in row:
                found[row["id"]] = {"decision": float(row["prediction"]), "score": float(row["prediction"])}
                continue
            logits = [float(v) for k, v in row.items() if k.startswith("logit ")]
            found[row["id"]] = {"decision": row["decision"], "score": _top(logits)}
    return found


def _top(logits: Sequence[float]) -> float:
    """Two classes: the probability of the second. More: that of the chosen one."""
    if len(logits) == 1:
        return 1 / (1 + math.exp(-logits[0]))
    powers = np.exp(np.array(logits) - max(logits))
    return float(powers.max() / powers.sum())


def scored(
    records: Sequence[Mapping[str, Any]], predictions: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Decisions for both versions of each record, in the order of the file, and what differs in them."""
    found = []
    for number, record in enumerate(records):
        old, new = (dict(predictions[f"{number:03d}-{when}"]) for when in (BEFORE, AFTER))
        moved = [
            {"feature": name, "from": value, "to": record[AFTER][name]}
            for name, value in record[BEFORE].items()
            if value != record[AFTER][name]
        ]
        change = abs(new["score"] - old["score"])
        flipped = isinstance(old["decision"], str) and old["decision"] != new["decision"]
        found.append(
            {**{k: record[k] for k in ("id", "groups")}, BEFORE: old, AFTER: new, "moved": moved}
            | {"change": change, "flipped": flipped}
        )
    return found


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
