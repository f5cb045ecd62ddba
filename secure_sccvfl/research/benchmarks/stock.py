"""One process of stock CrypTen (gloo, no TLS, its own providers) for launch/bench.py.

    python -m secure_sccvfl.research.benchmarks.stock --rank 0 --parties 3 --provider TTP --rendezvous F --out F

CrypTen is used unchanged, in a process that never opens a session of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True, help="the provider's server has the last one")
    parser.add_argument("--parties", type=int, required=True, help="number of parties")
    parser.add_argument("--provider", choices=("TFP", "TTP"), required=True, help="CrypTen's tuple provider")
    parser.add_argument("--rendezvous", type=Path, required=True, help="a file that all processes can write")
    parser.add_argument("--what", choices=("ops", "discovery", "step"), default="ops", help="as in bench.py")
    parser.add_argument("--repeats", type=int, default=10, help="how often each operation is timed")
    parser.add_argument("--rows", type=int, default=560, help="of a step")
    parser.add_argument("--width", type=int, default=64, help="columns of each party, of a step")
    parser.add_argument("--cases", nargs="+", default=["sealed"], help="kinds of step")
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

    from secure_sccvfl.protocols.session.runtime import stock_crypten

    torch.set_num_threads(1)
    crypten = stock_crypten()
    crypten.config.cfg.mpc.provider = options.provider
    if options.rank == options.parties:
        crypten.mpc.provider.TTPServer()
        return 0
    crypten.init()
    crypten.config.cfg.communicator.verbose = True  # counts rounds
    communicator = crypten.communicator.get()
    clock = {"barrier": communicator.barrier, "rounds": lambda: communicator.comm_rounds}
    rows = {"discovery": time_tables, "ops": time_operations, "step": time_steps}[options.what](
        crypten, options, clock
    )
    if options.rank == 0:
        options.out.write_text(json.dumps(rows))
    crypten.uninit()
    return 0


def shared(crypten: Any, values: np.ndarray, owner: int) -> Any:
    import torch

    return crypten.cryptensor(torch.from_numpy(np.ascontiguousarray(values)).float(), src=owner)


def time_operations(crypten: Any, options: argparse.Namespace, clock: Row) -> list[Row]:
    from secure_sccvfl.research.benchmarks.steps import SHARED, timed

    work = {**SHARED, "sigmoid": lambda x: x.sigmoid(), "open": lambda x: x.get_plain_text()}
    return timed(
        work,
        lambda value, owner: shared(crypten, value, owner),
        lambda tensor: tensor.get_plain_text(),
        options.repeats,
        **clock,
    )


def time_tables(crypten: Any, options: argparse.Namespace, clock: Row) -> list[Row]:
    """Every party shares its one-hot bins, the holder its groups; then one product, and everything is opened."""
    from secure_sccvfl.research.benchmarks.measuring import time_repeats
    from secure_sccvfl.research.benchmarks.preparation import BINS, FEATURES, HOLDER, PEER_ROWS, layout, synthetic

    columns = layout(FEATURES, BINS, options.parties)
    bins, codes = synthetic(columns, PEER_ROWS, 2)
    blocks = [np.hstack([bins[name] for name in own]) for own in columns.values()]
    groups = np.eye(2)[codes]

    def act() -> Any:
        joined = crypten.cat([shared(crypten, block, rank) for rank, block in enumerate(blocks)], dim=1)
        return joined.t().matmul(shared(crypten, groups, HOLDER)).get_plain_text()

    found, timing = time_repeats(act, options.repeats, **clock)
    error = float(np.abs(found.numpy() - np.hstack(blocks).T @ groups).max())
    return [{"job": "tables", "max_error": error, **timing}]


def time_steps(crypten: Any, options: argparse.Namespace, clock: Row) -> list[Row]:
    from secure_sccvfl.research.benchmarks.measuring import peak_memory, time_repeats
    from secure_sccvfl.research.benchmarks.steps import Size, inputs, plain_weight

    rows, size = [], Size(options.rows, options.width)
    for case in options.cases:
        step, busy = StockStep(crypten, case, size), time.process_time()
        _, timing = time_repeats(step, options.repeats, **clock)
        processor = (time.process_time() - busy) / (options.repeats + 1)
        # Two logits halve the consistency, so they are not checked.
        expected = step.result() if "softmax" in case else plain_weight(inputs(size), options.repeats + 1)
        error = float(np.abs(step.result() - expected).max())
        row = {"job": case, "max_error": error, "memory": peak_memory(), "processor": [processor]}
        rows.append({**row, **timing})
    return rows


class StockStep:
    """The step of benchmarks/step.py with CrypTen's own tensors and operations; calling it takes a step.

    `sigmoid` of the one logit (the difference of two) is the same mathematical step as ours. `softmax` over two
    logits is what CrypTen users write. `gram` gives CrypTen our algebra: one matrix for all displacements.
    """

    def __init__(self, crypten: Any, case: str, size: Any) -> None:
        from secure_sccvfl.research.benchmarks.steps import PARTIES, inputs

        self.crypten, self.rows_count = crypten, size.rows
        self.softmax, self.gram = "softmax" in case, "gram" in case
        given, outputs = inputs(size), 2 if self.softmax else 1

        def join(values: np.ndarray) -> Any:
            return crypten.cat([shared(crypten, values[:, size.part(r)], r) for r in range(PARTIES)], dim=1)

        self.weight, self.velocity = (shared(crypten, np.zeros((size.columns, outputs)), 0) for _ in range(2))
        self.bias, self.bias_velocity = (shared(crypten, np.zeros((1, outputs)), 0) for _ in range(2))
        self.target = shared(crypten, np.eye(2)[given.label] if self.softmax else given.label[:, None], 0)
        self.rows, chosen = join(given.rows), given.chosen
        self.chosen = shared(crypten, chosen.T @ chosen, 0) if self.gram else join(chosen)

    def __call__(self) -> None:
        from secure_sccvfl.research.benchmarks.steps import LAM, MOMENTUM, RATE

        logits = self.rows.matmul(self.weight) + self.bias
        residual = (logits.softmax(1) if self.softmax else logits.sigmoid()) - self.target
        shift = self.chosen.matmul(self.weight)
        pull = shift if self.gram else self.chosen.t().matmul(shift)
        gradient, slope = self.rows.t().matmul(residual), residual.sum(dim=0, keepdim=True) * 4
        self.velocity = self.velocity * MOMENTUM - (gradient + pull * LAM) * (RATE / self.rows_count)
        self.bias_velocity = self.bias_velocity * MOMENTUM - slope * (RATE / self.rows_count)
        self.weight, self.bias = self.weight + self.velocity, self.bias + self.bias_velocity

    def result(self) -> np.ndarray:
        plain: np.ndarray = self.weight.get_plain_text().double().numpy()
        return plain[:, 1:] - plain[:, :1] if self.softmax else plain


if __name__ == "__main__":
    sys.exit(main())
