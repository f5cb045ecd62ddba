"""Micro-benchmarks of the secure operations, as a job, and their results in the clear.

The inputs are public. The runners of stock CrypTen and of plain torch use `cases` too, so that all systems do the
same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from protocols.config import SessionConfig
from protocols.records.releases import ANY, Release, ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.runs.jobs import Progress

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One operation: its public inputs, and what it computes."""

    inputs: tuple[Array, ...]
    plain: Callable[..., Array]


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    return {
        "matmul": Case((rng.normal(size=(1120, 192)), rng.normal(size=(192, 2))), lambda x, y: x @ y),
        "product": Case((rng.normal(size=(1120, 64)), rng.normal(size=(1120, 64))), lambda x, y: x * y),
        "sigmoid": Case((rng.uniform(-12, 12, size=1120),), lambda x: 1 / (1 + np.exp(-x))),
        "ltz": Case((rng.normal(size=2000),), lambda x: (x < 0) * 1.0),
        "open": Case((rng.normal(size=(1120, 2)),), lambda x: x),
    }


def loopback_bytes() -> int:
    """All bytes that the loopback device has carried; 0 where the system does not report them."""
    try:
        with open("/proc/net/dev") as file:
            for line in file:
                name, _, numbers = line.partition(":")
                if name.strip() == "lo":
                    return int(numbers.split()[0])
    except OSError:
        pass
    return 0


@dataclass
class Timing:
    """Repeated runs of one operation at one party."""

    seconds: list[float]
    rounds: float
    loopback: float
    """Bytes on the loopback device per run, of all processes together."""


def time_repeats(
    work: Callable[[], Any],
    repeats: int,
    barrier: Callable[[], None] = lambda: None,
    rounds: Callable[[], int] = lambda: 0,
    passes: Iterable[int] | None = None,
) -> tuple[Any, Timing]:
    """Time each pass between barriers; the first one is a warm-up and does not count.

    passes: counts from 0 to `repeats`, if it does more than count.
    """
    seconds: list[float] = []
    result, before, start_rounds, spent = None, 0, 0, 0
    for number in range(repeats + 1) if passes is None else passes:
        barrier()
        if number == 1:
            before = loopback_bytes()
        start_rounds = rounds()
        start = time.perf_counter()
        result = work()
        if number > 0:
            seconds.append(time.perf_counter() - start)
        spent = rounds() - start_rounds
    barrier()
    count = max(1, len(seconds))
    return result, Timing(seconds, spent, (loopback_bytes() - before) / count)


class OperationsBenchmark:
    """Option: `repeats` of each operation. The dealer works ahead, as it does in training."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.repeats = int(config.options.get("repeats", 10))
        everyone = tuple(range(len(config.parties)))
        self.releases = {
            dimensions: Release(
                f"benchmark result, {dimensions} dimensions",
                everyone,
                (ANY,) * dimensions,
                "inputs are public",
                times=len(cases()) * (self.repeats + 2),
            )
            for dimensions in (1, 2)
        }

    def plan(self) -> ReleasePlan:
        return ReleasePlan(self.releases.values())

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        rows = []
        work: dict[str, Callable[..., Any]] = {
            "matmul": lambda x, y: x.matmul(y),
            "product": lambda x, y: x * y,
            "sigmoid": lambda x: session.sigmoid(x, bound=12),
            "ltz": lambda x: x._ltz(),
            "open": lambda x: session.open(x, self.releases[2]),
        }
        for number, (name, case) in enumerate(cases().items()):
            progress(name, number, len(work))
            shared = [
                session.share(value, owner=owner % session.parties, shape=value.shape)
                for owner, value in enumerate(case.inputs)
            ]
            result, timing = time_repeats(
                partial(work[name], *shared),
                self.repeats,
                session.barrier,
                lambda: session.total_cost.rounds,
                session.repeat(self.repeats + 1),
            )
            expected = case.plain(*case.inputs)
            if name != "open":
                result = session.open(result, self.releases[expected.ndim])
            error = float(np.abs(result.numpy() - expected).max())
            rows.append({"job": name, "max_error": error, **timing.__dict__})
        return {"ok": True, "rows": rows}
