"""Figures with 95 % intervals: of `evaluate`, of frontiers along lambda, and of any metric by group (`by_group`)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.counterfactual_models import OWN, RUN_MODELS, Counterfactuals
from secure_sccvfl.evaluation.scoring import ScoringSet, group_table
from secure_sccvfl.metrics.rates import DENOMINATORS, MIN_GROUP, RATES, Z95, wilson
from secure_sccvfl.training.plain import losses

FLIPS = tuple(f"{figure}_{model}" for model in (*RUN_MODELS, OWN) for figure in ("fr", "fr_null"))
SHOWN = ("acc", "rmse", "logloss", *FLIPS, "positive_rate", "dp_gap", "eo_gap")
GAPS = {"dp_gap": ("positive_rate",), "eo_gap": ("tpr", "fpr")}
"""The rates of groups whose widest difference is the gap."""
DRAWS = 1000


class Interval(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


NOTHING = Interval(math.nan, math.nan, math.nan)
Metric = Callable[[np.ndarray, np.ndarray], float]


def rate(value: float, total: int) -> Interval:
    """A share of so many records, with Wilson's interval."""
    return Interval(value, *wilson(value, total))


def mean_interval(values: np.ndarray) -> Interval:
    """A mean that cannot be negative.

    >>> mean_interval(np.array([1.0, 1.0, 1.0]))
    Interval(value=1.0, low=1.0, high=1.0)
    """
    mean, half = float(values.mean()), Z95 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, max(mean - half, 0.0), mean + half)


def difference(more: Interval, less: Interval) -> Interval:
    """Of two independent figures, by their intervals; of two rates this is Newcombe's interval."""
    gap = more.value - less.value
    below = math.hypot(more.value - more.low, less.high - less.value)
    return Interval(gap, gap - below, gap + math.hypot(more.high - more.value, less.value - less.low))


def quotient(one: Interval, other: Interval) -> Interval:
    """Of two independent figures that are not negative, by their intervals (Donner and Zou, 2012)."""
    if one.value < 0 or other.value <= 0:
        return NOTHING
    product = one.value * other.value
    ends = [
        (own * (2 * one.value - own), its * (2 * other.value - its))
        for own, its in ((one.low, other.high), (one.high, other.low))
    ]
    roots = [math.sqrt(max(product**2 - own * its, 0.0)) for own, its in ends]
    low = ends[0][0] / (product + roots[0]) if product > 0 else 0.0
    high = (product + roots[1]) / ends[1][1] if ends[1][1] > 0 else math.inf
    return Interval(one.value / other.value, max(low, 0.0), high)


def gap_interval(groups: list[dict[str, float]], rates: tuple[str, ...]) -> Interval:
    """The widest difference of a rate between two groups."""
    widest = Interval(-1.0, 0.0, 0.0)
    for name in rates:
        of_groups = [
            rate(row[name], int(row[DENOMINATORS[name]])) for row in groups if row[DENOMINATORS[name]] >= MIN_GROUP
        ]
        if len(of_groups) > 1:
            widest = max(widest, difference(max(of_groups), min(of_groups)))
    return Interval(widest.value, max(widest.low, 0.0), min(widest.high, 1.0))


def with_intervals(
    scoring: ScoringSet, figures: Mapping[str, float], logits: np.ndarray, own: Mapping[str, Counterfactuals]
) -> pd.DataFrame:
    """The figures of `SHOWN` that were scored on these records, in its order. own: counterfactuals of the model."""
    label, codes, task = scoring.label, scoring.codes, scoring.task
    edited = {f"fr_{name}": of for name, of in {**scoring.counterfactuals, **own}.items()}
    edited |= {f"fr_null_{name}": of for name, of in scoring.nulls.items()}
    mean = mean_interval(losses(logits, label, task))
    if task == "regression":
        rows = {"rmse": Interval(figures["rmse"], math.sqrt(mean.low), math.sqrt(mean.high))}
    else:
        rows = {name: rate(figures[name], len(label)) for name in ("acc", "positive_rate") if name in figures}
        rows["logloss"] = mean
        rows |= {name: rate(figures[name], len(np.unique(of.source))) for name, of in edited.items()}
    if task == "binary":
        groups = group_table(logits, label, codes, task)
        rows |= {name: gap_interval(groups, rates) for name, rates in GAPS.items() if name in figures}
    return as_table({name: rows[name] for name in SHOWN if name in rows})


def certified_figures(certificate: Any, codes: np.ndarray, groups: tuple[str, ...]) -> pd.DataFrame:
    """The share of certified records, overall and by group; of a regression the largest possible shifts.

    A group of fewer than `MIN_GROUP` records has no line.
    """
    if isinstance(certificate, tuple):
        largest = zip(("max_shift_down", "max_shift_up"), certificate, strict=True)
        return as_table({name: Interval(float(shift.max()), math.nan, math.nan) for name, shift in largest})
    parts = {"certified": certificate}
    parts |= {f"certified[{group}]": certificate[codes == code] for code, group in enumerate(groups)}
    least = {"certified": 1}
    shares = {name: bits for name, bits in parts.items() if len(bits) >= least.get(name, MIN_GROUP)}
    return as_table({name: rate(float(bits.mean()), len(bits)) for name, bits in shares.items()})


def as_table(rows: Mapping[Any, Interval]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index", columns=Interval._fields).astype(float)


def along_lambda(tables: Mapping[float, pd.DataFrame], intervals: bool = False) -> pd.DataFrame:
    """One row for each lambda: the values of its figures, or with `intervals` three columns for each figure.

    Without the log loss, for which a model has to be calibrated.
    """
    rows = {lam: table.drop(index="logloss", errors="ignore") for lam, table in tables.items()}
    values = {lam: table.stack() if intervals else table["value"] for lam, table in rows.items()}
    return pd.DataFrame(values).T.rename_axis("lambda").round(4)


def as_column(name: str, values: Any, rows: int | None = None) -> np.ndarray:
    """One value for each record, none of them missing; ValueError names the argument."""
    if isinstance(values, str) or np.ndim(values) == 0:
        raise ValueError(f"{name} must have one value for each record, not {values!r}")
    column = np.asarray(values)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise ValueError(f"{name} must have one value for each record, not the shape {column.shape}: name one column")
    if rows is not None and len(column) != rows:
        raise ValueError(f"{name} has {len(column)} values for {rows} rows: give one value for each row")
    if gaps := int(pd.isna(column).sum()):
        raise ValueError(f"{name} has {gaps} missing values: fill them in, or leave these records out")
    return column


def distinct(name: str, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values that occur, in order, and the number of each record's value among them."""
    try:
        values, codes = np.unique(column, return_inverse=True)
    except TypeError:
        raise ValueError(f"{name} mixes texts and numbers: write all of its values as text") from None
    return values, codes


def by_group(
    metric: str | Metric,
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any,
    positive: Any = None,
    min_group: int = MIN_GROUP,
    draws: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """A metric for each group, overall, and as difference and ratio of the two groups that differ most.

    metric: "acc", "positive_rate", "tpr" or "fpr", with Wilson's interval; or any function of the true labels and the
    predictions, such as those of scikit-learn, with a bootstrap interval (percentiles of `draws` samples of a group's
    records). Difference and ratio have intervals by those of the two groups (Newcombe; Donner and Zou); choosing the
    two is not accounted for. positive: the label that counts, by default the larger of two. A rate on fewer than
    `min_group` records is not shown and not compared. For data that may be pooled: the figures are exact.

    >>> s, y = ["a"] * 50 + ["b"] * 50, [0, 1] * 50
    >>> by_group("positive_rate", y, [0, 1] * 25 + [0, 0, 0, 0, 1] * 10, sensitive_features=s).round(2)
                value   low  high  rows
    a            0.50  0.37  0.63    50
    b            0.20  0.11  0.33    50
    overall      0.35  0.26  0.45   100
    difference   0.30  0.11  0.46    50
    ratio        0.40  0.22  0.72    50
    """
    true = as_column("y_true", y_true)
    shown = as_column("y_pred", y_pred, len(true))
    groups = as_column("sensitive_features", sensitive_features, len(true))
    names, codes = distinct("sensitive_features", groups)
    texts = {isinstance(value, str) for values in (true, shown) for value in values[:1].tolist()}
    if len(texts) > 1:
        raise ValueError("one of y_true and y_pred has texts and the other one numbers: convert one of them")
    if not callable(metric) and metric not in ("acc", *RATES):
        raise ValueError(f"no metric {metric!r}; available: acc, {', '.join(RATES)}, or a function")
    if not callable(metric) and metric != "acc":
        true, shown = _positive(metric, true, shown, positive)

    def figure(name: Any, rows: np.ndarray) -> tuple[Interval, int]:
        if not callable(metric):
            return _rate(metric, true[rows], shown[rows], min_group)
        if rows.sum() < min_group:
            return NOTHING, int(rows.sum())
        return _bootstrap(metric, true[rows], shown[rows], draws, (seed, "bootstrap", str(name))), int(rows.sum())

    figures = {name: figure(name, codes == code) for code, name in enumerate(names.tolist())}
    table = {**figures, "overall": figure("overall", np.ones(len(true), bool))}
    seen = sorted((one, rows) for one, rows in figures.values() if not math.isnan(one.value))
    if len(seen) > 1:
        (less, few), (more, many) = seen[0], seen[-1]
        table |= {
            "difference": (difference(more, less), min(few, many)),
            "ratio": (quotient(less, more), min(few, many)),
        }
    counts = {name: rows for name, (_, rows) in table.items()}
    return as_table({name: interval for name, (interval, _) in table.items()}).assign(rows=pd.Series(counts))


def _positive(metric: str, true: np.ndarray, shown: np.ndarray, positive: Any) -> tuple[np.ndarray, np.ndarray]:
    """True labels and predictions as bits."""
    labels = list(dict.fromkeys([*distinct("y_true", true)[0].tolist(), *distinct("y_pred", shown)[0].tolist()]))
    if positive is None and len(labels) > 2:
        raise ValueError(f"{metric} of {len(labels)} different labels: name one of them, positive=...")
    if positive is not None and positive not in labels:
        raise ValueError(f"positive={positive!r} is no label; available: {', '.join(map(repr, labels))}")
    chosen = max(labels) if positive is None else positive
    return true == chosen, shown == chosen


def _rate(metric: str, true: np.ndarray, shown: np.ndarray, min_group: int) -> tuple[Interval, int]:
    """A rate and the number of records that it rests on."""
    among = {"tpr": true == 1, "fpr": true == 0}.get(metric, np.ones(len(true), bool))
    hits, count = (true == shown if metric == "acc" else shown)[among], int(among.sum())
    return (rate(float(hits.mean()), count) if count >= max(min_group, 1) else NOTHING), count


def _bootstrap(metric: Metric, true: np.ndarray, shown: np.ndarray, draws: int, names: tuple[Any, ...]) -> Interval:
    """Percentiles over samples of these records; samples of which the metric is not defined are left out."""
    value = float(metric(true, shown))
    rng, values = stream(*names), []
    for _ in range(draws):
        rows = rng.integers(0, len(true), len(true))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                values.append(float(metric(true[rows], shown[rows])))
            except ValueError:
                continue
    finite = [one for one in values if math.isfinite(one)]
    if not finite:
        return Interval(value, math.nan, math.nan)
    low, high = np.percentile(finite, [2.5, 97.5])
    return Interval(value, min(float(low), value), max(float(high), value))
