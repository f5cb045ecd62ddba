"""What a run's page says, in plain words and numbers, from report.json and the run's logs alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secure_sccvfl.policy.entries import Evidence
from secure_sccvfl.releases.catalogue import kind_of
from secure_sccvfl.reports.charts import Line, before_after, curves, percent, sparkline
from secure_sccvfl.reports.dictionary import Dictionary
from secure_sccvfl.reports.figures import MODELS, between, metric_words
from secure_sccvfl.reports.judged import Report, asked, listed, null_of, trusted
from secure_sccvfl.training.modes import MODES

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
    "late refreshes": "refreshing the tables and roles",
    "counterfactuals": "counterfactual edits",
    "training": "training with consistency",
    "evaluation": "testing",
}


def headline(report: Report) -> dict[str, Any]:
    """Title, a short story, and four figures."""
    data, rows, names = report["data"], report["rows"], report["party_names"]
    label, metrics, baselines = data["label"], report["metrics"], report["baselines"]
    near = "about " if report.get("align") == "hidden" else ""  # which records all parties hold is secret
    groups = " / ".join(f"“{word}”" for word in data["protected"][0]["labels"])
    quoted = [f"“{word}”" for word in label["labels"]]
    title = f"Deciding {' or '.join(quoted)}" if quoted else f"Predicting {label['meaning'] or report['dataset']}"
    secrecy = "and none of them saw another's data: what joins their columns was computed on secret shares"
    if MODES.get(report["mode"]).labels == "shown":
        secrecy = "none saw another's columns, but each was sent gradients, which tell the labels and s"
    story = [
        f"{listed(names).capitalize()} hold different columns about the same people. They trained one model together "
        f"on {near}{rows['train']} records, {secrecy}. {data.get('about', '')}".strip(),
        f"The aim: a decision should not change because somebody belongs to {other_group(report)} ({groups}), nor "
        "through columns that follow from it, the mediators. "
        + (
            f"{near.capitalize()}{rows['validation']} more records served to choose settings. "
            * bool(rows["validation"])
        )
        + f"The results below are for {near}{rows['test']} test records that were used for nothing else.",
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
    if data["task"] != "regression":
        _tell_flips(report, story, figures)
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


def other_group(report: Report) -> str:
    """What a record is moved to, in words: there is more than one other group if an attribute has three."""
    return "the other group" if all(len(a["labels"]) == 2 for a in report["data"]["protected"]) else "another group"


def _tell_flips(report: Report, story: list[str], figures: list[tuple[str, str, str, str]]) -> None:
    """Flips under the judge that claims rest on, with its null control; no figure if there is no such judge."""
    judge, baselines = trusted(report), report["baselines"]
    if judge is None:
        if asked(report):
            story.append("No judge passed its gates on these data, so nothing is said here of decisions that flip.")
        return

    def rate(figures: Mapping[str, float]) -> str:
        null = null_of(figures, judge)
        return percent(figures[f"fr_{judge}"]) + (f" ({percent(null)} by chance)" if null is not None else "")

    others = [
        f"{words} for {rate(baselines[key])}"
        for key, words in (("erm", "with plain training"), ("drop_m", "without the mediators"))
        if f"fr_{judge}" in baselines.get(key, {})
    ]
    null = null_of(report["metrics"], judge)
    chance = f"; {percent(null)} where groups are shuffled, which is chance" if null is not None else ""
    own = percent(report["metrics"][f"fr_{judge}"])
    story.append(
        f"Were a person of {other_group(report)}, with mediators to match, the decision would change for {own} of "
        f"them ({between(report, f'fr_{judge}')}{chance}){'; ' + listed(others) if others else ''}."
    )
    below = between(report, f"fr_{judge}") + (f"; null {percent(null)}" if null is not None else "")
    figures.append(("decisions that flip", own, below, "metrics"))


def size(count: float) -> str:
    """Bytes as people write them."""
    unit, name = next(u for u in ((1e6, "MB"), (1e3, "kB"), (1, "B")) if count >= u[0] or u[0] == 1)
    return f"{count / unit:.{0 if unit == 1 else 1}f} {name}"


def role_words(proxies: str) -> dict[str, tuple[str, str]]:
    """Each role with its name and meaning; a card says what becomes of proxies."""
    word, meaning = ROLES["P"]
    return {**ROLES, "P": (word, f"{meaning}; {PROXIES[proxies]}")}


def role_chart(
    report: Report, audit: Sequence[Mapping[str, Any]], card: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Features by party: score, role, who decided it, how sure discovery is, how the score moved, and the reason.

    A column without a table (`TrainConfig.tabled`) has no score and no proposal.
    """
    scores, words = report["scores"], report["data"]["features"]
    history = [entry["scores"] for entry in audit if entry["event"] == "roles"]
    top = max([*scores.values(), 1e-9])
    highest = max([top, *(v for old in history for v in old.values())])
    decisions = card["decisions"] if card is not None else {}
    parties = []
    for party in report["party_names"]:
        own = sorted(
            (n for n, owner in report["owners"].items() if owner == party), key=lambda n: -scores.get(n, 0.0)
        )
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
                        "proposed": report["proposed"].get(name, ""),
                        "confidence": percent(report["confidence"].get(name, 0.0)),
                        "score": scores.get(name),
                        "width": 100 * max(scores.get(name, 0.0), 0.0) / top,
                        "spark": sparkline([old[name] for old in history if name in old], highest),
                        "reason": decisions.get(name, {}).get("reason", ""),
                        "evidence": "; ".join(
                            e.words for e in Evidence.all_of(decisions.get(name, {}).get("evidence", ""))
                        ),
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
    words = Dictionary(report["data"])
    shown = [
        {
            "id": e["id"],
            "why": e["why"],
            "flipped": e["flipped"],
            "groups": [words.groups[g] for g in e["groups"]],
            "before": words.outcome(e["before"]),
            "after": words.outcome(e["after"]),
            "moved": [words.move(m) for m in e["moved"]],
        }
        for e in found["shown"]
    ]
    pairs = [tuple(pair) for pair in found.get("scores", [])] if report["data"]["task"] == "binary" else []
    picture = before_after("Before and after", pairs, words.score) if pairs else ""
    return {"shown": shown, "about": words.score, "picture": picture} | {
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
                "name": name if kind is None else kind.what,
                "purpose": _plain(release["purpose"], report),
                "receivers": [],
                "values": 0,
                "own": kind is not None and kind.to == "owner",
                "noise": "no" if kind is None else NOISE.get(kind.basis, "no"),
            },
        )
        entry["receivers"] = sorted({*entry["receivers"], *release["receivers"]})
        entry["values"] += math.prod(release["shape"]) * release["times"]
    return list(merged.values())


def _plain(purpose: str, report: Report) -> str:
    """A declared purpose with the words of this page for its figures."""
    words = metric_words(report)
    return re.sub(r"\b(\w+)\b", lambda m: words.get(m[1], m[1]), purpose)


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


def validity_words(report: Report) -> list[str]:
    """What edits do besides, and how well the group can be guessed from what is shared: a line per attribute."""
    lines = []
    for name, told in report.get("validity", {}).items():
        line = f"Edits by {name}: fewer than two parties edit, so their terms were not opened."
        if "identity" in told:
            line = (
                f"Edits by {name}, on average over training records and summed over parties: columns that must stay "
                f"move by {told['identity']:.3f}, edited ones by {told['size']:.3f} of their range, of which "
                f"{told['support']:.3f} is outside it."
            )
        leak = told["leak"]
        if leak is not None:
            guessed = "fewer than two groups have enough records to tell how often"
            if leak["balanced"] is not None:
                guessed = (
                    f"{percent(leak['balanced'])}, groups counted alike; guessing gives {percent(leak['chance'])}. "
                    f"Of their records it names {percent(leak['recovered'])} right; naming the largest group gives "
                    f"{percent(leak['largest'])}"
                )
            line += (
                f" From the encodings of all parties together, which nobody sees, a linear adversary would recover "
                f"{name} of validation records: {guessed}."
            )
        lines.append(line)
    return lines


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
