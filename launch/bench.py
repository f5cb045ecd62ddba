"""Measure ours beside stock CrypTen and plain torch, in one run on one machine.

    python launch/bench.py ops --json results/bench-ops.json
    python launch/bench.py ops --repeats 30 --blocks 5
    python launch/bench.py discovery --json results/bench-discovery.json
    python launch/bench.py step --json results/bench-step.json    # one training step, modes sealed and split
    python launch/bench.py step --rows 100000 --columns 78        # the sealed step at another size
    python launch/bench.py run                                    # whole trainings, beside the plaintext engine
    python launch/bench.py rounds --blocks 3 --json results/bench-rounds.json    # second beside first order
    python launch/bench.py run --dataset acs-income:PATH.csv.gz   # one of them
    python launch/bench.py width --json results/bench-width.json  # by rows and columns, with a plot
    python launch/bench.py classes                                # three classes beside two
    python launch/bench.py heads --json results/head-mlp.json     # a network as the head beside the linear one
    python launch/bench.py wan                                    # at 0, 20 and 100 ms round trip
    python launch/bench.py evaluation --dataset german --repeats 100    # noisy test figures beside the exact ones
    python launch/bench.py align --parties 3 --lists hidden:1000000    # records that only partly overlap
    python launch/bench.py costs --json results/bench-costs.json    # what `sccvfl plan` estimates from

Systems: `ours` (dealer process, mutual TLS), `crypten-tfp` and `crypten-ttp` (stock CrypTen over gloo
without TLS, with its two tuple providers), `spu-aby3` (SPU over brpc without TLS, where `make peers` has
made an environment for it), `plain` (one thread). They run in turn, several blocks each, one system at a
time. Seconds are medians over all repeats. Bytes are what one party puts on the network on average,
including the traffic of the dealer or provider. They are read from the loopback device (so with TLS
records and TCP headers). Compare the ratios; the seconds belong to this machine.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launch.arguments import Parser
from secure_sccvfl.runs.console import OK, guarded, say

WHAT = {
    "ops": "single secret operations",
    "discovery": "noisy tables of s",
    "step": "one training step",
    "rounds": "the grid of lambda by steps of second and first order",
    "run": "all of it",
    "width": "all of it, by rows and columns",
    "classes": "all of it, of three classes beside two",
    "heads": "a network as the head beside the linear one",
    "wan": "all of it, between distant hosts",
    "evaluation": "how far noisy figures are from exact ones",
    "align": "which records are common",
    "costs": "train and evaluate by size, for estimates",
}
Found = tuple[dict[str, Any], str]
"""Results as data and as Markdown."""


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument("what", choices=tuple(WHAT), help="; ".join(f"{name}: {told}" for name, told in WHAT.items()))
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument(
        "--dataset", help="run: this one with three parties instead of all sizes (as of run_mpc.py); also rounds, wan"
    )
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of an operation in a block (default 10)")
    parser.add_argument("--blocks", type=int, default=3, help="turns of each system (default 3)")
    parser.add_argument("--rows", type=int, nargs="+", help="width: numbers of rows; step, classes: one")
    parser.add_argument("--columns", type=int, nargs="+", help="width: numbers of features; step, classes: one")
    parser.add_argument("--spu", type=Path, metavar="PYTHON", help="a Python that has SPU (default: of `make peers`)")
    parser.add_argument("--parties", type=int, nargs="+", help="align: numbers of parties (default 2 3 5)")
    parser.add_argument(
        "--lists",
        nargs="+",
        metavar="MODE:IDS[:PARTIES]",
        help="align: hidden:10000, revealed:10000:2 and so on (default: all)",
    )
    options = parser.parse_args(arguments)
    return guarded("bench", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from protocols.config import ConfigError
    from secure_sccvfl.research.benchmarks.results import write_results
    from secure_sccvfl.research.reproduction.seeds import versions

    if options.repeats < 1 or options.blocks < 1:
        raise ConfigError("--repeats and --blocks must be at least 1")
    if options.what in ("step", "classes") and any(len(g or ()) > 1 for g in (options.rows, options.columns)):
        raise ConfigError(f"{options.what} takes one number of rows and one of columns")
    command = f"python launch/bench.py {options.what}{_arguments(options)}"
    load, made = os.getloadavg()[0], {"date": datetime.date.today().isoformat(), **versions()}
    result, text = MEASURES[options.what](options, command)
    if options.json is not None:
        packages = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
        text += f"\nMade on {made['date']} from commit {made['commit'][:12]} with {packages}. Load average of the"
        text += f"\nmachine when it began: {load:.1f}.\n"
        write_results(options.json, {"command": command, **made, "load": load, **result}, text)
    return OK


def _arguments(options: argparse.Namespace) -> str:
    """The part of the command line that the results depend on."""
    data = f" --dataset {options.dataset}" if options.dataset else ""
    german = f" --dataset {options.dataset or 'german'}"
    turns = f" --repeats {options.repeats} --blocks {options.blocks}"
    size = _lists(rows=options.rows, columns=options.columns)
    return {
        "run": data,
        "costs": "",
        "heads": "",
        "rounds": f"{german} --blocks {options.blocks}",
        "wan": f"{german} --blocks {options.blocks}",
        "evaluation": f"{german} --repeats {options.repeats}",
        "align": _lists(parties=options.parties, lists=options.lists),
        "width": size,
        "classes": size,
        "step": turns + size,
    }.get(options.what, turns)


def _lists(**given: Sequence[Any] | None) -> str:
    return "".join(f" --{name} {' '.join(map(str, values))}" for name, values in given.items() if values)


def _spu(options: argparse.Namespace) -> tuple[Path | None, str]:
    """The Python that has SPU, and a note for the reader; or nothing and the reason."""
    from secure_sccvfl.research.benchmarks.peers.aby3 import spu_python

    python, note = spu_python(options.spu)
    _tell(note)
    return python, note if python else "SPU was not installed"


def _ops(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks import operations_table as ops

    rows = ops.measure(options.repeats, options.blocks, _tell)
    ops.table(rows).show(ops.TITLE, 110, ("job", "system"), "plain")
    return {"parties": ops.PARTIES, "rows": rows}, ops.markdown(rows, command)


def _step(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks.steps import step_table as step
    from secure_sccvfl.research.benchmarks.steps.step import Size

    usual, (python, note) = Size(), _spu(options)
    columns = (options.columns or [usual.columns])[0]
    size = Size((options.rows or [usual.rows])[0], -(-columns // step.PARTIES))
    rows = step.measure(options.repeats, options.blocks, _tell, size, python)
    step.table(rows).show(step.title(size), 130, ("job", "system"), "plain")
    return {"parties": step.PARTIES, "rows": rows}, step.markdown(rows, command, size, note)


def _discovery(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks import discovery_tables

    result = discovery_tables.measure(options.repeats, options.blocks, _tell)
    return _printed(result, discovery_tables.markdown(result, command))


def _rounds(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks.trainings import rounds

    dataset = options.dataset or "german"
    rows = rounds.measure(dataset, options.blocks, _tell)
    return _printed({"rows": rows}, rounds.markdown(dataset, rows, command))


def _run(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks.trainings import whole

    rows = whole.measure(_tell, options.dataset)
    return _printed({"rows": rows}, whole.markdown(rows, command))


def _width(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks.trainings import width

    python, note = _spu(options)
    result = width.measure(options.rows or width.ROWS, options.columns or width.COLUMNS, _tell, python)
    text = width.markdown(result, command, note)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        picture = options.json.with_suffix(".svg")
        if width.plot(result["trainings"], picture):
            text += f"\n![time, bytes and memory by rows and features]({picture.name})\n"
    return _printed(dict(result), text)


def _classes(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks.trainings import classes

    python, note = _spu(options)
    size = (options.rows or [classes.ROWS])[0], (options.columns or [classes.COLUMNS])[0]
    result = classes.measure(*size, _tell, python)
    return _printed(dict(result), classes.markdown(*size, result, command, note))


def _heads(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.api.functions import train
    from secure_sccvfl.research.benchmarks.trainings import heads

    result = heads.measure(_tell, train)
    return _printed(result, heads.markdown(result, command))


def _wan(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks.trainings import wan

    (python, note), dataset = _spu(options), options.dataset or "german"
    result = wan.measure(dataset, options.blocks, _tell, python)
    return _printed(dict(result), wan.markdown(dataset, result, command, note))


def _align(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks import alignment

    rows = alignment.measure(_tell, options.lists, options.parties)
    return _printed({"rows": rows}, alignment.markdown(rows, command))


def _costs(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks import costs

    rows = costs.measure(_tell)
    return _printed({"rows": rows}, costs.markdown(rows, command))


def _evaluation(options: argparse.Namespace, command: str) -> Found:
    from secure_sccvfl.research.benchmarks import evaluation

    dataset = options.dataset or "german"
    rows = evaluation.measure(dataset, options.repeats, _tell)
    return _printed({"rows": rows}, evaluation.markdown(dataset, rows, command))


MEASURES: dict[str, Callable[[argparse.Namespace, str], Found]] = {
    **{"ops": _ops, "discovery": _discovery, "step": _step, "rounds": _rounds, "run": _run, "width": _width},
    **{
        "classes": _classes,
        "heads": _heads,
        "wan": _wan,
        "evaluation": _evaluation,
        "align": _align,
        "costs": _costs,
    },
}


def _printed(result: dict[str, Any], text: str) -> Found:
    print(text)
    return result, text


def _tell(line: str) -> None:
    say(line, error=True)


if __name__ == "__main__":
    sys.exit(main())
