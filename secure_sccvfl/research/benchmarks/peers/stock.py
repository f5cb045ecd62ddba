"""One process of stock CrypTen (gloo, no TLS, its own providers) for launch/bench.py.

    python -m secure_sccvfl.research.benchmarks.peers.stock --rank 0 --parties 3 --provider TTP --rendezvous F --out F

CrypTen is used unchanged, in a process that never opens a session of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True, help="the provider's server has the last one")
    parser.add_argument("--parties", type=int, required=True, help="number of parties")
    parser.add_argument("--provider", choices=("TFP", "TTP"), required=True, help="CrypTen's tuple provider")
    parser.add_argument("--rendezvous", type=Path, required=True, help="a file that all processes can write")
    parser.add_argument(
        "--what", choices=("ops", "discovery", "step"), default="ops", help="as in bench.py (default ops)"
    )
    parser.add_argument("--repeats", type=int, default=10, help="how often each operation is timed")
    parser.add_argument("--rows", type=int, help="of a step")
    parser.add_argument("--width", type=int, help="columns of each party, of a step")
    parser.add_argument("--cases", nargs="+", help="kinds of step (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="where party 0 writes its rows")
    options = parser.parse_args(arguments)
    os.environ.update(
        WORLD_SIZE=str(options.parties),
        RANK=str(options.rank),
        RENDEZVOUS=f"file://{options.rendezvous.resolve()}",
        DISTRIBUTED_BACKEND="gloo",
        GLOO_SOCKET_IFNAME="lo",
    )
    return run(options)


def run(options: argparse.Namespace) -> int:
    import torch

    from protocols.session.runtime import stock_crypten

    torch.set_num_threads(1)
    crypten = stock_crypten()
    crypten.config.cfg.mpc.provider = options.provider
    if options.rank == options.parties:
        crypten.mpc.provider.TTPServer()
        return 0
    crypten.init()
    crypten.config.cfg.communicator.verbose = True  # counts rounds
    communicator = crypten.communicator.get()
    measure = {"discovery": time_tables, "ops": time_operations, "step": time_steps}[options.what]
    rows = measure(crypten, communicator, options)
    if options.rank == 0:
        options.out.write_text(json.dumps(rows))
    crypten.uninit()
    return 0


def time_tables(crypten: Any, communicator: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every party shares its one-hot bins, the holder its groups; then one product, and everything is opened."""
    import torch

    from secure_sccvfl.research.benchmarks.discovery import BINS, FEATURES, HOLDER, PEER_ROWS, layout, synthetic
    from secure_sccvfl.research.benchmarks.operations import time_repeats

    columns = layout(FEATURES, BINS, options.parties)
    made, codes = synthetic(columns, PEER_ROWS, 2)
    blocks = [torch.from_numpy(np.hstack([made[k] for k in own])).float() for own in columns.values()]
    groups = torch.eye(2)[torch.from_numpy(codes)]

    def act() -> Any:
        shared = crypten.cat([crypten.cryptensor(block, src=rank) for rank, block in enumerate(blocks)], dim=1)
        return shared.t().matmul(crypten.cryptensor(groups, src=HOLDER)).get_plain_text()

    found, timing = time_repeats(act, options.repeats, communicator.barrier, lambda: communicator.comm_rounds)
    error = float((found - torch.cat(blocks, dim=1).t() @ groups).abs().max())
    return [{"job": "tables", "max_error": error, **timing.__dict__}]


def time_steps(crypten: Any, communicator: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    from secure_sccvfl.research.benchmarks.operations import time_repeats
    from secure_sccvfl.research.benchmarks.peers.stock_step import CASES, StockStep, check
    from secure_sccvfl.research.benchmarks.steps.step import Size, peak_memory

    rows, usual = [], Size()
    size = Size(options.rows or usual.rows, options.width or usual.width)
    for case in options.cases or CASES:
        step, busy = StockStep(crypten, case, size), time.process_time()
        _, timing = time_repeats(step, options.repeats, communicator.barrier, lambda: communicator.comm_rounds)
        processor = (time.process_time() - busy) / (options.repeats + 1)
        error = check(case, size, step.result(), options.repeats + 1)
        row = {"job": case, "max_error": error, "memory": peak_memory(), "processor": [processor]}
        rows.append({**row, **timing.__dict__})
    return rows


def time_operations(crypten: Any, communicator: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from secure_sccvfl.research.benchmarks.operations import cases, time_repeats

    work: dict[str, Callable[..., Any]] = {
        "matmul": lambda x, y: x.matmul(y),
        "product": lambda x, y: x * y,
        "sigmoid": lambda x: x.sigmoid(),
        "ltz": lambda x: x._ltz(),
        "open": lambda x: x.get_plain_text(),
    }
    rows = []
    for name, case in cases().items():
        shared = [
            crypten.cryptensor(torch.from_numpy(value).float(), src=owner) for owner, value in enumerate(case.inputs)
        ]
        result, timing = time_repeats(
            partial(work[name], *shared), options.repeats, communicator.barrier, lambda: communicator.comm_rounds
        )
        plain = result if name == "open" else result.get_plain_text()
        error = float((plain.double() - torch.from_numpy(case.plain(*case.inputs))).abs().max())
        rows.append({"job": name, "max_error": error, **timing.__dict__})
    return rows


if __name__ == "__main__":
    sys.exit(main())
