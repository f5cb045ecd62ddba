"""The judges of one split, fitted: what every method of that split faces, with the null control and the gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Dataset, Task
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import Split
from secure_sccvfl.evaluation.counterfactual_models import (
    COUNTERFACTUAL_MODELS,
    FIRST,
    Counterfactuals,
    make_counterfactuals,
    shuffled,
)
from secure_sccvfl.evaluation.counterfactual_models.validity import failed_checks
from secure_sccvfl.evaluation.metrics import (
    Predictor,
    Scored,
    base_rate_cut,
    edit_quality,
    evaluate,
    logits_of,
    s_held,
    stability,
    unrest,
)
from secure_sccvfl.policy.roles import Roles

Rows = tuple[np.ndarray, np.ndarray]
"""Records in input space, and their labels or groups."""


@dataclass(frozen=True)
class ScoringSet:
    """Held-out rows and their edits; `nulls` are edits of the same judges under shuffled s.

    descendants: edits by the first judge of mediators and proxies together, under true and under shuffled s. others:
    its edits for further protected attributes. trained_on: training records, labels and groups, for the base-rate
    threshold.
    """

    task: Task
    inputs: np.ndarray
    label: np.ndarray
    codes: np.ndarray
    trained_on: tuple[np.ndarray, np.ndarray, np.ndarray]
    edits: Mapping[str, Counterfactuals] = field(default_factory=dict)
    nulls: Mapping[str, Counterfactuals] = field(default_factory=dict)
    descendants: tuple[Counterfactuals, Counterfactuals] | None = None
    others: Mapping[str, Counterfactuals] = field(default_factory=dict)

    def score(self, predict: Predictor, own: Mapping[str, Counterfactuals] | None = None) -> list[Scored]:
        """All columns of the results table for one predictor; `own`: edits that only it faces."""
        inputs, label, codes = self.trained_on
        cut = base_rate_cut(logits_of(predict, inputs, codes), label) if self.task == "binary" else None
        edits = {**self.edits, **(own or {})}
        scored = evaluate(predict, self.inputs, self.label, self.codes, self.task, edits, self.nulls, cut)
        wanted = unrest(self.task)
        for end, edited in zip(("", "_null"), self.descendants or (), strict=False):
            moved = s_held(edited, self.codes) if end else edited
            for s in stability(predict, self.inputs, moved, self.task, FIRST, self.codes):
                scored += [replace(s, metric=f"{wanted}_descendants{end}")] if s.metric == wanted else []
        for name, edited in self.others.items():
            alone = s_held(edited, self.codes)  # these groups are another attribute's
            for s in stability(predict, self.inputs, alone, self.task, edited.judge, self.codes):
                scored.append(replace(s, metric=f"{s.metric}_{name}"))
        return scored

    def unrest(self, predict: Predictor, name: str, null: bool) -> float:
        """Flips (or the shift of a regression) of a predictor under a judge, for true or for shuffled s."""
        edited = s_held(self.nulls[name], self.codes) if null else self.edits[name]
        found = {s.metric: s.value for s in stability(predict, self.inputs, edited, self.task, name, self.codes)}
        return found[unrest(self.task)]

    def quality(self, known: Rows, columns: np.ndarray, plain: Predictor) -> dict[str, dict[str, float]]:
        """Figures of each judge's edits, from which its gates follow.

        known: training records and their groups. columns: those of the mediators. plain: the model of plain training.
        """
        found = {}
        for name, edited in self.edits.items():
            figures = edit_quality(*known, self.inputs, self.codes, edited, columns)
            if name in self.nulls:
                figures["edit_erm"] = self.unrest(plain, name, null=False)
                figures["edit_erm_null"] = self.unrest(plain, name, null=True)
            found[name] = figures
        return found


def with_failed_checks(figures: Mapping[str, float]) -> dict[str, Any]:
    """The figures of a judge's edits for a report: those that are known, and the gates that it fails."""
    known = {name: value for name, value in figures.items() if np.isfinite(value)}
    return {**known, "failed": list(failed_checks(known))}


def held_out_rows(data: Dataset, split: Split) -> ScoringSet:
    """The rows of a split without any judge."""
    inputs, held_out = np.hstack([p.inputs for p in make_parties(data)]), data.take(split.test)
    known = tuple(values[split.train] for values in (inputs, data.label.values, data.protected[0].codes))
    codes = held_out.protected[0].codes
    return ScoringSet(data.task, inputs[split.test], held_out.label.values, codes, (known[0], known[1], known[2]))


def fit_counterfactuals(
    data: Dataset, split: Split, roles: Roles, seed: int, kinds: Iterable[str] = COUNTERFACTUAL_MODELS
) -> ScoringSet:
    """Fit the judges of one split, and fit them again under shuffled s. None of them sees a label or a model."""
    rows = held_out_rows(data, split)
    mediators, proxies, fixed = (roles.named(role) for role in ("M", "P", "N"))
    if not mediators:
        return rows
    used = data.ids[np.concatenate([split.train, split.validation])]
    null = shuffled(data, seed)

    def edits(everyone: Dataset, kind: str, edited: tuple[str, ...], attribute: int = 0) -> Counterfactuals:
        test = everyone.take(split.test)
        return make_counterfactuals(kind, test, used, edited, seed, attribute, everyone=everyone, fixed=fixed)

    downstream = (*mediators, *proxies)
    return replace(
        rows,
        edits={kind: edits(data, kind, mediators) for kind in kinds},
        nulls={kind: edits(null, kind, mediators) for kind in kinds},
        descendants=(edits(data, FIRST, downstream), edits(null, FIRST, downstream)) if proxies else None,
        others={
            attribute.name: edits(data, FIRST, mediators, at)
            for at, attribute in enumerate(data.protected[1:], start=1)
        },
    )
