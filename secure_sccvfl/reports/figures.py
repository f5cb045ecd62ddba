"""Figures of a run next to those of the baselines: validity checks, intervals, charts and tables.

Flip rates come from counterfactual models (`evaluation.counterfactual_models`), which training never saw. Each has a
permutation baseline, the flip rate after s was permuted over the records, and validity checks on these data. No claim
rests on a model that fails a check. Without such models, flips are counted with the run's own generator.

Accuracy against flip rate over the weight of consistency, next to other methods; and `tiles`, the main figures.

`report.frontier` comes from `evaluation.frontier`: means and intervals over seeds of the plaintext engine. Its points
are our method at each lambda (`chosen`: that of the run), our method at the lambda that the rule takes in each seed
(lambda None), and other methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secure_sccvfl.accounting.charts import Dot, Interval, Mark, forest, frontier_chart, number, percent, tidy
from secure_sccvfl.accounting.tables import Table
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, LEAST_AUC, MOST_MMD, MOST_NULL, OWN
from secure_sccvfl.metrics.rates import CERTIFIED, wilson
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.default_budget import BASELINE_NOISE, default_words
from secure_sccvfl.reports.results import Group, Point, Rate, Report, Span

SECURE = "secure"
MODELS = {
    SECURE: "this model",
    "plaintext_scc": "same method, not under MPC",
    "drop_m": "without the mediators",
    "erm": "plain training",
    "logistic": "logistic regression",
    "majority": "the most frequent answer",
}
LEFT_OUT = ("plaintext_scc", "logistic", "drop_m_guard", "epsilon")
"""Baselines and series of points of report.json that the page leaves out."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
CF_MODELS = {
    name: f"{ordinal} counterfactual model" for name, ordinal in zip(COUNTERFACTUAL_MODELS, ORDINALS, strict=False)
}
ALL_CF_MODELS = {**CF_MODELS, OWN: "the run's own generator"}
RATE_WORDS = {"positive_rate": "“{positive}” decisions", "tpr": "true positive rate", "fpr": "false positive rate"}
METRIC_WORDS = {
    "acc": "correct decisions",
    CERTIFIED: "certified decisions",
    **{f"fr_{model}": f"flip rate ({name})" for model, name in ALL_CF_MODELS.items()},
}


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def size(count: float) -> str:
    """Bytes as people write them."""
    unit, name = next(u for u in ((1e6, "MB"), (1e3, "kB"), (1, "B")) if count >= u[0] or u[0] == 1)
    return f"{count / unit:.{0 if unit == 1 else 1}f} {name}"


def brief(value: str, low: str | None = None, high: str | None = None) -> str:
    """A figure with its interval as wide tables have it."""
    return value if low is None else f"{value} ({low}–{high})"


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


def trusted(report: Report) -> str | None:
    """The counterfactual model that claims rest on: the strictest that passes; the own generator if there is none."""
    rates, models = report.metrics, cf_models(report)
    if not models:
        return OWN if f"fr_{OWN}" in rates else None
    sound = [model for model in models if f"fr_{model}" in rates and not failed_checks(report, model)]
    return max(sound, key=lambda model: rates[f"fr_{model}"]) if sound else None


def check_table(report: Report) -> Table | None:
    """The validity checks of each counterfactual model: means over the frontier's seeds, else of this run.

    Reports of versions that kept no means have this run's figures next to the verdict over the seeds.
    """
    found = report.frontier.checks if report.frontier is not None and report.frontier.checks else report.judges
    names = [name for name in cf_models(report) if name in found]
    if not names:
        return None
    regression = report.data.task == "regression"

    def rate(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}" if regression else percent(value)

    def cells(model: str) -> list[str]:
        checks, failed = found[model], failed_checks(report, model)
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
    shown = CF_MODELS[next(name for name in models if name not in failing)]
    return [f"Flip rates are by the {shown}. No claim rests on another that fails a validity check: {text}."]


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


def baseline_warning(report: Report) -> str:
    """Why baselines that were trained under MPC look worse than they are; "" without any."""
    if "erm" not in report.baseline_noise:
        return ""
    return (
        "For privacy, plain training and the model without the mediators were trained with "
        f"{BASELINE_NOISE:.1f} times the noise of this model. Without noise both would be right more often, and "
        "plain training would flip more. They cost this model .1 to .7 points of correct decisions on benchmarks."
    )


def _sources(report: Report) -> dict[str, Mapping[str, float]]:
    """The figures of this model and of the baselines that the page shows, in the order of `MODELS`."""
    sources = {SECURE: report.metrics, **report.baselines}
    return {name: sources[name] for name in MODELS if name in sources and name not in LEFT_OUT}


def metric_panels(report: Report) -> list[dict[str, str]]:
    """Charts of this model next to the baselines. Flips by the counterfactual model that claims rest on."""
    model, generator = trusted(report), [OWN] if not cf_models(report) else []
    sound = [model for model in cf_models(report) if not failed_checks(report, model)] or generator
    controlled = f"fr_null_{model}" in report.metrics
    hint = "short bar, “permuted”: with groups permuted, which is chance" if controlled else "no permutation baseline"
    panels: list[tuple[str, str, str, str | None]] = [
        ("acc", "Correct decisions", "further right is better", None),
        (f"fr_{model}", "Flip rate", f"0 is best; {hint}", model if controlled else None),
        ("rmse", "Typical error", "root mean square, of the label's range; lower is better", None),
    ]
    if "rmse" in report.metrics:
        panels += [(f"scg_{one}", f"Shift of the answer, {ALL_CF_MODELS[one]}", "0 is best", None) for one in sound]
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


def group_table(report: Report) -> Table | None:
    """Rates of each group in percent, with intervals and records; None without any."""
    titles = {name: words.format(positive=report.data.positive) for name, words in RATE_WORDS.items()}
    titles[CERTIFIED] = METRIC_WORDS[CERTIFIED]
    names = [name for name in titles if any(name in group.rates for group in report.groups)]
    if not names:
        return None
    rows = [
        (label + suffix, *(_rate_cell(group, name) for name in names if name != CERTIFIED or not suffix))
        for suffix, groups in [("", report.groups)]
        + [(f", {MODELS[model]}", of_model) for model, of_model in report.baseline_groups.items()]
        for label, group in zip(report.data.protected[0].labels, groups, strict=True)
    ]
    return Table(("group", *(titles[name] for name in names)), rows)


def gap_words(report: Report) -> str:
    """The largest differences between groups."""
    words = {"dp_gap": "these decisions", "eo_gap": "true or false positive rates"}
    gaps = [
        f"{tidy(100 * report.metrics[name], 1)} points of {what}"
        for name, what in words.items()
        if name in report.metrics
    ]
    return f"Largest differences: {listed(gaps)}." if gaps else ""


def _rate_cell(group: Group, name: str) -> str:
    rate = group.rates.get(name)
    if rate is None:
        return "too few" if name in group.too_few else "not released"
    text = brief(*(tidy(100 * value, 1) for value in _of_rate(rate)))
    return text if rate.rows is None else f"{text} of {rate.rows}"


def noise_words(report: Report) -> str:
    """How the figures of the test part were released, and what the noise in them means."""
    how = report.evaluation
    if how is None or how.kind != "noisy":
        return "These figures are exact sums over the test records: they are not private."
    widest = [
        f"{METRIC_WORDS[name]} ± {percent(report.noise[name])}"
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
    "majority": MODELS["majority"],
    "paper": "the paper's method",
}
SERIES = {"kappa": ("this method, range penalty", "range penalty κ")}
"""Of points that differ in one setting: what the chart and the table call them."""
COLUMNS = {"acc": "correct, %", "fr": "flips, %", CERTIFIED: "certified, %"}
"""Columns of the table, by the name of the figure; flips are of the counterfactual model that claims rest on."""


def frontier(report: Report) -> dict[str, Any] | None:
    """The chart and the table; None if the run has no frontier, or no counterfactual model passes its checks."""
    tree, model = report.frontier, trusted(report) or ""
    metric = f"fr_{model}"
    points = [] if tree is None else [p for p in tree.points if p.method.partition("=")[0] not in LEFT_OUT]
    if tree is None or not any({metric, "acc"} <= p.figures.keys() for p in points):
        return None
    marks = [_mark(p, metric) for p in points if p.method != "majority" and {metric, "acc"} <= p.figures.keys()]
    here = report.metrics
    if metric in here and "acc" in here:
        # Its interval is over records, not over seeds: it is shown with the other figures of the run.
        marks.append(Mark("this run, under MPC (one seed)", (here[metric],) * 3, (here["acc"],) * 3))
    means = [p.figures["acc"].mean for p in tree.points if p.method == "majority" and "acc" in p.figures]
    majority = (*means, report.baselines.get("majority", {}).get("acc"))[0]
    names = {name: f"{name}_{model}" if name.startswith("fr") else name for name in COLUMNS}
    used = [name for name, full in names.items() if any(full in p.figures for p in tree.points)]
    chosen = [p.figures for p in points if p.chosen]
    rows = [
        (_name(p), *(_cell(p.figures.get(names[name])) for name in used))
        for p in points
        if p.chosen or p.figures not in chosen
    ]
    budgets = [p for p in tree.points if p.method.startswith("epsilon=")]
    gains = [
        f"{METHODS[name]} {_signed(span.mean)} points ({_signed(span.low)} to {_signed(span.high)})"
        for name in ("drop_m", "erm")
        if (span := tree.gain.get(name)) is not None
    ]
    return {
        "svg": frontier_chart("Accuracy against flip rate", marks, METHODS[OURS], majority),
        "rule": tree.rule.removesuffix("."),
        "seeds": len(tree.seeds),
        "permuted": percent(tree.nulls[model]) if model in tree.nulls else "",
        "gains": listed(gains) if gains else "",
        "table": Table(("", *(COLUMNS[name] for name in used)), rows),
        "budgets": Table(
            ("ε", *(COLUMNS[name] for name in used)),
            [(p.method.partition("=")[2], *(_mean(p.figures.get(names[name])) for name in used)) for p in budgets],
        ),
    }


def _ends(span: Span) -> Interval:
    return span.mean, span.low, span.high


def _mark(point: Point, metric: str) -> Mark:
    label = "" if point.lam is None else f"{point.lam:g}"
    flips, right = _ends(point.figures[metric]), _ends(point.figures["acc"])
    return Mark(_method(point), flips, right, label, _by_rule(point), point.chosen)


def _method(point: Point) -> str:
    setting = point.method.partition("=")[0]
    return SERIES[setting][0] if setting in SERIES else METHODS.get(point.method, point.method)


def _by_rule(point: Point) -> bool:
    """Our method at the lambda that the rule takes in each seed."""
    return point.method == OURS and point.lam is None


def _name(point: Point) -> str:
    name, (setting, _, value) = _method(point), point.method.partition("=")
    if setting in SERIES:
        return f"{SERIES[setting][1]} {value}"
    if _by_rule(point):
        return f"{name}, λ by the rule"
    return name if point.lam is None else f"λ {point.lam:g}{' (this run)' if point.chosen else ''}"


def _cell(span: Span | None) -> str:
    """A mean with its interval, in percent."""
    return "" if span is None else brief(*(tidy(100 * value, 1) for value in _ends(span)))


def _mean(span: Span | None) -> str:
    """The mean alone, in percent."""
    return "" if span is None else tidy(100 * span.mean, 1)


def _signed(share: float) -> str:
    """A difference of shares in points."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # never -0.0


def _over_seeds(report: Report, metric: str) -> list[str]:
    """A share over the seeds of the frontier, at the lambda that the rule takes; empty without one."""
    tree = report.frontier
    point = next((p for p in tree.points if _by_rule(p)), None) if tree is not None else None
    if tree is None or point is None or metric not in point.figures:
        return []
    mean, low, high = _ends(point.figures[metric])
    return [f"over {len(tree.seeds)} seeds {percent(mean)} ({percent(low).removesuffix(' %')} to {percent(high)})"]


def plain_words(report: Report) -> dict[str, str]:
    """What models are called where mediators are not introduced yet."""
    words = {**MODELS, SECURE: "this run", "drop_m": f"without the columns that follow from {report.data.attribute}"}
    return words if report.data.task != "regression" else {**words, "majority": "always the mean"}


def _against(report: Report, metric: str, show: Callable[[float], str], names: Sequence[str]) -> list[str]:
    """The figure of simple models; one that was computed under MPC with its noise."""
    words = plain_words(report)

    def other(name: str) -> str:
        noise = report.baseline_noise.get(name, {}).get(metric)
        value = show(report.baselines[name][metric])
        return f"{words[name]} {value}{'' if noise is None else f' (noise ± {show(noise)})'}"

    return [other(name) for name in names if metric in report.baselines.get(name, {})]


@dataclass(frozen=True)
class Tile:
    """A main figure: its name, value and what to compare it with. target: the section that says more."""

    name: str
    value: str
    below: tuple[str, ...]
    target: str = "metrics"
    wide: bool = False


def tiles(report: Report) -> list[Tile]:
    """The headline, the same on the page and on the terminal: this run, and next to it the result over seeds."""
    metrics, shown = report.metrics, []
    if "acc" in metrics:
        below = (interval_words(report, "acc"), *_over_seeds(report, "acc"))
        against = _against(report, "acc", percent, ("majority", "drop_m", "erm"))
        shown.append(Tile("correct decisions", percent(metrics["acc"]), (*below, *against)))
    elif "rmse" in metrics:
        against = _against(report, "rmse", number, ("majority", "drop_m", "erm"))
        ends = interval(report, "rmse", metrics["rmse"])
        below = ("of the label's range", *([f"95 % interval {number(ends[0])} to {number(ends[1])}"] if ends else []))
        shown.append(Tile("typical error", number(metrics["rmse"]), (*below, *against)))
    if report.data.task != "regression":
        shown += [*_flip_tile(report), *_rate_tiles(report), *_certified_tile(report)]
    privacy, total = report.privacy, report.cost["total"]
    rows = report.rows["train"] + report.rows["validation"]
    why = default_words(privacy.cap, rows if report.pooled else None)
    below = (f"of at most {privacy.cap:g} for a training record; smaller is more private", *([why] if why else []))
    shown.append(Tile("privacy cost", f"ε {privacy.epsilon_rdp:.2f}", below, "privacy"))
    traffic = (f"{size(total.bytes)} sent by {report.party_names[0]}", f"{total.rounds} rounds")
    return [*shown, Tile("time under MPC", f"{total.seconds:.1f} s", traffic, "cost")]


def _flip_tile(report: Report) -> list[Tile]:
    model = trusted(report)
    if model is None:
        why = "no counterfactual model passed its validity checks"
        return [Tile("decisions that flip", "not claimed", (why,))] if cf_models(report) else []
    metric, permuted = f"fr_{model}", report.metrics.get(f"fr_null_{model}")
    chance = "no permutation baseline" if permuted is None else f"groups permuted (chance) {percent(permuted)}"
    below = ("if s were different", interval_words(report, metric), chance)
    against = _against(report, metric, percent, ("erm",))
    return [
        Tile("decisions that flip", percent(report.metrics[metric]), (*below, *_over_seeds(report, metric), *against))
    ]


def _certified_tile(report: Report) -> list[Tile]:
    if CERTIFIED not in report.metrics:
        return []
    count, groups = len(Roles(report.roles, report.proxies).edited), group_rates(report, CERTIFIED)
    why = f"no values of the {count} column{'s' * (count != 1)} that follow from s change them"
    by_group = ", ".join(f"“{label}” {percent(rate.value)}" for label, rate in groups.items())
    below = [why if count else "no column is a mediator", interval_words(report, CERTIFIED)]
    below += [by_group] * (1 < len(groups) <= MOST_GROUPS)
    below += _against(report, CERTIFIED, percent, ("erm",))
    return [Tile("certified decisions", percent(report.metrics[CERTIFIED]), tuple(below))]


FOUR_FIFTHS, SMALL_FLIPS = 0.8, 0.05
"""A ratio of group rates below the first is far apart (four-fifths rule); a flip rate below the second is small."""
MOST_GROUPS = 4
"""How many groups a tile names."""


def group_rates(report: Report, name: str = "positive_rate", model: str = SECURE) -> dict[str, Rate]:
    """A rate of each group that has it, by the group's words, the lowest first."""
    labels, groups = report.data.protected[0].labels, report.baseline_groups.get(model, report.groups)
    rates = {label: g.rates[name] for label, g in zip(labels, groups, strict=False) if name in g.rates}
    return dict(sorted(rates.items(), key=lambda item: item[1].value))


def rate_ratio(report: Report) -> Interval | None:
    """The lowest rate of a group over the highest, with what their intervals leave open; None without two groups."""
    rates = list(group_rates(report).values())
    if len(rates) < 2 or rates[-1].value <= 0:
        return None
    (least, low, high), (most, lowest, highest) = (_of_rate(rate) for rate in (rates[0], rates[-1]))
    return least / most, low / highest, high / lowest if lowest > 0 else math.inf


def _of_rate(rate: Rate) -> Interval:
    """A rate with its interval; of versions without one, what the noise in it leaves open."""
    noise = rate.noise or 0.0
    low, high = rate.value - noise if rate.low is None else rate.low, rate.high or rate.value + noise
    return rate.value, max(low, 0.0), min(high, 1.0)


def ratio_words(ratio: Interval) -> str:
    """A ratio of rates with its interval."""
    value, low, high = ratio
    return f"{value:.2f} ({low:.2f} {'or more' if math.isinf(high) else f'to {high:.2f}'})"


def _rate_tiles(report: Report) -> list[Tile]:
    """How often each group is decided positively, and the ratio of the lowest to the highest; two classes only."""
    if "positive_rate" not in report.metrics:
        return []
    rates, ratio, labels = group_rates(report), rate_ratio(report), report.data.protected[0].labels
    named = [f"“{label}” {percent(rate.value)}" for label, rate in rates.items()]
    few = [label for label in labels if label not in rates]
    ends = {label: map(percent, _of_rate(rate)[1:]) for label, rate in rates.items()}
    below = [f"“{label}” {low.removesuffix(' %')} to {high}" for label, (low, high) in ends.items()]
    if len(named) > MOST_GROUPS:
        named, below = [named[0], named[-1]], [f"the lowest and the highest of {len(rates)} groups"]
    below = [f"95 % intervals: {', '.join(below)}"] if rates else []
    below += [f"too few test records to say: {', '.join(few)}"] if few else []
    for model in report.baseline_groups if len(rates) <= MOST_GROUPS else ():
        others = [f"“{label}” {percent(r.value)}" for label, r in group_rates(report, model=model).items()]
        below += [f"{plain_words(report)[model]}: {', '.join(others)}"] if others else []
    what = f"share of each group decided “{report.data.positive}”"
    shown = [Tile(what, "  ·  ".join(named) or "not known", tuple(below), wide=True)]
    if ratio is not None:
        rule = f"four-fifths rule: at least {FOUR_FIFTHS:.2f}" + ("; below it" if ratio[0] < FOUR_FIFTHS else "")
        words = f"lowest over highest group; interval {ratio_words(ratio).partition(' ')[2].strip('()')}"
        shown.append(Tile("ratio of these rates", f"{ratio[0]:.2f}", (words, rule)))
    return shown


def group_warnings(report: Report) -> Iterator[str]:
    """Groups whose rates differ by the four-fifths rule while few decisions flip; missing values that depend on s."""
    s, ratio, model = report.data.attribute, rate_ratio(report), trusted(report)
    flips, yes = report.metrics.get(f"fr_{model}"), report.data.positive
    if ratio is not None and ratio[0] < FOUR_FIFTHS and flips is not None and flips < SMALL_FLIPS:
        (least, low), *_, (most, high) = group_rates(report).items()
        yield (
            f"Few decisions flip ({percent(flips)}), yet “{yes}” goes to {percent(low.value)} of “{least}” and "
            f"{percent(high.value)} of “{most}”, a ratio of {ratio_words(ratio)}, below four fifths"
            f"{'; on so few records that may be chance' * (ratio[2] >= 1)}. Flips count only "
            f"what {s} does through the mediators, and not what proxies or columns that are held fixed carry."
        )
    if report.missing_depends:
        names = [report.data.name(name) for name in report.missing_depends]
        fixed = [report.data.name(name) for name in report.missing_depends if report.roles.get(name) == "N"]
        held = f" Flips do not count that for {listed(fixed)}, held fixed." if fixed else ""
        yield (
            f"Whether a value is missing depends on {s}: {listed(names)}. A model can tell groups apart by that; "
            f"compare the rates of the groups.{held}"
        )
