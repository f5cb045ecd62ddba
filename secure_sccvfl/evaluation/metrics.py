"""What a predictor is worth: utility, counterfactual stability under a judge, group gaps, edit quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.evaluation.judges import EditedRecords
from secure_sccvfl.metrics.group_rates import DENOMINATORS, MIN_GROUP, gaps_of
from secure_sccvfl.model.cvae import mmd
from secure_sccvfl.training.plain import decisions, log_loss

# From the input space of all parties side by side, in party order, to logits.
Predictor = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class AwarePredictor:
    """A predictor that uses s: `of` takes the group of each record beside its inputs."""

    of: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        raise TypeError("this model uses s: it needs the group of each record")


def logits_of(predict: Predictor, inputs: np.ndarray, codes: np.ndarray | None) -> np.ndarray:
    """Logits of these records. Their groups reach a predictor only if it uses them."""
    if isinstance(predict, AwarePredictor) and codes is not None:
        return predict.of(inputs, codes)
    return predict(inputs)


def s_held(edited: EditedRecords, codes: np.ndarray) -> EditedRecords:
    """The same edits without a change of s itself."""
    return replace(edited, target=codes[edited.source])


@dataclass(frozen=True)
class Scored:
    """One number of one method on one seed; `judge` is None where none is involved."""

    judge: str | None
    metric: str
    value: float


def utility(logits: np.ndarray, label: np.ndarray, task: Task) -> list[Scored]:
    """Accuracy and log loss, or root-mean-square error as a share of the label's public range."""
    if task == "regression":
        return [Scored(None, "rmse", float(np.sqrt(log_loss(logits, label, task))))]
    hit = float((decisions(logits, task) == label).mean())
    return [Scored(None, "acc", hit), Scored(None, "logloss", log_loss(logits, label, task))]


def group_table(logits: np.ndarray, label: np.ndarray, codes: np.ndarray, task: Task) -> list[dict[str, float]]:
    """Per group: rows, accuracy, positive rate, true and false positive rate (binary)."""
    chosen = decisions(logits, task)
    table = []
    for group in np.unique(codes):
        rows = codes == group
        entry = {
            "group": float(group),
            "rows": float(rows.sum()),
            "acc": float((chosen == label)[rows].mean()),
        }
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

    Rates over fewer than `min_group` records take no part, as in secret. A gap with fewer than two rates is left
    out.
    """
    if task != "binary":
        return []
    table = group_table(logits, label, codes, task)
    known = {name: [row[name] for row in table if row[below] >= min_group] for name, below in DENOMINATORS.items()}
    widest = {name: max(rates) - min(rates) for name, rates in known.items() if len(rates) > 1}
    return [
        Scored(None, "positive_rate", float(decisions(logits, task).mean())),
        *(Scored(None, name, value) for name, value in gaps_of(widest).items()),
    ]


def stability(
    predict: Predictor,
    inputs: np.ndarray,
    edited: EditedRecords,
    task: Task,
    name: str,
    codes: np.ndarray | None = None,
) -> list[Scored]:
    """SCG (raw and per spread of the logit) and flip rate under edited records.

    `codes`: the groups of the records, for a model that uses s. Edited records are then of their target group.
    """
    logits = logits_of(predict, inputs, codes)
    before, after = logits[edited.source], logits_of(predict, edited.inputs, edited.target)
    gap = float(np.average(np.abs(after - before).sum(axis=1), weights=edited.weight))
    spread = float(np.sqrt(logits.var(axis=0).sum()))
    scored = [Scored(name, "scg", gap), Scored(name, "scg_norm", gap / spread if spread > 1e-9 else 0.0)]
    if task != "regression":
        flipped = decisions(before, task) != decisions(after, task)
        scored.append(Scored(name, "fr", float(np.average(flipped, weights=edited.weight))))
    return scored


def net_flips(
    predict: Predictor, inputs: np.ndarray, codes: np.ndarray, edited: EditedRecords, task: Task
) -> float | None:
    """|P(gain) - P(loss)| of decisions, averaged over pairs of groups by their weight; None for a regression.

    It depends on the edited distribution alone, not on which records a judge moves. With more than two classes it is
    the total variation between decisions before and after.
    """
    if task == "regression":
        return None
    before = decisions(logits_of(predict, inputs, codes), task)[edited.source]
    after = decisions(logits_of(predict, edited.inputs, edited.target), task)
    origin, total = codes[edited.source], 0.0
    for source in np.unique(origin):
        for target in np.unique(edited.target):
            rows = (origin == source) & (edited.target == target)
            change = [
                np.sum(((after == k).astype(float) - (before == k))[rows] * edited.weight[rows])
                for k in np.union1d(before, after)
            ]
            total += float(np.abs(change).sum()) / 2
    return total / float(edited.weight.sum())


def edit_quality(
    reference: np.ndarray,
    reference_codes: np.ndarray,
    inputs: np.ndarray,
    codes: np.ndarray,
    edited: EditedRecords,
    columns: np.ndarray,
) -> dict[str, float]:
    """Do edited mediators look like the target group? The gates are in `judges.gates`.

    A classifier of s on real mediators scores edited records against their target group. The MMD ratio is the
    distance of edited records to the target group over that of unedited ones.
    """
    if not len(columns):
        return {}
    model = LogisticRegression(max_iter=2000, class_weight="balanced").fit(reference[:, columns], reference_codes)
    classes = list(model.classes_)
    moved = model.predict_proba(edited.inputs[:, columns])
    plain = model.predict_proba(inputs[edited.source][:, columns])
    aucs, base = [], []
    for group in np.unique(edited.target):
        truth = edited.target == group
        if group not in classes or truth.all():
            continue
        at = classes.index(group)
        aucs.append(roc_auc_score(truth, moved[:, at], sample_weight=edited.weight))
        base.append(roc_auc_score(truth, plain[:, at], sample_weight=edited.weight))
    ratios = []
    for group in np.unique(edited.target):
        rows = np.flatnonzero(edited.target == group)[:500]
        real = np.flatnonzero(codes == group)[:500]
        if len(rows) < 5 or len(real) < 5:
            continue
        a, b, c = (
            torch.tensor(v[:, columns]) for v in (edited.inputs[rows], inputs[edited.source[rows]], inputs[real])
        )
        ratios.append(float(mmd(a, c)) / max(float(mmd(b, c)), 1e-9))
    change = np.abs(edited.inputs - inputs[edited.source])[:, columns].sum(axis=1)
    return {
        "edit_auc": float(np.mean(aucs)) if aucs else float("nan"),
        "edit_auc_unedited": float(np.mean(base)) if base else float("nan"),
        "edit_mmd_ratio": float(np.mean(ratios)) if ratios else float("nan"),
        "edit_size": float(np.average(change, weights=edited.weight)),
    }


def evaluate(
    predict: Predictor,
    inputs: np.ndarray,
    label: np.ndarray,
    codes: np.ndarray,
    task: Task,
    edits: Mapping[str, EditedRecords],
    proxies: EditedRecords | None = None,
) -> list[Scored]:
    """All columns of the results table for one predictor on the held-out part."""
    logits = logits_of(predict, inputs, codes)
    scored = utility(logits, label, task) + group_gaps(logits, label, codes, task)
    for name, edited in edits.items():
        scored += stability(predict, inputs, edited, task, name, codes)
    if proxies is not None:
        alone = s_held(proxies, codes)
        only = {s.metric: s.value for s in stability(predict, inputs, alone, task, proxies.judge, codes)}
        scored.append(Scored(proxies.judge, "scg_p_only", only["scg"]))
        if "fr" in only:
            scored.append(Scored(proxies.judge, "fr_p_only", only["fr"]))
    return scored
