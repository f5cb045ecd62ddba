"""Plots of the paper's qualitative analysis. Every picture of groups says what a classifier reads from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from accounting.plain_text import plain
from secure_sccvfl.research.qualitative.methods import PAPER

matplotlib.rcParams["text.parse_math"] = False  # a dollar sign in a name is not a formula
ROLES = {
    "P": ("proxy (P)", "tab:red", ".."),
    "M": ("mediator (M)", "tab:green", "xx"),
    "N": ("non-descendant (N)", "tab:blue", "//"),
}
MARKS = "osD^v<>p"
CURVES = (
    ("loss", ("train_loss", "validation_loss")),
    ("validation accuracy", ("validation_accuracy",)),
    ("SCG and FR on validation", ("scg", "fr")),
)


def draw(found: Mapping[str, Any], folder: Path) -> list[str]:
    """All plots into a folder; returns the names of those that there are data for."""
    made = [role_plot(found, folder / "roles.png")]
    made += [
        representation_plot(found, space, folder / f"representations_{space}.png")
        for space in dict.fromkeys(m["space"] for m in found["mixing"])
    ]
    if PAPER in found["history"]:
        made.append(training_plot(found["history"][PAPER], PAPER, folder / "training.png"))
    return made


def _saved(path: Path) -> str:
    figure = plt.gcf()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path.name


def role_plot(found: Mapping[str, Any], path: Path) -> str:
    """Columns by score, coloured by role; below, mutual information with the level that chance reaches."""
    names = sorted(found["scores"], key=lambda name: -found["scores"][name])
    _, (upper, lower) = plt.subplots(2, 1, figsize=(10, 7), sharex=True)
    known = [found["information"][name] for name in names]
    for axis, values in ((upper, [found["scores"][n] for n in names]), (lower, [k["mi"] for k in known])):
        for place, (name, value) in enumerate(zip(names, values, strict=True)):
            _, colour, hatch = ROLES[found["roles"][name]]
            axis.bar(place, value, color=colour, hatch=hatch, edgecolor="black", alpha=0.6)
    lower.plot(range(len(names)), [k["null_high"] for k in known], "k_", ms=12, label="s shuffled, 95 %")
    lower.legend(fontsize=8)
    upper.set(ylabel="noisy score", title="scores and roles")
    lower.set(ylabel="MI(x, s), nats")
    upper.legend(handles=[Patch(color=c, label=word, alpha=0.6) for word, c, _ in ROLES.values()], fontsize=8)
    lower.set_xticks(range(len(names)), [plain(name) for name in names], rotation=90)
    return _saved(path)


def representation_plot(found: Mapping[str, Any], space: str, path: Path) -> str:
    """Two components of each method's representation, by group, with the AUC of a classifier in the title."""
    views = [m for m in found["mixing"] if m["space"] == space]
    columns = min(3, len(views))
    rows = -(-len(views) // columns)
    _, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.9 * rows), squeeze=False)
    for axis in axes.flat[len(views) :]:
        axis.axis("off")
    for axis, view in zip(axes.flat, views, strict=False):
        for code, name in enumerate(found["groups"]):
            points = [p for p, g in zip(view["points"], view["groups"], strict=True) if g == code]
            if points:
                mark = MARKS[code % len(MARKS)]
                axis.plot(*zip(*points, strict=True), mark, ms=3, alpha=0.6, label=plain(f"s = {name}"))
        two, whole = view["two"], view["whole"]
        axis.set_title(
            f"{view['method']}\nAUC of s: two {two['auc']:.2f} (shuffled to {two['null_high']:.2f}), "
            f"whole {whole['auc']:.2f}",
            fontsize=8,
        )
    axes[0][0].legend(fontsize=7)
    return _saved(path)


def training_plot(curve: list[Mapping[str, Any]], name: str, path: Path) -> str:
    """Loss, validation accuracy, and SCG and flips over epochs."""
    _, axes = plt.subplots(1, len(CURVES), figsize=(12, 3.6))
    for axis, (title, keys) in zip(axes, CURVES, strict=True):
        for key in keys:
            points = [(r["epoch"], r[key]) for r in curve if r.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), label=key)
        axis.set(xlabel="epoch", title=title)
        if axis.lines:
            axis.legend(fontsize=7)
    plt.gcf().suptitle(name, fontsize=9)
    return _saved(path)
