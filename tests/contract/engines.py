"""Both sides of the Engine seam: one random problem, and the same calls on it in plaintext or in secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.secure import SecureEngine
from tests.support.sessions import in_threads, run_session

ROWS, GROUPS = 40, 3
TEMPERATURES = (0.4, 0.7, 1.0, 1.6, 3.0)


def releases(parties):
    everyone = tuple(range(parties))
    shapes = {
        "columns": (ANY,),
        "numbers of parties": (ANY,),
        "sums over parties": (ANY,),
        "range check": (1,),
        "validation summary": (ANY, 4),
        "temperature choice": (len(TEMPERATURES) - 1,),
        "predictions": (ANY, ANY),
    }
    return {name: Release(name, everyone, shape, "test", times=50) for name, shape in shapes.items()}


class Problem:
    """One random problem for any number of parties; party 0 holds the label, the last one holds s."""

    def __init__(self, widths, task="binary", outputs=1, rows=ROWS, seed=0, size=1.0):
        rng = np.random.default_rng(seed)
        self.widths, self.task, self.outputs, self.rows = widths, task, outputs, rows

        def blocks():
            return {rank: rng.uniform(-size, size, (rows, width)) for rank, width in enumerate(widths)}

        self.x, self.s = blocks(), rng.integers(0, GROUPS, rows)
        self.y = rng.uniform(0, 1, rows) if task == "regression" else rng.integers(0, max(outputs, 2), rows)
        self.deltas = [[blocks() for _ in range(GROUPS)] for _ in range(2)]
        self.guard = {rank: rng.normal(size=width) for rank, width in enumerate(widths)}
        self.ridge = {rank: rng.uniform(0.01, 0.1, width) for rank, width in enumerate(widths)}
        self.curvature = {rank: rng.uniform(0.05, 1, width) for rank, width in enumerate(widths)}

    def inputs(self, engine):
        """Batch and penalty."""
        batch = engine.bind(self.x, self.y, self.ridge, self.outputs)
        return batch, engine.join([engine.counterfactuals(self.deltas, self.s)], [self.guard])

    def trained(self, engine, batch, penalty, step, steps):
        """A head after this many steps from zero."""
        descent = engine.first_order(batch, penalty, step, self.curvature)
        return engine.steps(engine.head(batch, self.outputs, self.task), descent, steps)

    def script(self, engine, step, steps=6):
        """What a run does, on any engine."""
        batch, penalty = self.inputs(engine)
        trained = engine.head(batch, self.outputs, self.task)
        warm = engine.first_order(batch, None, Step(0.1, 0.5), {k: 2 * v for k, v in self.curvature.items()})
        trained = engine.steps(trained, warm, 3)
        engine.check_range([trained], batch)
        first = trained
        trained = engine.steps(trained, engine.first_order(batch, penalty, step, self.curvature), steps)
        engine.check_range([first, trained], batch)
        results = {
            "measures": engine.measure([trained], batch, penalty)[0],
            "logits": engine.logits(trained, self.x),
        }
        if self.task != "regression":
            results["temperature"] = engine.best_temperature(trained, batch, TEMPERATURES)
        return results

    def of(self, rank, parties):
        """What one party passes: its own blocks; label and s at their holders."""
        local = object.__new__(Problem)
        local.__dict__.update(self.__dict__)
        for name in ("x", "guard", "ridge", "curvature"):
            setattr(local, name, {rank: getattr(self, name)[rank]})
        local.deltas = [[{rank: blocks[rank]} for blocks in draw] for draw in self.deltas]
        local.y = self.y if rank == 0 else None
        local.s = self.s if rank == parties - 1 else None
        return local


Script = Callable[[Any, Problem], Any]
"""Calls of an engine on what a process holds of a problem."""


def in_plaintext(problem: Problem, script: Script) -> list[Any]:
    """The result of the one process; errors come as a group, as those of parties do."""
    return in_threads([lambda: script(PlainEngine(), problem)])


def in_secret(problem: Problem, script: Script) -> list[Any]:
    """The results of all parties, which run as threads with real sockets and a dealer."""
    parties = len(problem.widths)

    def job(session):
        return script(SecureEngine(session, 0, [parties - 1]), problem.of(session.rank, parties))

    return run_session(job, parties, ReleasePlan(releases(parties).values()))


@dataclass(frozen=True)
class Side:
    """One side of the seam, and how far its logits may be from the exact ones."""

    run: Callable[[Problem, Script], list[Any]]
    tolerance: float


SIDES = {"plain": Side(in_plaintext, 1e-8), "secure": Side(in_secret, 2e-3)}
