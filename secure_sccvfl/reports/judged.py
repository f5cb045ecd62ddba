"""The judges of a run: their words, their gates on these data, and which of them claims may rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, OWN
from secure_sccvfl.evaluation.counterfactual_models.validity import LEAST_AUC, MOST_MMD, MOST_NULL
from secure_sccvfl.reports.charts import percent

Report = Mapping[str, Any]
COUNTED = ("first", "second", "third", "fourth", "fifth", "sixth")
COMMON = {name: f"{place} judge" for name, place in zip(COUNTERFACTUAL_MODELS, COUNTED, strict=False)}
ALL_JUDGES = {**COMMON, OWN: "the run's own generator"}


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def asked(report: Report) -> list[str]:
    """The common judges of a run."""
    shown = report["metrics"]
    return [name for name in COUNTERFACTUAL_MODELS if any(f"{what}_{name}" in shown for what in ("fr", "scg"))]


def failed(report: Report, judge: str) -> list[str]:
    """The gates that a judge fails on these data: on average over the frontier's seeds if there are any, else here.

    None for the run's own generator, which has no gate.
    """
    over_seeds: Mapping[str, Sequence[str]] = report.get("frontier", {}).get("failed", {})
    return list(
        over_seeds[judge] if judge in over_seeds else report.get("judges", {}).get(judge, {}).get("failed", ())
    )


def mark(report: Report, judge: str) -> str:
    """What stands behind the name of a judge that fails a gate."""
    gates = failed(report, judge)
    return f", fails its gate{'s' * (len(gates) > 1)} ({listed(gates)})" if gates else ""


def null_of(figures: Mapping[str, float], judge: str) -> float | None:
    """Flips of a model after the groups were shuffled over the records."""
    return figures.get(f"fr_null_{judge}")


def trusted(report: Report) -> str | None:
    """The judge that claims rest on: the strictest of those that pass; the own generator where none was asked."""
    rates = report["metrics"]
    if not asked(report):
        return OWN if f"fr_{OWN}" in rates else None
    sound = [judge for judge in asked(report) if f"fr_{judge}" in rates and not failed(report, judge)]
    return max(sound, key=lambda judge: float(rates[f"fr_{judge}"])) if sound else None


def judge_words(report: Report) -> str:
    """How many common judges there were, and where each takes edited values from; empty if there was none."""
    names = asked(report)
    about = {name: COUNTERFACTUAL_MODELS.get(name).about for name in names}
    told = ", ".join(f"the {COMMON[name].removesuffix(' judge')} {about[name]}" for name in names)
    count = ("no", "one", "two", "three", "four", "five", "six")[len(names)]
    return f"{count} judge{'s' * (len(names) != 1)} to say, which training never saw: {told}" if names else ""


def gate_table(report: Report) -> dict[str, Any] | None:
    """The gates of each judge on these data."""
    names = [name for name in asked(report) if name in report.get("judges", {})]
    if not names:
        return None

    def cells(judge: str) -> list[str]:
        seen, lost = report["judges"][judge], failed(report, judge)
        shown = [f"{seen[k]:.2f}" if k in seen else "" for k in ("edit_auc", "edit_auc_real", "edit_mmd_ratio")]
        shown += [_rate(seen.get(k), report["data"]["task"]) for k in ("edit_erm", "edit_erm_null")]
        return [*shown, f"fails: {listed(lost)}" if lost else "passes"]

    moved = "shift" if report["data"]["task"] == "regression" else "flips"
    heads = [
        f"AUC (at least {LEAST_AUC:g})",
        "AUC of real records",
        f"MMD ratio (at most {MOST_MMD:g})",
        f"{moved}, plain training",
        f"the same, groups shuffled (at most {MOST_NULL:g} of it)",
        f"gates, over {len(seeds)} seeds" if (seeds := report.get("frontier", {}).get("seeds")) else "gates",
    ]
    return {"heads": heads, "rows": [(COMMON[name], cells(name)) for name in names]}


def _rate(value: float | None, task: str) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if task == "regression" else percent(value)


def judge_warnings(report: Report) -> list[str]:
    """Which judges nothing rests on."""
    lost = [name for name in asked(report) if failed(report, name)]
    if not lost:
        return []
    told = "; ".join(f"the {COMMON[name]} ({name}) fails {listed(failed(report, name))}" for name in lost)
    if len(lost) == len(asked(report)):
        return [f"No judge passes its gates on these data, so flip rates here prove nothing: {told}."]
    return [f"One judge does not pass its gates on these data, and nothing rests on it: {told}."]
