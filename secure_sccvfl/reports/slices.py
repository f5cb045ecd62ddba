"""Rates of intersections of groups, beside the same rates of plain training."""

from __future__ import annotations

from typing import Any

from secure_sccvfl.reports.charts import percent
from secure_sccvfl.reports.figures import RATE_WORDS
from secure_sccvfl.reports.judged import Report


def slices(report: Report) -> dict[str, Any]:
    """A line for each slice that has records enough; else why there is none."""
    told = report.get("slices")
    if told is None:
        noisy = report["evaluation"].get("kind") == "noisy"
        why = "figures carry noise here, and only sums that are charged may be opened" if noisy else ""
        return {"why": why, "rows": []}
    positive = (report["data"]["label"]["labels"] or ["positive"])[-1]
    first = report["data"]["protected"][0]
    words = dict(zip(first["groups"], first["labels"], strict=True))
    plain = report.get("slice_baselines", {}).get("erm", {}).get("slices", [{}] * len(told["slices"]))
    rows, few = [], []
    for own, other in zip(told["slices"], plain, strict=True):
        name = f"{words.get(own['of'][0], own['of'][0])}, {own['of'][1]}"
        if not own["rates"]:
            few.append(name)
            continue
        rows.append((name, [_cell(own, other, rate) for rate in RATE_WORDS]))
    heads = [text.format(positive=positive) for text in RATE_WORDS.values()]
    return {"why": "", "column": told["column"].replace("_", " "), "heads": heads, "rows": rows, "few": few}


def _cell(own: dict[str, Any], other: dict[str, Any], rate: str) -> str:
    """A rate with its interval and its records; in brackets that of plain training."""
    seen = own["rates"].get(rate)
    if seen is None:
        return "too few"
    told = f"{percent(seen['value'])} ({percent(seen['low'])} to {percent(seen['high'])}; {seen['rows']})"
    before = other.get("rates", {}).get(rate)
    return told if before is None else f"{told} [{percent(before['value'])}]"
