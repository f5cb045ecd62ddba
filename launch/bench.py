"""Measure ours beside stock CrypTen and plain torch, in one run on one machine.

    python launch/bench.py ops --json results/bench-ops.json
    python launch/bench.py ops --repeats 30 --blocks 5
    python launch/bench.py discovery --json results/bench-discovery.json
    python launch/bench.py step --json results/bench-step.json    # one training step, modes sealed and split
    python launch/bench.py run --json results/bench-run.json      # whole trainings, beside the plaintext engine
    python launch/bench.py rounds --blocks 3 --json results/bench-rounds.json    # second beside first order
    python launch/bench.py run --dataset acs-income:PATH.csv.gz   # one of them
    python launch/bench.py evaluation --dataset german --repeats 100    # noisy test figures beside the exact ones
    python launch/bench.py align --parties 3 --lists hidden:1000000    # records that only partly overlap
    python launch/bench.py costs --json results/bench-costs.json    # what `sccvfl plan` estimates from

Systems: `ours` (dealer process, mutual TLS), `crypten-tfp` and `crypten-ttp` (stock CrypTen over
gloo without TLS, with its two tuple providers), `plain` (torch, one thread). They run in turn,
several blocks each, one system at a time. Seconds are medians over all repeats. Bytes are what one
party puts on the network on average, including the traffic of the dealer or provider. They are read
from the loopback device (so with TLS records and TCP headers). Compare the ratios; the seconds
belong to this machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.arguments import Parser
from secure_sccvfl.run.console import OK, guarded, say


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument(
        "what",
        choices=("ops", "discovery", "step", "rounds", "run", "evaluation", "align", "costs"),
        help="ops: single secret operations; discovery: noisy tables of s; step: one training step; rounds: the grid "
        "of lambda by steps of second and first order; run: all of it; evaluation: how far noisy figures are from "
        "exact ones; align: which records are common; costs: train and evaluate by size, for estimates",
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--dataset", help="run: this one with three parties instead of all sizes (as of run_mpc.py)")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of an operation in a block (default 10)")
    parser.add_argument("--blocks", type=int, default=3, help="turns of each system (default 3)")
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
    from secure_sccvfl.benchmarks.results import write_results

    if options.repeats < 1 or options.blocks < 1:
        raise ConfigError("--repeats and --blocks must be at least 1")
    command = f"python launch/bench.py {options.what}{_arguments(options)}"
    result, text = _measured(options, command)
    if options.json is not None:
        write_results(options.json, {"command": command, **result}, text)
    return OK


def _arguments(options: argparse.Namespace) -> str:
    """The part of the command line that the results depend on."""
    if options.what == "run":
        return f" --dataset {options.dataset}" if options.dataset else ""
    if options.what == "costs":
        return ""
    if options.what == "rounds":
        return f" --dataset {options.dataset or 'german'} --blocks {options.blocks}"
    if options.what == "evaluation":
        return f" --dataset {options.dataset or 'german'} --repeats {options.repeats}"
    if options.what == "align":
        parties, lists = (list(map(str, given or ())) for given in (options.parties, options.lists))
        return "".join(
            f" {name} {' '.join(given)}" for name, given in (("--parties", parties), ("--lists", lists)) if given
        )
    return f" --repeats {options.repeats} --blocks {options.blocks}"


def _measured(options: argparse.Namespace, command: str) -> tuple[dict[str, Any], str]:
    """Measure and show; returns the result as data and as Markdown."""
    if options.what == "ops":
        from secure_sccvfl.benchmarks import operations_table as ops

        rows = ops.measure(options.repeats, options.blocks, _tell)
        _show(ops.TITLE, ops.COLUMNS, ops.cells(rows), 110)
        return {"parties": ops.PARTIES, "rows": rows}, ops.markdown(rows, command)
    if options.what == "step":
        from secure_sccvfl.benchmarks import step_table as step

        rows = step.measure(options.repeats, options.blocks, _tell)
        _show(step.TITLE, step.COLUMNS, step.cells(rows), 120)
        return {"parties": step.PARTIES, "rows": rows}, step.markdown(rows, command)
    if options.what == "discovery":
        from secure_sccvfl.benchmarks import discovery_tables

        result = discovery_tables.measure(options.repeats, options.blocks, _tell)
        text = discovery_tables.markdown(result, command)
    elif options.what == "rounds":
        from secure_sccvfl.benchmarks import rounds

        dataset = options.dataset or "german"
        result = {"rows": rounds.measure(dataset, options.blocks, _tell)}
        text = rounds.markdown(dataset, result["rows"], command)
    elif options.what == "run":
        from secure_sccvfl.benchmarks import whole

        result = {"rows": whole.measure(_tell, options.dataset)}
        text = whole.markdown(result["rows"], command)
    elif options.what == "align":
        from secure_sccvfl.benchmarks import alignment

        result = {"rows": alignment.measure(_tell, options.lists, options.parties)}
        text = alignment.markdown(result["rows"], command)
    elif options.what == "costs":
        from secure_sccvfl.local import cost_survey

        result = {"rows": cost_survey.measure(_tell)}
        text = cost_survey.markdown(result["rows"], command)
    else:
        from secure_sccvfl.benchmarks import evaluation

        dataset = options.dataset or "german"
        result = {"rows": evaluation.measure(dataset, options.repeats, _tell)}
        text = evaluation.markdown(dataset, result["rows"], command)
    print(text)
    return result, text


def _tell(line: str) -> None:
    say(line, error=True)


def _show(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> None:
    """A table on the terminal; a line between two jobs."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in ("job", "system") else "right")
    for line in lines:
        table.add_row(*line, end_section=line[1] == "plain")
    Console(width=None if sys.stdout.isatty() else width).print(table)


if __name__ == "__main__":
    sys.exit(main())
