"""`bench.py ops` and `bench.py step`: secure operations and a training step next to stock CrypTen and SPU.

`ops`: single operations on the same public inputs. `step`: one sealed full-batch training step; by default 560 public
records, 3 parties with 64 columns each, two classes (one logit), two groups. The encodings are constant and
secret-shared before the clock starts. A step gives the new weights from the task gradient and the squared consistency
of the counterfactual rows.

SPU (ABY3 over Z/2^64, three parties that trust no dealer) takes a step that is less work: no consistency, no TLS, and
rank 0 shares all inputs. It needs another numpy, so it has a separate environment (`make peers`). Without one it is
left out, and the reason is reported.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.rendezvous import listen_anywhere
from secure_sccvfl.protocols.operations.banded import BAND_ROWS
from secure_sccvfl.protocols.records.releases import ANY, Release
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.research.benchmarks import spu_process
from secure_sccvfl.research.benchmarks.measuring import (
    PARTIES,
    PublicJob,
    Result,
    Row,
    Tell,
    compare,
    finished,
    peak_memory,
    run_ours,
    run_stock,
    table_of_systems,
    time_repeats,
)
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.training.engine import Engine, Step
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.secure import SecureEngine

Work = Mapping[str, Callable[..., Any]]
SHARED: Work = {"matmul": lambda x, y: x.matmul(y), "product": lambda x, y: x * y, "ltz": lambda x: x._ltz()}
"""Operations that ours and stock CrypTen write alike."""


def cases() -> dict[str, tuple[tuple[np.ndarray, ...], Callable[..., np.ndarray]]]:
    """By operation its public inputs, and what it computes."""
    rng = np.random.default_rng(0)
    return {
        "matmul": ((rng.normal(size=(1120, 192)), rng.normal(size=(192, 2))), lambda x, y: x @ y),
        "product": ((rng.normal(size=(1120, 64)), rng.normal(size=(1120, 64))), lambda x, y: x * y),
        "sigmoid": ((rng.uniform(-12, 12, size=1120),), lambda x: 1 / (1 + np.exp(-x))),
        "ltz": ((rng.normal(size=2000),), lambda x: (x < 0) * 1.0),
        "open": ((rng.normal(size=(1120, 2)),), lambda x: x),
    }


def timed(
    work: Work, share: Callable[[np.ndarray, int], Any], reveal: Callable[[Any], Any], repeats: int, **clock: Any
) -> list[Row]:
    """A row for each operation, its result checked. clock: for `time_repeats`; `passes` in it is called anew."""
    rows = []
    for name, (inputs, plain) in cases().items():
        shares = [share(value, owner) for owner, value in enumerate(inputs)]
        passes = clock["passes"]() if "passes" in clock else None
        result, timing = time_repeats(partial(work[name], *shares), repeats, **{**clock, "passes": passes})
        opened = np.asarray(result if name == "open" else reveal(result), dtype=float)
        rows.append({"job": name, "max_error": float(np.abs(opened - plain(*inputs)).max()), **timing})
    return rows


class OperationsBenchmark(PublicJob):
    """Option: `repeats` of each operation. The dealer works ahead, as it does in training."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.repeats = int(config.options.get("repeats", 10))
        everyone, times = tuple(range(len(config.parties))), len(cases()) * (self.repeats + 2)
        self.releases = [
            Release(f"benchmark result, {k} dimensions", everyone, (ANY,) * k, "inputs are public", times=times)
            for k in (1, 2)
        ]

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        def reveal(tensor: Any) -> Any:
            return session.open(tensor, self.releases[len(tensor.size()) - 1])

        rows = timed(
            {**SHARED, "sigmoid": lambda x: session.sigmoid(x, bound=12), "open": reveal},
            lambda value, owner: session.share(value, owner=owner % session.parties, shape=value.shape),
            reveal,
            self.repeats,
            barrier=session.barrier,
            rounds=lambda: session.total_cost.rounds,
            passes=lambda: session.repeat(self.repeats + 1),
        )
        return {"ok": True, "rows": rows}


def plain_operations(repeats: int) -> list[Row]:
    """Plain torch, one thread."""
    torch.set_num_threads(1)
    work = {**SHARED, "sigmoid": torch.sigmoid, "ltz": lambda x: (x < 0).float(), "open": torch.clone}
    rows = timed(work, lambda value, owner: torch.from_numpy(value).float(), lambda x: x, repeats)
    return [{**row, "loopback": 0.0} for row in rows]


def measure_operations(repeats: int, blocks: int, tell: Tell) -> Result:
    """A row for each operation and system."""
    systems = {
        "ours": lambda: run_ours("bench-ops", {"repeats": repeats})[0][0],
        "crypten-tfp": lambda: run_stock("TFP", "ops", repeats=repeats),
        "crypten-ttp": lambda: run_stock("TTP", "ops", repeats=repeats),
        "plain": lambda: plain_operations(repeats),
    }
    rows = compare(systems, blocks, tell)
    note = f"{PARTIES} parties, medians. `times ours`: above 1 is slower than ours."
    return Result({"parties": PARTIES, "rows": rows}, [note, table_of_systems(rows)])


GROUPS = 2
RATE, MOMENTUM, LAM = 0.05, 0.9, 0.5
TOGETHER = 10
"""Steps between two readings of the clock: the dealer works ahead, as it does in training."""
CASES = ("sealed", "sealed softmax", "sealed gram")
"""Kinds of step of stock CrypTen."""
STOCK_REPEATS = 3
"""Repeats of a system whose step takes a second."""
LARGE = 10_000
"""From so many rows on, a step of stock CrypTen takes tens of seconds: it is repeated once, with one provider."""


@dataclass(frozen=True)
class Size:
    """Records, and columns of each party."""

    rows: int = 560
    width: int = 64

    def __post_init__(self) -> None:
        if self.rows < GROUPS or self.width < 1:
            raise ConfigError(f"a step needs at least {GROUPS} rows and a column of each party")

    @property
    def columns(self) -> int:
        return PARTIES * self.width

    def part(self, rank: int) -> slice:
        return slice(rank * self.width, (rank + 1) * self.width)

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}"


@dataclass(frozen=True)
class Inputs:
    """Rows, displacements by hypothesised group, labels and groups."""

    rows: np.ndarray
    deltas: np.ndarray
    label: np.ndarray
    codes: np.ndarray

    @property
    def chosen(self) -> np.ndarray:
        """The displacement of each record's own group."""
        return self.deltas[np.arange(len(self.rows)), self.codes]


def inputs(size: Size) -> Inputs:
    rng, rows, columns = np.random.default_rng(0), size.rows, size.columns
    values, deltas = rng.uniform(0, 1, (rows, columns)), rng.normal(0, 0.1, (rows, GROUPS, columns))
    return Inputs(values, deltas, rng.integers(0, 2, rows), rng.integers(0, GROUPS, rows))


def plain_weight(given: Inputs, steps: int, lam: float = LAM) -> np.ndarray:
    """The head after these steps in the clear, with numpy: all systems are checked against it."""
    rows, chosen, label = given.rows, given.chosen, given.label[:, None]
    weight = velocity = np.zeros((rows.shape[1], 1))
    bias = bias_velocity = 0.0
    for _ in range(steps):
        residual = 1 / (1 + np.exp(-(rows @ weight + bias))) - label
        gradient = (rows.T @ residual + lam * (chosen.T @ (chosen @ weight))) / len(rows)
        velocity = MOMENTUM * velocity - RATE * gradient
        bias_velocity = MOMENTUM * bias_velocity - RATE * 4 * float(residual.mean())  # curvature of the bias is 1/4
        weight, bias = weight + velocity, bias + bias_velocity
    return weight


def least_bytes(size: Size) -> int:
    """Payload that a party must send to its peers in a step, by the tables of `protocols.steps`."""
    bands = -(-size.rows // BAND_ROWS)
    elements = size.columns + 2 * size.rows + size.columns * (2 + bands) + 2
    return elements * 8 * (PARTIES - 1)


def steps_of(engine: Engine, size: Size, ranks: Sequence[int]) -> Iterator[Any]:
    """Heads of an engine that holds the parts of these ranks, after each further `TOGETHER` steps."""
    given = inputs(size)
    batch = engine.bind(
        {rank: given.rows[:, size.part(rank)] for rank in ranks},
        given.label,
        {rank: np.zeros(size.width) for rank in ranks},
    )
    deltas = [[{rank: given.deltas[:, group, size.part(rank)] for rank in ranks} for group in range(GROUPS)]]
    penalty = engine.join([engine.counterfactuals(deltas, given.codes)], [])
    head = engine.head(batch, 1, "binary")
    curvature = {rank: np.ones(size.width) for rank in ranks}
    descent = engine.first_order(batch, penalty, Step(RATE, MOMENTUM, LAM), curvature)
    while True:
        head = engine.steps(head, descent, TOGETHER)
        yield head


class StepBenchmark(PublicJob):
    """Options: `repeats`, `rows` and `width`. Rank 0 holds the label, the last rank holds s."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        options = dict(config.options)
        self.repeats = int(options.pop("repeats", 10))
        self.size = Size(**options)
        everyone = tuple(range(len(config.parties)))
        self.releases = [
            Release("columns", everyone, (ANY,), "public shape"),
            Release("predictions", everyone, (ANY, ANY), "inputs are public"),
        ]

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        engine, rank, size = SecureEngine(session, 0, [PARTIES - 1]), session.rank, self.size
        heads = steps_of(engine, size, [rank])
        head: Any = None
        seconds: list[float] = []
        processor: list[float] = []
        for number in range(self.repeats + 1):
            progress("sealed", number, self.repeats + 1)
            session.barrier()
            before, start, busy = vars(session.total_cost).copy(), time.perf_counter(), time.process_time()
            head = next(heads)
            processor.append((time.process_time() - busy) / TOGETHER)
            seconds.append((time.perf_counter() - start) / TOGETHER)
            spent = {name: (value - before[name]) / TOGETHER for name, value in vars(session.total_cost).items()}
        # The head is opened as predictions for unit rows.
        probes = np.vstack([np.eye(size.columns)[:, size.part(rank)], np.zeros((1, size.width))])
        logits = engine.logits(head, {rank: probes})
        error = logits[:-1] - logits[-1:] - plain_weight(inputs(size), TOGETHER * (self.repeats + 1))
        row = {"job": "sealed", "max_error": float(np.abs(error).max()), **spent, "memory": peak_memory()}
        return {"ok": True, "rows": [{**row, "seconds": seconds[1:], "processor": processor[1:]}]}


def plain_steps(repeats: int, size: Size) -> list[Row]:
    """The plaintext engine. Its process did other work too, so its memory is not told."""
    heads = steps_of(PlainEngine(), size, range(PARTIES))
    _, timing = time_repeats(lambda: next(heads), repeats)
    seconds = [value / TOGETHER for value in timing["seconds"]]
    return [{"job": "sealed", "seconds": seconds, **dict.fromkeys(("rounds", "sent", "dealer", "max_error"), 0.0)}]


def slowest(rows: Sequence[Row]) -> Row:
    """The row of the slowest party, with the largest memory of all."""
    row = max(rows, key=lambda row: statistics.median(row["seconds"]))
    return {**row, "memory": max(row["memory"] for row in rows)}


def ours(repeats: int, size: Size) -> list[Row]:
    """One row: the slowest party's seconds, and the mean of what parties send and get from the dealer."""
    (rows,) = zip(*run_ours("bench-step", {"repeats": repeats, **asdict(size)})[0], strict=True)
    mean = {name: statistics.mean(row[name] for row in rows) for name in ("sent", "dealer")}
    return [{**slowest(rows), **mean, "least": least_bytes(size)}]


def stock(provider: str, size: Size) -> list[Row]:
    """Rows of stock CrypTen. Two logits halve the consistency, so `softmax` is not checked."""
    repeats = STOCK_REPEATS if size.rows < LARGE else 1
    return run_stock(provider, "step", repeats=repeats, cases=CASES, **asdict(size))


def measure_step(repeats: int, blocks: int, tell: Tell, size: Size, spu: Path | None, note: str) -> Result:
    """A row for each system and kind of step. spu: the Python that has it. note: about it."""
    systems: dict[str, Callable[[], list[Row]]] = {
        "ours-sealed": lambda: ours(repeats, size),
        "crypten-tfp": lambda: stock("TFP", size),
    }
    if size.rows < LARGE:
        systems["crypten-ttp"] = lambda: stock("TTP", size)
    if spu is not None:
        systems["spu-aby3"] = lambda: run_spu(spu, repeats, size)
    systems["plain"] = lambda: plain_steps(repeats, size)
    rows = compare(systems, blocks, tell)
    about = (
        f"One sealed step, {size}, {PARTIES} parties: head update from task and consistency gradient. Ours with\n"
        "mutual TLS and a dealer, CrypTen over gloo and SPU over brpc without.\n\n"
        "- `sealed` is the same mathematical step in all systems: sigmoid of the one logit. `softmax` is CrypTen's\n"
        "  over two logits; `gram` gives CrypTen the algebra of our step.\n"
        f"- `spu-aby3`: the step without consistency, which is less work. {note}.\n"
        "- `CPU ms`: of one party, without the dealer. `kB to peers`: what one party sends per step; ours counts\n"
        "  frames (`least` is their payload alone), CrypTen's is read from the loopback device, provider included.\n"
        "  `kB dealer`: from and to it, per party. `rounds` of SPU: messages that a party sends.\n"
        "- `error`: largest difference of a head weight from the same steps in the clear, at the end of a block."
    )
    shape = {"rows": size.rows, "columns": size.columns}
    return Result({"parties": PARTIES, **shape, "rows": rows}, [about, table_of_systems(rows)])


PYTHON = Path(__file__).resolve().parents[3] / ".venv-peers" / "bin" / "python"
"""Where `make peers` puts it."""
PROFILE = re.compile(rb"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")


def spu_python(given: Path | None) -> tuple[Path | None, str]:
    """The Python that has SPU, or nothing and the reason."""
    python = given or PYTHON
    if not python.exists():
        return None, f"SPU is left out: there is no {python} (`make peers` makes .venv-peers; or give --spu PYTHON)"
    asked = subprocess.run([python, "-c", "import spu; print(spu.__version__)"], capture_output=True, text=True)
    if asked.returncode:
        return None, f"SPU is left out: {python} cannot import it: {asked.stderr.strip().splitlines()[-1]}"
    return python, f"SPU {asked.stdout.strip()}"


def run_spu(python: Path, repeats: int, size: Size) -> list[Row]:
    """One row: the slowest party's seconds, and the mean of what parties send."""
    given = inputs(size)
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        place, log = Path(folder), Path(folder) / "said.log"
        np.savez(place / "inputs.npz", rows=given.rows, label=given.label, rate=RATE, momentum=MOMENTUM)
        settings = {"addresses": _free_addresses(), "folder": folder, "repeats": repeats}
        commands = [
            [str(python), spu_process.__file__, json.dumps({"rank": rank, **settings})] for rank in range(PARTIES)
        ]
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        codes = finished(commands, own, log)
        if any(codes):
            raise ProtocolError(f"SPU failed, exit codes {codes}: {log.read_text(errors='replace')[-2000:]}")
        rows: list[Row] = [json.loads((place / f"row-{rank}.json").read_text()) for rank in range(PARTIES)]
        sent = [tuple(map(int, profile)) for profile in PROFILE.findall(log.read_bytes())]
    row = slowest(rows)
    error = float(np.abs(np.array(row.pop("weight")) - plain_weight(given, repeats + 1, lam=0.0)).max())
    traffic = {"sent": statistics.mean(s for s, _ in sent), "rounds": max(n for _, n in sent)} if sent else {}
    return [{"job": "sealed", **row, "max_error": error, **traffic, "dealer": 0.0}]


def _free_addresses() -> tuple[str, ...]:
    """Ports that were free a moment ago: SPU opens them itself."""
    made = [listen_anywhere() for _ in range(PARTIES)]
    for listener, _ in made:
        listener.close()
    return tuple(address for _, address in made)
