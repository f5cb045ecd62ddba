"""The paper's qualitative appendix for readers: results.json, results.md and plots of `research.qualitative`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from accounting.charts import percent, tidy
from accounting.plain_text import markdown, plain
from accounting.tables import Table
from secure_sccvfl.reports.results import Change, Description, Outcome, decode
from secure_sccvfl.research.plots import saved
from secure_sccvfl.research.qualitative import PAPER

Found = Mapping[str, Any]
ROLES = {
    "P": ("proxy (P)", "tab:red", ".."),
    "M": ("mediator (M)", "tab:green", "xx"),
    "N": ("non-descendant (N)", "tab:blue", "//"),
}
GROUP_MARKS = "osD^v<>p"
TRAINING_CURVES = (
    ("loss", ("train_loss", "validation_loss")),
    ("validation accuracy", ("validation_accuracy",)),
    ("SCG and FR on validation", ("scg", "fr")),
)


def write_qualitative(folder: Path, found: Found, words: Description, command: str) -> str:
    """Write data, tables and plots into a folder; returns the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {"experiment": "qualitative", "command": command, "date": datetime.date.today().isoformat()}
    (folder / "results.json").write_text(json.dumps({**made, **found}, indent=1) + "\n", encoding="utf-8")
    pictures = draw(found, folder)
    text = tables(found, words, pictures)
    text = f"Made by `{command}` on {made['date']}.\n\n{text}"
    (folder / "results.md").write_text(text, encoding="utf-8")
    return text


def tables(found: Found, words: Description, pictures: Sequence[str] = ()) -> str:
    """All tables, in the order of the paper's appendix."""
    parts = [_mask(found), _representations(found), *(_case(case, words) for case in found["cases"])]
    parts += [_recourse(person, words) for person in found["recourse"]]
    shown = [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures]
    return "\n\n".join(["# Qualitative analysis", *shown, *filter(None, parts)]) + "\n"


def _mask(found: Found) -> str:
    known = found["information"]
    rows = [
        (
            name,
            tidy(known[name]["mi"], 4),
            tidy(known[name]["null"], 4),
            tidy(known[name]["null_high"], 4),
            tidy(found["scores"][name], 3),
            ROLES[found["roles"][name]][0],
        )
        for name in sorted(known, key=lambda name: -known[name]["mi"])
    ]
    text = (
        "Mutual information with s in nats, in plaintext on the training part, from counts over public bins. Next to "
        "it what it is with s permuted: the mean, and what one permutation in twenty exceeds. The score is the noisy "
        "one that roles rest on."
    )
    heads = ("column", "MI", "MI, s permuted", "95 % of permutations below", "score", "role")
    return f"## Roles\n\n{text}\n\n{Table(heads, rows)}"


def _representations(found: Found) -> str:
    rows = [
        (m["method"], str(m["width"]), percent(sum(m["shares"])), _reading(m["two"]), _reading(m["whole"]))
        for m in found["mixing"]
    ]
    heads = ("method", "columns", "variance on two", "AUC, two components", "AUC, whole")
    return (
        "## Representations\n\nAUC of a linear classifier of s, fitted on training records, on test records: on two "
        "principal components and on the whole. 0.5 is chance. In brackets the 95 % interval, then what one "
        f"permutation of s in twenty exceeds. A run under MPC hides this representation.\n\n{Table(heads, rows)}"
    )


def _reading(read: Mapping[str, float]) -> str:
    return (
        f"{tidy(read['auc'], 3)} ({tidy(read['low'], 3)} to {tidy(read['high'], 3)}); "
        f"permuted up to {tidy(read['null_high'], 3)}"
    )


def _moved(moved: Sequence[Mapping[str, Any]], words: Description, most: int = 5) -> str:
    more = f"; {len(moved) - most} more" if len(moved) > most else ""
    shown = [(m["role"], *words.change(decode(Change, m))) for m in moved[:most]]
    return "; ".join(f"{name} ({role}): {old} to {new}" for role, name, old, new in shown) + more


def _said(words: Description, seen: Mapping[str, Any]) -> str:
    return f"{words.decision(decode(Outcome, seen))}, {percent(seen['score'])}"


def _case(case: Mapping[str, Any], words: Description) -> str:
    rows = []
    for name, seen in case["methods"].items():
        own = seen.get("own")
        flips = [
            "" if after is None else "stays" if after["decision"] == seen["before"]["decision"] else "flips"
            for after in (seen["after"], own["after"] if own else None)
        ]
        rows.append(
            (
                name,
                _said(words, seen["before"]),
                _said(words, seen["after"]),
                flips[0],
                *((_said(words, own["after"]), flips[1]) if own else ("", "")),
                f"{tidy(own['size'], 2)} + {tidy(own['size_others'], 2)}" if own else "",
                _moved(own["moved"], words, 3) if own else "",
            )
        )
    heads = ("method", "before", "after, common", "", "after, own", "", "size: mediators + others", "moved most")
    groups = " to ".join(markdown(words.groups[g]) for g in case["groups"])
    text = (
        f"Record {case['id']}, in truth “{markdown(words.classes[case['label']])}”, {groups}. Rule: {case['rule']}. "
        f"The common counterfactual has size {tidy(case['size'], 2)}: "
        f"{markdown(_moved(case['moved'], words))}. Scores: {markdown(words.score)}."
    )
    return f"## Case: {case['case']}\n\n{text}\n\n{Table(heads, rows)}"


def _recourse(person: Mapping[str, Any], words: Description) -> str:
    groups = " to ".join(markdown(words.groups[g]) for g in person["groups"])
    rows = [
        (name, m["role"], old, new) for m in person["moved"] for name, old, new in [words.change(decode(Change, m))]
    ]
    text = (
        f"Record {person['id']}, {groups}: {markdown(_said(words, person['before']))} before and "
        f"{markdown(_said(words, person['after']))} after the counterfactual of `scc`'s own generator, size "
        f"{tidy(person['size'], 2)}. Other columns moved by {tidy(person['size_others'], 2)}. Held fixed: "
        f"{markdown(', '.join(words.name(name) for name in person['fixed']))}. It says what the other group "
        "tends to have; it is no advice to the person."
    )
    head = f"## Counterfactual of a person decided “{markdown(words.classes[person['before']['decision']])}”"
    return f"{head}\n\n{text}\n\n{Table(('column', 'role', 'from', 'to'), rows)}"


# Plots.


def draw(found: Mapping[str, Any], folder: Path) -> list[str]:
    """All plots into a folder; returns the names of those that there are data for."""
    made = [role_plot(found, folder / "roles.png"), representation_plot(found, folder / "representations.png")]
    if PAPER in found["history"]:
        made.append(training_plot(found["history"][PAPER], PAPER, folder / "training.png"))
    return made


def role_plot(found: Mapping[str, Any], path: Path) -> str:
    """Columns by score, coloured by role; below, mutual information with the level that chance reaches."""
    names = sorted(found["scores"], key=lambda name: -found["scores"][name])
    _, (upper, lower) = plt.subplots(2, 1, figsize=(10, 7), sharex=True)
    known = [found["information"][name] for name in names]
    for axis, values in ((upper, [found["scores"][n] for n in names]), (lower, [k["mi"] for k in known])):
        for place, (name, value) in enumerate(zip(names, values, strict=True)):
            _, colour, hatch = ROLES[found["roles"][name]]
            axis.bar(place, value, color=colour, hatch=hatch, edgecolor="black", alpha=0.6)
    lower.plot(range(len(names)), [k["null_high"] for k in known], "k_", ms=12, label="s permuted, 95 %")
    lower.legend(fontsize=8)
    upper.set(ylabel="noisy score", title="scores and roles")
    lower.set(ylabel="MI(x, s), nats")
    upper.legend(handles=[Patch(color=c, label=word, alpha=0.6) for word, c, _ in ROLES.values()], fontsize=8)
    lower.set_xticks(range(len(names)), [plain(name) for name in names], rotation=90)
    return saved(path)


def representation_plot(found: Mapping[str, Any], path: Path) -> str:
    """Two components of each method's representation, by group, with the AUC of a classifier in the title."""
    views = found["mixing"]
    columns = min(3, len(views))
    rows = -(-len(views) // columns)
    _, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.9 * rows), squeeze=False)
    for axis in axes.flat[len(views) :]:
        axis.axis("off")
    for axis, view in zip(axes.flat, views, strict=False):
        for code, name in enumerate(found["groups"]):
            points = [p for p, g in zip(view["points"], view["groups"], strict=True) if g == code]
            if points:
                mark = GROUP_MARKS[code % len(GROUP_MARKS)]
                axis.plot(*zip(*points, strict=True), mark, ms=3, alpha=0.6, label=plain(f"s = {name}"))
        two, whole = view["two"], view["whole"]
        axis.set_title(
            f"{view['method']}\nAUC of s: two {two['auc']:.2f} (permuted to {two['null_high']:.2f}), "
            f"whole {whole['auc']:.2f}",
            fontsize=8,
        )
    axes[0][0].legend(fontsize=7)
    return saved(path)


def training_plot(curve: list[Mapping[str, Any]], name: str, path: Path) -> str:
    """Loss, validation accuracy, and SCG and flips over epochs."""
    _, axes = plt.subplots(1, len(TRAINING_CURVES), figsize=(12, 3.6))
    for axis, (title, keys) in zip(axes, TRAINING_CURVES, strict=True):
        for key in keys:
            points = [(r["epoch"], r[key]) for r in curve if r.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), label=key)
        axis.set(xlabel="epoch", title=title)
        if axis.lines:
            axis.legend(fontsize=7)
    plt.gcf().suptitle(name, fontsize=9)
    return saved(path)
