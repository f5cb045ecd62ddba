"""Figures of the model of a run beside the baselines: intervals, charts, and the table of all numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, OWN
from secure_sccvfl.metrics.rates import wilson
from secure_sccvfl.reports.charts import Dot, forest, number, percent
from secure_sccvfl.reports.judged import ALL_JUDGES, COMMON, Report, asked, listed, mark, null_of

SECURE = "secure"
MODELS = {
    SECURE: "this model",
    "plaintext_scc": "same method, not in secret",
    "drop_m": "without the mediators",
    "erm": "plain training, no protection",
    "logistic": "logistic regression",
    "majority": "always the most frequent",
}


def interval(report: Report, metric: str, value: float, model: str = SECURE) -> tuple[float, float] | None:
    """95 % interval of a figure: the uncertainty from the number of records (rates), and what noise adds to it."""
    noise = (report["noise"] if model == SECURE else report.get("baseline_noise", {}).get(model, {})).get(metric, 0.0)
    if metric.startswith(("acc", "fr_")):
        low, high = wilson(value, report["rows"]["test"])
        return max(0.0, value - math.hypot(value - low, noise)), min(1.0, value + math.hypot(high - value, noise))
    return (max(0.0, value - noise), value + noise) if noise else None


def between(report: Report, metric: str) -> str:
    """The interval of a rate of this model, in words."""
    low, high = interval(report, metric, report["metrics"][metric]) or (0.0, 1.0)
    return f"95 % interval {percent(low).removesuffix(' %')} to {percent(high)}"


def dot(report: Report, model: str, metric: str, value: float, control: float | None = None) -> Dot:
    """A figure of a model, with its 95 % interval where there is one; `control`: of the null control."""
    low, high = interval(report, metric, value, model) or (None, None)
    name = MODELS.get(model, model)
    if control is not None:
        name += f" (null {percent(control)})"
    return Dot(name, value, low, high, model == "secure", control)


def metric_panels(report: Report) -> list[dict[str, str]]:
    """Charts of this model beside the baselines."""
    sources = {"secure": report["metrics"], **report["baselines"]}
    panels = []
    share = report["data"]["label"]["labels"][-1:] or ["positive"]
    wanted: list[tuple[str, str, str, str | None]] = [("acc", "Right decisions", "further right is better", None)]
    hint = "0 is best; short bar and “null”: the same where groups were shuffled, so what is the judge's own noise"
    wanted += [(f"fr_{j}", f"Decisions that flip, {COMMON[j]}{mark(report, j)}", hint, j) for j in asked(report)]
    if not asked(report):
        known = null_of(report["metrics"], OWN) is not None
        told = hint if known else "0 is best; no null control"
        wanted.append((f"fr_{OWN}", f"Decisions that flip, {ALL_JUDGES[OWN]}", told, OWN if known else None))
    wanted += [
        ("rmse", "Typical error", "root mean square, of the label's range; lower is better", None),
        *(
            (f"scg_{j}", f"Shift of the answer, {words}{mark(report, j)}", "0 is best", None)
            for j, words in ALL_JUDGES.items()
            if "rmse" in report["metrics"]
        ),
        ("logloss", "Log loss", "how well the probabilities fit; lower is better", None),
        ("dp_gap", "Difference between groups", f"in the share of “{share[0]}” decisions; 0: the same for all", None),
        (
            "eo_gap",
            "Difference in mistakes",
            "largest gap between groups in hits or in false alarms; 0 is best",
            None,
        ),
    ]
    for metric, title, told, judge in wanted:
        dots = [
            dot(report, name, metric, sources[name][metric], null_of(sources[name], judge) if judge else None)
            for name in (*MODELS, *sorted(set(sources) - set(MODELS)))
            if metric in sources.get(name, {})
        ]
        if dots:
            start = 0.5 if metric == "acc" and min(d.low or 0.0 for d in dots) > 0.5 else 0.0
            svg = forest(title, dots, share=not metric.startswith(("rmse", "logloss", "scg")), start=start)
            panels.append({"title": title, "hint": told, "svg": svg})
    return panels


FIGURES_OF_JUDGES = {
    "fr": "flips",
    "fr_null": "flips, groups shuffled",
    "net": "net flips",
    "scg": "shift of the score",
    "scg_null": "shift, groups shuffled",
}
METRIC_WORDS = {
    "acc": "right decisions",
    "rmse": "root mean squared error",
    "logloss": "log loss",
    "positive_rate": "share of “{positive}” decisions",
    "dp_gap": "gap of “{positive}” decisions between groups",
    "eo_gap": "gap of hits or false alarms between groups",
    **{
        f"{metric}_{judge}": f"{words} ({place})"
        for judge, place in {**COMMON, OWN: "own generator"}.items()
        for metric, words in FIGURES_OF_JUDGES.items()
    },
}


def metric_words(report: Report) -> dict[str, str]:
    """What each figure of a run is called; shares are of decisions for the label's last class."""
    positive = (report["data"]["label"]["labels"] or ["positive"])[-1]
    return {metric: words.replace("{positive}", positive) for metric, words in METRIC_WORDS.items()}


def metric_table(report: Report) -> dict[str, Any]:
    """All numbers of all models."""
    sources = {"secure": report["metrics"], **report["baselines"]}
    names = [n for n in (*MODELS, *sorted(set(sources) - set(MODELS))) if n in sources]

    def cell(model: str, metric: str, value: float | None) -> str:
        if value is None:
            return ""
        seen = dot(report, model, metric, value)
        if seen.low is None or seen.high is None:
            return number(value)
        return f"{number(value)} ({number(seen.low)} to {number(seen.high)})"

    marks = {f"{of}_{judge}": mark(report, judge) for judge in COUNTERFACTUAL_MODELS for of in FIGURES_OF_JUDGES}
    rows = [
        (words + marks.get(metric, ""), [cell(n, metric, sources[n].get(metric)) for n in names])
        for metric, words in metric_words(report).items()
        if any(metric in sources[n] for n in names)
    ]
    return {"models": [MODELS.get(n, n) for n in names], "rows": rows}


RATE_WORDS = {"positive_rate": "“{positive}” decisions", "tpr": "hits", "fpr": "false alarms"}


def told_of_groups(report: Report) -> dict[str, Any] | None:
    """Opened rates of each group with the noise in them; a note where a rate rests on too few records."""
    groups = report["groups"]
    if not groups or not any(g["too_few"] or "rates" in g for g in groups):
        return None
    positive = (report["data"]["label"]["labels"] or ["positive"])[-1]

    def cell(group: Mapping[str, Any], rate: str) -> str:
        if rate in group["too_few"]:
            return "too few"
        told = group.get("rates", {}).get(rate)
        if told is None:
            return "not opened"
        if "low" not in told:  # of an earlier version
            return f"{percent(told['value'])} (noise ± {percent(told['noise'])})"
        between = f"{percent(told['low']).removesuffix(' %')} to {percent(told['high'])}"
        return f"{percent(told['value'])} ({between}; about {told['rows']} records)"

    labels = report["data"]["protected"][0]["labels"]
    return {
        "rates": [words.format(positive=positive) for words in RATE_WORDS.values()],
        "rows": [(label, [cell(g, rate) for rate in RATE_WORDS]) for label, g in zip(labels, groups, strict=True)],
    }


def told_with_noise(report: Report) -> str:
    """How the figures of the test part were opened, and what the noise in them means."""
    how = report["evaluation"]
    if how.get("kind") != "noisy":
        return "These figures are exact sums over the test records: they are not private."
    widest = [
        f"{METRIC_WORDS[name].partition(' of “')[0]} ± {percent(report['noise'][name])}"
        for name in ("acc", *(f"fr_{j}" for j in ALL_JUDGES))
        if name in report["noise"]
    ]
    return (
        "These figures carry noise that was added in secret, so that they tell little about any one test "
        f"record: epsilon {how['epsilon_rdp']:.2f} of at most {how['cap']:g} was spent on these records, at delta "
        f"{how['delta']:g}. The noise alone (95 % of the time) is within {listed(widest)}; intervals allow for it."
        if widest
        else "These figures carry noise that was added in secret."
    )
