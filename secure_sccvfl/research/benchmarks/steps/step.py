"""One full-batch training step as a benchmark: what every system computes, and ours as a job.

Inputs are public: by default 560 records, 3 parties with 64 columns each, two classes (one logit), two groups.

- `sealed`: encodings are constant and in secret before the clock starts. A step gives the new head from the task
  gradient and the squared consistency of the counterfactual rows.
- `split`: activations and those of every hypothesised edit are new in every step, so putting them in secret is part
  of it. The secret one-hot of s selects the edit. The head is updated, and each party gets the gradient in its own
  activations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from protocols.config import ConfigError, SessionConfig
from protocols.operations.banded import BAND_ROWS
from protocols.records.releases import ANY, Release, ReleasePlan
from protocols.session.runtime import Session
from protocols.steps import split
from protocols.steps.head import Weights
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.research.split.mode import probes, residual_of
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.sharing import share_label

Mode = Literal["sealed", "split"]
PARTIES, GROUPS = 3, 2
RATE, MOMENTUM, LAM = 0.05, 0.9, 0.5
TOGETHER = 10
"""Steps between two readings of the clock: the dealer works ahead, as it does in training."""


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

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}"


@dataclass(frozen=True)
class Inputs:
    """Rows, displacements by hypothesised group, labels, groups, and a head to start from."""

    rows: np.ndarray
    deltas: np.ndarray
    label: np.ndarray
    codes: np.ndarray
    start: np.ndarray

    @property
    def chosen(self) -> np.ndarray:
        """The displacement of each record's own group."""
        return self.deltas[np.arange(len(self.rows)), self.codes]

    def of(self, rank: int) -> slice:
        width = self.rows.shape[1] // PARTIES
        return slice(rank * width, (rank + 1) * width)


def inputs(size: Size) -> Inputs:
    rng, rows, columns = np.random.default_rng(0), size.rows, size.columns
    values, deltas = rng.uniform(0, 1, (rows, columns)), rng.normal(0, 0.1, (rows, GROUPS, columns))
    start = rng.normal(0, 0.1, (columns, 1))
    return Inputs(values, deltas, rng.integers(0, 2, rows), rng.integers(0, GROUPS, rows), start)


@dataclass
class PlainStep:
    """The step in the clear, with numpy; it iterates on its own head. The others are checked against it."""

    given: Inputs
    mode: Mode
    lam: float = LAM

    def __post_init__(self) -> None:
        self.weight = np.zeros_like(self.given.start) if self.mode == "sealed" else self.given.start.copy()
        self.velocity, self.bias, self.bias_velocity = np.zeros_like(self.weight), 0.0, 0.0

    def __call__(self) -> list[np.ndarray]:
        """Take a step; returns the gradients of the parties in `split`."""
        rows, chosen = self.given.rows, self.given.chosen
        residual = 1 / (1 + np.exp(-(rows @ self.weight + self.bias))) - self.given.label[:, None]
        shift = chosen @ self.weight
        gradient = (rows.T @ residual + self.lam * (chosen.T @ shift)) / len(rows)
        pull = residual - self.lam * shift
        seen = [pull @ self.weight[self.given.of(rank)].T for rank in range(PARTIES) if self.mode == "split"]
        # The sealed step divides by the curvature of the bias, 1/4.
        slope = float(residual.mean()) * (4 if self.mode == "sealed" else 1)
        self.velocity = MOMENTUM * self.velocity - RATE * gradient
        self.bias_velocity = MOMENTUM * self.bias_velocity - RATE * slope
        self.weight, self.bias = self.weight + self.velocity, self.bias + self.bias_velocity
        return seen

    def after(self, steps: int) -> np.ndarray:
        for _ in range(steps):
            self()
        return self.weight


def least_bytes(mode: Mode, size: Size) -> int:
    """Payload that a party must send to its peers in a step, by the tables of `protocols.steps`."""
    rows, columns = size.rows, size.columns
    if mode == "sealed":
        bands = -(-rows // BAND_ROWS)
        words = columns + rows + rows + (columns * (2 + bands) + 2)
    else:
        layout = _layout(size)
        words = rows * size.width * (1 + GROUPS) + columns + layout.probes * PARTIES
        words += rows * (1 + GROUPS) + rows * (2 + GROUPS) + columns * 3 + 2 + rows + layout.probes
        words += (rows + size.width) * layout.probes
    return words * 8 * (PARTIES - 1)


def _layout(size: Size) -> split.SplitLayout:
    return split.SplitLayout(size.rows, (size.width,) * PARTIES, tuple(range(PARTIES)), ((PARTIES - 1, GROUPS),))


class StepBenchmark:
    """Options: `mode`, `repeats`, `rows` and `width`. Rank 0 holds the label, the last rank holds s."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        mode = config.options.get("mode", "sealed")
        if mode not in ("sealed", "split"):
            raise ValueError(f"mode must be sealed or split, not {mode!r}")
        self.mode: Mode = mode
        self.repeats = int(config.options.get("repeats", 10))
        usual = Size()
        self.size = Size(*(int(config.options.get(name, getattr(usual, name))) for name in ("rows", "width")))
        everyone = tuple(range(len(config.parties)))
        steps = TOGETHER * (self.repeats + 2)
        self.releases = {
            "columns": Release("columns", everyone, (ANY,), "public shape"),
            "predictions": Release("predictions", everyone, (ANY, ANY), "inputs are public"),
            **{
                f"gradient {rank}": Release(f"gradient {rank}", (rank,), (ANY,), "inputs are public", times=steps)
                for rank in everyone
            },
        }

    def plan(self) -> ReleasePlan:
        return ReleasePlan(self.releases.values())

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        engine = SecureEngine(session, 0, [PARTIES - 1])
        steps = self._sealed(engine) if self.mode == "sealed" else self._split(engine)
        seconds: list[float] = []
        processor: list[float] = []
        for number in range(self.repeats + 1):
            progress(self.mode, number, self.repeats + 1)
            session.barrier()
            before, start, busy = vars(session.total_cost).copy(), time.perf_counter(), time.process_time()
            next(steps)
            processor.append((time.process_time() - busy) / TOGETHER)
            seconds.append((time.perf_counter() - start) / TOGETHER)
            spent = {name: (value - before[name]) / TOGETHER for name, value in vars(session.total_cost).items()}
        weight = next(steps)
        error = float(
            np.abs(weight - PlainStep(inputs(self.size), self.mode).after(TOGETHER * (self.repeats + 1))).max()
        )
        row = {"job": self.mode, "max_error": error, **spent, "memory": peak_memory()}
        row |= {"seconds": seconds[1:], "processor": processor[1:]}
        return {"ok": True, "rows": [row]}

    def _sealed(self, engine: SecureEngine) -> Iterator[np.ndarray]:
        """Each `next` takes steps together; the last one opens the head as predictions for unit rows."""
        given, rank, width = inputs(self.size), engine.session.rank, self.size.width
        own = given.of(rank)
        batch = engine.bind({rank: given.rows[:, own]}, given.label, {rank: np.zeros(width)})
        deltas = [[{rank: given.deltas[:, group, own]} for group in range(GROUPS)]]
        penalty = engine.join([engine.edits(deltas, given.codes)], [])
        head = engine.head(batch, 1, "binary")
        descent = engine.prepare(batch, penalty, Step(RATE, MOMENTUM, LAM), {rank: np.ones(width)})
        for _ in range(self.repeats + 1):
            head = engine.steps(head, descent, TOGETHER)
            yield np.zeros(0)
        probes_of_head = np.vstack([np.eye(self.size.columns)[:, own], np.zeros((1, width))])
        logits = engine.logits(head, {rank: probes_of_head})
        yield logits[:-1] - logits[-1:]

    def _split(self, engine: SecureEngine) -> Iterator[np.ndarray]:
        given, session, layout = inputs(self.size), engine.session, _layout(self.size)
        own, probe = given.of(session.rank), probes(layout)
        label = share_label(session, given.label, 0, (self.size.rows, 1), split.RESIDUAL_BITS)
        parts = given.start, np.zeros(1), np.zeros_like(given.start), np.zeros(1)
        weights = Weights(*(session.public(part, split.SPLIT_HEAD_BITS) for part in parts))
        pattern, pace = [], split.SplitPace(RATE, MOMENTUM, 0.0, LAM)  # type: ignore[var-annotated]
        chosen = {0: one_hot(given.codes, GROUPS, np.int64)} if session.rank == PARTIES - 1 else {}
        for _ in range(self.repeats + 1):
            for _ in session.repeat(TOGETHER, pattern):
                mine = split.inputs_of(session, layout, given.rows[:, own], given.deltas[:, :, own], chosen)
                stepped = split.split_step(
                    layout, weights, mine, pace, lambda logits: residual_of(logits, label, "binary"), probe
                )
                weights = stepped.weights
                opened = session.open_each(
                    [(sketch, self.releases[f"gradient {rank}"]) for rank, sketch in enumerate(stepped.sketches)]
                )[session.rank]
                if opened is not None:
                    split.gradient_of(opened.numpy(), layout, session.rank, probe)
            yield np.zeros(0)
        final = session.open(weights.weight, self.releases["predictions"])
        yield np.zeros(0) if final is None else final.numpy()


def plain_rows(mode: Mode, repeats: int, size: Size) -> list[dict[str, Any]]:
    """The plaintext side: the plaintext engine for `sealed`, numpy for `split`."""
    seconds, act = [], _plain_engine(size) if mode == "sealed" else _plain_split(size)
    for _ in range(repeats + 1):
        start = time.perf_counter()
        act()
        seconds.append((time.perf_counter() - start) / TOGETHER)
    zero = dict.fromkeys(("rounds", "sent", "received", "dealer", "loopback", "max_error"), 0.0)
    return [{"job": mode, "seconds": seconds[1:], "memory": peak_memory(), **zero}]


def _plain_engine(size: Size) -> Callable[[], None]:
    given, engine = inputs(size), PlainEngine()
    blocks = {rank: given.rows[:, given.of(rank)] for rank in range(PARTIES)}
    batch = engine.bind(blocks, given.label, {rank: np.zeros(size.width) for rank in range(PARTIES)})
    deltas = [[{rank: given.deltas[:, group, given.of(rank)] for rank in range(PARTIES)} for group in range(GROUPS)]]
    penalty = engine.join([engine.edits(deltas, given.codes)], [])
    curvature = {rank: np.ones(size.width) for rank in range(PARTIES)}
    descent = engine.prepare(batch, penalty, Step(RATE, MOMENTUM, LAM), curvature)
    head = engine.head(batch, 1, "binary")

    def act() -> None:
        engine.steps(head, descent, TOGETHER)

    return act


def _plain_split(size: Size) -> Callable[[], None]:
    step = PlainStep(inputs(size), "split")

    def act() -> None:
        for _ in range(TOGETHER):
            step()

    return act


def peak_memory() -> int:
    """The largest memory of this process so far, in bytes; what `resource` says is that of its parent at least."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
