"""Measure ours beside stock CrypTen and plain torch, in one run on one machine.

    python launch/bench.py ops --json results/bench-ops.json
    python launch/bench.py ops --repeats 30 --blocks 5
    python launch/bench.py discovery --json results/bench-discovery.json
    python launch/bench.py step --json results/bench-step.json    # one training step, modes sealed and split
    python launch/bench.py run --json results/bench-run.json      # whole trainings, beside the plaintext engine
    python launch/bench.py run --dataset acs-income:PATH.csv.gz   # one of them
    python launch/bench.py evaluation --dataset german --repeats 100    # noisy test figures beside the exact ones

Systems: `ours` (dealer process, mutual TLS), `crypten-tfp` and `crypten-ttp` (stock CrypTen over
gloo without TLS, with its two tuple providers), `plain` (torch, one thread). They run in turn,
several blocks each, one system at a time; seconds are medians over all repeats. Bytes are what
one party puts on the network on average, the dealer's or provider's traffic included, read
from the loopback device (so with TLS records and TCP headers). Ratios mean something; seconds
belong to this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launch.console import OK, Parser, guarded

PARTIES = 3


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument(
        "what",
        choices=("ops", "discovery", "step", "run", "evaluation"),
        help="ops: single secret operations; discovery: noisy tables of s; step: one training step; run: all of it; "
        "evaluation: how far noisy figures are from exact ones",
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--dataset", help="run: this one with three parties instead of all sizes (as of run_mpc.py)")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of an operation in a block (default 10)")
    parser.add_argument("--blocks", type=int, default=3, help="turns of each system (default 3)")
    options = parser.parse_args(arguments)
    return guarded("bench", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from protocols.config import ConfigError

    if options.repeats < 1 or options.blocks < 1:
        raise ConfigError("--repeats and --blocks must be at least 1")
    if options.what == "discovery":
        return run_discovery(options)
    if options.what == "run":
        return run_whole(options)
    if options.what == "evaluation":
        return run_evaluation(options)
    if options.what == "step":
        from secure_sccvfl.benchmarks.step_table import run_steps

        return run_steps(options)
    systems = {
        "ours": lambda: run_ours("bench-ops", {"repeats": options.repeats})[0],
        "crypten-tfp": lambda: run_stock("TFP", options.repeats),
        "crypten-ttp": lambda: run_stock("TTP", options.repeats),
        "plain": lambda: run_plain(options.repeats),
    }
    measured = in_turn(systems, options.blocks)
    rows = [summary(job, system, blocks) for (job, system), blocks in measured.items()]
    order = list(dict.fromkeys(job for job, _ in measured))
    rows.sort(key=lambda row: (order.index(row["job"]), list(systems).index(row["system"])))
    show(rows)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        command = f"python launch/bench.py ops --repeats {options.repeats} --blocks {options.blocks}"
        text = json.dumps({"command": command, "parties": PARTIES, "rows": rows}, indent=1)
        options.json.write_text(text + "\n")
        options.json.with_suffix(".md").write_text(markdown(rows, command))
    return OK


def run_whole(options: argparse.Namespace) -> int:
    from secure_sccvfl.benchmarks import whole

    if options.dataset:
        rows, command = (
            whole.pair(options.dataset, PARTIES),
            f"python launch/bench.py run --dataset {options.dataset}",
        )
    else:
        rows, command = whole.measure(), "python launch/bench.py run"
    text = whole.markdown(rows, command, os.cpu_count() or 1)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n")
        options.json.with_suffix(".md").write_text(text)
    return OK


def run_evaluation(options: argparse.Namespace) -> int:
    from secure_sccvfl.benchmarks import evaluation

    dataset = options.dataset or "german"
    command = f"python launch/bench.py evaluation --dataset {dataset} --repeats {options.repeats}"
    rows = evaluation.measure(dataset, options.repeats)
    text = evaluation.markdown(dataset, rows, command)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n")
        options.json.with_suffix(".md").write_text(text)
    return OK


def run_discovery(options: argparse.Namespace) -> int:
    from secure_sccvfl.benchmarks import discovery_tables

    command = f"python launch/bench.py discovery --repeats {options.repeats} --blocks {options.blocks}"
    result = {
        "command": command,
        "parties": PARTIES,
        "scale": discovery_tables.scale_rows(min(options.repeats, 3)),
        "peers": discovery_tables.peer_rows(
            lambda provider: run_stock(provider, options.repeats, "discovery"), options.repeats, options.blocks
        ),
    }
    result["load"] = os.getloadavg()[1]
    text = discovery_tables.markdown(result)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        options.json.with_suffix(".md").write_text(text)
    return OK


def summary(job: str, system: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "job": job,
        "system": system,
        "seconds": statistics.median(second for block in blocks for second in block["seconds"]),
        "rounds": blocks[-1]["rounds"],
        "bytes": round(statistics.median(block["loopback"] for block in blocks) / PARTIES),
        "max_error": max(block["max_error"] for block in blocks),
    }


def in_turn(
    systems: Mapping[str, Callable[[], list[dict[str, Any]]]], blocks: int
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Run the systems one after the other, several times; rows by job and system."""
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for block in range(blocks):
        for system, measure in systems.items():
            print(f"block {block + 1} of {blocks}: {system}", file=sys.stderr, flush=True)
            for row in measure():
                measured.setdefault((row["job"], system), []).append(row)
    return measured


def run_ours(job: str, settings: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The rows of every party."""
    from protocols.config import SessionConfig
    from protocols.errors import ProtocolError
    from secure_sccvfl.local.processes import LocalSession

    placeholder = tuple(f"127.0.0.1:{rank + 1}" for rank in range(PARTIES))
    config = SessionConfig(parties=placeholder, job=job, options=settings)
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        with LocalSession(config, Path(folder) / "run") as session:
            ending = session.wait()
        if ending.code != OK:
            raise ProtocolError("; ".join(ending.failures))
        results = [Path(folder) / "run" / f"party-{rank}" / "result.json" for rank in range(PARTIES)]
        return [json.loads(result.read_text())["rows"] for result in results]


def run_stock(provider: str, repeats: int, what: str = "ops") -> list[dict[str, Any]]:
    from protocols.errors import ProtocolError

    script = Path(__file__).with_name("bench_stock.py")
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        out = Path(folder) / "rows.json"
        common = ["--parties", str(PARTIES), "--provider", provider, "--rendezvous", f"{folder}/meet", "--what", what]
        common += ["--repeats", str(repeats), "--out", str(out)]
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), "--rank", str(rank), *common],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(PARTIES + (provider == "TTP"))
        ]
        try:
            codes = [process.wait(timeout=600) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        if any(codes) or not out.exists():
            raise ProtocolError(f"stock CrypTen with {provider} failed, exit codes {codes}")
        rows: list[dict[str, Any]] = json.loads(out.read_text())
        return rows


def run_plain(repeats: int) -> list[dict[str, Any]]:
    import torch

    from secure_sccvfl.benchmarks.operations import cases

    torch.set_num_threads(1)
    work: dict[str, Callable[..., torch.Tensor]] = {
        "matmul": torch.matmul,
        "product": torch.mul,
        "sigmoid": torch.sigmoid,
        "ltz": lambda x: (x < 0).float(),
        "open": torch.clone,
    }
    rows = []
    for name, case in cases().items():
        inputs = [torch.from_numpy(value).float() for value in case.inputs]
        seconds = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            result = work[name](*inputs)
            seconds.append(time.perf_counter() - start)
        error = float((result.double() - torch.from_numpy(case.plain(*case.inputs))).abs().max())
        rows.append({"job": name, "max_error": error, "seconds": seconds[1:], "rounds": 0, "loopback": 0.0})
    return rows


COLUMNS = ("job", "system", "ms", "times ours", "rounds", "kB per party", "max error")


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The rows as text, with the ratio to ours."""
    ours = {row["job"]: row["seconds"] for row in rows if row["system"] == "ours"}
    return [
        [
            row["job"],
            row["system"],
            f"{row['seconds'] * 1e3:.3f}",
            f"{row['seconds'] / ours[row['job']]:.2f}",
            str(row["rounds"]),
            f"{row['bytes'] / 1e3:.1f}",
            f"{row['max_error']:.1e}",
        ]
        for row in rows
    ]


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"medians, {PARTIES} parties; `times ours` above 1: slower than ours")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("job", "system") else "right")
    for line in cells(rows):
        table.add_row(*line, end_section=line[1] == "plain")
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    lines = [
        f"Made by `{command}` on {os.cpu_count()} cores, {PARTIES} parties. `times ours`: above 1 is slower.",
        "",
    ]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(line) + " |" for line in cells(rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
