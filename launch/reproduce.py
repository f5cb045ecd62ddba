"""Run an experiment of the method over seeds, on the plaintext engine, with common judges.

    python launch/reproduce.py main --dataset german --split iid --seeds 10 --jobs 2 --out results/german
    python launch/reproduce.py main --dataset acs12-gender --card shipped --first-seed 600 --out results/fresh
    python launch/reproduce.py main --dataset my-data.toml --out results/mine
    python launch/reproduce.py discovery --out results
    python launch/reproduce.py letter-roles --dataset german --first-seed 950 --seeds 5 --out results/paper
    python launch/reproduce.py qualitative --dataset german --out out/qualitative
    python launch/reproduce.py secure --dataset german --first-seed 200 --seeds 10 --out results/secure-german
    python launch/reproduce.py runtime-secret --seeds 2 --out results/runtime-secret
    python launch/reproduce.py paper --dataset acs-income:PATH.csv.gz --out results/paper

Finished seeds are kept in OUT/seeds, so a stopped run continues where it was. OUT gets results.json
(data), results.md (tables with 95 % intervals, the paper's figures beside ours) and plots. `paper` makes every
table of the paper, a folder for each; it needs the file of ACS Income for the two tables about it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from launch.arguments import Parser
from protocols.config import ConfigError
from secure_sccvfl.data.catalogue import dataset_help, load
from secure_sccvfl.evaluation.experiments import EXPERIMENTS
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.research.reproduced.seeds import ENGINES, command_line, reproduce, versions
from secure_sccvfl.runs.console import OK, guarded, say

SEEDS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument(
        "experiment",
        choices=(*EXPERIMENTS, "paper", *SINGLE),
        help="which table; paper: all of the paper's; secure: whole runs in secret; qualitative: one seed",
    )
    parser.add_argument("--dataset", action="append", help=f"may be given twice; {dataset_help()}")
    parser.add_argument("--split", action="append", choices=("iid", "shift"), help="may be given twice; default iid")
    parser.add_argument(
        "--card", default="", help='policy card that fixes roles: a file, "shipped", or a shipped name'
    )
    parser.add_argument("--seeds", type=int, help=f"how many (default {SEEDS}; paper: 30, 5 on census records)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default 0; paper: 700)")
    parser.add_argument("--jobs", type=int, default=max(os.cpu_count() or 1, 1), help="processes (default: cores)")
    parser.add_argument("--out", type=Path, required=True, help="folder for results; finished seeds in it are kept")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="local", help="ray: on a Ray cluster")
    options = parser.parse_args(arguments)
    if (options.seeds is not None and options.seeds < 1) or options.jobs < 1 or options.first_seed < 0:
        parser.error("--seeds and --jobs must be at least 1, --first-seed at least 0")
    if options.experiment == "paper":
        return guarded("reproduce", lambda: run_paper(options), debug=options.debug)
    options.seeds = options.seeds or SEEDS
    return guarded("reproduce", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    if options.experiment in SINGLE:
        return SINGLE[options.experiment](options)
    datasets = options.dataset or (["mobility"] if options.experiment == "folktables" else ["german"])
    check_data(datasets, options.card)
    with shown_progress() as tell:
        rows = reproduce(
            options.experiment,
            datasets,
            options.split or ["iid"],
            seeds_of(options),
            options.jobs,
            options.out,
            options.engine,
            card=options.card,
            command=command_of(options, datasets),
            progress=lambda finished, total: tell(options.experiment, finished, total),
        )
    print(json.dumps(rows) if options.json else (options.out / "results.md").read_text("utf-8"))
    return OK


def check_data(datasets: Sequence[str], card_name: str) -> None:
    """Report a wrong name, file or card before any work is handed out."""
    for name in datasets:
        data, card = load(name), named_card(card_name, name)
        if card is not None:
            card.check({f.name for f in data.features}, data.name)


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal; elsewhere a line for each finished seed."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    visible = sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=not visible) as bar:
        task = bar.add_task("")

        def tell(what: str, finished: int, total: int) -> None:
            bar.update(task, description=what, completed=finished, total=total)
            if not visible:
                say(f"{what}: {finished} of {total}", error=True)

        yield tell


def run_paper(options: argparse.Namespace) -> int:
    """Every table of the paper, a folder for each."""
    from secure_sccvfl.research.reproduced.paper_tables import first_seeds, plan, run_plan

    given = options.dataset or []
    if len(given) > 1 or not all(name.startswith(("acs-income:", "acs-income@")) for name in given):
        raise ConfigError(
            "paper takes one --dataset, the records of ACS Income: acs-income:PATH or acs-income@CA-2018"
        )
    if options.split or options.card or options.first_seed:
        raise ConfigError("paper has its own splits, cards and seeds: leave out --split, --card and --first-seed")
    if not given:
        say("without --dataset acs-income:PATH the two tables of ACS Income are left out", error=True)
    parts = first_seeds(plan(*given), options.seeds)
    for part in parts:
        check_data(part.datasets, part.card)
    with shown_progress() as tell:
        run_plan(parts, options.out, options.jobs, options.engine, tell)
    print((options.out / "README.md").read_text("utf-8"))
    return OK


def command_of(options: argparse.Namespace, datasets: Sequence[str]) -> str:
    """The command that made a table."""
    return command_line(options.experiment, datasets, options.split or (), options.card, seeds_of(options))


def seeds_of(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + options.seeds)


def write_page(path: Path, result: dict[str, Any], text: str) -> int:
    """Write data and a page beside them, and print the page."""
    from secure_sccvfl.research.benchmarks.results import write_results

    write_results(path, result, text)
    print(text)
    return OK


def run_discovery(options: argparse.Namespace) -> int:
    """Rank agreement of noisy scores, written to OUT/discovery-utility.json and .md."""
    from secure_sccvfl.evaluation import discovery_utility

    rows, command = discovery_utility.measure(), "python launch/reproduce.py discovery --out results"
    text = discovery_utility.markdown(rows, command)
    return write_page(options.out / "discovery-utility.json", {"command": command, "rows": rows}, text)


def run_roles(options: argparse.Namespace) -> int:
    """How often proposed roles come again, written to OUT/role-stability.json and .md."""
    from secure_sccvfl.evaluation.discovery_utility import stability, stability_markdown

    datasets, date = options.dataset or ["german"], datetime.date.today().isoformat()
    rows = [row for name in datasets for row in stability(name, seeds_of(options))]
    command = command_of(options, datasets)
    text = stability_markdown(rows, f"Made by `{command}` on {date}.")
    result = {"command": command, "date": date, **versions(), "rows": rows}
    return write_page(options.out / "role-stability.json", result, text)


def run_letter_roles(options: argparse.Namespace) -> int:
    """How often roles of the paper's own discovery come again, and fractions by validation: OUT/letter-roles.*"""
    from secure_sccvfl.evaluation.letter.fractions import markdown, measure

    dataset = (options.dataset or ["german"])[0]
    found, command = measure(dataset, seeds_of(options)), command_of(options, [dataset])
    date = datetime.date.today().isoformat()
    text = markdown(found, f"Made by `{command}` on {date}.")
    result = {"command": command, "date": date, **versions(), **found}
    return write_page(options.out / "letter-roles.json", result, text)


def run_qualitative(options: argparse.Namespace) -> int:
    """Roles, representations, curves and single people of the first seed, written to OUT."""
    from secure_sccvfl.data.party_data import benchmark_schema
    from secure_sccvfl.reports.results import Description, decode
    from secure_sccvfl.research.qualitative import of_methods
    from secure_sccvfl.research.qualitative_tables import write_qualitative
    from secure_sccvfl.runs.description import describe

    dataset, split = (options.dataset or ["german"])[0], (options.split or ["iid"])[0]
    data = load(dataset)
    words = decode(Description, describe(dataset, benchmark_schema(data)))
    options.seeds = 1
    found = of_methods(dataset, split, options.first_seed, options.card)
    text = write_qualitative(options.out, found, words, command_of(options, [dataset]))
    print(json.dumps(found) if options.json else text)
    return OK


def run_secure(options: argparse.Namespace) -> int:
    from secure_sccvfl.research.reproduced.secure_seeds import run_secure_seeds

    dataset, split = (options.dataset or ["german"])[0], (options.split or ["iid"])[0]
    command = command_of(options, [dataset])
    given = {"dataset": dataset, "split": split, **({"card": options.card} if options.card else {})}
    run_secure_seeds(given, seeds_of(options), options.out, command, lambda line: say(line, error=True))
    print((options.out / "results.md").read_text("utf-8"))
    return OK


def run_secret_runtime(options: argparse.Namespace) -> int:
    """Seconds, rounds and bytes of a step in secret, written to OUT/results.json and .md."""
    from secure_sccvfl.research.reproduced.secret_runtime import secret_runtime

    dataset = (options.dataset or ["german"])[0]
    command = command_of(options, [dataset])
    secret_runtime(dataset, seeds_of(options), options.out, command, lambda line: say(line, error=True))
    print((options.out / "results.md").read_text("utf-8"))
    return OK


SINGLE: dict[str, Callable[[argparse.Namespace], int]] = {
    "discovery": run_discovery,
    "roles": run_roles,
    "letter-roles": run_letter_roles,
    "secure": run_secure,
    "runtime-secret": run_secret_runtime,
    "qualitative": run_qualitative,
}
"""Tables that are not about methods."""

if __name__ == "__main__":
    sys.exit(main())
