"""The paper's qualitative appendix: its methods and ours on one seed of a public data set, as data, tables and plots.

Roles with mutual information, representations, and training curves. Every measure has its control next to it:
permuted s, or chance. A picture of two principal components shows little of a representation, and the eye sees groups
where there are none. So each comes with the area under the ROC curve (AUC) of a linear classifier of s, fitted on
training records and tested on held-out ones, on the two components and on the whole representation. 0.5 is chance.
Single people are shown by the program `explain` and by the page of a run.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Patch
from sklearn.metrics import roc_auc_score

from secure_sccvfl.accounting.charts import percent, tidy
from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.accounting.tables import Table, page
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.methods import METHODS, Fitted, Prepared, prepare
from secure_sccvfl.evaluation.pooled import mutual_information_with_s
from secure_sccvfl.evaluation.scoring import one_thread
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.research.paper.networks import TrainedNetwork
from secure_sccvfl.research.results import write_results
from secure_sccvfl.research.tables import saved

SHOWN = ("erm_network", "uniform_cf", "policy_blind", "server_consistency", "paper", "scc")
"""The paper's methods and ours, by their names in the tables; the first is plain training."""
PAPER = "paper"
PERMUTATIONS = 100
MOST_ROWS, MOST_POINTS = 1000, 400
RIDGE, SPREAD = 0.01, 1e-9
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
Analysis = Mapping[str, Any]


def of_methods(dataset: str, split: SplitKind, seed: int, card: str = "") -> dict[str, Any]:
    """The analysis of one seed, on one thread."""
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", DataWarning)
        data = load(dataset)
        return analyse(prepare(data, make_split(data, split, seed), seed, card=named_card(card, dataset)))


def analyse(ready: Prepared, names: Sequence[str] = SHOWN) -> dict[str, Any]:
    """The analysis of methods that are trained here."""
    fitted = {name: METHODS.get(name)(ready) for name in names}
    rows, attribute = ready.split.train, ready.data.protected[0]
    parties = [party.take(rows) for party in ready.parties]
    return {
        "roles": dict(ready.roles.of),
        "scores": {name: float(value) for name, value in ready.model.assignment.scores.items()},
        "information": mutual_information_with_s(parties, attribute.codes[rows], len(attribute.groups), ready.seed),
        "groups": list(attribute.groups),
        "mixing": [
            {"method": name, **mixing(_represented(ready, method.fused), ready.seed)}
            for name, method in fitted.items()
            if method.fused is not None
        ],
        "history": {name: curve for name, method in fitted.items() if (curve := _history(method))},
        "trials": [asdict(trial) for trial in ready.model.trials],
        "lambda": ready.model.lam,
    }


def _history(fitted: Fitted) -> list[dict[str, float | None]]:
    """The training curve of a network, a record for each epoch; None: not defined. Empty for other methods."""
    if not isinstance(fitted.predict, TrainedNetwork):
        return []
    records = [asdict(record) for record in fitted.predict.history]
    return [{key: value if math.isfinite(value) else None for key, value in record.items()} for record in records]


@dataclass(frozen=True)
class Represented:
    """Training and held-out records in one representation, and their groups."""

    train: np.ndarray
    test: np.ndarray
    train_codes: np.ndarray
    test_codes: np.ndarray


def _represented(ready: Prepared, encode: Callable[[np.ndarray], np.ndarray]) -> Represented:
    """At most `MOST_ROWS` training and test records each, at random."""
    codes, split = ready.data.protected[0].codes, (ready.split.train, ready.split.test)
    parts = [stream(ready.seed, "mixing-rows").permutation(rows)[:MOST_ROWS] for rows in split]
    return Represented(*(encode(ready.inputs[rows]) for rows in parts), *(codes[rows] for rows in parts))


def components(z: np.ndarray, at: np.ndarray, count: int = 2) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Both on the first principal components of z, and the share of z's variance that each of these has."""
    mean = z.mean(axis=0)
    _, size, directions = np.linalg.svd(z - mean, full_matrices=False)
    energy = float((size**2).sum())
    shares = [float(s**2 / energy) if energy > SPREAD else 0.0 for s in size[:count]]
    axes = directions[:count].T
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])  # one sign, run after run
    return (z - mean) @ axes, (at - mean) @ axes, shares


def mixing(view: Represented, seed: int) -> dict[str, Any]:
    """Points of held-out records on two components, and what a classifier reads of s there and from the whole."""
    train, test, shares = components(view.train, view.test)
    return {
        "width": view.train.shape[1],
        "shares": shares,
        "two": read_s(Represented(train, test, view.train_codes, view.test_codes), seed),
        "whole": read_s(view, seed),
        "points": np.round(test[:MOST_POINTS], 4).tolist(),
        "groups": [int(code) for code in view.test_codes[:MOST_POINTS]],
    }


def read_s(view: Represented, seed: int) -> dict[str, float]:
    """AUC of a linear classifier of s (ridge regression on indicators) on held-out records, with its 95 % interval.

    null, null_high: its mean and 95 % quantile with s permuted over all records. A representation is scaled as a
    whole, not column by column: what the decision takes little from counts little.
    """
    mean, spread = view.train.mean(axis=0), float(np.sqrt(view.train.var(axis=0).mean()))
    if spread <= SPREAD or len(np.unique(view.train_codes)) < 2:
        return dict.fromkeys(("auc", "low", "high", "null", "null_high"), 0.5)
    train, test = ((z - mean) / spread for z in (view.train, view.test))
    count = int(max(view.train_codes.max(), view.test_codes.max())) + 1
    penalty = RIDGE * len(train) * np.eye(train.shape[1])
    readers = test @ np.linalg.solve(train.T @ train + penalty, train.T)  # from targets of training records to scores

    def auc(known: np.ndarray, wanted: np.ndarray) -> float:
        return _auc(readers @ one_hot(known, count), wanted)

    rng = stream(seed, "mixing")
    value = auc(view.train_codes, view.test_codes)
    half = 1.96 * _deviation(value, view.test_codes)
    null = [auc(rng.permutation(view.train_codes), rng.permutation(view.test_codes)) for _ in range(PERMUTATIONS)]
    ends = {"low": max(0.0, value - half), "high": min(1.0, value + half)}
    return {"auc": value, **ends, "null": float(np.mean(null)), "null_high": float(np.quantile(null, 0.95))}


def _auc(scores: np.ndarray, codes: np.ndarray) -> float:
    """Two groups: of the second. More: the mean over groups, each against the others."""
    groups = range(scores.shape[1])[-1 if scores.shape[1] == 2 else 0 :]
    areas = [roc_auc_score(codes == g, scores[:, g]) for g in groups if 0 < (codes == g).sum() < len(codes)]
    return float(np.mean(areas)) if areas else 0.5


def _deviation(auc: float, codes: np.ndarray) -> float:
    """Standard deviation of an AUC by Hanley and McNeil; for several groups, of the smallest against the others."""
    counts = np.bincount(codes)
    few = int(counts[counts > 0].min())
    many = len(codes) - few
    if many == 0:
        return 0.0
    one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (few - 1) * (one - auc**2) + (many - 1) * (two - auc**2)
    return float(np.sqrt(max(variance, 0.0) / (few * many)))


def write_qualitative(folder: Path, analysis: Analysis, command: str) -> str:
    """Write data, tables and plots into a folder; returns the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"experiment": "qualitative", "command": command, "date": datetime.date.today().isoformat()}
    pictures = [
        role_plot(analysis, folder / "roles.png"),
        representation_plot(analysis, folder / "representations.png"),
    ]
    if PAPER in analysis["history"]:
        pictures.append(training_plot(analysis["history"][PAPER], PAPER, folder / "training.png"))
    shown = [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures]
    parts = [f"Made by `{command}` on {facts['date']}.", "# Qualitative analysis", *shown]
    text = page(*parts, _mask(analysis), _representations(analysis))
    write_results(folder / "results.json", {**facts, **analysis}, text)
    return text


def _mask(analysis: Analysis) -> str:
    known = analysis["information"]
    rows = []
    for name, of in sorted(known.items(), key=lambda item: -item[1]["mi"]):
        information = [tidy(of[figure], 4) for figure in ("mi", "null", "null_high")]
        rows.append((name, *information, tidy(analysis["scores"][name], 3), ROLES[analysis["roles"][name]][0]))
    text = (
        "Mutual information with s in nats, in plaintext on the training part, from counts over public bins. Next to "
        "it what it is with s permuted: the mean, and what one permutation in twenty exceeds. The score is the noisy "
        "one that roles rest on."
    )
    heads = ("column", "MI", "MI, s permuted", "95 % of permutations below", "score", "role")
    return f"## Roles\n\n{text}\n\n{Table(heads, rows)}"


def _representations(analysis: Analysis) -> str:
    rows = [
        (m["method"], str(m["width"]), percent(sum(m["shares"])), _reading(m["two"]), _reading(m["whole"]))
        for m in analysis["mixing"]
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


def role_plot(analysis: Analysis, path: Path) -> str:
    """Columns by score, coloured by role; below, mutual information with the level that chance reaches."""
    names = sorted(analysis["scores"], key=lambda name: -analysis["scores"][name])
    _, (upper, lower) = plt.subplots(2, 1, figsize=(10, 7), sharex=True)
    known = [analysis["information"][name] for name in names]
    for axis, values in ((upper, [analysis["scores"][n] for n in names]), (lower, [k["mi"] for k in known])):
        for place, (name, value) in enumerate(zip(names, values, strict=True)):
            _, colour, hatch = ROLES[analysis["roles"][name]]
            axis.bar(place, value, color=colour, hatch=hatch, edgecolor="black", alpha=0.6)
    lower.plot(range(len(names)), [k["null_high"] for k in known], "k_", ms=12, label="s permuted, 95 %")
    lower.legend(fontsize=8)
    upper.set(ylabel="noisy score", title="scores and roles")
    lower.set(ylabel="MI(x, s), nats")
    upper.legend(handles=[Patch(color=c, label=word, alpha=0.6) for word, c, _ in ROLES.values()], fontsize=8)
    lower.set_xticks(range(len(names)), [plain(name) for name in names], rotation=90)
    return saved(path)


def representation_plot(analysis: Analysis, path: Path) -> str:
    """Two components of each method's representation, by group, with the AUC of a classifier in the title."""
    views = analysis["mixing"]
    columns = min(3, len(views))
    rows = -(-len(views) // columns)
    _, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.9 * rows), squeeze=False)
    for axis in axes.flat[len(views) :]:
        axis.axis("off")
    for axis, view in zip(axes.flat, views, strict=False):
        for code, name in enumerate(analysis["groups"]):
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
