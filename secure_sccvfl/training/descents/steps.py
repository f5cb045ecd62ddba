"""The steps of a run: warm-up, and descents with consistency of first and second order, kept on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from protocols.errors import RangeError
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import Blocks, Part
from secure_sccvfl.releases.heads import LARGEST_CURVATURE, HeadCharge
from secure_sccvfl.releases.releases import GUARD_LENGTH
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.descents.grid import PRIVATE_SAMPLED, Bounds, Grid, sampled_rows
from secure_sccvfl.training.engine import CURVATURE, PRIVATE_CURVATURE, Engine, Step
from secure_sccvfl.training.leak import adversaries
from secure_sccvfl.training.modules import MODULE_MOMENTUM, MODULE_RATE
from secure_sccvfl.training.state import Hooks, State

Descend = Callable[[Sequence[float]], tuple[Any, ...]]
"""Training with consistency: from lambdas to their heads."""


FINE_STEPS = 3
"""Steps at the end of a private descent whose sigmoid is precise."""
PRECISE_STEPS = 2
"""So many more steps than heads that are not private. On German with lambda 3 (seeds 700 to 739) the longest mean
gradient is then 2^-23.7, with two steps less 2^-19.8, and it must be at most 2^-20."""
MORE_STEPS, FLAT_RIDGE, STIFF_LAMBDA = 6, 0.005, 3.0
"""More steps where the curvature is taken on a part of the rows, where a lambda is above STIFF_LAMBDA, or where the
head may be far from its optimum when the curvature is taken: the ridge is below FLAT_RIDGE of the number of records,
or below the square of the longest row."""
PRIVATE_TURN, PRIVATE_RATE = 3, 1.65
"""After so many steps of a private descent the curvature is taken at the heads. Steps before that are so much longer
than those along the inverse of its bound: curvature is smaller away from zero, and where labels are rare by far."""
PRIVATE_LEAST = 2.0**-4
"""Smallest curvature in scaled columns that inverses of private heads invert; less where the ridge is smaller."""
WARM_STEPS, WARM_RATE = 2, 1.5
"""First-order steps of one head before each late refresh, and their rate times the number of columns; below 2."""


def stretches(config: TrainConfig, task: Task, taken: int = 0) -> Iterator[tuple[int, bool]]:
    """The second-order steps that are left after so many, in stretches: their number, and whether to sharpen first.

    A resumed run sharpens at the head that it goes on from.
    """
    turn = config.grid_steps if task == "regression" else min(config.sharpened, config.grid_steps)
    sharp = False
    while taken < config.grid_steps:
        count = min(config.keep_every, (turn if taken < turn else config.grid_steps) - taken)
        yield count, taken >= turn and not sharp
        sharp, taken = taken >= turn, taken + count


class Descents:
    """What the driver of a run does to its heads. `flat`: each owner's curvature bound of loss and ridge."""

    further_steps = 0
    """So many more steps of private heads than those of mode `sealed`."""

    engine: Engine
    config: TrainConfig
    task: Task
    outputs: int
    train: Part
    hooks: Hooks
    state: State
    batch: Any
    encodings: Blocks
    flat: Blocks
    left_out: tuple[int, ...] | None = None
    """Columns that a control is trained without, if there is one."""
    guessers: tuple[Any, ...] = ()
    """Adversaries of the last second-order descent (`training.leak`)."""
    privacy: HeadCharge | None = None
    """Charges private heads."""

    def go_on(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def reach(self, guards: Sequence[Blocks]) -> Blocks:
        """Each owner's curvature bound of the guards; opens their length."""
        reach = {k: np.zeros(len(v)) for k, v in self.flat.items()}
        for guard in guards:
            summed = self.engine.total(
                GUARD_LENGTH.name, [sum(float(np.abs(block).sum()) for block in guard.values())]
            )
            if summed is None:
                raise RuntimeError("every party has a part in the length of a guard")
            (length,) = summed
            reach = {k: v + np.abs(guard[k]) * length for k, v in reach.items()}
        return reach

    def first_order(self, lam: float, flat: Blocks, energy: Blocks, reach: Blocks) -> tuple[Step, Blocks]:
        """A first-order step at this lambda, and each owner's curvature bound of the whole objective.

        That of a module has no such bound, and needs none.
        """
        weight = self.config.guard
        if self.config.module is not None:
            return Step(MODULE_RATE, MODULE_MOMENTUM, lam, weight), flat
        bound = {k: flat[k] + lam * energy[k] + weight * reach[k] for k in flat}
        return Step(lam=lam, guard=weight), bound

    def _prepared(self, penalty: Any, step: Step, bound: Blocks) -> Any:
        """A first-order descent of a linear head or of a module."""
        if self.config.module is not None:
            return self.engine.prepare_module(self.batch, penalty, step, self.config.ridge)
        return self.engine.prepare(self.batch, penalty, step, bound)

    def warm_up(self, penalty: Any, energy: Blocks, reach: Blocks) -> None:
        """A few steps of one head under this penalty, before a late refresh: joint training has begun.

        First-order steps need no inverse: about 17 rounds. In scaled columns the curvature has a trace of at most the
        number of columns, so at this rate every step goes down, whatever the data are (`grid`, Scale). The head
        stays secret: no bit about it is opened, not even whether it is in range. It carries no noise and is never
        released; the heads of the grid start from it and end within the checked tolerance of their minimum wherever
        they started (`releases.heads`). A module takes the first of its steps here.
        """
        self.hooks.progress("warm-up", 0, 1)
        lam = self.config.trained[0] if self.config.taken is None else self.config.taken
        step, bound = self.first_order(lam, self.steepness(), energy, reach)
        if self.config.module is None:
            step = replace(step, rate=WARM_RATE / self.engine.width(self.state.head), momentum=0.0)
        descent = self._prepared(penalty, step, bound)
        self.go_on(head=self.engine.steps(self.state.head, descent, WARM_STEPS))

    def started(self, grid: Grid) -> Any:
        """The heads of a grid where the warm-up ended, which is the same for all; zero where there was none."""
        return self.engine.copied(self.state.head, len(grid.lambdas) // self.outputs, grid.without is not None)

    def joint(self, penalty: Any, energy: Blocks, reach: Blocks) -> Descend:
        """Training with consistency: from lambdas to their heads. First-order steps take one lambda at a time."""
        config = self.config

        def together(lambdas: Sequence[float]) -> tuple[Any, ...]:
            each = [lam for lam in lambdas for _ in range(self.outputs)]
            held = (config.guard,) * len(each)
            sharpens = any(sharp for _, sharp in stretches(config, self.task))
            curvature = (PRIVATE_CURVATURE if config.private else CURVATURE)[self.task]
            grid = Grid(tuple(each), held, curvature, sharpens=sharpens, guesses=config.leak, without=self.left_out)
            if config.private:
                return self.descend_privately(penalty, grid, energy, reach)
            # An edit of a record is one of those made for the groups, so its square is at most the sum of theirs.
            groups = max(len(attribute.groups) for attribute in self.train.protected)
            groups = 1 if config.consistency_from == "tables" else groups
            most = {rank: groups * block for rank, block in energy.items()}
            heads = self.descend_together(penalty, grid, Bounds(self.steepness(), most, reach))
            if self.left_out is not None:
                self.go_on(control=heads[-1])
            return heads[: len(lambdas)]

        def alone(lambdas: Sequence[float]) -> tuple[Any, ...]:
            (lam,) = lambdas
            return (self.descend(penalty, *self.first_order(lam, self.flat, energy, reach)),)

        return together if config.second_order else alone

    def steepness(self) -> Blocks:
        """Each owner's bound on the curvature of loss and ridge in its columns, which need not have a mean of 0."""
        steep = CURVATURE[self.task]
        return {
            rank: steep * self.largest_mean(block**2) + self.config.ridge for rank, block in self.encodings.items()
        }

    def largest_mean(self, squares: np.ndarray) -> np.ndarray:
        """The mean over all records, or over those that curvature is estimated on if it is larger there."""
        chosen = sampled_rows(len(squares))
        whole, part = self.train.mean(squares), self.train.mean(squares[chosen]) / chosen.mean()
        return np.maximum(whole, part)

    def heads_of(self, descend: Descend, lambdas: Sequence[float]) -> tuple[Any, ...]:
        """All at once, or each from the last head."""
        if self.config.second_order:
            return descend(lambdas)
        for lam in lambdas[len(self.state.heads) :]:
            self.go_on(heads=(*self.state.heads, *descend([lam])), taken=0)
            self.hooks.keep(self.state)
        return self.state.heads

    def descend_together(self, penalty: Any, grid: Grid, bounds: Bounds) -> tuple[Any, ...]:
        """Second-order steps of all heads; their number depends on the settings only, never on the data."""
        config, engine = self.config, self.engine
        if not self.state.taken:
            self.go_on(head=self.started(grid))
        if self.state.taken < config.grid_steps:  # a resumed run may have taken them all
            descent = engine.prepare_grid(self.batch, penalty, grid, bounds)
            if grid.guesses:
                self.guessers = adversaries(engine, descent, self.train.protected)
            for count, sharp in stretches(config, self.task, self.state.taken):
                self.hooks.progress("training", self.state.taken, config.grid_steps)
                if sharp:
                    descent = engine.sharpen(self.state.head, descent)
                self.go_on(head=engine.steps(self.state.head, descent, count), taken=self.state.taken + count)
                self.hooks.keep(self.state)
        return engine.apart(self.state.head, self.outputs)

    def descend_privately(self, penalty: Any, grid: Grid, energy: Blocks, reach: Blocks) -> tuple[Any, ...]:
        """Private heads: charged, then trained in one go.

        The last steps have a precise sigmoid. Scales of columns follow from public bounds and released tables, so
        that rounding moves a row by nothing but its own record. A run that was interrupted starts here again: nothing
        followed from the heads that it had not finished, so new noise under the same charge reveals nothing more.
        """
        config, engine = self.config, self.engine
        if self.privacy is None:
            raise ValueError("private heads need something that charges them")
        noise = self.privacy.charge_heads(self.train.count)
        share = noise.ridge / self.train.count / grid.curvature
        least = min(PRIVATE_LEAST, share / 2)
        grid = replace(grid, rate=PRIVATE_RATE, momentum=0.0, sharpens=True, own=True, least=least)
        flat = {
            rank: grid.curvature * reached**2 + noise.ridge / self.train.count
            for rank, reached in self.public_reach().items()
        }
        for rank, own in flat.items():
            if own.size and float((own + grid.weight * energy[rank] + reach[rank]).mean()) > LARGEST_CURVATURE:
                raise RangeError("columns are scaled so far that rounding may make rows longer than the public bound")
        descent = engine.prepare_grid(self.batch, penalty, grid, Bounds(flat, energy, reach), noise)
        head, taken = self.started(grid), 0
        sampled = not sampled_rows(self.train.rows, PRIVATE_SAMPLED).all()
        steps = config.grid_steps + PRECISE_STEPS + self.further_steps
        stiff = max(grid.lambdas) > STIFF_LAMBDA
        if sampled or stiff or noise.ridge < max(FLAT_RIDGE * self.train.count, noise.radius**2):
            steps += MORE_STEPS
        last = max(PRIVATE_TURN + 1, steps - FINE_STEPS)
        planned = replace(config, grid_steps=last, keep_every=last, sharpened=PRIVATE_TURN)
        for count, sharp in stretches(planned, "binary"):
            self.hooks.progress("training", taken, steps)
            descent = engine.sharpen(head, descent) if sharp else descent
            head, taken = engine.steps(head, descent, count), taken + count
        self.hooks.progress("training", taken, steps)
        head = engine.steps(head, descent, FINE_STEPS, fine=True)
        self.go_on(head=engine.finish(head, descent), taken=config.grid_steps)
        return engine.apart(self.state.head, self.outputs)

    def public_reach(self) -> Blocks:
        """The largest magnitude of each column, from public things and released tables."""
        raise NotImplementedError

    def descend(self, penalty: Any, step: Step, bound: Blocks) -> Any:
        """First-order steps at one lambda from the last head; as many as the settings say, whatever the data are."""
        config = self.config
        if self.state.taken == config.steps:  # a resumed run may have taken them all
            return self.state.head
        descent = self._prepared(penalty, step, bound)
        while self.state.taken < config.steps:
            self.hooks.progress(f"training at lambda {step.lam:g}", self.state.taken, config.steps)
            count = min(config.keep_every, config.steps - self.state.taken)
            head = self.engine.steps(self.state.head, descent, count)
            self.go_on(head=head, taken=self.state.taken + count)
            self.hooks.keep(self.state)
        return self.state.head
