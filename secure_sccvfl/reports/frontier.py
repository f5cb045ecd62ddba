"""Accuracy against flips over the weight of consistency, beside other methods; and what was gained, in a sentence.

`report["frontier"]` comes from `evaluation.frontier`: means and intervals over seeds of the plaintext engine. Its
points are our method at each lambda (`chosen`: that of the run), our method at the lambda that the rule takes in each
seed (lambda None), and other methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from secure_sccvfl.evaluation.counterfactual_models import OWN, RUN_MODELS
from secure_sccvfl.reports.charts import number, percent
from secure_sccvfl.reports.figures import MODELS, interval
from secure_sccvfl.reports.frontier_chart import Mark, Span, frontier_chart
from secure_sccvfl.reports.judged import COMMON, Report, asked, failed, listed, mark, null_of, trusted

OURS = "scc"
METHODS = {
    OURS: "this method",
    "erm": MODELS["erm"],
    "drop_m": MODELS["drop_m"],
    "drop_m_guard": "without them, proxies guarded",
    "majority": MODELS["majority"],
    "paper": "the paper's method",
}
COLUMNS = {
    "acc": "right",
    "auc": "AUC",
    **{
        f"{metric}_{judge}": f"{words}, {COMMON[judge]}"
        for judge in RUN_MODELS
        for metric, words in (("fr", "flips"), ("fr_null", "null"), ("net", "net flips"))
    },
    "dp_gap": "gap between groups",
    "eo_gap": "gap of mistakes",
    "pgd_sr": "changed by PGD",
}
"""Columns of the table, by the name of the figure."""
YARDSTICKS = {"majority": "the majority", "drop_m": "dropping the mediators", "erm": "plain training"}


def frontier(report: Report) -> dict[str, Any] | None:
    """The picture and the table; None if the run has no frontier."""
    found = report.get("frontier")
    if not found or not found["points"]:
        return None
    judge, points = judge_of_frontier(report), found["points"]
    metric = f"fr_{judge}"
    marks = [_mark(p, metric) for p in points if p["method"] != "majority" and metric in p and "acc" in p]
    here = report["metrics"]
    if metric in here and "acc" in here:
        # Its interval is over records, not over seeds: it is shown with the other figures of the run.
        marks.append(Mark("this run, in secret (one seed)", (here[metric],) * 3, (here["acc"],) * 3))
    used = [name for name in COLUMNS if any(name in p for p in points)]
    return {
        "svg": frontier_chart("Accuracy against flips", marks, METHODS[OURS], _majority(report)) if marks else "",
        "judge": f"{COMMON[judge]}{mark(report, judge)}",
        "rule": found["rule"].removesuffix("."),
        "taken": next((p["lambda"] for p in points if p["chosen"]), None),
        "seeds": len(found["seeds"]),
        "nulls": [(COMMON[j], percent(rate)) for j, rate in found["nulls"].items() if j in COMMON],
        "heads": [COLUMNS[name] for name in used],
        "rows": [(_name(p), [_cell(name, p.get(name)) for name in used]) for p in points],
    }


def judge_of_frontier(report: Report) -> str:
    """The first judge that passes its gates; the first of all if none does."""
    known = [judge for judge in RUN_MODELS if any(f"fr_{judge}" in p for p in report["frontier"]["points"])]
    return next((judge for judge in known if not failed(report, judge)), (known or RUN_MODELS)[0])


def _majority(report: Report) -> float | None:
    """Accuracy of the most frequent answer: over the seeds if it is a point, else in this run."""
    points = [p["acc"]["mean"] for p in report["frontier"]["points"] if p["method"] == "majority" and "acc" in p]
    found: float | None = (*points, report["baselines"].get("majority", {}).get("acc"))[0]
    return found


def _seen(report: Report, metric: str) -> Span:
    """A figure of this run with its interval."""
    value = report["metrics"][metric]
    return (value, *(interval(report, metric, value) or (value, value)))


def _span(point: Mapping[str, Any], metric: str) -> Span:
    return point[metric]["mean"], point[metric]["low"], point[metric]["high"]


def _mark(point: Mapping[str, Any], metric: str) -> Mark:
    label = "" if point["lambda"] is None else f"{point['lambda']:g}"
    name = METHODS.get(point["method"], point["method"])
    return Mark(name, _span(point, metric), _span(point, "acc"), label, _by_rule(point), bool(point["chosen"]))


def _by_rule(point: Mapping[str, Any]) -> bool:
    """Our method at the lambda that the rule takes in each seed."""
    return bool(point["method"] == OURS and point["lambda"] is None)


def _name(point: Mapping[str, Any]) -> str:
    name = str(METHODS.get(point["method"], point["method"]))
    if _by_rule(point):
        return f"{name}, λ by the rule"
    if point["lambda"] is None:
        return name
    return f"{name}, λ = {point['lambda']:g}{' (this run)' if point['chosen'] else ''}"


def _cell(metric: str, seen: Mapping[str, float] | None) -> str:
    if seen is None:
        return ""
    show = number if metric == "auc" else percent
    return f"{show(seen['mean'])} ({show(seen['low']).removesuffix(' %')} to {show(seen['high'])})"


def gain(report: Report) -> str:
    """What was gained: accuracy against simple models, flips against plain training. Empty for a regression.

    It is about the rule's choice over the seeds of the frontier where there is one, else about this one run.
    """
    found = report.get("frontier")
    point = next((p for p in found["points"] if _by_rule(p)), None) if found else None
    return _over_seeds(report, point) if point is not None else _of_this_run(report)


def _over_seeds(report: Report, point: Mapping[str, Any]) -> str:
    found, judge = report["frontier"], judge_of_frontier(report)
    metric = f"fr_{judge}"
    if "acc" not in point:
        return ""
    apart = {
        words: f"{_signed(seen['mean'])} points ({_signed(seen['low'])} to {_signed(seen['high'])}) on {words}"
        for name, words in YARDSTICKS.items()
        if (seen := found["gain"].get(name)) is not None
    }
    plain = next((p[metric]["mean"] for p in found["points"] if p["method"] == "erm" and metric in p), None)
    flips = _flips(report, judge, _span(point, metric) if metric in point else None, plain, found["nulls"].get(judge))
    right = _told(_span(point, "acc"))
    of = f"Means over {len(found['seeds'])} seeds, not in secret."
    return f"{right} right{': ' + listed(list(apart.values())) if apart else ''}. {flips} {of}"


def _of_this_run(report: Report) -> str:
    if "acc" not in report["metrics"]:
        return ""
    judge, others = trusted(report) or (asked(report) or [OWN])[0], report["baselines"]
    metric, plain = f"fr_{judge}", report["baselines"].get("erm", {})
    apart = [
        f"{_signed(report['metrics']['acc'] - others[name]['acc'])} points{_noise(report, name)} on {words}"
        for name, words in YARDSTICKS.items()
        if "acc" in others.get(name, {})
    ]
    own = _seen(report, metric) if metric in report["metrics"] else None
    null = null_of(plain, judge) if plain else null_of(report["metrics"], judge)
    flips = _flips(report, judge, own, plain.get(metric), null)
    return f"{_told(_seen(report, 'acc'))} right{': ' + listed(apart) if apart else ''}. {flips} One run."


def _flips(report: Report, judge: str, own: Span | None, plain: float | None, null: float | None) -> str:
    if own is None:
        return "Nothing was judged."
    if failed(report, judge):
        return "No judge passes its gates on these data: nothing is said of flips."
    text = f"{_told(own)} of decisions flip"
    if plain:
        fewer = 100 * (1 - own[0] / plain)
        words = f"{abs(fewer):.0f} % {'fewer' if fewer >= 0 else 'more'} than"
        text += f", {words} the {percent(plain)} of plain training"
    control = "no null control" if null is None else f"{percent(null)} with groups shuffled"
    return f"{text} (judge {judge}; {control})."


def _noise(report: Report, other: str) -> str:
    """What noise in both figures adds to the difference of accuracy, 95 % of the time."""
    beside = report.get("baseline_noise", {}).get(other, {}).get("acc")
    return "" if beside is None else f" (noise ± {100 * math.hypot(report['noise']['acc'], beside):.1f})"


def _signed(share: float) -> str:
    """A difference of shares in points."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # never -0.0


def _told(seen: Span) -> str:
    return f"{percent(seen[0])} ({percent(seen[1]).removesuffix(' %')} to {percent(seen[2])})"
