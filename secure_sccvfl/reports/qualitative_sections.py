"""What the page of a benchmark run says of columns, representations and single people; from report.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secure_sccvfl.reports.charts import Ranked, percent, ranked_chart, scatter, tidy
from secure_sccvfl.reports.dictionary import Dictionary
from secure_sccvfl.reports.figures import MODELS
from secure_sccvfl.reports.judged import Report

SPACES = {
    "fused": "what encoders give to the head",
    "used": "what decisions take from the columns",
}


def ranked(report: Report) -> dict[str, Any] | None:
    """The columns by mutual information with the group: a chart and a table; None without a harness."""
    found = report.get("qualitative")
    if not found:
        return None
    information = found["information"]
    names = sorted(information, key=lambda name: -information[name]["mi"])
    rows = [
        Ranked(
            name.replace("_", " "),
            report["roles"][name],
            report["scores"].get(name),
            information[name]["mi"],
            information[name]["null_high"],
        )
        for name in names
    ]
    return {
        "svg": ranked_chart("Score, mutual information and role", rows),
        "rows": [
            {
                "name": r.name,
                "role": r.role,
                "cells": [
                    ("score", "no table" if r.score is None else tidy(r.score, 3)),
                    ("mutual information", tidy(r.information, 4)),
                    ("by chance, up to", tidy(r.chance, 4)),
                    ("above chance", "yes" if r.information > r.chance else "no"),
                ],
            }
            for r in rows
        ],
    }


def representations(report: Report) -> dict[str, Any] | None:
    """Two components of each representation, with how well the group can be read from them."""
    found = report.get("qualitative")
    if not found:
        return None
    names = list(report["data"]["protected"][0]["labels"])
    panels = []
    for m in found["mixing"]:
        whose = "with and without consistency" if m["space"] == "fused" else MODELS[m["method"]]
        title = f"{SPACES[m['space']].capitalize()}: {whose}"
        panels.append(
            {
                "title": title,
                "hint": f"{m['width']} columns; two components show {percent(sum(m['shares']))} of their variance",
                "svg": scatter(title, m["points"], m["groups"], names),
                "readings": [
                    (where, _reading(m[key]))
                    for where, key in (
                        ("two components", "two"),
                        ("everything", "whole"),
                        ("logits alone", "logits"),
                    )
                    if key in m
                ],
            }
        )
    return {"panels": panels}


def _reading(read: Mapping[str, float]) -> str:
    interval = f"{tidy(read['low'], 2)} to {tidy(read['high'], 2)}"
    return f"{tidy(read['auc'], 2)} ({interval}; shuffled: up to {tidy(read['null_high'], 2)})"


def people(report: Report) -> dict[str, Any] | None:
    """The same people under every model, and edits by the method's own generator; None if nobody is shown."""
    found = report.get("qualitative")
    if not found or not found["cases"]:
        return None
    words = Dictionary(report["data"])
    secure = {e["id"]: e for e in (report.get("examples") or {}).get("people", ())}
    return {
        "score": words.score,
        "cases": [_case(words, case, secure.get(case["id"])) for case in found["cases"]],
        "recourse": [
            {
                "id": person["id"],
                "groups": [words.groups[g] for g in person["groups"]],
                "before": words.outcome(person["before"]),
                "after": words.outcome(person["after"]),
                "size": tidy(person["size"], 2),
                "moved": [words.move(m) for m in person["moved"]],
                "fixed": [words.name(name) for name in person["fixed"]],
            }
            for person in found["recourse"]
        ],
    }


def _case(words: Dictionary, case: Mapping[str, Any], secure: Mapping[str, Any] | None) -> dict[str, Any]:
    methods = {**({"secure": secure} if secure is not None else {}), **case["methods"]}
    own = case["methods"]["plaintext_scc"]["own"]
    return {
        "case": case["case"],
        "rule": case["rule"],
        "id": case["id"],
        "label": words.classes[case["label"]],
        "groups": [words.groups[g] for g in case["groups"]],
        "size": tidy(case["size"], 2),
        "own_size": tidy(own["size"], 2),
        "moved": [words.move(m) for m in case["moved"]],
        "rows": [
            {
                "name": MODELS.get(name, name),
                "cells": [
                    ("before", _decided(words, seen["before"])),
                    ("after", _decided(words, seen["after"])),
                    ("decision", "stays" if seen["before"]["decision"] == seen["after"]["decision"] else "flips"),
                ],
            }
            for name, seen in methods.items()
        ],
    }


def _decided(words: Dictionary, seen: Mapping[str, Any]) -> str:
    told = words.outcome(seen)
    return f"{told['decision']} ({percent(told['score'])})".replace(" %", "\N{NO-BREAK SPACE}%")
