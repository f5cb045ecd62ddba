"""One full-batch training step as a benchmark: what every system computes, and ours as a job.

Inputs are public: 560 records, 3 parties with 64 columns each, two classes (one logit), two groups.

- `sealed`: encodings are constant and in secret before the clock starts. A step gives the new head from the task
gradient and the squared consistency of the counterfactual rows.
- `split`: activations and those of every hypothesised edit are new in every step, so putting them in secret is part
  of
it. The secret one-hot of s selects the edit. The head is updated, and each party gets the gradient in its own
activations.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from protocols.config import SessionConfig
from protocols.records.releases import ANY, Release, ReleasePlan
from protocols.ring import encode
from protocols.session.runtime import Session
from protocols.steps import split
from protocols.steps.head import Weights
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.modes.split import probes, residual_of
from secure_sccvfl.run.jobs import Progress
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.sharing import share_label

Mode = Literal["sealed", "split"]
PARTIES, ROWS, WIDTH, GROUPS = 3, 560, 64, 2
COLUMNS = PARTIES * WIDTH
RATE, MOMENTUM, LAM = 0.05, 0.9, 0.5
TOGETHER = 10
"""Steps between two readings of the clock: the dealer works ahead, as it does in training."""


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
        return self.deltas[np.arange(ROWS), self.codes]

    def of(self, rank: int) -> slice:
        return slice(rank * WIDTH, (rank + 1) * WIDTH)


def inputs() -> Inputs:
    rng = np.random.default_rng(0)
    rows, deltas = rng.uniform(0, 1, (ROWS, COLUMNS)), rng.normal(0, 0.1, (ROWS, GROUPS, COLUMNS))
    start = rng.normal(0, 0.1, (COLUMNS, 1))
    return Inputs(rows, deltas, rng.integers(0, 2, ROWS), rng.integers(0, GROUPS, ROWS), start)


@dataclass
class PlainStep:
    """The step in the clear, with numpy; it iterates on its own head. The others are checked against it."""

    given: Inputs
    mode: Mode

    def __post_init__(self) -> None:
        self.weight = np.zeros_like(self.given.start) if self.mode == "sealed" else self.given.start.copy()
        self.velocity, self.bias, self.bias_velocity = np.zeros_like(self.weight), 0.0, 0.0

    def __call__(self) -> list[np.ndarray]:
        """Take a step; returns the gradients of the parties in `split`."""
        rows, chosen = self.given.rows, self.given.chosen
        residual = 1 / (1 + np.exp(-(rows @ self.weight + self.bias))) - self.given.label[:, None]
        shift = chosen @ self.weight
        gradient = (rows.T @ residual + LAM * (chosen.T @ shift)) / ROWS
        pull = residual - LAM * shift
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


def least_bytes(mode: Mode) -> int:
    """Payload that a party must send to its peers in a step, by the tables of `protocols.steps`."""
    if mode == "sealed":
        words = COLUMNS + ROWS + ROWS + (COLUMNS * 3 + 2)
    else:
        layout = _layout()
        words = ROWS * WIDTH * (1 + GROUPS) + COLUMNS + layout.probes * PARTIES
        words += ROWS * (1 + GROUPS) + ROWS * (2 + GROUPS) + COLUMNS * 3 + 2 + ROWS + layout.probes
        words += (ROWS + WIDTH) * layout.probes
    return words * 8 * (PARTIES - 1)


def _layout() -> split.SplitLayout:
    return split.SplitLayout(ROWS, (WIDTH,) * PARTIES, tuple(range(PARTIES)), ((PARTIES - 1, GROUPS),))


class StepBenchmark:
    """Options: `mode` and `repeats`. Rank 0 holds the label, the last rank holds s."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        mode = config.options.get("mode", "sealed")
        if mode not in ("sealed", "split"):
            raise ValueError(f"mode must be sealed or split, not {mode!r}")
        self.mode: Mode = mode
        self.repeats = int(config.options.get("repeats", 10))
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
            session.communicator.barrier()
            before, start, busy = vars(session.total_cost).copy(), time.perf_counter(), time.process_time()
            next(steps)
            processor.append((time.process_time() - busy) / TOGETHER)
            seconds.append((time.perf_counter() - start) / TOGETHER)
            spent = {name: (value - before[name]) / TOGETHER for name, value in vars(session.total_cost).items()}
        weight = next(steps)
        error = float(np.abs(weight - PlainStep(inputs(), self.mode).after(TOGETHER * (self.repeats + 1))).max())
        row = {"job": self.mode, "max_error": error, **spent, "memory": peak_memory()}
        row |= {"seconds": seconds[1:], "processor": processor[1:]}
        return {"ok": True, "rows": [row]}

    def _sealed(self, engine: SecureEngine) -> Iterator[np.ndarray]:
        """Each `next` takes steps together; the last one opens the head as predictions for unit rows."""
        given, rank = inputs(), engine.session.rank
        own = given.of(rank)
        batch = engine.bind({rank: given.rows[:, own]}, given.label, {rank: np.zeros(WIDTH)})
        deltas = [[{rank: given.deltas[:, group, own]} for group in range(GROUPS)]]
        penalty = engine.join([engine.edits(deltas, given.codes)], [])
        head = engine.head(batch, 1, "binary")
        descent = engine.prepare(batch, penalty, Step(RATE, MOMENTUM, LAM), {rank: np.ones(WIDTH)})
        for _ in range(self.repeats + 1):
            head = engine.steps(head, descent, TOGETHER)
            yield np.zeros(0)
        probes_of_head = np.vstack([np.eye(COLUMNS)[:, own], np.zeros((1, WIDTH))])
        logits = engine.logits(head, {rank: probes_of_head})
        yield logits[:-1] - logits[-1:]

    def _split(self, engine: SecureEngine) -> Iterator[np.ndarray]:
        given, session, layout = inputs(), engine.session, _layout()
        own, probe = given.of(session.rank), probes(_layout())
        label = share_label(session, given.label, 0, (ROWS, 1), split.RESIDUAL_BITS)
        weight = encode(given.start, split.SPLIT_HEAD_BITS) * (session.rank == 0)
        zero, bias, pattern = np.zeros_like(weight), np.zeros(1, np.int64), []  # type: ignore[var-annotated]
        weights, pace = Weights(weight, bias, zero, bias), split.SplitPace(RATE, MOMENTUM, 0.0, LAM)
        chosen = {0: one_hot(given.codes, GROUPS, np.int64)} if session.rank == PARTIES - 1 else {}
        for _ in range(self.repeats + 1):
            for _ in session.repeat(TOGETHER, pattern):
                mine = split.Own(
                    split.encode_activations(given.rows[:, own]),
                    split.encode_activations(given.deltas[:, :, own]),
                    chosen,
                )
                stepped = split.split_step(
                    session.party,
                    layout,
                    weights,
                    mine,
                    pace,
                    lambda logits: residual_of(engine, logits, label, "binary"),
                    probe,
                )
                weights = stepped.weights
                opened = session.open_each(
                    [
                        (session.wrap(sketch, split.PRODUCT_BITS), self.releases[f"gradient {rank}"])
                        for rank, sketch in enumerate(stepped.sketches)
                    ]
                )[session.rank]
                if opened is not None:
                    split.gradient_of(opened.numpy(), layout, session.rank, probe)
            yield np.zeros(0)
        final = session.open(session.wrap(weights.weight, split.SPLIT_HEAD_BITS), self.releases["predictions"])
        yield np.zeros(0) if final is None else final.numpy()


def plain_rows(mode: Mode, repeats: int) -> list[dict[str, Any]]:
    """The plaintext side: the plaintext engine for `sealed`, numpy for `split`."""
    seconds, act = [], _plain_engine() if mode == "sealed" else _plain_split()
    for _ in range(repeats + 1):
        start = time.perf_counter()
        act()
        seconds.append((time.perf_counter() - start) / TOGETHER)
    zero = dict.fromkeys(("rounds", "sent", "received", "dealer", "loopback", "max_error"), 0.0)
    return [{"job": mode, "seconds": seconds[1:], "memory": peak_memory(), **zero}]


def _plain_engine() -> Callable[[], None]:
    given, engine = inputs(), PlainEngine()
    blocks = {rank: given.rows[:, given.of(rank)] for rank in range(PARTIES)}
    batch = engine.bind(blocks, given.label, {rank: np.zeros(WIDTH) for rank in range(PARTIES)})
    deltas = [[{rank: given.deltas[:, group, given.of(rank)] for rank in range(PARTIES)} for group in range(GROUPS)]]
    penalty = engine.join([engine.edits(deltas, given.codes)], [])
    curvature = {rank: np.ones(WIDTH) for rank in range(PARTIES)}
    descent = engine.prepare(batch, penalty, Step(RATE, MOMENTUM, LAM), curvature)
    head = engine.head(batch, 1, "binary")

    def act() -> None:
        engine.steps(head, descent, TOGETHER)

    return act


def _plain_split() -> Callable[[], None]:
    step = PlainStep(inputs(), "split")

    def act() -> None:
        for _ in range(TOGETHER):
            step()

    return act


def peak_memory() -> int:
    """The largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
