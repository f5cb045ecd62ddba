"""Plots of results with matplotlib: a hollow mark beside ours shows the paper's figure.

Every picture of groups says what a classifier reads from it. The pages of runs have `reports.charts` instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from accounting.plain_text import plain
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, OWN
from secure_sccvfl.reports.tables import paper_figure
from secure_sccvfl.research.qualitative.methods import PAPER

matplotlib.rcParams["text.parse_math"] = False  # a dollar sign in a name is not a formula
Row = Mapping[str, Any]
MARKS = {**{name: judge.mark[0] for name, judge in COUNTERFACTUAL_MODELS.items()}, OWN: "x"}


def trade_off(rows: Sequence[Row], experiment: str, path: Path) -> None:
    """Accuracy against flip rate, one panel per data set and split, one mark per judge."""
    settings = sorted({(r["dataset"], r["split"]) for r in rows if r["metric"] == "fr"})
    if not settings:
        return
    figure, axes = plt.subplots(1, len(settings), figsize=(6 * len(settings), 4.5), squeeze=False)
    for axis, (dataset, split) in zip(axes[0], settings, strict=True):
        here = [r for r in rows if (r["dataset"], r["split"]) == (dataset, split)]
        acc = {r["method"]: r["mean"] for r in here if r["metric"] == "acc"}
        for number, method in enumerate(acc):
            colour = f"C{number % 10}"
            for row in here:
                if row["method"] == method and row["metric"] == "fr":
                    axis.plot(100 * row["mean"], acc[method], MARKS[row["judge"]], color=colour)
            flips, right = (paper_figure(experiment, dataset, split, method, m) for m in ("fr", "acc"))
            if flips is not None and right is not None:
                axis.plot(100 * flips["value"], right["value"], "D", mfc="none", color=colour)
            axis.plot([], [], "o", color=colour, label=method)
        axis.set(xlabel="flip rate, %", ylabel="accuracy", title=plain(f"{dataset} {split}"))
        axis.legend(fontsize=6)
    told = [f"{judge.mark[1]}: {judge.title}" for _, judge in COUNTERFACTUAL_MODELS.items()]
    figure.suptitle(", ".join([*told, "cross: own generator", "hollow: paper"]), fontsize=8)
    _saved(path, 120)


CURVES = (
    ("aia_z_mlp", "AIA on representations: attacker epochs"),
    ("aia_logits_mlp", "AIA on logits: attacker epochs"),
    ("pgd_sr_", "PGD radius"),
)


def attack_curves(rows: Sequence[Row], path: Path) -> None:
    """Success of AIA against attacker epochs, by view, and of PGD against its radius. Dashed: the paper's curve."""
    figure, axes = plt.subplots(1, len(CURVES), figsize=(16, 4.4))
    methods = list(dict.fromkeys(r["method"] for r in rows if r["metric"].startswith("pgd_sr_")))
    for axis, (prefix, name) in zip(axes, CURVES, strict=True):
        for number, method in enumerate(methods):
            own = [r for r in rows if r["method"] == method and r["metric"].startswith(prefix)]
            ours, theirs = [], []
            for r in own:
                at = float(r["metric"].removeprefix(prefix))
                ours.append((at, 100 * r["mean"], 100 * (r["mean"] - r["low"]), 100 * (r["high"] - r["mean"])))
                paper = paper_figure("attacks", r["dataset"], r["split"], method, r["metric"])
                theirs += [] if paper is None else [(at, 100 * paper["value"])]
            if ours:
                x, mean, below, above = zip(*sorted(ours), strict=True)
                axis.errorbar(x, mean, (below, above), marker="o", color=f"C{number % 10}", label=method, capsize=2)
            if theirs:
                axis.plot(*zip(*sorted(theirs), strict=True), "D--", mfc="none", color=f"C{number % 10}", lw=0.8)
        axis.set(xlabel=name, ylabel="success, %")
        chance = [r["mean"] for r in rows if r["metric"] == "aia_chance"]
        if prefix.startswith("aia") and chance:
            axis.axhline(100 * chance[0], color="grey", linestyle=":", label="chance")
        if prefix == "pgd_sr_":
            axis.axhline(0.0, color="grey", linestyle=":", label="no perturbation")
        axis.legend(fontsize=6)
    figure.suptitle("solid: ours, with 95 % intervals over seeds; dashed and hollow: the paper's tables", fontsize=8)
    _saved(path, 120)


def draw(experiment: str, rows: Sequence[Row], folder: Path) -> None:
    """All plots of an experiment into a folder."""
    trade_off(rows, experiment, folder / "trade_off.png")
    if any(r["metric"].startswith("pgd_sr_0.02") for r in rows):
        attack_curves(rows, folder / "attacks.png")


def _saved(path: Path, dpi: int = 110) -> str:
    """Write the current figure; returns the file's name."""
    figure = plt.gcf()
    figure.tight_layout()
    figure.savefig(path, dpi=dpi)
    plt.close(figure)
    return path.name


# the paper's qualitative analysis

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


def draw_qualitative(found: Mapping[str, Any], folder: Path) -> list[str]:
    """All plots into a folder; returns the names of those that there are data for."""
    made = [role_plot(found, folder / "roles.png")]
    made += [
        representation_plot(found, space, folder / f"representations_{space}.png")
        for space in dict.fromkeys(m["space"] for m in found["mixing"])
    ]
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
                mark = GROUP_MARKS[code % len(GROUP_MARKS)]
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
    return _saved(path)
