"""What a run's page says, in plain words and numbers, from report.json and the run's logs alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secure_sccvfl.evaluation.judges import FIRST, JUDGES, OWN
from secure_sccvfl.metrics.intervals import wilson
from secure_sccvfl.modes import MODES
from secure_sccvfl.privacy.releases import kind_of
from secure_sccvfl.report.charts import Dot, Line, before_after, curves, forest, percent, sparkline

Report = Mapping[str, Any]
MODELS = {
    "secure": "this model",
    "plaintext_scc": "same method, not in secret",
    "drop_m": "without the mediators",
    "erm": "plain training, no protection",
    "logistic": "logistic regression",
    "majority": "always the most frequent",
}
COUNTED = ("first", "second", "third", "fourth", "fifth", "sixth")
COMMON = {name: f"{place} judge" for name, place in zip(JUDGES, COUNTED, strict=False)}
ALL_JUDGES = {**COMMON, OWN: "the run's own generator"}
ROLES = {
    "P": ("proxy", "all but stands for the group"),
    "M": ("mediator", "may follow from the group; moves with it in “what if” records, where decisions must stay"),
    "N": ("fixed", "hardly follows the group; stays as it is in “what if” records"),
}
PROXIES = {
    "guard": "left as it is, and training keeps the model from leaning on it",
    "edit": "moves with it like a mediator, as the policy card asks",
    "drop": "the model does not see it, as the policy card asks",
}
NOISE = {"charged": "yes", "follows": "from noisy"}
"""Whether noise protects a release, by the reason why it may leave."""
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


def interval(report: Report, metric: str, value: float, noisy: bool) -> tuple[float, float] | None:
    """95 % interval of a figure: the uncertainty from the number of records (rates), and what noise adds to it."""
    noise = report["noise"].get(metric, 0.0) if noisy else 0.0
    if metric.startswith(("acc", "fr_")):
        low, high = wilson(value, report["rows"]["test"])
        return max(0.0, value - math.hypot(value - low, noise)), min(1.0, value + math.hypot(high - value, noise))
    return (max(0.0, value - noise), value + noise) if noise else None


def dot(report: Report, model: str, metric: str, value: float) -> Dot:
    """A figure of a model, with its 95 % interval where there is one."""
    low, high = interval(report, metric, value, model == "secure") or (None, None)
    return Dot(MODELS.get(model, model), value, low, high, model == "secure")


def flips(report: Report, source: Mapping[str, float]) -> tuple[str, float] | None:
    """The worst common judge, or the run's own generator if there is none."""
    seen = {j: source[f"fr_{j}"] for j in JUDGES if f"fr_{j}" in source}
    if not seen and f"fr_{OWN}" in source:
        seen = {OWN: source[f"fr_{OWN}"]}
    return max(seen.items(), key=lambda item: item[1]) if seen else None


def judge_words(report: Report) -> str:
    """How many common judges there were, and where each takes edited values from; empty if there was none."""
    asked = [name for name in JUDGES if f"scg_{name}" in report["metrics"]]
    told = ", ".join(f"the {COUNTED[k]} {JUDGES.get(name).about}" for k, name in enumerate(asked))
    count = ("no", "one", "two", "three", "four", "five", "six")[len(asked)]
    return f"{count} judge{'s' * (len(asked) != 1)} to say, which training never saw: {told}" if asked else ""


def between(report: Report, metric: str) -> str:
    """The interval of a rate of this model, in words."""
    low, high = interval(report, metric, report["metrics"][metric], True) or (0.0, 1.0)
    return f"95 % interval {percent(low).removesuffix(' %')} to {percent(high)}"


def headline(report: Report) -> dict[str, Any]:
    """Title, a short story, and four figures."""
    data, rows, names = report["data"], report["rows"], report["party_names"]
    label, metrics, baselines = data["label"], report["metrics"], report["baselines"]
    groups = " / ".join(f"“{word}”" for word in data["protected"][0]["labels"])
    quoted = [f"“{word}”" for word in label["labels"]]
    title = f"Deciding {' or '.join(quoted)}" if quoted else f"Predicting {label['meaning'] or report['dataset']}"
    secrecy = "and none of them saw another's data: what joins their columns was computed on secret shares"
    if MODES.get(report["mode"]).labels == "shown":
        secrecy = "none saw another's columns, but each was sent gradients, which tell the labels"
    story = [
        f"{listed(names).capitalize()} hold different columns about the same people. They trained one model together "
        f"on {rows['train']} records, {secrecy}. {data.get('about', '')}".strip(),
        f"The aim: a decision should not change because somebody belongs to the other group ({groups}), nor through "
        "columns that follow from it, the mediators. "
        f"{rows['validation']} more records served to choose settings; the results below are for {rows['test']} test "
        "records that were used for nothing else.",
    ]
    figures = []
    if "acc" in metrics:
        told = f"The model is right for {percent(metrics['acc'])} of them ({between(report, 'acc')})"
        others = [
            f"{words} for {percent(baselines[key]['acc'])}"
            for key, words in (
                ("erm", "plain training without any protection"),
                ("drop_m", "a model without the mediators"),
                ("majority", "always giving the most frequent answer"),
            )
            if key in baselines
        ]
        story.append(f"{told}{'; ' + listed(others) if others else ''}.")
        figures.append(("right decisions", percent(metrics["acc"]), between(report, "acc"), "metrics"))
    elif "rmse" in metrics:
        others = [f"{MODELS[k]} {v['rmse']:.3f}" for k, v in baselines.items() if k in MODELS and "rmse" in v]
        told = f"The model's typical error is {metrics['rmse']:.3f} of the label's public range"
        story.append(f"{told}{'; ' + listed(others) if others else ''}.")
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
            "Were a person of the other group, with mediators to match, the decision would change for "
            f"{percent(worst[1])} of them ({between(report, f'fr_{worst[0]}')}){contrast}."
        )
        figures.append(("decisions that flip", percent(worst[1]), between(report, f"fr_{worst[0]}"), "metrics"))
    privacy, total = report["privacy"], report["cost"]["total"]
    figures.append(
        (
            "privacy spent",
            f"ε {privacy['epsilon_rdp']:.2f}",
            f"of at most {privacy['cap']:g}; smaller is more private",
            "privacy",
        )
    )
    figures.append(
        (
            "secure computation",
            f"{total['seconds']:.1f} s",
            f"{size(total['bytes'])} sent by {names[0]}, {total['rounds']} rounds",
            "cost",
        )
    )
    return {"title": title, "story": story, "figures": figures, "mode": MODES.get(report["mode"]).words}


def size(count: float) -> str:
    """Bytes as people write them."""
    unit, name = next(u for u in ((1e6, "MB"), (1e3, "kB"), (1, "B")) if count >= u[0] or u[0] == 1)
    return f"{count / unit:.{0 if unit == 1 else 1}f} {name}"


def metric_panels(report: Report) -> list[dict[str, str]]:
    """Charts of this model beside the baselines."""
    sources = {"secure": report["metrics"], **report["baselines"]}
    panels = []
    share = report["data"]["label"]["labels"][-1:] or ["positive"]
    wanted = [("acc", "Right decisions", "further right is better")]
    wanted += [(f"fr_{j}", f"Decisions that flip, {COMMON[j]}", "0 is best") for j in JUDGES]
    if f"fr_{FIRST}" not in report["metrics"]:
        wanted.append((f"fr_{OWN}", f"Decisions that flip, {ALL_JUDGES[OWN]}", "0 is best"))
    wanted += [
        ("rmse", "Typical error", "root mean square, of the label's range; lower is better"),
        *(
            (f"scg_{j}", f"Shift of the answer, {words}", "0 is best")
            for j, words in ALL_JUDGES.items()
            if "rmse" in report["metrics"]
        ),
        ("logloss", "Log loss", "how well the probabilities fit; lower is better"),
        ("dp_gap", "Difference between groups", f"in the share of “{share[0]}” decisions; 0: the same for all"),
        ("eo_gap", "Difference in mistakes", "largest gap between groups in hits or in false alarms; 0 is best"),
    ]
    for metric, title, hint in wanted:
        dots = [
            dot(report, name, metric, sources[name][metric])
            for name in (*MODELS, *sorted(set(sources) - set(MODELS)))
            if metric in sources.get(name, {})
        ]
        if dots:
            start = 0.5 if metric == "acc" and min(d.low or 0.0 for d in dots) > 0.5 else 0.0
            svg = forest(title, dots, share=not metric.startswith(("rmse", "logloss", "scg")), start=start)
            panels.append({"title": title, "hint": hint, "svg": svg})
    return panels


METRIC_WORDS = {
    "acc": "right decisions",
    "rmse": "root mean squared error",
    "logloss": "log loss",
    "positive_rate": "share of “{positive}” decisions",
    "dp_gap": "gap of “{positive}” decisions between groups",
    "eo_gap": "gap of hits or false alarms between groups",
    **{f"fr_{j}": f"flips ({words})" for j, words in {**COMMON, OWN: "own generator"}.items()},
    **{f"scg_{j}": f"shift of the score ({words})" for j, words in {**COMMON, OWN: "own generator"}.items()},
}


def metric_table(report: Report) -> dict[str, Any]:
    """All numbers of all models."""
    sources = {"secure": report["metrics"], **report["baselines"]}
    names = [n for n in (*MODELS, *sorted(set(sources) - set(MODELS))) if n in sources]

    def cell(model: str, metric: str, value: float | None) -> str:
        if value is None:
            return ""
        seen = dot(report, model, metric, value)
        return f"{value:.3f}" + (f" ({seen.low:.3f} to {seen.high:.3f})" if seen.low is not None else "")

    positive = (report["data"]["label"]["labels"] or ["positive"])[-1]
    rows = [
        (words.format(positive=positive), [cell(n, metric, sources[n].get(metric)) for n in names])
        for metric, words in METRIC_WORDS.items()
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
        return f"{percent(told['value'])} (noise ± {percent(told['noise'])})" if told else "not opened"

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


def role_words(proxies: str) -> dict[str, tuple[str, str]]:
    """Each role with its name and meaning; a card says what becomes of proxies."""
    word, meaning = ROLES["P"]
    return {**ROLES, "P": (word, f"{meaning}; {PROXIES[proxies]}")}


def role_chart(
    report: Report, audit: Sequence[Mapping[str, Any]], card: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Features by party: score, role, who decided it, how sure discovery is, how the score moved, and the reason."""
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
                        "by_card": name in report["by_card"],
                        "proposed": report["proposed"][name],
                        "confidence": percent(report["confidence"][name]),
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
    pairs = [tuple(pair) for pair in found.get("scores", [])] if data["task"] == "binary" else []
    picture = before_after("Before and after", pairs, about["binary"]) if pairs else ""
    return {"shown": shown, "about": about[data["task"]], "picture": picture} | {
        key: found[key] for key in ("drawn", "flipped")
    }


def learned(report: Report) -> list[dict[str, Any]]:
    """What was opened to whom. Numbered releases of a kind, and all owners' parts of it, are taken together."""
    merged: dict[str, dict[str, Any]] = {}
    for release in report["releases"]:
        kind = kind_of(release["name"], charged=release["event"] is not None)
        name = release["name"] if kind is None else kind.name
        entry = merged.setdefault(
            name,
            {
                "name": name if kind is None else kind.words,
                "purpose": _plain(release["purpose"]),
                "receivers": [],
                "values": 0,
                "own": kind is not None and kind.to == "owner",
                "noise": "no" if kind is None else NOISE.get(kind.basis, "no"),
            },
        )
        entry["receivers"] = sorted({*entry["receivers"], *release["receivers"]})
        entry["values"] += math.prod(release["shape"]) * release["times"]
    return list(merged.values())


def _plain(purpose: str) -> str:
    """A declared purpose with the words of this page for its figures."""
    return re.sub(r"\b(\w+)\b", lambda m: METRIC_WORDS.get(m[1], m[1]), purpose)


def learned_by(report: Report) -> list[dict[str, str]]:
    """A sentence or two for each place: what it knew, what it alone was told, and what all were told."""
    entries, names = learned(report), report["party_names"]
    common = [e for e in entries if len(e["receivers"]) == len(names) and not e["own"]]
    told = []
    for rank, (name, party) in enumerate(zip(names, role_chart(report, (), None), strict=True)):
        alone = [e["name"] for e in entries if rank in e["receivers"] and e not in common]
        knew = listed([f"its {len(party['features'])} columns", *party["holds"]])
        text = f"Knew before: {knew}. Was told, alone: {listed(alone) if alone else 'nothing'}."
        told.append(
            {"name": name, "text": f"{text} Was told with the others: {len(common)} kinds of figures, below."}
        )
    unseen = "Sizes and times of messages; it deals random numbers and was sent no data."
    told.append({"name": "dealer (helper)", "text": unseen})
    told.append({"name": "network", "text": "Who talks to whom, when and how much; contents are encrypted."})
    return told


def training_panels(report: Report) -> list[dict[str, str]]:
    """The result of each weight of the consistency term on the validation records, if that was opened."""
    trials = [t for t in report["trials"] if t["validation"] is not None]
    if not trials:
        return []
    wanted = (
        ("loss", "Loss", "how well decisions fit; lower is better"),
        ("gap_rms", "Gap", "between a record's score and its “what if” score; lower is better"),
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


COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("time", "{:.2f} s".format),
    "bytes": ("sent", size),
    "dealer_bytes": ("from the dealer", size),
    "rounds": ("rounds", "{:.0f}".format),
}


def cost_rows(report: Report) -> list[dict[str, Any]]:
    phases = {name: cost for name, cost in report["cost"].items() if name != "total"}
    most = {key: max(c[key] for c in phases.values()) or 1 for key in COSTS}
    return [
        {
            "name": PHASES.get(name, name),
            "cells": [
                (word, show(c[key]), round(100 * c[key] / most[key], 1)) for key, (word, show) in COSTS.items()
            ],
        }
        for name, c in phases.items()
    ]
