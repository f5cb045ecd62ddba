"""Markdown from result rows: the paper's figures next to ours, then every method under each counterfactual model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from secure_sccvfl.accounting.plain_text import markdown as marked
from secure_sccvfl.accounting.tables import MarkdownText, Table
from secure_sccvfl.audit.attacks.attributes import EPOCHS
from secure_sccvfl.audit.attacks.catalogue import ATTACKS, on_models_first
from secure_sccvfl.evaluation.counterfactual_models import (
    COUNTERFACTUAL_MODELS,
    FIRST,
    LEAST_AUC,
    MOST_MMD,
    MOST_NULL,
    OWN,
    RUN_MODELS,
    failed_checks,
)
from secure_sccvfl.reports.page import template

Row = Mapping[str, Any]
FLIPS = ("fr", "fr_null", "fr_cut", "net", "fr_base", "fr_base_null")
"""Figures of a counterfactual model: a flip rate never without its permutation baseline."""
GUARANTEES = ("certified", "certified_tables", "certified_tables_95", "fr_bound", "fr_bound_95")
"""What holds for every counterfactual, or for every coupling that the released tables allow."""
RUNTIME = ("seconds_per_epoch", "ms_per_step", "optimisation_steps", "epochs_run", "model_mb", "feature_mb")
"""Figures of a method that learns over epochs, and `best_epoch`, the epoch of the model that is used."""
Shown = tuple[tuple[str | None, str], ...]
"""Counterfactual model, or None where none is involved, and figure."""


def _own(*metrics: str) -> Shown:
    return tuple((None, metric) for metric in metrics)


def _by(models: Iterable[str], *metrics: str) -> Shown:
    return tuple((model, metric) for model in models for metric in metrics)


_CHECKED_FLIPS = _by(RUN_MODELS, "fr", "fr_null")
_PRIVATE = (*_own("acc", "auc", "logloss"), *_CHECKED_FLIPS, *_own(*GUARANTEES, "dp_gap"))
COLUMNS: Mapping[str, Shown] = {
    "main": (
        *_own("acc", "acc_vs_drop_m", "auc", "auc_vs_drop_m", "bacc", "acc_base", "logloss", "rmse"),
        *_by(RUN_MODELS, *FLIPS),
        *_own(*GUARANTEES, "max_shift_down", "max_shift_up"),
        *_by([FIRST], "fr_descendants", "fr_descendants_null", "scg_descendants", "scg_descendants_null"),
        *_by([name for name in COUNTERFACTUAL_MODELS if name not in RUN_MODELS], "fr", "fr_null", "net"),
        *((OWN, "fr"), (OWN, "net"), (FIRST, "scg_norm")),
        *(*_by(COUNTERFACTUAL_MODELS, "scg"), *_by(COUNTERFACTUAL_MODELS, "scg_null")),
        *_own(*(attack.main for _, attack in on_models_first() if attack.main), "positive_rate", "dp_gap", "eo_gap"),
    ),
    "attacks": _own(
        *(metric for _, attack in on_models_first() for metric in attack.columns),
        *(f"aia_{view}_mlp{epochs}" for view in ("z", "logits") for epochs in EPOCHS),
    ),
    "runtime": _own("seconds", *RUNTIME, "best_epoch", "warmup", "acc"),
    **dict.fromkeys(("private", "epsilon", "range"), _PRIVATE),
    "net": (*_PRIVATE, *_by(RUN_MODELS, "net")),
}
MARKED = ("fr", "scg", "fr_base", "fr_descendants", "scg_descendants", "net", "fr_cut")
"""Columns of a counterfactual model that are marked where it fails a check."""
IN_PERCENT = ("fr", "net", "certified", *(attack.stem for _, attack in ATTACKS.items()))
_UTILITY = (*_own("acc", "logloss"), (OWN, "scg"), (OWN, "fr"))
BESIDE: Mapping[str, Shown] = {
    "main": _UTILITY,
    "folktables": (*_UTILITY, *_own("dp_gap", "eo_gap")),
    "attacks": _own(*(f"aia_z_mlp{epochs}" for epochs in EPOCHS), *ATTACKS.get("pgd_paper").columns),
    "runtime": _own("seconds", *(metric for metric in RUNTIME if metric != "optimisation_steps")),
}
"""Our figures next to those of the paper, which counts flips with each method's own generator."""
CONTROLLED: Mapping[str, Shown] = {"attacks": _own("aia_z", "aia_logits"), "runtime": ()}
"""Controls that the paper does not have: flip rates with a permutation baseline, the strongest attacker."""
SAME_AS = {
    "scc": "paper",
    "erm": "erm_network",
    "no_masks": "paper_no_masks",
    "no_generator": "paper_no_generator",
    "no_consistency": "paper_no_consistency",
}
"""Rows of ours that answer a row of the paper under another name. `_repaired` is left out of names, too."""
STANDS_FOR = {"mobility": "acs-mobility"}


@lru_cache(maxsize=1)
def paper_figures() -> tuple[Row, ...]:
    """The paper's reported figures, as data: mean, deviation (null where it gives none), and where they stand."""
    text = (resources.files(__package__) / "paper_figures.json").read_text("utf-8")
    return tuple(json.loads(text))


@lru_cache(maxsize=1)
def _by_place() -> dict[tuple[str, ...], Row]:
    keys = ("experiment", "dataset", "split", "method", "metric")
    return {tuple(figure[key] for key in keys): figure for figure in paper_figures() if "feature" not in figure}


def paper_figure(experiment: str, dataset: str, split: str, method: str, metric: str) -> Row | None:
    """The paper's figure for this cell.

    A figure of the same experiment comes first: the paper has several for its full method. Its SCC-VFL also answers
    ours, and its baselines their repaired forms.
    """
    named = method.removesuffix("_repaired").partition(", ")[0]
    for table in dict.fromkeys((experiment, "main", "folktables")):
        for name in (named, SAME_AS.get(named, named)):
            figure = _by_place().get((table, STANDS_FOR.get(dataset, dataset), split, name, metric))
            if figure is not None:
                return figure
    return None


def _number(value: float, metric: str) -> str:
    if metric == "fr_cut":
        return f"{100 * value:.0f} %"
    if metric.endswith("_vs_drop_m"):
        return f"{value:+.3f}"
    return f"{100 * value:.2f} %" if metric.startswith(IN_PERCENT) else f"{value:.3f}"


def cell(row: Row | None) -> str:
    """Mean with its interval."""
    if row is None:
        return ""
    if row["seeds"] < 2:
        return _number(row["mean"], row["metric"])
    low, high = (_number(row[k], row["metric"]).removesuffix(" %") for k in ("low", "high"))
    between = " to " if row["low"] < 0 or row["metric"].endswith("_vs_drop_m") else "-"
    new = [_number(row[k], row["metric"]) for k in ("new_low", "new_high") if k in row]
    for_new = f"; new people {' to '.join(new)}" if new else ""
    return f"{_number(row['mean'], row['metric'])} ({low}{between}{high}{for_new})"


def spread(row: Row | None) -> str:
    """Mean with standard deviation and interval over seeds."""
    if row is None or row.get("sd") is None or row["seeds"] < 2:
        return cell(row)
    shown, interval = cell(row).split(" (", 1)
    return f"{shown.removesuffix(' %')} ± {_number(row['sd'], row['metric'])} ({interval}"


def paper_cell(figure: Row | None, ours: Row | None) -> str:
    """The paper's mean and deviation; ≈ if our mean is within that deviation (or the range it gives), ≠ if not."""
    if figure is None:
        return ""
    value, metric = figure["value"], figure["metric"]
    if figure["sd"] is None and "low" not in figure:
        return _precise(value, metric)
    if figure["sd"] is None:
        low, high = figure["low"], figure["high"]
        shown = f"{_precise(low, metric)} to {_precise(high, metric)}"
    else:
        low, high = value - figure["sd"], value + figure["sd"]
        shown = f"{_precise(value, metric).removesuffix(' %')} ± {_precise(figure['sd'], metric)}"
    if ours is None:
        return shown
    return f"{shown} {'≈' if low <= ours['mean'] <= high else '≠'}"


def _precise(value: float, metric: str) -> str:
    """As many places as the paper prints."""
    if metric.startswith(IN_PERCENT):
        return f"{100 * value:.2f} %"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def markdown(experiment: str, rows: Sequence[Row], titles: Mapping[str, str] | None = None) -> str:
    """One table next to the paper's figures and one of all methods, per data set and split.

    titles: what a data set is, where its name does not say it.
    """
    columns = COLUMNS.get(experiment, COLUMNS["main"])
    settings = sorted({(r["dataset"], r["split"]) for r in rows})
    out = [f"# {experiment}", ""]
    for dataset, split in settings:
        here = [r for r in rows if (r["dataset"], r["split"]) == (dataset, split)]
        seeds = max(r["seeds"] for r in here)
        index = {(r["method"], r["judge"], r["metric"]): r for r in here}
        used = [c for c in columns if any((r["judge"], r["metric"]) == c for r in here)]
        title = (titles or {}).get(dataset, dataset)
        named = marked(dataset) if title == dataset else f"{marked(dataset)} ({marked(title)})"
        out += [f"## {named}, {split}, {seeds} seeds", ""]
        checks: dict[str, dict[str, float]] = {}
        for r in here:
            if r["method"] == "(edits)":
                checks.setdefault(r["judge"], {})[r["metric"]] = r["mean"]
        failing = {model for model in COUNTERFACTUAL_MODELS if failed_checks(checks.get(model, {}))}
        methods = list(dict.fromkeys(r["method"] for r in here if not r["method"].startswith("(")))
        out += _beside_the_paper(experiment, dataset, split, methods, index, failing)
        names = [_heading(name, metric, name in failing) for name, metric in used]
        cells = [(m, *(cell(index.get((m, name, metric))) for name, metric in used)) for m in methods]
        out += [
            str(Table(("method", *names), cells)),
            "",
            *_check_lines(checks),
            *_majority_lines(index, methods),
            "",
        ]
    return "\n".join([*out, *_notes()]) + "\n"


def _beside_the_paper(
    experiment: str,
    dataset: str,
    split: str,
    methods: Sequence[str],
    index: Mapping[tuple[str, str | None, str], Row],
    failing: set[str],
) -> list[str]:
    """Every method that the paper has a figure for: ours, the paper's, and what controls it."""
    pairs = BESIDE.get(experiment, BESIDE["main"])
    extra = [c for c in CONTROLLED.get(experiment, _CHECKED_FLIPS) if any((m, *c) in index for m in methods)]
    lines = []
    for method in methods:
        figures = [paper_figure(experiment, dataset, split, method, metric) for _, metric in pairs]
        if not any(figures):
            continue
        cells = []
        for (model, metric), figure in zip(pairs, figures, strict=True):
            ours = index.get((method, model, metric))
            cells += [spread(ours), paper_cell(figure, ours)]
        cells += [spread(index.get((method, model, metric))) for model, metric in extra]
        lines.append((method, *cells))
    if not lines:
        return []
    names = [name for model, metric in pairs for name in (_heading(model, metric, False), f"paper {metric}")]
    names += [_heading(model, metric, model in failing) for model, metric in extra]
    return [str(Table(("beside the paper", *names), lines)), ""]


def _notes() -> list[str]:
    """What the columns mean, under every table."""
    fitted = {
        what: ", ".join(f"`[{name}]`" for name, model in COUNTERFACTUAL_MODELS.items() if model.fitted_on == what)
        for what in ("held-out", "all rows")
    }
    limits = {"auc": LEAST_AUC, "mmd": MOST_MMD, "null": MOST_NULL}
    return [template("tables.md").render(held_out=fitted["held-out"], pooled=fitted["all rows"], **limits)]


def _heading(model: str | None, metric: str, failing: bool) -> MarkdownText:
    if model is None:
        return MarkdownText(metric)
    return MarkdownText(f"{metric} [{model}]{' **fails**' if failing and metric in MARKED else ''}")


def _check_lines(checks: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The figures of each counterfactual model, its permutation baseline on ERM, and the checks it fails."""
    lines = []
    for model in (*COUNTERFACTUAL_MODELS, OWN):
        mean = checks.get(model, {})
        if "edit_auc" not in mean:
            continue
        real = f", real records {mean['edit_auc_real']:.2f}" if "edit_auc_real" in mean else ""
        cycle = f", cycle error {mean['edit_cycle_error']:.2f}" if "edit_cycle_error" in mean else ""
        line = (
            f"- `{model}`: AUC of the target group {mean['edit_auc']:.2f} (unchanged {mean['edit_auc_unedited']:.2f}"
            f"{real}), MMD ratio {mean.get('edit_mmd_ratio', math.nan):.2f}, size {mean['edit_size']:.2f}{cycle}"
        )
        if model in COUNTERFACTUAL_MODELS:
            if "edit_erm_null" in mean:
                line += f", ERM {mean['edit_erm']:.4f} with true s and {mean['edit_erm_null']:.4f} with permuted s"
            failed = failed_checks(mean)
            line += f"; **fails**: {', '.join(failed)}" if failed else "; passes every check"
        lines.append(line)
    return lines


def _majority_lines(index: Mapping[tuple[str, str | None, str], Row], methods: Sequence[str]) -> list[str]:
    """Methods that are stable because they hardly decide."""
    accuracy = {method: row["mean"] for method in methods if (row := index.get((method, None, "acc"))) is not None}
    least = accuracy.get("majority", -math.inf) + 0.005
    idle = [method for method, value in accuracy.items() if method != "majority" and value <= least]
    return [f"- **no better than the majority rate**, so their flip rates say nothing: {', '.join(idle)}"] * bool(
        idle
    )
