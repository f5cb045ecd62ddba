"""Accuracy against flip rate over the weight of consistency, next to other methods; and the gain in a sentence.

`report.frontier` comes from `evaluation.frontier`: means and intervals over seeds of the plaintext engine. Its points
are our method at each lambda (`chosen`: that of the run), our method at the lambda that the rule takes in each seed
(lambda None), and other methods.
"""

from __future__ import annotations

import math
from typing import Any

from accounting.charts import Interval, Mark, frontier_chart, number, percent
from accounting.tables import Table
from secure_sccvfl.evaluation.counterfactual_models import OWN, RUN_MODELS
from secure_sccvfl.reports.figures import (
    CF_MODELS,
    MODELS,
    cf_models,
    failed_checks,
    failure_note,
    interval,
    listed,
    permutation_baseline,
    trusted,
)
from secure_sccvfl.reports.results import Frontier, Point, Report, Span

OURS = "scc"
METHODS = {
    OURS: "this method",
    "erm": MODELS["erm"],
    "drop_m": MODELS["drop_m"],
    "drop_m_guard": "without them, proxy penalty",
    "majority": MODELS["majority"],
    "paper": "the paper's method",
}
COLUMNS = {
    "acc": "right",
    "auc": "AUC",
    **{
        f"{metric}_{model}": f"{words}, {CF_MODELS[model]}"
        for model in RUN_MODELS
        for metric, words in (("fr", "flip rate"), ("fr_null", "permuted"), ("net", "net flip rate"))
    },
    "dp_gap": "gap between groups",
    "eo_gap": "gap of mistakes",
    "pgd_sr": "changed by PGD",
}
"""Columns of the table, by the name of the figure."""
YARDSTICKS = {"majority": "the majority", "drop_m": "dropping the mediators", "erm": "plain training"}


def frontier(report: Report) -> dict[str, Any] | None:
    """The chart and the table; None if the run has no frontier."""
    tree = report.frontier
    if tree is None or not tree.points:
        return None
    model = _cf_model(report, tree)
    metric = f"fr_{model}"
    drawn = [p for p in tree.points if p.method != "majority" and metric in p.figures and "acc" in p.figures]
    marks = [_mark(point, metric) for point in drawn]
    here = report.metrics
    if metric in here and "acc" in here:
        # Its interval is over records, not over seeds: it is shown with the other figures of the run.
        marks.append(Mark("this run, under MPC (one seed)", (here[metric],) * 3, (here["acc"],) * 3))
    means = [p.figures["acc"].mean for p in tree.points if p.method == "majority" and "acc" in p.figures]
    majority = (*means, report.baselines.get("majority", {}).get("acc"))[0]
    used = [name for name in COLUMNS if any(name in p.figures for p in tree.points)]
    rows = [(_name(p), *(_cell(name, p.figures.get(name)) for name in used)) for p in tree.points]
    return {
        "svg": frontier_chart("Accuracy against flip rate", marks, METHODS[OURS], majority) if marks else "",
        "model": f"{CF_MODELS[model]}{failure_note(report, model)}",
        "rule": tree.rule.removesuffix("."),
        "taken": next((p.lam for p in tree.points if p.chosen), None),
        "seeds": len(tree.seeds),
        "permuted": [(CF_MODELS[name], percent(rate)) for name, rate in tree.nulls.items() if name in CF_MODELS],
        "table": Table(("", *(COLUMNS[name] for name in used)), rows),
    }


def _cf_model(report: Report, tree: Frontier) -> str:
    """The first counterfactual model that passes its checks; the first of all if none does."""
    known = [model for model in RUN_MODELS if any(f"fr_{model}" in p.figures for p in tree.points)]
    return next((model for model in known if not failed_checks(report, model)), (known or RUN_MODELS)[0])


def _ends(span: Span) -> Interval:
    return span.mean, span.low, span.high


def _mark(point: Point, metric: str) -> Mark:
    label = "" if point.lam is None else f"{point.lam:g}"
    flips, right = _ends(point.figures[metric]), _ends(point.figures["acc"])
    return Mark(METHODS.get(point.method, point.method), flips, right, label, _by_rule(point), point.chosen)


def _by_rule(point: Point) -> bool:
    """Our method at the lambda that the rule takes in each seed."""
    return point.method == OURS and point.lam is None


def _name(point: Point) -> str:
    name = METHODS.get(point.method, point.method)
    if _by_rule(point):
        return f"{name}, λ by the rule"
    return name if point.lam is None else f"{name}, λ = {point.lam:g}{' (this run)' if point.chosen else ''}"


def _cell(metric: str, span: Span | None) -> str:
    show = number if metric == "auc" else percent
    return "" if span is None else f"{show(span.mean)} ({show(span.low).removesuffix(' %')} to {show(span.high)})"


def gain(report: Report) -> str:
    """What was gained: accuracy against simple models, flip rate against plain training. Empty for a regression.

    It is about the rule's choice over the seeds of the frontier where there is one, else about this one run.
    """
    tree = report.frontier
    point = next((p for p in tree.points if _by_rule(p)), None) if tree is not None else None
    if tree is not None and point is not None:
        return _over_seeds(report, tree, point)
    return _of_this_run(report) if "acc" in report.metrics else ""


def _over_seeds(report: Report, tree: Frontier, point: Point) -> str:
    if "acc" not in point.figures:
        return ""
    model = _cf_model(report, tree)
    metric = f"fr_{model}"
    apart = [
        f"{_signed(span.mean)} points ({_signed(span.low)} to {_signed(span.high)}) on {words}"
        for name, words in YARDSTICKS.items()
        if (span := tree.gain.get(name)) is not None
    ]
    plain = next((p.figures[metric].mean for p in tree.points if p.method == "erm" and metric in p.figures), None)
    own = _ends(point.figures[metric]) if metric in point.figures else None
    flips = _flips(report, model, own, plain, tree.nulls.get(model))
    right = f"{_words(_ends(point.figures['acc']))} right{': ' + listed(apart) if apart else ''}"
    return f"{right}. {flips} Means over {len(tree.seeds)} seeds, in plaintext."


def _of_this_run(report: Report) -> str:
    model, others = trusted(report) or (cf_models(report) or [OWN])[0], report.baselines
    metric, plain = f"fr_{model}", others.get("erm", {})
    apart = [
        f"{_signed(report.metrics['acc'] - others[name]['acc'])} points{_noise(report, name)} on {words}"
        for name, words in YARDSTICKS.items()
        if "acc" in others.get(name, {})
    ]

    def seen(name: str) -> Interval:
        value = report.metrics[name]
        return (value, *(interval(report, name, value) or (value, value)))

    own = seen(metric) if metric in report.metrics else None
    permuted = permutation_baseline(plain or report.metrics, model)
    flips = _flips(report, model, own, plain.get(metric), permuted)
    return f"{_words(seen('acc'))} right{': ' + listed(apart) if apart else ''}. {flips} One run."


def _flips(report: Report, model: str, own: Interval | None, plain: float | None, permuted: float | None) -> str:
    if own is None:
        return "The flip rate was not measured."
    if failed_checks(report, model):
        return "No counterfactual model passes its validity checks on these data: no flip rate is claimed."
    text = f"{_words(own)} of decisions flip"
    if plain:
        fewer = 100 * (1 - own[0] / plain)
        text += (
            f", {abs(fewer):.0f} % {'fewer' if fewer >= 0 else 'more'} than the {percent(plain)} of plain training"
        )
    control = "no permutation baseline" if permuted is None else f"{percent(permuted)} with groups permuted"
    return f"{text} (counterfactual model {model}; {control})."


def _noise(report: Report, other: str) -> str:
    """What noise in both figures adds to the difference of accuracy, 95 % of the time."""
    noise = report.baseline_noise.get(other, {}).get("acc")
    return "" if noise is None else f" (noise ± {100 * math.hypot(report.noise['acc'], noise):.1f})"


def _signed(share: float) -> str:
    """A difference of shares in points."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # never -0.0


def _words(span: Interval) -> str:
    return f"{percent(span[0])} ({percent(span[1]).removesuffix(' %')} to {percent(span[2])})"
