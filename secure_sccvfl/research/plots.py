"""Plots of the reproduced experiments with matplotlib: a hollow mark next to ours shows the paper's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from accounting.plain_text import plain
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, OWN
from secure_sccvfl.reports.tables import paper_figure

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
    saved(path, 120)


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
    saved(path, 120)


def draw(experiment: str, rows: Sequence[Row], folder: Path) -> None:
    """All plots of an experiment into a folder."""
    trade_off(rows, experiment, folder / "trade_off.png")
    if any(r["metric"].startswith("pgd_sr_0.02") for r in rows):
        attack_curves(rows, folder / "attacks.png")


def saved(path: Path, dpi: int = 110) -> str:
    """Write the current figure; returns the file's name."""
    figure = plt.gcf()
    figure.tight_layout()
    figure.savefig(path, dpi=dpi)
    plt.close(figure)
    return path.name
