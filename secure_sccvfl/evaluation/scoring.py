"""The scoring set of one split: the held-out records and their counterfactuals, on which every method is scored."""

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
    instability,
    logits_of,
    stability,
    with_s_fixed,
)
from secure_sccvfl.policy.roles import Roles

Rows = tuple[np.ndarray, np.ndarray]
"""Records in input space, and their groups."""


@dataclass(frozen=True)
class ScoringSet:
    """Held-out records and their counterfactuals by model; `nulls` are those of the permutation baseline.

    descendants: counterfactuals by the first model of mediators and proxies together, under true and permuted s.
    others: counterfactuals by the first model for further protected attributes. trained_on: training records, labels
    and groups, for the base-rate threshold.
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
        """All columns of the results table for one predictor; own: counterfactuals for it alone."""
        inputs, label, codes = self.trained_on
        cut = base_rate_cut(logits_of(predict, inputs, codes), label) if self.task == "binary" else None
        edits = {**self.edits, **(own or {})}
        scored = evaluate(predict, self.inputs, self.label, self.codes, self.task, edits, self.nulls, cut)
        for end, changed in zip(("", "_null"), self.descendants or (), strict=False):
            value = self._instability(predict, with_s_fixed(changed, self.codes) if end else changed)
            scored.append(Scored(FIRST, f"{instability(self.task)}_descendants{end}", value))
        for name, changed in self.others.items():
            alone = with_s_fixed(changed, self.codes)  # these groups are another attribute's
            for s in stability(predict, self.inputs, alone, self.task, changed.model, self.codes):
                scored.append(replace(s, metric=f"{s.metric}_{name}"))
        return scored

    def _instability(self, predict: Predictor, changed: Counterfactuals) -> float:
        """Flip rate of a predictor, or the shift of a regression."""
        found = stability(predict, self.inputs, changed, self.task, changed.model, self.codes)
        return next(s.value for s in found if s.metric == instability(self.task))

    def quality(self, training: Rows, columns: np.ndarray, plain: Predictor) -> dict[str, dict[str, float]]:
        """Figures of the counterfactuals of each model, from which its validity checks follow.

        training: records and their groups. columns: those of the mediators. plain: the model of plain training.
        """
        found = {}
        for name, changed in self.edits.items():
            figures = edit_quality(*training, self.inputs, self.codes, changed, columns)
            if name in self.nulls:
                figures["edit_erm"] = self._instability(plain, changed)
                figures["edit_erm_null"] = self._instability(plain, with_s_fixed(self.nulls[name], self.codes))
            found[name] = figures
        return found


def with_failed_checks(figures: Mapping[str, float]) -> dict[str, Any]:
    """The figures of counterfactuals for a report: those that are known, and the validity checks that fail."""
    known = {name: value for name, value in figures.items() if np.isfinite(value)}
    return {**known, "failed": list(failed_checks(known))}


def held_out_rows(data: Dataset, split: Split) -> ScoringSet:
    """The rows of a split without counterfactuals."""
    inputs, held_out = np.hstack([p.inputs for p in make_parties(data)]), data.take(split.test)
    training = (inputs[split.train], data.label.values[split.train], data.protected[0].codes[split.train])
    return ScoringSet(data.task, inputs[split.test], held_out.label.values, held_out.protected[0].codes, training)


def fit_counterfactuals(
    data: Dataset, split: Split, roles: Roles, seed: int, kinds: Iterable[str] = COUNTERFACTUAL_MODELS
) -> ScoringSet:
    """Fit the models of one split, and fit them again under permuted s. None of them sees a label or a predictor."""
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
