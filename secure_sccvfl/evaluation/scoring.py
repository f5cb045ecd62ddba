"""Scores of a predictor: utility, counterfactual stability, group gaps; and the quality of counterfactuals.

A flip rate (`fr`) always comes with that of its permutation baseline (`fr_null`): the same model under permuted s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.data.dataset import Dataset, Task
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import SHARES, Split
from secure_sccvfl.evaluation.counterfactual_models import (
    COUNTERFACTUAL_MODELS,
    FIRST,
    Counterfactuals,
    failed_checks,
    make_counterfactuals,
    shuffled,
)
from secure_sccvfl.metrics.rates import DENOMINATORS, MIN_GROUP, reported_gaps
from secure_sccvfl.models.cvae import mmd
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.training.plain import decisions, log_loss

# From the input space of all parties side by side, in party order, to logits.
Predictor = Callable[[np.ndarray], np.ndarray]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: with small matrices more threads are slower, and change the last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class AwarePredictor:
    """A predictor that uses s: `of` takes inputs and the group of each record."""

    of: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        raise TypeError("this model uses s: it needs the group of each record")


def logits_of(predict: Predictor, inputs: np.ndarray, codes: np.ndarray | None) -> np.ndarray:
    """Logits of these records. Their groups reach a predictor only if it uses them."""
    if isinstance(predict, AwarePredictor) and codes is not None:
        return predict.of(inputs, codes)
    return predict(inputs)


def with_s_fixed(edited: Counterfactuals, codes: np.ndarray) -> Counterfactuals:
    """The same counterfactuals without a change of s itself."""
    return replace(edited, target=codes[edited.source])


@dataclass(frozen=True)
class Scored:
    """One number of one method on one seed. judge: the counterfactual model, or None where none is involved."""

    judge: str | None
    metric: str
    value: float


def flat(scored: Iterable[Scored]) -> dict[str, float]:
    """Figures by name, as reports have them: the counterfactual model comes last."""
    return {s.metric if s.judge is None else f"{s.metric}_{s.judge}": s.value for s in scored}


def utility(logits: np.ndarray, label: np.ndarray, task: Task) -> list[Scored]:
    """Accuracy and log loss, or root-mean-square error as a share of the label's public range.

    Two classes also have the area under the ROC curve and the balanced accuracy, which do not depend on how frequent
    a class is.
    """
    if task == "regression":
        return [Scored(None, "rmse", float(np.sqrt(log_loss(logits, label, task))))]
    right = decisions(logits, task) == label
    scored = [Scored(None, "acc", float(right.mean())), Scored(None, "logloss", log_loss(logits, label, task))]
    if task == "binary" and 0 < label.sum() < len(label):
        balanced = (right[label == 1].mean() + right[label == 0].mean()) / 2
        scored.append(Scored(None, "auc", float(roc_auc_score(label, logits[:, 0]))))
        scored.append(Scored(None, "bacc", float(balanced)))
    return scored


def base_rate_cut(logits: np.ndarray, label: np.ndarray) -> float:
    """The logit above which as many training records are decided positive as are positive.

    The threshold of a constant predictor stays 0.
    """
    if np.ptp(logits[:, 0]) == 0.0:
        return 0.0
    return float(np.quantile(logits[:, 0], 1 - label.mean()))


def group_table(logits: np.ndarray, label: np.ndarray, codes: np.ndarray, task: Task) -> list[dict[str, float]]:
    """Per group: rows, accuracy, positive rate, true and false positive rate (binary)."""
    chosen = decisions(logits, task)
    table = []
    for group in np.unique(codes):
        rows = codes == group
        entry = {"group": float(group), "rows": float(rows.sum()), "acc": float((chosen == label)[rows].mean())}
        if task == "binary":
            entry["positive_rate"] = float(chosen[rows].mean())
            for name, value in (("tpr", 1), ("fpr", 0)):
                among = rows & (label == value)
                entry[DENOMINATORS[name]] = float(among.sum())
                entry[name] = float(chosen[among].mean()) if among.any() else float("nan")
        table.append(entry)
    return table


def group_gaps(
    logits: np.ndarray, label: np.ndarray, codes: np.ndarray, task: Task, min_group: int = MIN_GROUP
) -> list[Scored]:
    """Largest pairwise demographic-parity gap and largest pairwise gap of TPR or FPR.

    Rates over fewer than `min_group` records are left out, as under MPC, and so are gaps of fewer than two rates.
    """
    if task != "binary":
        return []
    table = group_table(logits, label, codes, task)
    reportable = {
        name: [row[name] for row in table if row[below] >= min_group] for name, below in DENOMINATORS.items()
    }
    widest = {name: max(rates) - min(rates) for name, rates in reportable.items() if len(rates) > 1}
    return [
        Scored(None, "positive_rate", float(decisions(logits, task).mean())),
        *(Scored(None, name, value) for name, value in reported_gaps(widest).items()),
    ]


def stability(
    predict: Predictor,
    inputs: np.ndarray,
    edited: Counterfactuals,
    task: Task,
    name: str,
    codes: np.ndarray | None = None,
) -> list[Scored]:
    """SCG (raw and per spread of the logit) and flip rate under counterfactuals.

    codes: the groups of the records, for a model that uses s. Counterfactuals are then of their target group.
    """
    after = logits_of(predict, edited.inputs, edited.target)
    return _stability(logits_of(predict, inputs, codes), after, edited, task, name)


def _stability(logits: np.ndarray, after: np.ndarray, edited: Counterfactuals, task: Task, name: str) -> list[Scored]:
    before = logits[edited.source]
    gap = float(np.average(np.abs(after - before).sum(axis=1), weights=edited.weight))
    spread = float(np.sqrt(logits.var(axis=0).sum()))
    scored = [Scored(name, "scg", gap), Scored(name, "scg_norm", gap / spread if spread > 1e-9 else 0.0)]
    if task != "regression":
        flipped = decisions(before, task) != decisions(after, task)
        scored.append(Scored(name, "fr", float(np.average(flipped, weights=edited.weight))))
    return scored


def net_flips(
    logits: np.ndarray,
    after: np.ndarray,
    codes: np.ndarray,
    edited: Counterfactuals,
    task: Task,
    min_group: int = MIN_GROUP,
) -> float | None:
    """Net flip rate: |P(gain) - P(loss)| of decisions, averaged over pairs of groups by their weight.

    It depends on the distribution of counterfactuals alone, not on which records move. With more than two classes it
    is the total variation between decisions before and after. A pair of fewer than `min_group` records is left out,
    as under MPC. None for a regression, and if no pair is left. logits, after: of records and of counterfactuals.
    """
    if task == "regression":
        return None
    before, after = decisions(logits, task)[edited.source], decisions(after, task)
    origin, total, weighed = codes[edited.source], 0.0, 0.0
    for source in np.unique(origin):
        for target in np.unique(edited.target):
            rows = (origin == source) & (edited.target == target)
            if len(np.unique(edited.source[rows])) < max(min_group, 1):
                continue
            change = [
                np.sum(((after == k).astype(float) - (before == k))[rows] * edited.weight[rows])
                for k in np.union1d(before, after)
            ]
            total += float(np.abs(change).sum()) / 2
            weighed += float(edited.weight[rows].sum())
    return total / weighed if weighed else None


def edit_quality(
    reference: np.ndarray,
    reference_codes: np.ndarray,
    inputs: np.ndarray,
    codes: np.ndarray,
    edited: Counterfactuals,
    columns: np.ndarray,
) -> dict[str, float]:
    """Do changed mediators look like the target group? `counterfactual_models` has the thresholds.

    A classifier of s on real mediators scores counterfactuals against their target group. `edit_auc_real` is its AUC
    on real records, which perfect counterfactuals would reach. The MMD ratio is the distance of counterfactuals to
    the target group over that of the original records.
    """
    if not len(columns):
        return {}
    model = LogisticRegression(max_iter=2000, class_weight="balanced").fit(reference[:, columns], reference_codes)
    classes = list(model.classes_)
    moved = model.predict_proba(edited.inputs[:, columns])
    chances = model.predict_proba(inputs[:, columns])
    aucs, base, real = [], [], []
    for group in np.unique(edited.target):
        truth = edited.target == group
        if group not in classes or truth.all():
            continue
        at = classes.index(group)
        aucs.append(roc_auc_score(truth, moved[:, at], sample_weight=edited.weight))
        base.append(roc_auc_score(truth, chances[edited.source, at], sample_weight=edited.weight))
        if 0 < (codes == group).sum() < len(codes):
            real.append(roc_auc_score(codes == group, chances[:, at]))
    ratios = []
    for group in np.unique(edited.target):
        rows = np.flatnonzero(edited.target == group)[:500]
        members = np.flatnonzero(codes == group)[:500]
        if len(rows) < 5 or len(members) < 5:
            continue
        a, b, c = (
            torch.tensor(v[:, columns]) for v in (edited.inputs[rows], inputs[edited.source[rows]], inputs[members])
        )
        ratios.append(float(mmd(a, c)) / max(float(mmd(b, c)), 1e-9))
    change = np.abs(edited.inputs - inputs[edited.source])[:, columns].sum(axis=1)
    lists = {"edit_auc": aucs, "edit_auc_unedited": base, "edit_auc_real": real, "edit_mmd_ratio": ratios}
    means = {name: float(np.mean(values)) if values else float("nan") for name, values in lists.items()}
    return {**means, "edit_size": float(np.average(change, weights=edited.weight))}


def instability(task: Task) -> str:
    """The metric that the permutation baseline compares: flip rate, or SCG of a regression."""
    return "scg" if task == "regression" else "fr"


def evaluate(
    predict: Predictor,
    inputs: np.ndarray,
    label: np.ndarray,
    codes: np.ndarray,
    task: Task,
    counterfactuals: Mapping[str, Counterfactuals],
    nulls: Mapping[str, Counterfactuals] | None = None,
    cut: float | None = None,
) -> list[Scored]:
    """All columns of the results table for one predictor on the held-out part.

    nulls: counterfactuals under permuted s. cut: the base-rate threshold, for two classes; figures at it end in
    `_base`.
    """
    logits = logits_of(predict, inputs, codes)
    based = cut is not None and task == "binary"
    scored = utility(logits, label, task) + group_gaps(logits, label, codes, task)
    if based:
        scored += [replace(s, metric="acc_base") for s in utility(logits - cut, label, task) if s.metric == "acc"]
    for end, by_model in (("", counterfactuals), ("_null", nulls or {})):
        for name, edited in by_model.items():
            after = logits_of(predict, edited.inputs, (with_s_fixed(edited, codes) if end else edited).target)
            scores = _stability(logits, after, edited, task, name)
            if based:
                moved = _stability(logits - cut, after - cut, edited, task, name)
                scores += [replace(s, metric="fr_base") for s in moved if s.metric == "fr"]
            if not end:
                net = net_flips(logits, after, codes, edited, task)
                scored += scores if net is None else [*scores, Scored(name, "net", net)]
            else:
                kept = (instability(task), "fr_base")
                scored += [replace(s, metric=f"{s.metric}{end}") for s in scores if s.metric in kept]
    return scored


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
    counterfactuals: Mapping[str, Counterfactuals] = field(default_factory=dict)
    nulls: Mapping[str, Counterfactuals] = field(default_factory=dict)
    descendants: tuple[Counterfactuals, Counterfactuals] | None = None
    others: Mapping[str, Counterfactuals] = field(default_factory=dict)

    def score(self, predict: Predictor, extra: Mapping[str, Counterfactuals] | None = None) -> list[Scored]:
        """All columns of the results table for one predictor; extra: counterfactuals for it alone."""
        inputs, label, codes = self.trained_on
        cut = base_rate_cut(logits_of(predict, inputs, codes), label) if self.task == "binary" else None
        counterfactuals = {**self.counterfactuals, **(extra or {})}
        scored = evaluate(predict, self.inputs, self.label, self.codes, self.task, counterfactuals, self.nulls, cut)
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
        scores = stability(predict, self.inputs, changed, self.task, changed.model, self.codes)
        return next(s.value for s in scores if s.metric == instability(self.task))

    def quality(self, training: Rows, columns: np.ndarray, plain: Predictor) -> dict[str, dict[str, float]]:
        """Figures of the counterfactuals of each model, from which its validity checks follow.

        training: records and their groups. columns: those of the mediators. plain: the model of plain training.
        """
        by_model = {}
        for name, changed in self.counterfactuals.items():
            figures = edit_quality(*training, self.inputs, self.codes, changed, columns)
            if name in self.nulls:
                figures["edit_erm"] = self._instability(plain, changed)
                figures["edit_erm_null"] = self._instability(plain, with_s_fixed(self.nulls[name], self.codes))
            by_model[name] = figures
        return by_model


def with_failed_checks(figures: Mapping[str, float]) -> dict[str, Any]:
    """The figures of counterfactuals for a report: those that are finite, and the validity checks that fail."""
    finite = {name: value for name, value in figures.items() if np.isfinite(value)}
    return {**finite, "failed": list(failed_checks(finite))}


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
        counterfactuals={kind: edits(data, kind, mediators) for kind in kinds},
        nulls={kind: edits(null, kind, mediators) for kind in kinds},
        descendants=(edits(data, FIRST, downstream), edits(null, FIRST, downstream)) if proxies else None,
        others={
            attribute.name: edits(data, FIRST, mediators, at)
            for at, attribute in enumerate(data.protected[1:], start=1)
        },
    )


RATES = (
    *("acc", "auc", "bacc", "certified", "fr", "net", "positive_rate", "dp_gap", "eo_gap"),
    *(attack.stem for _, attack in ATTACKS.items()),
)
"""Prefixes of metrics that are rates, so at most 1."""


def deviation(values: np.ndarray) -> float:
    """Standard deviation over seeds, as papers print it; 0 for a single seed."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def half_width(values: np.ndarray) -> float:
    """Half of the 95 % t-interval of a mean over seeds; 0 for a single seed."""
    if len(values) < 2:
        return 0.0
    return float(stats.t.ppf(0.975, len(values) - 1) * deviation(values) / np.sqrt(len(values)))


def interval(values: np.ndarray, bounded: bool) -> tuple[float, float, float]:
    """Mean and 95 % t-interval over seeds of what is not negative. Rates (`bounded`) stay below 1."""
    mean, half = float(values.mean()), half_width(values)
    if half == 0.0:
        return mean, mean, mean
    high = mean + half
    return mean, max(mean - half, 0.0), min(high, 1.0) if bounded else high


def signed(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % t-interval of differences, which may be negative."""
    mean, half = float(values.mean()), half_width(values)
    return mean, mean - half, mean + half


def for_new_people(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of a mean difference for people who are not in the data (Nadeau and Bengio, 2003).

    Seeds split the same people, so values of different seeds are dependent, and a t-interval over seeds is about
    these people only. The correction adds n_test / n_train, which more seeds do not reduce.
    """
    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    spread = deviation(values) * np.sqrt(1 / len(values) + SHARES[2] / SHARES[0])
    half = float(stats.t.ppf(0.975, len(values) - 1) * spread)
    return float(values.mean()) - half, float(values.mean()) + half


def reduction(values: np.ndarray, plain: np.ndarray) -> tuple[float, float, float]:
    """1 - mean / mean of plain, with the 95 % interval of a ratio paired by seed."""
    base = max(float(plain.mean()), 1e-12)
    ratio = float(values.mean()) / base
    half = half_width(values - ratio * plain) / base
    return 1 - ratio, 1 - ratio - half, 1 - ratio + half
