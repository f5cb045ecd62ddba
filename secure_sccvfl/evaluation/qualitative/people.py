"""The same people before and after an edit, across methods: decisions, sizes of edits, and what moved.

Who is shown is decided by a stated rule that looks at the label and at the score of plain training before any edit,
never at what an edit does. The size of an edit is the root of the sum of squares over columns: a number counts by the
share of its public range that it moves, a category by the share of its weight that moves (1 when it changes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.evaluation.examples import AFTER, BEFORE, STILL, cells, decoded, versions
from secure_sccvfl.evaluation.metrics import Predictor, logits_of
from secure_sccvfl.policy.roles import Roles

GROUP = 1
"""People of the second group are shown, as in the paper."""


@dataclass(frozen=True)
class Rule:
    """Who is shown: the label, the decision of plain training (None: any), and the order among those."""

    name: str
    label: int
    decision: int | None
    first: Callable[[np.ndarray], np.ndarray]
    words: str


RULES = (
    Rule(
        "clearly accepted",
        0,
        0,
        lambda p: np.abs(p - np.median(p)),
        "y = 0, decided 0 by plain training: the one in the middle by score",
    ),
    Rule(
        "ambiguous",
        0,
        None,
        lambda p: np.abs(p - 0.5),
        "y = 0: the one whose score under plain training is nearest 50 %",
    ),
    Rule("high risk", 1, 1, lambda p: -p, "y = 1, decided 1 by plain training: the one with the highest score"),
)


@dataclass(frozen=True)
class Subject:
    """A method on the test part: what predicts, and its own edits of all test records, if it makes any.

    toward: the group that each of these edits moves to.
    """

    predict: Predictor
    own: np.ndarray | None = None
    toward: np.ndarray | None = None

    def logits_of_own(self, row: int) -> float:
        """After the method's own edit of one record."""
        if self.own is None or self.toward is None:
            raise ValueError("this method makes no edits")
        return float(logits_of(self.predict, self.own[row : row + 1], self.toward[row : row + 1])[0, 0])


@dataclass(frozen=True)
class Stage:
    """The test part in input space, and the common judge's edits; `copies`: by record the place of its edit."""

    held_out: Dataset
    roles: Roles
    inputs: np.ndarray
    edited: np.ndarray
    target: np.ndarray
    copies: Mapping[int, int]

    @property
    def layout(self) -> Layout:
        return Layout.of(self.held_out.features)

    @property
    def codes(self) -> np.ndarray:
        return self.held_out.protected[0].codes

    @property
    def groups(self) -> tuple[str, ...]:
        return self.held_out.protected[0].groups

    @property
    def classes(self) -> tuple[str, ...]:
        return self.held_out.label.classes


def column_sizes(layout: Layout, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """How far each column of each record moved, from 0 to 1: records x columns."""
    change = np.abs(after - before)
    sizes = [
        change[:, b.columns].sum(axis=1) / 2 if b.one_hot else change[:, b.columns].max(axis=1) for b in layout.blocks
    ]
    return np.stack(sizes, axis=1)


def edit_sizes(layout: Layout, names: Sequence[str], before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The size of each record's edit over these columns."""
    chosen = np.isin(layout.names, list(names))
    sizes: np.ndarray = np.sqrt((column_sizes(layout, before, after)[:, chosen] ** 2).sum(axis=1))
    return sizes


def moves(layout: Layout, roles: Roles, before: np.ndarray, after: np.ndarray) -> list[dict[str, Any]]:
    """The columns of one record that an edit moved, the largest first; from and to as in a CSV file."""
    sizes = column_sizes(layout, before[None], after[None])[0]
    found = []
    for block, size in zip(layout.blocks, sizes, strict=True):
        if size > STILL:
            old, new = (decoded(block, record[block.columns]) for record in (before, after))
            told = {"feature": block.feature.name, "role": roles.of[block.feature.name], "size": float(size)}
            text = [cells([block.feature], np.array([value]))[block.feature.name] for value in (old, new)]
            found.append({**told, "from": text[0], "to": text[1]})
    return sorted(found, key=lambda m: -m["size"])


def probability(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))


def outcome(logit: float, classes: Sequence[str]) -> dict[str, Any]:
    """Decision of two classes, the probability of the second, and the logit."""
    return {"decision": classes[int(logit > 0)], "score": probability(logit), "logit": float(logit)}


def chosen(stage: Stage, plain: np.ndarray) -> list[tuple[Rule, int]]:
    """One test record for each rule that somebody fits; `plain`: logits of plain training."""
    moved = np.zeros(len(stage.inputs), bool)
    for row, copy in stage.copies.items():
        moved[row] = np.abs(stage.edited[copy] - stage.inputs[row]).max() > STILL
    found: list[tuple[Rule, int]] = []
    for rule in RULES:
        fits = moved & (stage.codes == GROUP) & (stage.held_out.label.values == rule.label)
        if rule.decision is not None:
            fits &= (plain[:, 0] > 0) == bool(rule.decision)
        rows = np.setdiff1d(np.flatnonzero(fits), [row for _, row in found])
        if len(rows):
            order = rule.first(1 / (1 + np.exp(-plain[rows, 0])))
            found.append((rule, int(rows[np.argmin(order)])))
    return found


def cases(stage: Stage, subjects: Mapping[str, Subject], plain: str) -> list[dict[str, Any]]:
    """Each chosen person under every method: the common judge's edit, and the method's own."""
    layout, classes = stage.layout, stage.classes
    found = []
    for rule, row in chosen(stage, logits_of(subjects[plain].predict, stage.inputs, stage.codes)):
        copy = stage.copies[row]
        before, after = stage.inputs[row], stage.edited[copy]
        codes = np.array([stage.codes[row], stage.target[copy]])
        told: dict[str, Any] = {}
        for name, subject in subjects.items():
            old, new = logits_of(subject.predict, np.stack([before, after]), codes)[:, 0]
            told[name] = {BEFORE: outcome(old, classes), AFTER: outcome(new, classes)}
            if subject.own is not None:
                there = outcome(subject.logits_of_own(row), classes)
                told[name]["own"] = {AFTER: there, **_edit(stage, layout, before, subject.own[row])}
        cells_before, cells_after = versions(layout, stage.held_out.values[row], after)
        found.append(
            {
                "case": rule.name,
                "rule": rule.words,
                "id": str(stage.held_out.ids[row]),
                "label": classes[int(stage.held_out.label.values[row])],
                "groups": [stage.groups[int(code)] for code in codes],
                **_edit(stage, layout, before, after),
                "methods": told,
                BEFORE: cells_before,
                AFTER: cells_after,
            }
        )
    return found


def recourse(stage: Stage, subject: Subject) -> list[dict[str, Any]]:
    """Two people of the second group, decided 0 and 1, and the method's own edit of them.

    Of each decision the one in the middle by size of edit, among those with an edit.
    """
    if subject.own is None or subject.toward is None:
        return []
    layout, classes = stage.layout, stage.classes
    logits = logits_of(subject.predict, stage.inputs, stage.codes)[:, 0]
    size = edit_sizes(layout, stage.roles.edited, stage.inputs, subject.own)
    found = []
    for decision in (0, 1):
        rows = np.flatnonzero((stage.codes == GROUP) & (size > STILL) & ((logits > 0) == bool(decision)))
        if not len(rows):
            continue
        row = int(rows[np.argsort(size[rows], kind="stable")[len(rows) // 2]])
        found.append(
            {
                "id": str(stage.held_out.ids[row]),
                "groups": [stage.groups[GROUP], stage.groups[int(subject.toward[row])]],
                BEFORE: outcome(float(logits[row]), classes),
                AFTER: outcome(subject.logits_of_own(row), classes),
                **_edit(stage, layout, stage.inputs[row], subject.own[row]),
            }
        )
    return found


def _edit(stage: Stage, layout: Layout, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """An edit of one record: its size over mediators and over other columns, what moved, and what stayed."""
    edited = stage.roles.edited
    moved = moves(layout, stage.roles, before, after)
    names = {m["feature"] for m in moved}
    others = [name for name in layout.names if name not in edited]
    return {
        "size": float(edit_sizes(layout, edited, before[None], after[None])[0]),
        "size_others": float(edit_sizes(layout, others, before[None], after[None])[0]),
        "moved": moved,
        "fixed": [name for name in stage.roles.named("N") if name not in names],
    }
