"""Markdown from result rows: the paper's figures beside ours, then every method under each judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from accounting.plain_text import markdown as marked
from accounting.tables import MarkdownText, Table
from secure_sccvfl.audit.attacks.attributes import EPOCHS
from secure_sccvfl.audit.attacks.catalogue import ATTACKS, on_models_first
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, FIRST, OWN, RUN_MODELS
from secure_sccvfl.evaluation.counterfactual_models.validity import LEAST_AUC, MOST_MMD, MOST_NULL, failed_checks

Row = Mapping[str, Any]
FLIPS = ("fr", "fr_null", "fr_cut", "net", "fr_base", "fr_base_null")
"""What stands beside each other for a judge: a flip rate never without its null control."""
RUNTIME = ("seconds_per_epoch", "ms_per_step", "optimisation_steps", "epochs_run", "model_mb", "feature_mb")
"""Figures of a method that learns over epochs. Beside them `best_epoch`, the epoch of the model that is kept."""
COLUMNS: Mapping[str, Sequence[tuple[str | None, str]]] = {
    "main": (
        *((None, metric) for metric in ("acc", "acc_vs_drop_m", "auc", "auc_vs_drop_m", "bacc", "acc_base")),
        (None, "logloss"),
        (None, "rmse"),
        *((judge, metric) for judge in RUN_MODELS for metric in FLIPS),
        *((FIRST, f"{metric}_descendants{end}") for metric in ("fr", "scg") for end in ("", "_null")),
        *((k, fr) for k in COUNTERFACTUAL_MODELS if k not in RUN_MODELS for fr in ("fr", "fr_null", "net")),
        *((OWN, metric) for metric in ("fr", "net")),
        (FIRST, "scg_norm"),
        *((judge, "scg") for judge in COUNTERFACTUAL_MODELS),
        *((judge, "scg_null") for judge in COUNTERFACTUAL_MODELS),
        *((None, attack.main) for _, attack in on_models_first() if attack.main),
        (None, "positive_rate"),
        (None, "dp_gap"),
        (None, "eo_gap"),
    ),
    "attacks": (
        *((None, metric) for _, attack in on_models_first() for metric in attack.columns),
        *((None, f"aia_{view}_mlp{epochs}") for view in ("z", "logits") for epochs in EPOCHS),
    ),
    "runtime": tuple((None, metric) for metric in ("seconds", *RUNTIME, "best_epoch", "warmup", "acc")),
    "private": (
        *((None, metric) for metric in ("acc", "auc", "logloss")),
        *((judge, metric) for judge in RUN_MODELS for metric in ("fr", "fr_null")),
        (None, "dp_gap"),
    ),
}
MARKED = ("fr", "scg", "fr_base", "fr_descendants", "scg_descendants", "net", "fr_cut")
"""Columns of a judge that are marked where it fails a gate."""
IN_PERCENT = ("fr", "net", *(attack.stem for _, attack in ATTACKS.items()))
_UTILITY = ((None, "acc"), (None, "logloss"), (OWN, "scg"), (OWN, "fr"))
BESIDE: Mapping[str, Sequence[tuple[str | None, str]]] = {
    "main": _UTILITY,
    "folktables": (*_UTILITY, (None, "dp_gap"), (None, "eo_gap")),
    "attacks": (
        *((None, f"aia_z_mlp{epochs}") for epochs in EPOCHS),
        *((None, metric) for metric in ATTACKS.get("pgd_paper").columns),
    ),
    "runtime": tuple((None, metric) for metric in ("seconds", *RUNTIME) if metric != "optimisation_steps"),
}
"""Ours that stand beside a figure of the paper, which judges every method by the method's own generator."""
CONTROLLED: Mapping[str, Sequence[tuple[str | None, str]]] = {
    "attacks": ((None, "aia_z"), (None, "aia_logits")),
    "runtime": (),
}
"""What the paper does not have and stands in the same table: judges with a null control, the strongest attacker."""
_JUDGED = tuple((judge, metric) for judge in RUN_MODELS for metric in ("fr", "fr_null"))
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

    A figure of the same experiment comes first: the paper has several for its full method. Its SCC-VFL stands beside
    ours, too, and its baselines beside their repaired forms.
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
    return f"{_number(row['mean'], row['metric'])} ({low}{between}{high})"


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
    """One table beside the paper's figures and one of all methods, per data set and split.

    titles: what a data set is, where its name does not tell.
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
        edits = _edits(here)
        failing = {judge for judge in COUNTERFACTUAL_MODELS if failed_checks(edits.get(judge, {}))}
        methods = list(dict.fromkeys(r["method"] for r in here if not r["method"].startswith("(")))
        out += _beside_the_paper(experiment, dataset, split, methods, index, failing)
        names = [_heading(judge, metric, judge in failing) for judge, metric in used]
        cells = [(m, *(cell(index.get((m, judge, metric))) for judge, metric in used)) for m in methods]
        out += [str(Table(("method", *names), cells)), "", *_edit_lines(edits), *_majority_lines(index, methods), ""]
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
    extra = [c for c in CONTROLLED.get(experiment, _JUDGED) if any((m, *c) in index for m in methods)]
    lines = []
    for method in methods:
        figures = [paper_figure(experiment, dataset, split, method, metric) for _, metric in pairs]
        if not any(figures):
            continue
        cells = []
        for (judge, metric), figure in zip(pairs, figures, strict=True):
            ours = index.get((method, judge, metric))
            cells += [spread(ours), paper_cell(figure, ours)]
        cells += [spread(index.get((method, judge, metric))) for judge, metric in extra]
        lines.append((method, *cells))
    if not lines:
        return []
    names = [name for judge, metric in pairs for name in (_heading(judge, metric, False), f"paper {metric}")]
    names += [_heading(judge, metric, judge in failing) for judge, metric in extra]
    return [str(Table(("beside the paper", *names), lines)), ""]


def _notes() -> list[str]:
    """What the columns mean, under every table."""
    held_out, pooled = (
        ", ".join(f"`[{name}]`" for name, judge in COUNTERFACTUAL_MODELS.items() if judge.fitted_on == what)
        for what in ("held-out", "all rows")
    )
    return [
        "Beside the paper: mean ± standard deviation (95 % t-interval) over seeds. The paper's mean ± deviation has",
        "≈ where our mean is within that deviation of it, ≠ where not. The paper judges flips by a method's own",
        "generator, so its figures answer `[own]`.",
        "",
        "All methods: mean with 95 % t-interval over seeds. `[own]` is judged by the method's own generator and is a",
        f"diagnostic only. The others are common judges. {held_out} are fitted on held-out records,",
        f"{pooled} on features and s of all rows; none sees a label or a model. `fr_null` is the flip",
        "rate after s was shuffled over the records: what a judge finds where there is nothing to find. `fr_cut` is",
        "the share by which flips are below those of `erm`. `net` is how far gains and losses of a decision differ",
        "per pair of groups. `descendants`: proxies move with the mediators. `_base`: decided at the threshold that",
        "gives the share of positives of the training part. `auc`: area under the ROC curve; `bacc`: balanced",
        "accuracy. `_vs_drop_m`: difference to dropping the mediators, paired by seed. A judge that fails a gate is",
        "marked **fails**, and no claim rests on it.",
        f"Gates: AUC at least {LEAST_AUC:g}, MMD ratio at most {MOST_MMD:g}, null flips of ERM at most {MOST_NULL:g} "
        "of its flips. A",
        "perfect edit reaches the AUC of real records, so a low AUC may say that mediators tell little of s. AIA is",
        "the strongest attacker by its mean, balanced over groups: chance is 1 / groups.",
    ]


def _heading(judge: str | None, metric: str, failing: bool) -> MarkdownText:
    if judge is None:
        return MarkdownText(metric)
    return MarkdownText(f"{metric} [{judge}]{' **fails**' if failing and metric in MARKED else ''}")


def _edits(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean figures of each judge's edits."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["method"] == "(edits)":
            found.setdefault(row["judge"], {})[row["metric"]] = row["mean"]
    return found


def _edit_lines(edits: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = []
    for judge in (*COUNTERFACTUAL_MODELS, OWN):
        get = edits.get(judge, {})
        if "edit_auc" in get:
            ratio = get.get("edit_mmd_ratio", float("nan"))
            cycle = f", cycle error {get['edit_cycle_error']:.2f}" if "edit_cycle_error" in get else ""
            line = (
                f"- edits of `{judge}`: AUC of the target group {get['edit_auc']:.2f} "
                f"(unedited {get['edit_auc_unedited']:.2f}{_ceiling(get)}), MMD ratio {ratio:.2f}, "
                f"size {get['edit_size']:.2f}{cycle}"
            )
            lines.append(line + (_gate_words(get) if judge in COUNTERFACTUAL_MODELS else ""))
    return lines


def _ceiling(edits: Mapping[str, float]) -> str:
    """What a perfect edit would reach."""
    return f", real records {edits['edit_auc_real']:.2f}" if "edit_auc_real" in edits else ""


def _gate_words(edits: Mapping[str, float]) -> str:
    """The null control on ERM (flips, or the shift of a regression), and which gates the judge fails."""
    failed = failed_checks(edits)
    told = f"; **fails**: {', '.join(failed)}" if failed else "; passes every gate"
    if "edit_erm_null" not in edits:
        return told
    return f", ERM {edits['edit_erm']:.4f} with true s and {edits['edit_erm_null']:.4f} with shuffled s{told}"


def _majority_lines(index: Mapping[tuple[str, str | None, str], Row], methods: Sequence[str]) -> list[str]:
    """Warn about methods that are stable because they hardly decide."""
    accuracy = {method: row["mean"] for method in methods if (row := index.get((method, None, "acc"))) is not None}
    if "majority" not in accuracy:
        return []
    idle = [m for m, value in accuracy.items() if m != "majority" and value <= accuracy["majority"] + 0.005]
    if not idle:
        return []
    return [f"- **no better than the majority rate**, so their flip rates say nothing: {', '.join(idle)}"]
