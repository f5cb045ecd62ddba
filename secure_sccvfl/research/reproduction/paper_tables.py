"""Every table of the paper that the plaintext engine can make, as one plan: a folder for each, run one after another.

Each part is one command of `launch/reproduce.py`, too. Finished seeds are kept, so a stopped plan continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accounting.tables import Column, MarkdownText, Table, page
from secure_sccvfl.research.reproduction.seeds import command_line, reproduce
from secure_sccvfl.research.reproduction.summary import title_of

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


@dataclass(frozen=True)
class Part:
    """One folder: an experiment on data sets and splits over seeds. shows: the paper's tables that it answers."""

    folder: str
    experiment: str
    datasets: tuple[str, ...]
    shows: str
    splits: tuple[str, ...] = ("iid",)
    seeds: range = SEEDS
    card: str = ""
    note: str = ""

    @property
    def runs(self) -> int:
        return len(self.datasets) * len(self.splits) * len(self.seeds)

    @property
    def command(self) -> str:
        """The command that makes this part alone."""
        out = f"results/paper/{self.folder}"
        return command_line(self.experiment, self.datasets, self.splits, self.card, self.seeds, out)


def plan(income: str = "") -> tuple[Part, ...]:
    """The paper's tables, the small ones first. income: the data set of ACS Income, which is not shipped."""
    parts = [
        Part("main-german", "tabular", ("german",), "tab:vfl_tabular_results, German Credit", BOTH),
        Part("main-heart", "tabular", ("heart",), "tab:vfl_tabular_results, UCI Heart", BOTH),
        Part("ablation-german", "ablation", ("german",), "tab:scc_vfl_ablation_german"),
        Part("attacks-german", "attacks", ("german",), "fig:attack_plots, tab:aia_sr, tab:pgd_sr"),
        Part("runtime-german", "runtime", ("german",), "app:runtime-comm"),
        Part(
            "sensitivity-german",
            "sensitivity-paper",
            ("german",),
            "tab:sens_topfrac, tab:sens_cfscale, tab:sens_lamcons, tab:sens_lamadv, tab:sens_lamgen",
        ),
        Part("switches-german", "switches", ("german",), "which element makes a difference to the paper's figures"),
        Part(
            "main-compas",
            "tabular",
            ("compas",),
            "tab:vfl_tabular_results, COMPAS Cox",
            BOTH,
            FIVE,
            "shipped",
            ONLY_FIVE,
        ),
        Part(
            "folktables-mobility",
            "folktables",
            ("mobility",),
            "tab:folktables_mobility_iid, tab:folktables_mobility_noniid",
            BOTH,
            THREE,
            "shipped",
            ONLY_THREE,
        ),
    ]
    if income:
        shows = "tab:folktables_income_iid, tab:folktables_income_noniid"
        parts.append(Part("folktables-income", "folktables", (income,), shows, BOTH, TWO, "shipped", ONLY_TWO))
    return tuple(parts)


def first_seeds(parts: Sequence[Part], most: int | None) -> tuple[Part, ...]:
    """The same with at most this many seeds each: for a first look."""
    if most is None:
        return tuple(parts)
    return tuple(replace(part, seeds=part.seeds[:most]) for part in parts)


def run_plan(
    parts: Sequence[Part],
    out: Path,
    workers: int,
    engine: str,
    tell: Callable[[str, int, int], None] = lambda part, finished, total: None,
) -> None:
    """Run what is missing of every part; tell: the part, and how many seeds of the whole plan are done."""
    total, before = sum(part.runs for part in parts), 0
    for part in parts:
        done_before = before

        def progress(finished: int, _: int, name: str = part.folder, offset: int = done_before) -> None:
            tell(name, offset + finished, total)

        reproduce(
            part.experiment,
            part.datasets,
            part.splits,
            part.seeds,
            workers,
            out / part.folder,
            engine,
            card=part.card,
            command=part.command,
            note=part.note,
            progress=progress,
        )
        before += part.runs
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
