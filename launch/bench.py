"""Measure ours next to stock CrypTen, SPU and plaintext, in one run on one machine.

    python launch/bench.py ops --json results/bench-ops.json
    python launch/bench.py ops --repeats 30 --blocks 5
    python launch/bench.py step --rows 100000 --columns 78        # one sealed training step
    python launch/bench.py discovery --json results/bench-discovery.json
    python launch/bench.py align --parties 3 --lists hidden:1000000    # records that only partly overlap
    python launch/bench.py run --dataset acs-income:PATH.csv.gz   # whole trainings next to the plaintext engine
    python launch/bench.py rounds --blocks 3                      # one private model, and nine lambdas without noise
    python launch/bench.py width                                  # by rows and columns
    python launch/bench.py wan                                    # at 0, 20 and 100 ms round trip
    python launch/bench.py classes                                # three classes and two
    python launch/bench.py heads                                # a network as the head, and the linear one
    python launch/bench.py security --blocks 1                    # active security next to semi-honest parties
    python launch/bench.py shards --rows 1000000 --workers 1 2 4    # training in row shards
    python launch/bench.py serve                                  # single decisions at an endpoint
    python launch/bench.py costs --json results/bench-costs.json  # what `sccvfl plan` estimates from

Systems: `ours` (dealer process, mutual TLS), `crypten-tfp` and `crypten-ttp` (stock CrypTen over gloo without TLS,
with its two tuple providers), `spu-aby3` (SPU over brpc without TLS, where `make peers` has made an environment for
it), `plain` (one thread). They run in turn, several blocks each, one system at a time. Seconds are medians over all
repeats. Bytes of stock CrypTen are read from the loopback device (so with TCP headers and the tuple provider).
Compare the ratios; the seconds belong to this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_sccvfl.launch.arguments import Parser
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.runs.console import OK, guarded, say

if TYPE_CHECKING:
    from secure_sccvfl.research.benchmarks.measuring import Result


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument("what", choices=tuple(BENCHMARKS), help="what to measure; see above")
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="write the rows here, and the page to FILE.md")
    parser.add_argument("--dataset", help="run, rounds, wan: the data set (as of run_mpc.py; default german)")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of an operation in a block (default 10)")
    parser.add_argument("--blocks", type=int, default=3, help="turns of each system or training (default 3)")
    parser.add_argument(
        "--rows", type=int, nargs="+", help="width: numbers of rows; step, classes, security, shards: one"
    )
    parser.add_argument(
        "--columns", type=int, nargs="+", help="width: numbers of features; step, classes, security, shards: one"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", help="shards: workers of each party; 0: none (default 0 1 2 4)"
    )
    parser.add_argument("--people", type=int, default=200, help="serve: decisions in a row (default 200)")
    parser.add_argument("--spu", type=Path, metavar="PYTHON", help="a Python that has SPU (default: of `make peers`)")
    parser.add_argument(
        "--parties", type=int, nargs="+", help="align: numbers of parties (default 2 3 5); shards: one"
    )
    parser.add_argument(
        "--lists",
        nargs="+",
        metavar="MODE:IDS[:PARTIES]",
        help="align: hidden:10000, revealed:10000:2 and so on (default: all)",
    )
    options = parser.parse_args(arguments)
    return guarded("bench", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    if options.repeats < 1 or options.blocks < 1:
        raise ConfigError("--repeats and --blocks must be at least 1")
    measure, names = BENCHMARKS[options.what]
    command = " ".join(["python launch/bench.py", options.what, *_arguments(options, names)])
    load = os.getloadavg()[0]
    measure(options).publish(command, load, options.json)
    return OK


def _arguments(options: argparse.Namespace, names: str) -> list[str]:
    """The part of the command line that the results depend on."""
    given = {name: getattr(options, name) for name in names.split()}
    return [f"--{name} {' '.join(map(str, _list(value)))}" for name, value in given.items() if value]


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _one(options: argparse.Namespace, name: str, usual: int) -> int:
    """The only number of rows or columns."""
    values = getattr(options, name) or [usual]
    if len(values) > 1:
        raise ConfigError(f"{options.what} takes one number of rows and one of columns")
    return int(values[0])


def _ops(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks.steps import measure_operations

    return measure_operations(options.repeats, options.blocks, _tell)


def _step(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks.measuring import PARTIES
    from secure_sccvfl.research.benchmarks.steps import Size, measure_step, spu_python

    usual, (python, note) = Size(), spu_python(options.spu)
    width = -(-_one(options, "columns", usual.columns) // PARTIES)
    size = Size(_one(options, "rows", usual.rows), width)
    _tell(note)
    about = note if python else "SPU was not installed"
    return measure_step(options.repeats, options.blocks, _tell, size, python, about)


def _discovery(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks.preparation import measure_discovery

    return measure_discovery(options.repeats, options.blocks, _tell)


def _align(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks.preparation import measure_alignment

    return measure_alignment(_tell, options.lists, options.parties)


def _trainings(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks import trainings

    dataset = options.dataset or "german"
    points = {
        "run": lambda: trainings.sizes(options.dataset),
        "rounds": lambda: trainings.rounds(dataset),
        "wan": lambda: trainings.wan(dataset),
        "classes": lambda: trainings.classes(_one(options, "rows", 10_000), _one(options, "columns", 20)),
        "width": lambda: trainings.width(options.rows or [10_000, 30_000, 100_000], options.columns or [20, 40, 60]),
        "heads": trainings.heads,
        "security": lambda: trainings.security(_one(options, "rows", 100_000), _one(options, "columns", 20)),
    }
    return trainings.measure(points[options.what](), options.blocks, _tell)


def _serve(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks.serving import measure_serving

    return measure_serving(options.people, _tell)


def _shards(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks.shards import measure_shards

    workers = [0, 1, 2, 4] if options.workers is None else options.workers
    parties = (options.parties or [3])[0]
    return measure_shards(_one(options, "rows", 100_000), _one(options, "columns", 20), workers, parties, _tell)


def _costs(options: argparse.Namespace) -> Result:
    from secure_sccvfl.research.benchmarks.trainings import measure_costs

    return measure_costs(_tell)


BENCHMARKS: dict[str, tuple[Callable[[argparse.Namespace], Result], str]] = {
    "ops": (_ops, "repeats blocks"),
    "step": (_step, "repeats blocks rows columns"),
    "discovery": (_discovery, "repeats blocks"),
    "align": (_align, "parties lists"),
    "run": (_trainings, "dataset blocks"),
    "rounds": (_trainings, "dataset blocks"),
    "width": (_trainings, "rows columns blocks"),
    "wan": (_trainings, "dataset blocks"),
    "classes": (_trainings, "rows columns blocks"),
    "heads": (_trainings, "blocks"),
    "security": (_trainings, "rows columns blocks"),
    "serve": (_serve, "people"),
    "shards": (_shards, "rows columns workers parties"),
    "costs": (_costs, ""),
}
"""What each benchmark runs, and the options that its results depend on."""


def _tell(line: str) -> None:
    say(line, error=True)


if __name__ == "__main__":
    sys.exit(main())
