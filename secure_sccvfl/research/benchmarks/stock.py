"""One process of stock CrypTen (gloo, no TLS, its own providers) for launch/bench.py.

    python -m secure_sccvfl.research.benchmarks.stock SETTINGS

SETTINGS is JSON: rank (the provider's server has the last one), provider (TFP or TTP), what (ops, discovery or step),
repeats, folder (where all processes meet), out (where party 0 writes its rows); of a step also rows, width and cases.
CrypTen is used unchanged, in a process that never opens a session of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from secure_sccvfl.protocols.session.runtime import stock_crypten
from secure_sccvfl.research.benchmarks.measuring import PARTIES, Row, peak_memory, time_repeats
from secure_sccvfl.research.benchmarks.preparation import HOLDER, PEER_ROWS, layout, synthetic
from secure_sccvfl.research.benchmarks.steps import (
    LAM,
    MOMENTUM,
    RATE,
    SHARED,
    Size,
    inputs,
    plain_weight,
    timed,
)


def main(settings: Row) -> None:
    os.environ.update(
        WORLD_SIZE=str(PARTIES),
        RANK=str(settings["rank"]),
        RENDEZVOUS=f"file://{settings['folder']}/meet",
        DISTRIBUTED_BACKEND="gloo",
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    crypten = stock_crypten()
    crypten.config.cfg.mpc.provider = settings["provider"]
    if settings["rank"] == PARTIES:
        crypten.mpc.provider.TTPServer()
        return
    crypten.init()
    crypten.config.cfg.communicator.verbose = True  # counts rounds
    communicator = crypten.communicator.get()
    clock = {"barrier": communicator.barrier, "rounds": lambda: communicator.comm_rounds}
    rows = {"discovery": tables, "ops": operations, "step": steps}[settings["what"]](crypten, settings, clock)
    if settings["rank"] == 0:
        Path(settings["out"]).write_text(json.dumps(rows))
    crypten.uninit()


def shared(crypten: Any, values: np.ndarray, owner: int) -> Any:
    return crypten.cryptensor(torch.from_numpy(np.ascontiguousarray(values)).float(), src=owner)


def opened(tensor: Any) -> Any:
    return tensor.get_plain_text()


def operations(crypten: Any, settings: Row, clock: Row) -> list[Row]:
    work = {**SHARED, "sigmoid": lambda x: x.sigmoid(), "open": opened}
    return timed(work, lambda value, owner: shared(crypten, value, owner), opened, settings["repeats"], **clock)


def tables(crypten: Any, settings: Row, clock: Row) -> list[Row]:
    """Every party shares its one-hot bins, the holder its groups; then one product, and everything is opened."""
    columns = layout(PARTIES)
    bins, codes = synthetic(columns, PEER_ROWS, 2)
    blocks = [np.hstack([bins[name] for name in own]) for own in columns.values()]
    groups = np.eye(2)[codes]

    def act() -> Any:
        joined = crypten.cat([shared(crypten, block, rank) for rank, block in enumerate(blocks)], dim=1)
        return opened(joined.t().matmul(shared(crypten, groups, HOLDER)))

    result, timing = time_repeats(act, settings["repeats"], **clock)
    error = float(np.abs(result.numpy() - np.hstack(blocks).T @ groups).max())
    return [{"job": "tables", "max_error": error, **timing}]


def steps(crypten: Any, settings: Row, clock: Row) -> list[Row]:
    rows, size, repeats = [], Size(settings["rows"], settings["width"]), settings["repeats"]
    for case in settings["cases"]:
        step, busy = StockStep(crypten, case, size), time.process_time()
        _, timing = time_repeats(step, repeats, **clock)
        processor = (time.process_time() - busy) / (repeats + 1)
        error = None
        if not step.softmax:
            error = float(np.abs(step.result() - plain_weight(inputs(size), repeats + 1)).max())
        row = {"job": case, "max_error": error, "memory": peak_memory(), "processor": [processor]}
        rows.append({**row, **timing})
    return rows


class StockStep:
    """The step of benchmarks/steps.py with CrypTen's own tensors and operations; calling it takes a step.

    `sigmoid` of the one logit (the difference of two) is the same mathematical step as ours. `softmax` over two
    logits is what CrypTen users write. `gram` gives CrypTen our algebra: one matrix for all displacements.
    """

    def __init__(self, crypten: Any, case: str, size: Size) -> None:
        self.rows_count, self.softmax, self.gram = size.rows, "softmax" in case, "gram" in case
        given, outputs = inputs(size), 2 if self.softmax else 1

        def join(values: np.ndarray) -> Any:
            return crypten.cat([shared(crypten, values[:, size.part(r)], r) for r in range(PARTIES)], dim=1)

        self.weight, self.velocity = (shared(crypten, np.zeros((size.columns, outputs)), 0) for _ in range(2))
        self.bias, self.bias_velocity = (shared(crypten, np.zeros((1, outputs)), 0) for _ in range(2))
        self.target = shared(crypten, np.eye(2)[given.label] if self.softmax else given.label[:, None], 0)
        self.rows, chosen = join(given.rows), given.chosen
        self.chosen = shared(crypten, chosen.T @ chosen, 0) if self.gram else join(chosen)

    def __call__(self) -> None:
        logits = self.rows.matmul(self.weight) + self.bias
        residual = (logits.softmax(1) if self.softmax else logits.sigmoid()) - self.target
        shift = self.chosen.matmul(self.weight)
        pull = shift if self.gram else self.chosen.t().matmul(shift)
        gradient, slope = self.rows.t().matmul(residual), residual.sum(dim=0, keepdim=True) * 4
        self.velocity = self.velocity * MOMENTUM - (gradient + pull * LAM) * (RATE / self.rows_count)
        self.bias_velocity = self.bias_velocity * MOMENTUM - slope * (RATE / self.rows_count)
        self.weight, self.bias = self.weight + self.velocity, self.bias + self.bias_velocity

    def result(self) -> np.ndarray:
        return np.asarray(opened(self.weight).double().numpy())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
