"""Accuracy against flips over the weight of consistency, beside other methods; and what was gained, in a sentence.

`report["frontier"]` holds means and intervals over seeds of the plaintext engine: `points` (a method each, ours with
its `lambda`, one of them `chosen`), `seeds`, `nulls` (flips of plain training with groups shuffled, by judge) and
`rule`, which says how the chosen point was chosen. It may hold `judges`: the gates of each judge over these seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secure_sccvfl.evaluation.judges import HANDED_OUT, OWN
from secure_sccvfl.report.charts import number, percent
from secure_sccvfl.report.compared.figures import MODELS, interval
from secure_sccvfl.report.compared.frontier_chart import Mark, Span, frontier_chart
from secure_sccvfl.report.compared.judged import COMMON, Report, asked, failed, listed, mark, null_of, trusted

OURS = "scc"
METHODS = {
    OURS: "this method",
    "erm": MODELS["erm"],
    "drop_m": MODELS["drop_m"],
    "drop_m_guard": "without them, proxies guarded",
    "paper": "the paper's method",
}
COLUMNS = {
    "acc": "right",
    "auc": "AUC",
    **{
        f"{metric}_{judge}": f"{words}, {COMMON[judge]}"
        for judge in HANDED_OUT
        for metric, words in (("fr", "flips"), ("fr_null", "null"), ("net", "net flips"))
    },
    "dp_gap": "gap between groups",
    "eo_gap": "gap of mistakes",
    "pgd": "changed by PGD",
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
        "rule": found["rule"],
        "seeds": len(found["seeds"]),
        "nulls": [(COMMON[j], percent(rate)) for j, rate in found.get("nulls", {}).items() if j in COMMON],
        "heads": [COLUMNS[name] for name in used],
        "rows": [(_name(p), [_cell(name, p.get(name)) for name in used]) for p in points],
    }


def judge_of_frontier(report: Report) -> str:
    """The first judge that passes its gates; the first of all if none does."""
    known = [judge for judge in HANDED_OUT if any(f"fr_{judge}" in p for p in report["frontier"]["points"])]
    return next((judge for judge in known if not failed(report, judge)), (known or HANDED_OUT)[0])


def _majority(report: Report) -> float | None:
    """Accuracy of the most frequent answer: over the seeds if it is a point, else in this run."""
    points = [p["acc"]["mean"] for p in report["frontier"]["points"] if p["method"] == "majority" and "acc" in p]
    found: float | None = (*points, report["baselines"].get("majority", {}).get("acc"))[0]
    return found


def _seen(report: Report, metric: str) -> Span:
    """A figure of this run with its interval."""
    value = report["metrics"][metric]
    return (value, *(interval(report, metric, value, True) or (value, value)))


def _span(point: Mapping[str, Any], metric: str) -> Span:
    return point[metric]["mean"], point[metric]["low"], point[metric]["high"]


def _mark(point: Mapping[str, Any], metric: str) -> Mark:
    name, label = METHODS.get(point["method"], point["method"]), ""
    if point["method"] == OURS and "lambda" in point:
        label = f"{point['lambda']:g}"
    return Mark(name, _span(point, metric), _span(point, "acc"), label, bool(point.get("chosen")))


def _name(point: Mapping[str, Any]) -> str:
    made = _mark({"acc": dict.fromkeys(("mean", "low", "high"), 0.0), **point}, "acc")
    return f"{made.name}{f', λ = {made.label}' if made.label else ''}{' (chosen)' if made.chosen else ''}"


def _cell(metric: str, seen: Mapping[str, float] | None) -> str:
    if seen is None:
        return ""
    show = number if metric == "auc" else percent
    return f"{show(seen['mean'])} ({show(seen['low']).removesuffix(' %')} to {show(seen['high'])})"


def gain(report: Report) -> str:
    """What was gained: accuracy against simple models, flips against plain training. Empty for a regression.

    Of the chosen point of the frontier where there is one, else of this one run.
    """
    chosen = next((p for p in report.get("frontier", {}).get("points", ()) if p.get("chosen")), None)
    if chosen is not None:
        found, judge = report["frontier"], judge_of_frontier(report)
        own = {k: _span(chosen, k) for k in ("acc", f"fr_{judge}") if k in chosen}
        others = {
            p["method"]: {k: v["mean"] for k, v in p.items() if isinstance(v, Mapping)}
            for p in found["points"]
            if p["method"] in YARDSTICKS
        }
        others.setdefault("majority", report["baselines"].get("majority", {}))
        null, of = found.get("nulls", {}).get(judge), f"Means over {len(found['seeds'])} seeds, not in secret."
    else:
        judge = trusted(report) or (asked(report) or [OWN])[0]
        own = {k: _seen(report, k) for k in ("acc", f"fr_{judge}") if k in report["metrics"]}
        others, null, of = report["baselines"], null_of(report["baselines"].get("erm", {}), judge), "One run."
    if "acc" not in own:
        return ""
    told = [
        f"{100 * (own['acc'][0] - others[name]['acc']):+.1f} points on {words}"
        for name, words in YARDSTICKS.items()
        if "acc" in others.get(name, {})
    ]
    flips = "Nothing was judged."
    if f"fr_{judge}" in own:
        flips = _flips(own[f"fr_{judge}"], others.get("erm", {}).get(f"fr_{judge}"), judge, null)
        if failed(report, judge):
            flips = "No judge passes its gates on these data: nothing is said of flips."
    return f"{_told(own['acc'])} right{': ' + listed(told) if told else ''}. {flips} {of}"


def _flips(own: Span, plain: float | None, judge: str, null: float | None) -> str:
    text = f"{_told(own)} of decisions flip"
    if plain:
        fewer = 100 * (1 - own[0] / plain)
        words = f"{abs(fewer):.0f} % {'fewer' if fewer >= 0 else 'more'} than"
        text += f", {words} the {percent(plain)} of plain training"
    control = "no null control" if null is None else f"{percent(null)} with groups shuffled"
    return f"{text} (judge {judge}; {control})."


def _told(seen: Span) -> str:
    return f"{percent(seen[0])} ({percent(seen[1]).removesuffix(' %')} to {percent(seen[2])})"
