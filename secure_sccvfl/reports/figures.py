"""Figures of a run next to those of the baselines: validity checks, intervals, charts and tables.

Flip rates come from counterfactual models (`evaluation.counterfactual_models`), which training never saw. Each has a
permutation baseline, the flip rate after s was permuted over the records, and validity checks on these data. No claim
rests on a model that fails a check. Without such models, flips are counted with the run's own generator.

Accuracy against flip rate over the weight of consistency, next to other methods; and the gain in a sentence.

`report.frontier` comes from `evaluation.frontier`: means and intervals over seeds of the plaintext engine. Its points
are our method at each lambda (`chosen`: that of the run), our method at the lambda that the rule takes in each seed
(lambda None), and other methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accounting.charts import Dot, Interval, Mark, forest, frontier_chart, number, percent
from accounting.tables import Table
from secure_sccvfl.evaluation.counterfactual_models import (
    COUNTERFACTUAL_MODELS,
    LEAST_AUC,
    MOST_MMD,
    MOST_NULL,
    OWN,
    RUN_MODELS,
)
from secure_sccvfl.metrics.rates import CERTIFIED, certified_words, wilson
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.reports.results import Frontier, Point, Rate, Report, Span

SECURE = "secure"
MODELS = {
    SECURE: "this model",
    "plaintext_scc": "same method in plaintext",
    "drop_m": "without the mediators",
    "erm": "plain training, no protection",
    "logistic": "logistic regression",
    "majority": "always the most frequent",
}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
CF_MODELS = {
    name: f"{ordinal} counterfactual model" for name, ordinal in zip(COUNTERFACTUAL_MODELS, ORDINALS, strict=False)
}
ALL_CF_MODELS = {**CF_MODELS, OWN: "the run's own generator"}
RATE_WORDS = {"positive_rate": "“{positive}” decisions", "tpr": "true positive rate", "fpr": "false positive rate"}
CF_METRICS = {
    "fr": "flip rate",
    "fr_null": "flip rate, groups permuted",
    "net": "net flip rate",
    "scg": "shift of the score",
    "scg_null": "shift, groups permuted",
}
METRIC_WORDS = {
    "acc": "right decisions",
    "rmse": "root mean squared error",
    "logloss": "log loss",
    CERTIFIED: "certified decisions",
    "positive_rate": "share of “{positive}” decisions",
    "dp_gap": "gap of “{positive}” decisions between groups",
    "eo_gap": "gap of true or false positive rates between groups",
    **{
        f"{metric}_{model}": f"{words} ({name})"
        for model, name in {**CF_MODELS, OWN: "own generator"}.items()
        for metric, words in CF_METRICS.items()
    },
}


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def cf_models(report: Report) -> list[str]:
    """The counterfactual models that a run was evaluated with."""
    return [name for name in CF_MODELS if any(f"{what}_{name}" in report.metrics for what in ("fr", "scg"))]


def failed_checks(report: Report, model: str) -> tuple[str, ...]:
    """Validity checks that a counterfactual model fails: on average over the frontier's seeds if any, else here.

    The run's own generator has no checks.
    """
    if report.frontier is not None and model in report.frontier.failed:
        return report.frontier.failed[model]
    return report.judges[model].failed if model in report.judges else ()


def failure_note(report: Report, model: str) -> str:
    """What follows the name of a counterfactual model that fails a check."""
    checks = failed_checks(report, model)
    return f", fails its validity check{'s' * (len(checks) > 1)} ({listed(checks)})" if checks else ""


def trusted(report: Report) -> str | None:
    """The counterfactual model that claims rest on: the strictest that passes; the own generator if there is none."""
    rates, models = report.metrics, cf_models(report)
    if not models:
        return OWN if f"fr_{OWN}" in rates else None
    sound = [model for model in models if f"fr_{model}" in rates and not failed_checks(report, model)]
    return max(sound, key=lambda model: rates[f"fr_{model}"]) if sound else None


def cf_model_words(report: Report) -> str:
    """How many counterfactual models there were, and where each takes values from; empty if there was none."""
    names = cf_models(report)
    origins = [COUNTERFACTUAL_MODELS.get(name).about for name in names]
    about = ", ".join(f"the {ordinal} {origin}" for ordinal, origin in zip(ORDINALS, origins, strict=False))
    count = ("no", "one", "two", "three", "four", "five", "six")[len(names)]
    plural = "s" * (len(names) != 1)
    return f"{count} counterfactual model{plural} to say, which training never saw: {about}" if names else ""


def check_table(report: Report) -> Table | None:
    """The validity checks of each counterfactual model on these data."""
    names = [name for name in cf_models(report) if name in report.judges]
    if not names:
        return None
    regression = report.data.task == "regression"

    def rate(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}" if regression else percent(value)

    def cells(model: str) -> list[str]:
        checks, failed = report.judges[model], failed_checks(report, model)
        quality = (checks.edit_auc, checks.edit_auc_real, checks.edit_mmd_ratio)
        shown = ["" if value is None else f"{value:.2f}" for value in quality]
        shown += [rate(checks.edit_erm), rate(checks.edit_erm_null)]
        return [CF_MODELS[model], *shown, f"fails: {listed(failed)}" if failed else "passes"]

    titles = (
        "counterfactual model",
        f"AUC (at least {LEAST_AUC:g})",
        "AUC of real records",
        f"MMD ratio (at most {MOST_MMD:g})",
        f"{'shift' if regression else 'flip rate'}, plain training",
        f"the same, groups permuted (at most {MOST_NULL:g} of it)",
        f"checks, over {len(report.frontier.seeds)} seeds" if report.frontier is not None else "checks",
    )
    return Table(titles, [cells(name) for name in names])


def check_warnings(report: Report) -> list[str]:
    """Which counterfactual models no claim rests on."""
    models = cf_models(report)
    failing = [name for name in models if failed_checks(report, name)]
    if not failing:
        return []
    text = "; ".join(
        f"the {CF_MODELS[name]} ({name}) fails {listed(failed_checks(report, name))}" for name in failing
    )
    if len(failing) == len(models):
        return [f"No counterfactual model passes its validity checks here, so flip rates prove nothing: {text}."]
    return [f"A counterfactual model does not pass its validity checks here, and no claim rests on it: {text}."]


def interval(report: Report, metric: str, value: float, model: str = SECURE) -> tuple[float, float] | None:
    """95 % interval of a figure: the uncertainty from the number of records (rates), and what noise adds to it."""
    noise = (report.noise if model == SECURE else report.baseline_noise.get(model, {})).get(metric, 0.0)
    if metric.startswith(("acc", "fr_", CERTIFIED)):
        low, high = wilson(value, report.rows["test"])
        return max(0.0, value - math.hypot(value - low, noise)), min(1.0, value + math.hypot(high - value, noise))
    return (max(0.0, value - noise), value + noise) if noise else None


def interval_words(report: Report, metric: str) -> str:
    """The interval of a rate of this model."""
    low, high = interval(report, metric, report.metrics[metric]) or (0.0, 1.0)
    return f"95 % interval {percent(low).removesuffix(' %')} to {percent(high)}"


def _sources(report: Report) -> dict[str, Mapping[str, float]]:
    """The figures of this model and of every baseline, in the order of `MODELS`."""
    sources = {SECURE: report.metrics, **report.baselines}
    return {name: sources[name] for name in (*MODELS, *sorted(set(sources) - set(MODELS))) if name in sources}


def metric_panels(report: Report) -> list[dict[str, str]]:
    """Charts of this model next to the baselines."""
    models = cf_models(report)
    hint = "0 is best; short bar and “permuted”: the same where groups were permuted, which is chance"
    panels: list[tuple[str, str, str, str | None]] = [("acc", "Right decisions", "further right is better", None)]
    panels += [
        (f"fr_{model}", f"Flip rate, {CF_MODELS[model]}{failure_note(report, model)}", hint, model)
        for model in models
    ]
    if not models:
        controlled = report.metrics.get(f"fr_null_{OWN}") is not None
        text = hint if controlled else "0 is best; no permutation baseline"
        panels.append((f"fr_{OWN}", f"Flip rate, {ALL_CF_MODELS[OWN]}", text, OWN if controlled else None))
    panels.append((CERTIFIED, "Certified decisions", "no values of the mediators change them; 100 % is best", None))
    panels.append(("rmse", "Typical error", "root mean square, of the label's range; lower is better", None))
    if "rmse" in report.metrics:
        panels += [
            (f"scg_{model}", f"Shift of the answer, {words}{failure_note(report, model)}", "0 is best", None)
            for model, words in ALL_CF_MODELS.items()
        ]
    share = f"in the share of “{report.data.positive}” decisions; 0: the same for all"
    panels += [
        ("logloss", "Log loss", "how well the probabilities fit; lower is better", None),
        ("dp_gap", "Difference between groups", share, None),
        ("eo_gap", "Difference in mistakes", "largest gap of true or false positive rates; 0 is best", None),
    ]
    return [panel for args in panels if (panel := _panel(report, *args))]


def _panel(report: Report, metric: str, title: str, hint: str, cf_model: str | None) -> dict[str, str]:
    """One chart; empty if no model has this figure."""
    dots = []
    for model, figures in _sources(report).items():
        if metric in figures:
            low, high = interval(report, metric, figures[metric], model) or (None, None)
            control = figures.get(f"fr_null_{cf_model}") if cf_model else None
            name = MODELS.get(model, model) + (f" (permuted {percent(control)})" if control is not None else "")
            dots.append(Dot(name, figures[metric], low, high, model == SECURE, control))
    if not dots:
        return {}
    start = 0.5 if metric == "acc" and min(dot.low or 0.0 for dot in dots) > 0.5 else 0.0
    svg = forest(title, dots, share=not metric.startswith(("rmse", "logloss", "scg")), start=start)
    return {"title": title, "hint": hint, "svg": svg}


def metric_words(report: Report) -> dict[str, str]:
    """What each figure of a run is called; shares are of decisions for the label's last class."""
    return {metric: words.replace("{positive}", report.data.positive) for metric, words in METRIC_WORDS.items()}


def metric_table(report: Report) -> Table:
    """All figures of all models."""
    sources = _sources(report)

    def cell(model: str, metric: str) -> str:
        value = sources[model].get(metric)
        if value is None:
            return ""
        ends = interval(report, metric, value, model)
        return number(value) + (f" ({number(ends[0])} to {number(ends[1])})" if ends is not None else "")

    notes = {f"{metric}_{model}": failure_note(report, model) for model in CF_MODELS for metric in CF_METRICS}
    rows = [
        (words + notes.get(metric, ""), *(cell(name, metric) for name in sources))
        for metric, words in metric_words(report).items()
        if any(metric in figures for figures in sources.values())
    ]
    return Table(("", *(MODELS.get(name, name) for name in sources)), rows)


def _rate_titles(report: Report) -> list[str]:
    return [words.format(positive=report.data.positive) for words in RATE_WORDS.values()]


def group_table(report: Report) -> Table | None:
    """Released rates of each group with their intervals; a note where a rate rests on too few records."""
    if not any(group.too_few or group.rates for group in report.groups):
        return None

    def cell(rate: Rate | None, too_few: bool) -> str:
        if too_few or rate is None:
            return "too few" if too_few else "not released"
        if rate.low is None or rate.high is None:  # of an earlier version
            return f"{percent(rate.value)} (noise ± {percent(rate.noise or 0.0)})"
        low = percent(rate.low).removesuffix(" %")
        return f"{percent(rate.value)} ({low} to {percent(rate.high)}; about {rate.rows} records)"

    labels, names, titles = report.data.protected[0].labels, [*RATE_WORDS], _rate_titles(report)
    if CERTIFIED in report.metrics:
        names, titles = [*names, CERTIFIED], [*titles, METRIC_WORDS[CERTIFIED]]
    rows = [
        (label, *(cell(group.rates.get(name), name in group.too_few) for name in names))
        for label, group in zip(labels, report.groups, strict=True)
    ]
    return Table(("group", *titles), rows)


def certificate_words(report: Report) -> str:
    """Which decisions cannot change through the mediators, with an interval and by group; empty without a figure."""
    if CERTIFIED not in report.metrics:
        return ""
    names = Roles(report.roles, report.proxies).edited
    if not names:
        return "Every decision is certified: no column is a mediator."
    groups = [
        f"“{label}” {percent(group.rates[CERTIFIED].value)}"
        for label, group in zip(report.data.protected[0].labels, report.groups, strict=False)
        if CERTIFIED in group.rates
    ]
    by_group = f" By group: {listed(groups)}." if groups else ""
    share, ends = percent(report.metrics[CERTIFIED]), interval_words(report, CERTIFIED)
    return f"{share} of decisions are certified ({ends}): they {certified_words(names)}.{by_group}"


def slice_table(report: Report) -> tuple[Table | None, list[str]]:
    """Rates of intersections of groups, in brackets those of plain training; and slices with too few records."""
    if report.slices is None:
        return None, []
    words, slices = report.data.groups, report.slices.slices
    plain = report.slice_baselines["erm"].slices if "erm" in report.slice_baselines else [None] * len(slices)
    rows, few = [], []
    for part, other in zip(slices, plain, strict=True):
        name = f"{words.get(part.of[0], part.of[0])}, {part.of[1]}"
        if not part.rates:
            few.append(name)
            continue
        others = {} if other is None else other.rates
        rows.append((name, *(_slice_cell(part.rates.get(rate), others.get(rate)) for rate in RATE_WORDS)))
    return (Table(("slice", *_rate_titles(report)), rows) if rows else None), few


def _slice_cell(rate: Rate | None, plain: Rate | None) -> str:
    if rate is None:
        return "too few"
    text = f"{percent(rate.value)} ({percent(rate.low or 0.0)} to {percent(rate.high or 1.0)}; {rate.rows})"
    return text if plain is None else f"{text} [{percent(plain.value)}]"


def noise_words(report: Report) -> str:
    """How the figures of the test part were released, and what the noise in them means."""
    how = report.evaluation
    if how is None or how.kind != "noisy":
        return "These figures are exact sums over the test records: they are not private."
    widest = [
        f"{METRIC_WORDS[name].partition(' of “')[0]} ± {percent(report.noise[name])}"
        for name in ("acc", *(f"fr_{model}" for model in ALL_CF_MODELS))
        if name in report.noise
    ]
    if not widest:
        return "These figures carry noise that was added under MPC."
    return (
        "These figures carry noise that was added under MPC, so that they reveal little about any one test "
        f"record: epsilon {how.epsilon_rdp:.2f} of at most {how.cap:g} was spent on these records, at delta "
        f"{how.delta:g}. The noise alone (95 % of the time) is within {listed(widest)}; intervals allow for it."
    )


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
    "certified": "certified",
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
    available = [model for model in RUN_MODELS if any(f"fr_{model}" in p.figures for p in tree.points)]
    return next((model for model in available if not failed_checks(report, model)), (available or RUN_MODELS)[0])


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
    flip_rate = _ends(point.figures[metric]) if metric in point.figures else None
    flips = _flips(report, model, flip_rate, plain, tree.nulls.get(model))
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

    flip_rate = seen(metric) if metric in report.metrics else None
    permuted = (plain or report.metrics).get(f"fr_null_{model}")
    flips = _flips(report, model, flip_rate, plain.get(metric), permuted)
    return f"{_words(seen('acc'))} right{': ' + listed(apart) if apart else ''}. {flips} One run."


def _flips(
    report: Report, model: str, flip_rate: Interval | None, plain: float | None, permuted: float | None
) -> str:
    if flip_rate is None:
        return "The flip rate was not measured."
    if failed_checks(report, model):
        return "No counterfactual model passes its validity checks on these data: no flip rate is claimed."
    text = f"{_words(flip_rate)} of decisions flip"
    if plain:
        fewer = 100 * (1 - flip_rate[0] / plain)
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
