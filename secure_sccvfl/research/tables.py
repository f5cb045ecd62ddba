"""Tables of methods over seeds on the plaintext engine, and the paper's tables as one plan.

Seeds run in processes of this machine. Finished seeds are kept, so a stopped table continues where it was.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import pyplot as plt

from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.accounting.tables import Column, MarkdownText, Table, page
from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, OWN
from secure_sccvfl.evaluation.scoring import RATES, deviation, for_new_people, interval, reduction, signed
from secure_sccvfl.reports.tables import GUARANTEES, markdown, paper_figure
from secure_sccvfl.research.experiments import SeedRun, run_seed
from secure_sccvfl.research.results import provenance, short_name, title_of, write_results

Progress = Callable[[int, int], None]
"""Called with how many seeds are finished, and how many there are."""
PER_SEED = (
    "acc",
    "auc",
    "logloss",
    "fr_all",
    "fr_kr_all",
    "fr_null_all",
    "fr_null_kr_all",
    "fr_own",
    *GUARANTEES,
    "dp_gap",
)
"""Figures that are kept for each seed."""
SEEDS = range(700, 730)
"""As many as the paper has. Nothing was chosen on them."""
FIVE, THREE, TWO = SEEDS[:5], SEEDS[:3], SEEDS[:2]
ONLY_FIVE = (
    "Five seeds, the paper has 30: without the column that holds the label, every method decides nearly always as "
    "the majority does, and more seeds say no more."
)
_SLOW = (
    "the paper has 30: one seed of these records takes minutes for all methods, and a test part of thousands of "
    "records makes seeds differ little."
)
ONLY_THREE, ONLY_TWO = f"Three seeds, {_SLOW}", f"Two seeds, {_SLOW}"
BOTH = ("iid", "shift")


def run_seeds(seeds: Sequence[SeedRun], workers: int) -> Iterator[tuple[SeedRun, dict[str, Any]]]:
    """Results as seeds finish, in this process or in several."""
    if workers == 1:
        for seed in seeds:
            yield seed, run_seed(seed)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(run_seed, seed): seed for seed in seeds}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def command_line(
    experiment: str, datasets: Sequence[str], splits: Sequence[str], card: str, seeds: range, out: str = ""
) -> str:
    """The command that makes a table. The folder of a file is left out: it differs between machines."""
    named = [f"{kind}:{Path(path).name}" if path else kind for kind, _, path in (d.partition(":") for d in datasets)]
    words = ["python launch/reproduce.py", experiment, *(f"--dataset {name}" for name in named)]
    words += [f"--split {split}" for split in splits]
    words += [f"--card {card}"] if card else []
    words += [f"--first-seed {seeds.start} --seeds {len(seeds)}"]
    return " ".join([*words, *([f"--out {out}"] if out else [])])


@dataclass(frozen=True)
class Part:
    """One folder of results: an experiment on data sets and splits over seeds.

    shows: the tables of the paper that it answers, or what it is about. note: for the reader of its page. root: the
    folder of its plan.
    """

    folder: str
    experiment: str
    datasets: tuple[str, ...]
    shows: str = ""
    splits: tuple[str, ...] = ("iid",)
    seeds: range = SEEDS
    card: str = ""
    note: str = ""
    root: str = "results/paper"

    @property
    def runs(self) -> list[SeedRun]:
        return [
            SeedRun(self.experiment, dataset, split, seed, self.card)  # type: ignore[arg-type]
            for dataset in self.datasets
            for split in self.splits
            for seed in self.seeds
        ]

    @property
    def command(self) -> str:
        """The command that makes this part of its plan alone."""
        splits = () if self.splits == ("iid",) else self.splits
        out = f"{self.root}/{self.folder}"
        return command_line(self.experiment, self.datasets, splits, self.card, self.seeds, out)


def reproduce(
    part: Part,
    out: Path,
    workers: int = 1,
    command: str = "",
    progress: Progress = lambda finished, total: None,
) -> list[dict[str, Any]]:
    """Run the missing seeds, then write results.json, results.md and plots over all seeds to `out`."""
    kept, runs = out / "seeds", part.runs
    kept.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not (kept / f"{run.key}.json").exists()]
    done = len(runs) - len(missing)
    progress(done, len(runs))
    for number, (run, result) in enumerate(run_seeds(missing, workers), start=done + 1):
        unfinished = kept / f"{run.key}.part"
        unfinished.write_text(json.dumps(result), encoding="utf-8")
        os.replace(unfinished, kept / f"{run.key}.json")
        progress(number, len(runs))
    finished = [json.loads((kept / f"{run.key}.json").read_text("utf-8")) for run in runs]
    rows, made = summarise(finished), provenance(command or part.command)
    titles = {short_name(name): title_of(name) for name in part.datasets}
    facts = {"experiment": part.experiment, **made, "seeds": list(part.seeds), "note": part.note, "titles": titles}
    head = f"Made by `{made['command']}` on {made['date']}.\n\n" + (f"{part.note}\n\n" if part.note else "")
    text = head + markdown(part.experiment, rows, titles)
    write_results(out / "results.json", {**facts, "rows": rows, "per_seed": per_seed(finished)}, text)
    draw(part.experiment, rows, out)
    return rows


def per_seed(finished: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Data set, split if it is not iid, and seed -> method -> figure."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for seed in finished:
        job = seed["job"]
        split = "" if job["split"] == "iid" else f"{job['split']} "
        methods = table.setdefault(f"{short_name(job['dataset'])} {split}{job['seed']}", {})
        for score in seed["scores"]:
            name = score["metric"] if score["judge"] is None else f"{score['metric']}_{score['judge']}"
            if name in PER_SEED and score["method"] != "(edits)":
                methods.setdefault(score["method"], {})[name] = round(score["value"], 5)
    return table


def differences(folder: Path, part: Part, workers: int = 1) -> tuple[int, list[str]]:
    """Run the seeds of `part` again: how many figures were compared with the committed rows, and which differ."""
    committed = json.loads((folder / "results.json").read_text("utf-8"))["per_seed"]
    again, compared, differing = per_seed([result for _, result in run_seeds(part.runs, workers)]), 0, []
    for seed, methods in again.items():
        for method, figures in methods.items():
            kept = committed.get(seed, {}).get(method, {})
            for name in sorted({*figures, *kept}):
                compared += 1
                if kept.get(name) != figures.get(name):
                    differing.append(f"{seed}, {method}, {name}: {kept.get(name)} committed, {figures.get(name)} now")
        gone = set(committed.get(seed, {})) - set(methods)
        differing += [f"{seed}, {method}: committed, and not compared by the experiment now" for method in gone]
    return compared, differing


def own_plan(income: str = "", most: int | None = None) -> tuple[Part, ...]:
    """The tables of this project's method. income: ACS Income, by race; its records serve the tables by sex too."""
    recent, earlier, fresh, sixty = range(1100, 1120), range(600, 620), range(900, 920), range(920, 980)
    german, gender, card = ("german",), ("acs12-gender",), "shipped"
    parts = [
        Part("main-german", "main", german, "all methods, five counterfactual models, the frontier", seeds=earlier),
        Part("main-heart", "main", ("heart",), "the same", seeds=earlier),
        Part("main-acs12-gender", "main", gender, "the same under the shipped card", seeds=earlier, card=card),
        Part("main-acs12-race", "main", ("acs12",), "the same under the shipped card", seeds=earlier, card=card),
        Part("main-compas", "folktables", ("compas",), "fewer methods, two models", seeds=earlier[:5], card=card),
        Part("main-mobility", "folktables", ("mobility",), "the same", seeds=earlier[:5], card=card),
        Part("range-german", "range", german, "weights of the range penalty", seeds=recent),
        Part("range-acs12-gender", "range", gender, "the same", seeds=recent, card=card),
        Part("epsilon-german", "epsilon", german, "total budgets; roles of discovery at epsilon 8", seeds=recent),
        Part("epsilon-german-full", "epsilon", german, "total budgets", seeds=recent, card="german-full"),
        Part("epsilon-acs12-gender", "epsilon", gender, "total budgets", seeds=recent, card=card),
        Part("private-german", "private", german, "price of a private model", seeds=fresh, card="german-full"),
        Part("private-acs12-gender", "private", gender, "the same", seeds=fresh, card=card),
        Part("private-acs12-gender-60", "private", gender, "the same on sixty seeds", seeds=sixty, card=card),
        Part("sensitivity-german", "sensitivity", german, "one setting changed at a time", seeds=earlier),
    ]
    if income:
        race, sex = (income,), (income.replace("acs-income", "acs-income-sex", 1),)
        parts += [
            Part("main-acs-sex", "folktables", sex, "fewer methods, two models", seeds=earlier[:5], card=card),
            Part("main-acs-race", "folktables", race, "the same", seeds=earlier[:5], card=card),
            Part("epsilon-acs-sex", "epsilon", sex, "total budgets", seeds=recent[:3], card=card),
            Part("private-acs-sex", "private", sex, "price of a private model", seeds=range(905, 910), card=card),
        ]
    return tuple(replace(part, seeds=part.seeds[:most], root="results") for part in parts)


def plan(income: str = "", most: int | None = None) -> tuple[Part, ...]:
    """The paper's tables, the small ones first.

    income: the data set of ACS Income, which is not shipped. most: at most this many seeds of each part.
    """
    german, tabular = ("german",), "tab:vfl_tabular_results"
    sweeps = "tab:sens_topfrac, tab:sens_cfscale, tab:sens_lamcons, tab:sens_lamadv, tab:sens_lamgen"
    mobility = "tab:folktables_mobility_iid, tab:folktables_mobility_noniid"
    parts = [
        Part("main-german", "tabular", german, f"{tabular}, German Credit", BOTH),
        Part("main-heart", "tabular", ("heart",), f"{tabular}, UCI Heart", BOTH),
        Part("ablation-german", "ablation", german, "tab:scc_vfl_ablation_german"),
        Part("attacks-german", "attacks", german, "fig:attack_plots, tab:aia_sr, tab:pgd_sr"),
        Part("runtime-german", "runtime", german, "app:runtime-comm"),
        Part("sensitivity-german", "sensitivity-paper", german, sweeps),
        Part("switches-german", "switches", german, "which element makes a difference to the paper's figures"),
        Part("main-compas", "tabular", ("compas",), f"{tabular}, COMPAS Cox", BOTH, FIVE, "shipped", ONLY_FIVE),
        Part("folktables-mobility", "folktables", ("mobility",), mobility, BOTH, THREE, "shipped", ONLY_THREE),
    ]
    if income:
        shows = "tab:folktables_income_iid, tab:folktables_income_noniid"
        parts.append(Part("folktables-income", "folktables", (income,), shows, BOTH, TWO, "shipped", ONLY_TWO))
    return tuple(replace(part, seeds=part.seeds[:most]) for part in parts)


def run_plan(
    parts: Sequence[Part],
    out: Path,
    workers: int,
    tell: Callable[[str, int, int], None] = lambda part, finished, total: None,
) -> None:
    """Run what is missing of every part; tell: the part, and how many seeds of the whole plan are done."""
    total, before = sum(len(part.runs) for part in parts), 0
    for part in parts:

        def progress(finished: int, _: int, name: str = part.folder, offset: int = before) -> None:
            tell(name, offset + finished, total)

        reproduce(part, out / part.folder, workers, progress=progress)
        before += len(part.runs)


def index(parts: Sequence[Part], head: str) -> str:
    """Which folder has which table. head: title and first paragraph."""
    columns = (
        Column("folder", lambda part: MarkdownText(f"[{part['folder']}]({part['folder']}/results.md)")),
        Column("answers", "shows"),
        Column("data", lambda part: ", ".join(title_of(name) for name in part["datasets"])),
        Column("seeds", lambda part: f"{part['seeds'].start}-{part['seeds'][-1]}"),
    )
    return page(
        head,
        "Each folder is one command, too: the first line of its page has it, with the date.",
        Table.of([vars(part) for part in parts], columns),
        "\n".join(dict.fromkeys(part.note for part in parts if part.note)) or None,
    )


Row = dict[str, Any]
YARDSTICK = "drop_m"
"""The method that others are compared with by seed: dropping the mediators never flips a decision through them."""
COMPARED = ("acc", "auc")
PLAIN = "erm"
"""Plain training: flip rates are also reported as a share of its flip rate."""


class Key(NamedTuple):
    """What a row is about."""

    dataset: str
    split: str
    method: str
    judge: str | None
    metric: str


Values = Mapping[Key, Mapping[int, float]]
"""By row, the value of each seed."""


def summarise(finished: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows over seeds, and differences paired by seed. `aia_logits`, `aia_z`: the attacker strongest on average."""
    values: dict[Key, dict[int, float]] = defaultdict(dict)
    for result in finished:
        job = result["job"]
        for s in result["scores"]:
            if s["value"] is not None and np.isfinite(s["value"]):
                key = Key(short_name(job["dataset"]), job["split"], s["method"], s["judge"], s["metric"])
                values[key][job["seed"]] = s["value"]
    rows = []
    for key, seeds in values.items():
        found = np.array(list(seeds.values()))
        rows.append(_row(key, interval(found, key.metric.startswith(RATES)), len(found), deviation(found)))
    return [*rows, *_strongest(rows), *_differences(values), *_cuts(values)]


def _row(key: Key, found: tuple[float, float, float], seeds: int, sd: float | None) -> Row:
    """sd: standard deviation over seeds, of what has one value for each of them."""
    figures = dict(zip(("mean", "low", "high"), found, strict=True))
    return {**key._asdict(), **figures, "sd": sd, "seeds": seeds}


def _strongest(rows: Iterable[Row]) -> list[Row]:
    best: dict[tuple[str, str, str, str], Row] = {}
    views = [name for _, attack in ATTACKS.items() if attack.takes == "view" for name in attack.columns]
    for row in rows:
        for view in views:
            if row["metric"].startswith(view + "_"):
                where = (row["dataset"], row["split"], row["method"], view)
                if where not in best or row["mean"] > best[where]["mean"]:
                    best[where] = {**row, "metric": view, "attacker": row["metric"].removeprefix(view + "_")}
    return list(best.values())


def _pairs(key: Key, values: Values, other: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of a row and of another method's, for the seeds that both have."""
    own, reference = values[key], values.get(key._replace(method=other), {})
    seeds = sorted(set(own) & set(reference))
    return np.array([own[s] for s in seeds]), np.array([reference[s] for s in seeds])


def _differences(values: Values) -> list[Row]:
    """How far each method is above dropping the mediators, paired by seed. Signed, so not cut at 0.

    new_low, new_high: the interval for new people, which claims rest on.
    """
    rows = []
    for key in values:
        if key.metric in COMPARED and key.judge is None and key.method != YARDSTICK:
            own, reference = _pairs(key, values, YARDSTICK)
            if len(own):
                apart = own - reference
                row = key._replace(metric=f"{key.metric}_vs_{YARDSTICK}")
                new = dict(zip(("new_low", "new_high"), for_new_people(apart), strict=True))
                rows.append({**_row(row, signed(apart), len(own), deviation(apart)), **new})
    return rows


def _cuts(values: Values) -> list[Row]:
    """By which share flip rates are below those of plain training."""
    rows = []
    for key in values:
        if key.metric == "fr" and key.method != PLAIN:
            own, plain = _pairs(key, values, PLAIN)
            if len(own) and plain.mean() > 0:
                mean, low, high = reduction(own, plain)
                rows.append(_row(key._replace(metric="fr_cut"), (mean, low, min(high, 1.0)), len(own), None))
    return rows


matplotlib.use("Agg")


matplotlib.rcParams["text.parse_math"] = False  # a dollar sign in a name is not a formula
MARKS = {**{name: judge.mark[0] for name, judge in COUNTERFACTUAL_MODELS.items()}, OWN: "x"}


def trade_off(rows: Sequence[Mapping[str, Any]], experiment: str, path: Path) -> None:
    """Accuracy against flip rate, one panel per data set and split, one mark per counterfactual model."""
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


def attack_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
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


def draw(experiment: str, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
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
