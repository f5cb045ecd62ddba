"""Plots from result rows. A hollow mark beside ours shows the paper's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from accounting.plain_text import plain
from secure_sccvfl.evaluation.judges import JUDGES, OWN
from secure_sccvfl.report.tables import paper_value

matplotlib.rcParams["text.parse_math"] = False  # a dollar sign in a name is not a formula
Row = Mapping[str, Any]
MARKS = {**{name: judge.mark[0] for name, judge in JUDGES.items()}, OWN: "x"}


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
            paper = [paper_value(experiment, dataset, split, method, m) for m in ("fr", "acc")]
            if paper[0] is not None and paper[1] is not None:
                axis.plot(100 * paper[0], paper[1], "D", mfc="none", color=colour)
            axis.plot([], [], "o", color=colour, label=method)
        axis.set(xlabel="flip rate, %", ylabel="accuracy", title=plain(f"{dataset} {split}"))
        axis.legend(fontsize=6)
    told = [f"{judge.mark[1]}: {judge.title}" for _, judge in JUDGES.items()]
    figure.suptitle(", ".join([*told, "cross: own generator", "hollow: paper"]), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def attack_curves(rows: Sequence[Row], path: Path) -> None:
    """PGD success against radius and AIA against attacker epochs."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
    panels = (("pgd_sr_", axes[0], "PGD radius"), ("aia_logits_mlp", axes[1], "AIA attacker epochs (logits)"))
    for prefix, axis, name in panels:
        curves: dict[str, list[tuple[float, float]]] = {}
        for r in rows:
            if r["metric"].startswith(prefix):
                curves.setdefault(r["method"], []).append((float(r["metric"].removeprefix(prefix)), r["mean"]))
        for method, points in curves.items():
            axis.plot(*zip(*sorted(points), strict=True), marker="o", label=method)
        axis.set(xlabel=name, ylabel="success rate")
    axes[1].axhline(0.5, color="grey", linestyle=":")
    axes[0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw(experiment: str, rows: Sequence[Row], folder: Path) -> None:
    """All plots of an experiment into a folder."""
    trade_off(rows, experiment, folder / "trade_off.png")
    if any(r["metric"].startswith("pgd_sr_0.02") for r in rows):
        attack_curves(rows, folder / "attacks.png")
