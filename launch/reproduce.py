"""Run an experiment of the method over seeds and write its tables.

    python launch/reproduce.py main --dataset german --split iid --seeds 10 --jobs 2 --out results/german
    python launch/reproduce.py main --dataset acs12-gender --card shipped --first-seed 600 --out results/fresh
    python launch/reproduce.py main --dataset my-data.toml --out results/mine
    python launch/reproduce.py tables --dataset acs-income:PATH.csv.gz --out results
    python launch/reproduce.py paper --dataset acs-income:PATH.csv.gz --out results/paper
    python launch/reproduce.py check --dataset acs-income:PATH.csv.gz --seeds 2 --out results
    python launch/reproduce.py epsilon --dataset german --first-seed 1100 --seeds 20 --out results/epsilon-german
    python launch/reproduce.py roles --dataset german --first-seed 600 --seeds 20 --out results
    python launch/reproduce.py letter-roles --dataset german --first-seed 950 --seeds 5 --out results/paper
    python launch/reproduce.py qualitative --dataset german --out out/qualitative
    python launch/reproduce.py secure --dataset german --first-seed 200 --seeds 10 --out results/secure-german
    python launch/reproduce.py runtime-secret --seeds 2 --out results/runtime-secret

Experiments run on the plaintext engine; `secure` and `runtime-secret` run under MPC. OUT gets results.json (data),
results.md (tables with 95 % intervals, the paper's figures next to ours) and trade_off.png; `attacks` also
attacks.png, `qualitative` roles.png, representations.png and training.png. `roles` and `letter-roles` write
role-stability.* and letter-roles.* alone. Finished seeds are kept in OUT, so a stopped run continues where it was:
seeds/EXPERIMENT-DATA-SPLIT-SEED.json, of `runtime-secret` seeds/MODE-DATA-SEED.json, of `secure` seed-0.json, ...
`tables` makes every table of our method and `paper` every table of the paper, a folder for each and an index
(tables.md, README.md); both need the file of ACS Income for the tables about it. `check` runs the first seeds of
every table below OUT again and compares each figure with its row in results.json; it writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from secure_sccvfl.accounting.tables import page
from secure_sccvfl.data.catalogue import dataset_help, load
from secure_sccvfl.launch.arguments import Parser
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.research.experiments import EXPERIMENTS
from secure_sccvfl.research.results import origin, provenance, write_results
from secure_sccvfl.research.tables import Part, command_line, differences, index, own_plan, plan, reproduce, run_plan
from secure_sccvfl.runs.console import CHECK_FAILED, OK, guarded, say

SEEDS = 10
CHECKED = 2
"""Seeds of each table that `check` runs again."""
SHOWN = 5
"""Differing figures of a table that it prints."""
PLANS = {
    "tables": (own_plan, "Tables of our method", "tables.md"),
    "paper": (plan, "The paper's tables", "README.md"),
}
"""Experiments that make many tables: their plan, and title and file of the index of folders."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = arguments_of(arguments)
    run = OTHERS.get(options.experiment, run_experiment)
    return guarded("reproduce", lambda: run(options), debug=options.debug)


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument(
        "experiment",
        choices=(*EXPERIMENTS, *OTHERS),
        help="which table; tables, paper: all of ours, of the paper's; check: compare with committed rows; secure: "
        "whole runs under MPC; qualitative: one seed",
    )
    parser.add_argument("--dataset", action="append", help=f"may be given twice; {dataset_help()}")
    parser.add_argument("--split", action="append", choices=("iid", "shift"), help="may be given twice; default iid")
    parser.add_argument(
        "--card", default="", help='policy card that fixes roles: a file, "shipped", or a shipped name'
    )
    parser.add_argument(
        "--seeds", type=int, help=f"how many (default {SEEDS}; tables, paper: as planned; check: {CHECKED})"
    )
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--jobs", type=int, default=max(os.cpu_count() or 1, 1), help="processes (default: cores)")
    parser.add_argument("--out", type=Path, required=True, help="folder for results; finished seeds in it are kept")
    options = parser.parse_args(arguments)
    if (options.seeds is not None and options.seeds < 1) or options.jobs < 1 or options.first_seed < 0:
        parser.error("--seeds and --jobs must be at least 1, --first-seed at least 0")
    return options


def seeds_of(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + (options.seeds or SEEDS))


def command_of(options: argparse.Namespace, *datasets: str) -> str:
    """The command that makes a table."""
    return command_line(options.experiment, datasets, options.split or (), options.card, seeds_of(options))


def first_dataset(options: argparse.Namespace) -> str:
    return str((options.dataset or ["german"])[0])


def run_experiment(options: argparse.Namespace) -> int:
    """A table of methods."""
    usual = "mobility" if options.experiment == "folktables" else "german"
    datasets, splits = tuple(options.dataset or [usual]), tuple(options.split or ["iid"])
    check_data(datasets, options.card)
    part = Part(options.out.name, options.experiment, datasets, "", splits, seeds_of(options), options.card)
    with shown_progress() as tell:
        rows = reproduce(
            part,
            options.out,
            options.jobs,
            command_of(options, *datasets),
            lambda finished, total: tell(options.experiment, finished, total),
        )
    print(json.dumps(rows) if options.json else (options.out / "results.md").read_text("utf-8"))
    return OK


def check_data(datasets: Sequence[str], card_name: str) -> None:
    """Report a wrong name, file or card before any work starts."""
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


def income_of(options: argparse.Namespace) -> str:
    """The records of ACS Income ("" if not given) of experiments that have their own splits, cards and seeds."""
    name, given = options.experiment, options.dataset or []
    if len(given) > 1 or not all(one.startswith(("acs-income:", "acs-income@")) for one in given):
        raise ConfigError(
            f"{name} takes one --dataset, the records of ACS Income: acs-income:PATH or acs-income@CA-2018"
        )
    if options.split or options.card or options.first_seed:
        raise ConfigError(f"{name} has its own splits, cards and seeds: leave out --split, --card and --first-seed")
    if not given:
        say("without --dataset acs-income:PATH the tables of ACS Income are left out", error=True)
    return str(given[0]) if given else ""


def run_plans(options: argparse.Namespace) -> int:
    """Every table of our method or of the paper. --seeds: at most this many of each, for a first look."""
    planned, title, file = PLANS[options.experiment]
    parts = planned(income_of(options), options.seeds)
    for part in parts:
        check_data(part.datasets, part.card)
    with shown_progress() as tell:
        run_plan(parts, options.out, options.jobs, tell)
    made = f"python launch/reproduce.py {options.experiment} --dataset acs-income:PATH --out {parts[0].root}"
    text = index(parts, f"# {title}\n\nMade by `{made}`.")
    (options.out / file).write_text(text, encoding="utf-8")
    print(text)
    return OK


def run_check(options: argparse.Namespace) -> int:
    """The first seeds of every table below OUT again; CHECK_FAILED if a figure differs from the committed rows."""
    income, differ = income_of(options), False
    for path in sorted(options.out.glob("**/results.json")):
        facts = json.loads(path.read_text("utf-8"))
        where = path.parent.relative_to(options.out).as_posix()
        if facts.get("experiment") not in EXPERIMENTS or "per_seed" not in facts:
            say(f"{where}: no rows by seed", error=True)
            continue
        part = part_of(facts["command"], income, options.seeds or CHECKED)
        if part is None:
            say(f"{where}: not compared, needs --dataset acs-income:PATH", error=True)
            continue
        compared, differing = differences(path.parent, part, options.jobs)
        differ = differ or bool(differing)
        say(f"{where}: {compared} figures of {len(part.runs)} runs, {len(differing)} differ")
        for line in differing[:SHOWN]:
            say(f"  {line}")
    return CHECK_FAILED if differ else OK


def part_of(command: str, income: str, seeds: int) -> Part | None:
    """The first seeds of the table that a command makes; None if it needs records of ACS Income, not given."""
    made = arguments_of([*shlex.split(command)[2:], "--out", "."])
    datasets = []
    for name in made.dataset:
        kind, mark, _ = name.partition(":")
        if mark and not income:
            return None
        datasets.append(f"{kind}:{income.partition(':')[2]}" if mark else name)
    first = range(made.first_seed, made.first_seed + min(seeds, made.seeds or SEEDS))
    return Part("", made.experiment, tuple(datasets), "", tuple(made.split or ["iid"]), first, made.card)


def write_page(path: Path, command: str, result: dict[str, Any], parts: Sequence[object]) -> int:
    """Write data and a page next to them, and print the page."""
    facts = provenance(command)
    text = page(origin(facts), *parts)
    write_results(path, {**facts, **result}, text)
    print(text)
    return OK


def run_roles(options: argparse.Namespace) -> int:
    """How often proposed roles come again: OUT/role-stability.json and .md."""
    from secure_sccvfl.research.role_stability import parts, stability

    datasets, path = options.dataset or ["german"], options.out / "role-stability.json"
    rows = [row for name in datasets for row in stability(name, seeds_of(options))]
    return write_page(path, command_of(options, *datasets), {"rows": rows}, parts(rows))


def run_letter_roles(options: argparse.Namespace) -> int:
    """How often roles of the paper's discovery come again, and fractions by validation: OUT/letter-roles.*"""
    from secure_sccvfl.research.role_stability import measure, paper_page

    dataset = first_dataset(options)
    result = measure(dataset, seeds_of(options))
    return write_page(options.out / "letter-roles.json", command_of(options, dataset), result, paper_page(result))


def run_qualitative(options: argparse.Namespace) -> int:
    """Roles, representations and training curves of the first seed, written to OUT."""
    from secure_sccvfl.research.qualitative import of_methods, write_qualitative

    dataset, split = first_dataset(options), (options.split or ["iid"])[0]
    options.seeds = 1
    analysis = of_methods(dataset, split, options.first_seed, options.card)
    text = write_qualitative(options.out, analysis, command_of(options, dataset))
    print(json.dumps(analysis) if options.json else text)
    return OK


def run_secure(options: argparse.Namespace) -> int:
    """Whole runs under MPC: `secure` with evaluation and baselines, `runtime-secret` by cost of a step."""
    from secure_sccvfl.research.secure_runs import secure_runtime, secure_seeds

    dataset, split = first_dataset(options), (options.split or ["iid"])[0]
    more = (seeds_of(options), options.out, command_of(options, dataset), lambda line: say(line, error=True))
    if options.experiment == "secure":
        card = {"card": options.card} if options.card else {}
        secure_seeds({"dataset": dataset, "split": split, **card}, *more)
    else:
        secure_runtime(dataset, *more)
    print((options.out / "results.md").read_text("utf-8"))
    return OK


OTHERS: dict[str, Callable[[argparse.Namespace], int]] = {
    "tables": run_plans,
    "paper": run_plans,
    "check": run_check,
    "roles": run_roles,
    "letter-roles": run_letter_roles,
    "secure": run_secure,
    "runtime-secret": run_secure,
    "qualitative": run_qualitative,
}
"""What is not a single table of methods."""

if __name__ == "__main__":
    sys.exit(main())
