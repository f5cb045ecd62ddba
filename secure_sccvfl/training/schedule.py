"""How many steps training takes, from public settings alone: nothing is opened to stop early.

The objective is convex, so a fixed number of second-order steps reaches its optimum. A schedule is a list of
segments; between two of them the state may be kept, or the curvature computed again at the present weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.grid import PRIVATE_SAMPLED, sampled_rows

FINE_STEPS = 3
"""Steps at the end of private training whose sigmoid is precise."""
PRECISE_STEPS = 2
"""Additional steps of a private head. On German with lambda 3 (seeds 700 to 739) the longest mean gradient is then
2^-23.7, with two steps less 2^-19.8, and it must be at most 2^-20."""
MORE_STEPS, FLAT_RIDGE, STIFF_LAMBDA = 6, 0.005, 3.0
"""Additional steps where the curvature is computed on a part of the rows, where a lambda is above STIFF_LAMBDA, or
where the weights may be far from their optimum when the curvature is computed: the ridge is below FLAT_RIDGE of the
number of records, or below the square of the longest row."""
PRIVATE_TURN, PRIVATE_RATE = 3, 1.65
"""After so many steps of private training the curvature is computed at the weights. Steps before that are so much
longer than those along the inverse of its bound: curvature is smaller away from zero, and much smaller where labels
are rare."""
PRIVATE_LEAST = 2.0**-4
"""Smallest curvature in scaled columns that inverses of private heads invert; less where the ridge is smaller."""
WARM_STEPS, WARM_RATE = 2, 1.5
"""First-order steps before each late release of tables, and their rate times the number of columns; below 2."""


class Segment(NamedTuple):
    """Steps without interruption. recompute: compute the curvature at the weights first. fine: precise sigmoid."""

    steps: int
    recompute: bool = False
    fine: bool = False


def second_order_schedule(config: TrainConfig, task: Task, taken: int = 0) -> Iterator[Segment]:
    """The second-order steps left after `taken`. A resumed run recomputes the curvature where it continues."""
    turn = config.grid_steps if task == "regression" else min(config.sharpened, config.grid_steps)
    yield from _segments(config.grid_steps, turn, config.keep_every, taken)


def _segments(steps: int, turn: int, most: int, taken: int = 0) -> Iterator[Segment]:
    """Segments of at most `most` steps; the curvature is computed after `turn` of them."""
    recomputed = False
    while taken < steps:
        count = min(most, (turn if taken < turn else steps) - taken)
        yield Segment(count, taken >= turn and not recomputed)
        recomputed, taken = taken >= turn, taken + count


def private_schedule(
    config: TrainConfig, noise: HeadNoise, rows: int, records: int, stiffest: float, further: int
) -> list[Segment]:
    """All steps of private heads. rows, records: of the training part. stiffest: the largest lambda."""
    steps = config.grid_steps + PRECISE_STEPS + further
    sampled = not sampled_rows(rows, PRIVATE_SAMPLED).all()
    if sampled or stiffest > STIFF_LAMBDA or noise.ridge < max(FLAT_RIDGE * records, noise.radius**2):
        steps += MORE_STEPS
    last = max(PRIVATE_TURN + 1, steps - FINE_STEPS)
    return [*_segments(last, PRIVATE_TURN, last), Segment(FINE_STEPS, fine=True)]
