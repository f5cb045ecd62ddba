"""What a run's page says, in plain words and numbers, from report.json and the run's logs alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from secure_sccvfl.intervals import wilson
from secure_sccvfl.report.charts import Dot, Line, curves, forest, percent, sparkline

Report = Mapping[str, Any]
MODELS = {
    "secure": "this model",
    "plaintext_scc": "the same method, not in secret",
    "drop_m": "without the mediators",
    "erm": "plain training, no protection",
    "logistic": "logistic regression, no protection",
    "majority": "always the most frequent answer",
}
JUDGES = {"ot": "judge: optimal transport", "cvae": "judge: autoencoder", "own": "the run's own generator"}
ROLES = {
    "P": ("proxy", "stands for the protected attribute; passed through, and the model is kept from leaning on it"),
    "M": ("mediator", "may follow from the protected attribute; a decision must not change when it does"),
    "N": ("fixed", "hardly follows the protected attribute; never edited"),
}
ATTACKS = {
    "aia": "Guessing the protected attribute",
    "label": "Guessing labels",
    "pgd": "Flipping decisions by small changes of the mediators",
    "shares": "Telling two secrets apart by their shares",
}
RELEASES = {
    "features": "how many columns each party has",
    "columns": "how many encoded columns each party has",
    "sketch": "noisy tables of the own columns by group",
    "scores": "how much each column follows the group",
    "moved-fixed": "check: did an edit touch a fixed column?",
    "moved-edited": "check: did an edit touch each mediator?",
    "validity": "how far edits move columns, on average",
    "guard-length": "strength of the guard on proxies",
    "validation check": "go on training or stop",
    "validation summary": "loss, gap and spread for each weight",
    "temperature choice": "which calibration fits best",
    "evaluation": "test results, this page's figures",
    "noisy gradient": "noisy gradients of the own encoder",
    "gradient": "gradients of the own activations; they tell the labels",
    "editing parties": "who has mediators",
    "predictions": "scores of the example records",
}
PHASES = {
    "alignment": "checking that records match",
    "inputs": "sharing the inputs",
    "discovery and warm-up": "finding roles, first training",
    "counterfactuals": "counterfactual edits",
    "training": "training with consistency",
    "evaluation": "testing",
}


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def rate_of(report: Report, metric: str, source: Mapping[str, float]) -> Dot | None:
    """A rate of the test part with its 95 % interval."""
    if metric not in source:
        return None
    low, high = wilson(source[metric], report["rows"]["test"])
    return Dot("", source[metric], low, high)


def flips(report: Report, source: Mapping[str, float]) -> tuple[str, float] | None:
    """The worst common judge, or the run's own generator where there is none."""
    seen = {j: source[f"fr_{j}"] for j in ("ot", "cvae") if f"fr_{j}" in source}
    if not seen and "fr_own" in source:
        seen = {"own": source["fr_own"]}
    return max(seen.items(), key=lambda item: item[1]) if seen else None


def between(value: float, total: int) -> str:
    low, high = wilson(value, total)
    return f"95 % interval {percent(low).removesuffix(' %')} to {percent(high)}"


def headline(report: Report) -> dict[str, Any]:
    """Title, a short story, and four figures."""
    data, rows, names = report["data"], report["rows"], report["party_names"]
    label, groups = data["label"], data["protected"][0]["labels"]
    metrics, baselines, privacy = report["metrics"], report["baselines"], report["privacy"]
    quoted = [f"“{word}”" for word in label["labels"]]
    title = f"Deciding {' or '.join(quoted)}" if quoted else f"Predicting {label['meaning'] or report['dataset']}"
    secrecy = "and none of them saw another's data: what joins their columns was computed on secret shares"
    if report["mode"] == "split":
        secrecy = "none saw another's columns, but each was sent gradients, which tell the labels"
    story = [
        f"{listed(names).capitalize()} trained one model together on {rows['train']} records, {secrecy}. "
        f"{rows['validation']} more served "
        f"to choose settings; the {rows['test']} test records that this page speaks of were used for nothing else."
    ]
    figures = []
    if "acc" in metrics:
        told = f"It is right for {percent(metrics['acc'])} of them ({between(metrics['acc'], rows['test'])})"
        others = [
            f"{words} for {percent(baselines[key]['acc'])}"
            for key, words in (
                ("erm", "plain training without any protection"),
                ("drop_m", "leaving the mediators out"),
                ("majority", "always giving the most frequent answer"),
            )
            if key in baselines
        ]
        story.append(f"{told}{'; ' + listed(others) if others else ''}.")
        figures.append(("right decisions", percent(metrics["acc"]), between(metrics["acc"], rows["test"]), "metrics"))
    elif "rmse" in metrics:
        story.append(f"Its typical error is {metrics['rmse']:.3f} of the label's public range.")
        figures.append(("typical error", f"{metrics['rmse']:.3f}", "of the label's range", "metrics"))
    worst = flips(report, metrics)
    if worst is not None and data["task"] != "regression":
        others = [
            f"{words} for {percent(rate[1])}"
            for key, words in (("erm", "with plain training"), ("drop_m", "without the mediators"))
            if key in baselines and (rate := flips(report, baselines[key])) is not None
        ]
        contrast = f"; {listed(others)}" if others else ""
        story.append(
            f"Were a person “{groups[1]}” instead of “{groups[0]}” (or the other way round), with all that follows "
            f"from it, the decision would change for {percent(worst[1])} of them "
            f"({between(worst[1], rows['test'])}){contrast}."
        )
        figures.append(("decisions that flip", percent(worst[1]), between(worst[1], rows["test"]), "metrics"))
    figures.append(
        (
            "privacy spent",
            f"ε {privacy['epsilon_rdp']:.2f}",
            f"of {privacy['cap']:g}, δ {privacy['delta']:g}",
            "privacy",
        )
    )
    total = report["cost"]["total"]
    figures.append(
        (
            "in secret",
            f"{total['seconds']:.1f} s",
            f"{total['bytes'] / 1e6:.1f} MB sent by a party, {total['rounds']} rounds",
            "cost",
        )
    )
    return {"title": title, "story": story, "figures": figures}


def metric_panels(report: Report) -> list[dict[str, str]]:
    """Charts of this model beside the baselines."""
    sources = {"secure": report["metrics"], **report["baselines"]}
    panels = []
    wanted = [("acc", "Right decisions", "further right is better")]
    wanted += [(f"fr_{j}", f"Decisions that flip — {JUDGES[j]}", "0 is best") for j in ("ot", "cvae")]
    if "fr_ot" not in report["metrics"]:
        wanted.append(("fr_own", f"Decisions that flip — {JUDGES['own']}", "0 is best"))
    for metric, title, hint in wanted:
        dots = [
            Dot(MODELS.get(name, name), dot.value, dot.low, dot.high, name == "secure")
            for name in (*MODELS, *(set(sources) - set(MODELS)))
            if name in sources and (dot := rate_of(report, metric, sources[name])) is not None
        ]
        if dots:
            start = 0.5 if metric == "acc" and min(d.low or 0.0 for d in dots) > 0.5 else 0.0
            panels.append({"title": title, "hint": hint, "svg": forest(title, dots, start=start)})
    return panels


METRIC_WORDS = {
    "acc": "right decisions",
    "rmse": "root mean squared error",
    "logloss": "log loss",
    "positive_rate": "share of positive decisions",
    "dp_gap": "gap of positive decisions between groups",
    "eo_gap": "gap of hit rates between groups",
    "fr_ot": "flips, optimal transport",
    "fr_cvae": "flips, autoencoder",
    "fr_own": "flips, own generator",
    "scg_ot": "shift of the score, optimal transport",
    "scg_cvae": "shift of the score, autoencoder",
    "scg_own": "shift of the score, own generator",
}


def metric_table(report: Report) -> dict[str, Any]:
    """All numbers of all models."""
    sources = {"secure": report["metrics"], **report["baselines"]}
    names = [n for n in (*MODELS, *(set(sources) - set(MODELS))) if n in sources]
    rows = [
        (words, [f"{sources[n][metric]:.3f}" if metric in sources[n] else "" for n in names])
        for metric, words in METRIC_WORDS.items()
        if any(metric in sources[n] for n in names)
    ]
    return {"models": [MODELS.get(n, n) for n in names], "rows": rows}


def role_chart(
    report: Report, audit: Sequence[Mapping[str, Any]], card: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Features by party: score, role, how the score moved, and the reason."""
    scores, words = report["scores"], report["data"]["features"]
    history = [entry["scores"] for entry in audit if entry["event"] == "roles"]
    top = max([*scores.values(), 1e-9])
    highest = max([top, *(v for old in history for v in old.values())])
    decisions = card["decisions"] if card is not None else {}
    parties = []
    for party in report["party_names"]:
        own = sorted((n for n, owner in report["owners"].items() if owner == party), key=lambda n: -scores[n])
        parties.append(
            {
                "name": party,
                "holds": [
                    *(["the label"] if report["data"]["label"]["holder"] == party else []),
                    *(["the protected attribute" for a in report["data"]["protected"] if a["holder"] == party]),
                ],
                "features": [
                    {
                        "name": name.replace("_", " "),
                        "meaning": words.get(name, {}).get("meaning", ""),
                        "role": report["roles"][name],
                        "word": ROLES[report["roles"][name]][0],
                        "score": scores[name],
                        "width": 100 * max(scores[name], 0.0) / top,
                        "spark": sparkline([old[name] for old in history if name in old], highest),
                        "reason": decisions.get(name, {}).get("reason", ""),
                        "evidence": decisions.get(name, {}).get("evidence", ""),
                    }
                    for name in own
                ],
            }
        )
    return parties


def examples(report: Report) -> dict[str, Any] | None:
    """Records before and after an edit, in the words of the public dictionary."""
    found = report.get("examples")
    if not found:
        return None
    data = report["data"]
    first, label = data["protected"][0], data["label"]
    groups = dict(zip(first["groups"], first["labels"], strict=True))
    classes = dict(zip(label["classes"], label["labels"], strict=True))

    def value(name: str, text: str) -> str:
        words = data["features"][name]
        return words["labels"].get(text, f"{text} {words['unit']}".strip()) if text else "not known"

    def outcome(seen: Mapping[str, Any]) -> dict[str, Any]:
        if data["task"] == "regression":
            real = label["low"] + seen["score"] * (label["high"] - label["low"])
            return {"decision": f"{real:.4g}", "score": seen["score"]}
        return {"decision": classes[seen["decision"]], "score": seen["score"]}

    about = {
        "binary": f"probability of “{label['labels'][-1]}”" if label["labels"] else "",
        "multiclass": "probability of the decision",
        "regression": "place in the label's range",
    }
    shown = [
        {
            "id": e["id"],
            "why": e["why"],
            "flipped": e["flipped"],
            "groups": [groups[g] for g in e["groups"]],
            "before": outcome(e["before"]),
            "after": outcome(e["after"]),
            "moved": [
                {
                    "name": data["features"][m["feature"]]["meaning"] or m["feature"],
                    "from": value(m["feature"], m["from"]),
                    "to": value(m["feature"], m["to"]),
                }
                for m in e["moved"]
            ],
        }
        for e in found["shown"]
    ]
    return {"drawn": found["drawn"], "flipped": found["flipped"], "shown": shown, "about": about[data["task"]]}


def learned(report: Report) -> list[dict[str, Any]]:
    """What was opened to whom; numbered releases of one kind, and each owner's part of one kind, taken together."""
    merged: dict[str, dict[str, Any]] = {}
    for release in report["releases"]:
        kind = re.sub(r"([- ]\d+)?( for party \d+)?$", "", release["name"])
        entry = merged.setdefault(
            kind,
            {"name": RELEASES.get(kind, kind), "purpose": release["purpose"], "receivers": [], "values": 0}
            | {"own": re.search(r"(party|gradient) \d+$", release["name"]) is not None, "noise": _noise(release)},
        )
        entry["receivers"] = sorted({*entry["receivers"], *release["receivers"]})
        entry["values"] += math.prod(release["shape"]) * release["times"]
    return list(merged.values())


def _noise(release: Mapping[str, Any]) -> str:
    """Whether noise protects a release; its declared purpose says so where it follows from others."""
    if release["event"] is not None:
        return "yes"
    return "from noisy" if "follows from noisy" in release["purpose"] else "no"


def training_panels(report: Report) -> list[dict[str, str]]:
    """What each weight of the consistency term gave on the validation records."""
    trials = report["trials"]
    if not trials:
        return []
    wanted = (
        ("loss", "Loss", "how well decisions fit; lower is better"),
        ("gap_rms", "Gap", "between a record's score and its counterfactual's; lower is better"),
        ("spread", "Spread", "of the scores; near 0 would mean that all get the same answer"),
    )
    return [
        {
            "title": title,
            "hint": hint,
            "svg": curves(
                title,
                [Line(title, [(t["lam"], t["validation"][key]) for t in trials])],
                "weight of consistency (λ)",
                report["lambda"],
            ),
        }
        for key, title, hint in wanted
    ]


def cost_rows(report: Report) -> list[dict[str, Any]]:
    phases = {name: cost for name, cost in report["cost"].items() if name != "total"}
    most = {key: max(c[key] for c in phases.values()) or 1 for key in ("seconds", "bytes", "rounds")}
    return [
        {
            "name": PHASES.get(name, name),
            "seconds": f"{c['seconds']:.2f} s",
            "bytes": f"{c['bytes'] / 1e6:.2f} MB",
            "rounds": f"{c['rounds']}",
            "wide": {key: round(100 * c[key] / most[key], 1) for key in most},
        }
        for name, c in phases.items()
    ]


def _strength(row: Mapping[str, Any]) -> float:
    """A row without a strength is the attacker that the adversary would choose: the last word on a view."""
    return math.inf if row["strength"] is None else float(row["strength"])


def attack_panels(security: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """For each attack: every view at its strongest, and curves over strength where there are several."""
    rows = security["rows"] if security is not None else []
    panels = []
    for attack in dict.fromkeys(row["attack"] for row in rows):
        here = [row for row in rows if row["attack"] == attack]
        views = list(dict.fromkeys(row["view"] for row in here))
        series = {v: sorted((r for r in here if r["view"] == v), key=_strength) for v in views}
        title = ATTACKS.get(attack, attack)
        dots = [
            Dot(v, s[-1]["rate"], s[-1]["low"], s[-1]["high"], False, s[-1]["control"]) for v, s in series.items()
        ]
        chance = here[0]["chance"]
        panels.append(
            {
                "title": title,
                "hint": "success by what the attacker sees"
                + ("; dashed: chance" if chance else "")
                + (
                    "; short bar: the same attacker without the run"
                    if any(d.control is not None for d in dots)
                    else ""
                ),
                "svg": forest(title, dots, chance=chance or None),
            }
        )
        measured = {v: [r for r in s if r["strength"] is not None] for v, s in series.items()}
        several = {v: s for v, s in measured.items() if len(s) > 1}
        if several:
            lines = [
                Line(v, [(r["strength"], r["rate"]) for r in s], [(r["low"], r["high"]) for r in s])
                for v, s in several.items()
            ]
            panels.append(
                {
                    "title": title,
                    "hint": "success as the attack gets stronger",
                    "svg": curves(title, lines, "strength", share=True),
                }
            )
    return panels
