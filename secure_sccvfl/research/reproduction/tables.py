"""Tables of methods over seeds on the plaintext engine, and the paper's tables as one plan.

Seeds run in processes of this machine. Finished seeds are kept, so a stopped table continues where it was.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accounting.tables import Column, MarkdownText, Table, page
from secure_sccvfl.reports.tables import markdown
from secure_sccvfl.research.plots import draw
from secure_sccvfl.research.reproduction.experiments import SeedRun, run_seed
from secure_sccvfl.research.reproduction.summary import short_name, summarise, title_of
from secure_sccvfl.research.results import provenance, write_results

Progress = Callable[[int, int], None]
"""Called with how many seeds are finished, and how many there are."""
PER_SEED = ("acc", "auc", "logloss", "fr_all", "fr_kr_all", "fr_null_all", "fr_null_kr_all", "fr_own", "dp_gap")
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

    shows: the tables of the paper that it answers. note: for the reader of its page.
    """

    folder: str
    experiment: str
    datasets: tuple[str, ...]
    shows: str = ""
    splits: tuple[str, ...] = ("iid",)
    seeds: range = SEEDS
    card: str = ""
    note: str = ""

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
        """The command that makes this part of the paper's plan alone."""
        out = f"results/paper/{self.folder}"
        return command_line(self.experiment, self.datasets, self.splits, self.card, self.seeds, out)


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
    """Data set and seed -> method -> figure."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for seed in finished:
        job = seed["job"]
        methods = table.setdefault(f"{short_name(job['dataset'])} {job['seed']}", {})
        for score in seed["scores"]:
            name = score["metric"] if score["judge"] is None else f"{score['metric']}_{score['judge']}"
            if name in PER_SEED and score["method"] != "(edits)":
                methods.setdefault(score["method"], {})[name] = round(score["value"], 5)
    return table


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
    (out / "README.md").write_text(index(parts), encoding="utf-8")


def index(parts: Sequence[Part]) -> str:
    """Which folder answers which table of the paper."""
    columns = (
        Column("folder", lambda part: MarkdownText(f"[{part['folder']}]({part['folder']}/results.md)")),
        Column("answers", "shows"),
        Column("data", lambda part: ", ".join(title_of(name) for name in part["datasets"])),
        Column("seeds", lambda part: f"{part['seeds'].start}-{part['seeds'][-1]}"),
    )
    return page(
        "# The paper's tables",
        "Made by `python launch/reproduce.py paper --dataset acs-income:PATH --out results/paper`. Each folder is\n"
        "one command, too: the first line of its page has it, with the date.",
        Table.of([vars(part) for part in parts], columns),
        "\n".join(dict.fromkeys(part.note for part in parts if part.note)) or None,
    )
