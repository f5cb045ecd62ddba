"""What parties see of training is the same whatever the data are: head, selection, Gram, loss, split, sums.

Every word that reaches a party in a round of these protocols is kept, and every masked value that it then opens: at
party 1, which owns columns, and at party 2, which holds s as well. Two worlds whose data are constants far apart must
give bytes that are uniform, and alike. Without masks the same check fires for every kind of round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, share_of
from secure_sccvfl.protocols.steps import weighted_sums
from secure_sccvfl.protocols.steps.second_order import room_to_settle
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import side_by_side
from tests.contract import engines as sealed
from tests.contract import test_split as split
from tests.support.views import Spy, distinguishable

ANGLE_BITS = 50
"""At most, of a sum of three logits modulo a period: what a series opens is uniform two bits below that."""
WATCHED = (1, 2)


def uniform_bytes(arrays: list[np.ndarray]) -> np.ndarray:
    """All bytes that should be uniform: of angles the low ones."""
    parts = []
    for array in arrays:
        words = np.ascontiguousarray(array).reshape(-1)
        if words.dtype in (np.int64, np.uint32) and words.min() >= 0 and words.max() < 1 << ANGLE_BITS:
            whole = max(1, (int(words.max()).bit_length() - 2) // 8)
            parts.append(words.view(np.uint8).reshape(len(words), -1)[:, :whole].reshape(-1))
        elif words.dtype == np.int64:
            parts.append(words.view(np.uint8))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def training(world: int) -> tuple[Callable[[Session], Any], ReleasePlan]:
    """Sealed: masks, selection, Gram, steps, checks of the range, and measures of validation."""
    problem = sealed.Problem((3, 2, 4), rows=300)
    size = (0.0, 1.5)[world]
    for block in (*problem.x.values(), *(b for draw in problem.deltas for d in draw for b in d.values())):
        block[:] = size
    problem.y[:], problem.s[:] = world, world

    def job(session: Session) -> None:
        engine = SecureEngine(session, 0, [2])
        local = problem.of(session.rank, 3)
        batch = engine.bind(local.x, local.y, local.ridge)
        penalty = engine.join([engine.counterfactuals(local.deltas, local.s)], [local.guard])
        trained = engine.head(batch, 1, "binary")
        descent = engine.first_order(batch, penalty, Step(0.05, 0.5, 0.7, 0.3), local.curvature)
        for _ in range(4):
            trained = engine.steps(trained, descent, 6)
            engine.check_range([trained], batch)
        engine.measure([trained], batch, penalty)

    return job, ReleasePlan(sealed.releases(3).values())


def second_order(world: int) -> tuple[Callable[[Session], Any], ReleasePlan]:
    """Sealed, all lambdas at once: Gram matrix, inverses of the curvature and of its bound, and steps along them."""
    problem = sealed.Problem((3, 2, 4), rows=300)
    for block in (*problem.x.values(), *(b for draw in problem.deltas for d in draw for b in d.values())):
        block[:] = (0.0, 1.5)[world]
    problem.y[:], problem.s[:] = world, world
    grid = Grid((0.5, 4.0), (0.3, 0.3), 0.25)

    def job(session: Session) -> None:
        engine = SecureEngine(session, 0, [2])
        local = problem.of(session.rank, 3)
        batch = engine.bind(local.x, local.y, local.ridge)
        penalty = engine.join([engine.counterfactuals(local.deltas, local.s)], [local.guard])
        curved = {rank: 1.0 + ridge for rank, ridge in local.ridge.items()}
        some = {rank: np.full(len(ridge), 9.0) for rank, ridge in local.ridge.items()}
        for _ in range(2):
            descent = engine.second_order(batch, penalty, grid, Bounds(curved, some, some))
            head = engine.steps(engine.head(batch, 2, "binary"), descent, 10)
            head = engine.steps(head, engine.sharpen(head, descent), 2)
            share_of(room_to_settle([head.slope] * 20))

    return job, ReleasePlan(sealed.releases(3).values())


def private_head(world: int) -> tuple[Callable[[Session], Any], ReleasePlan]:
    """Sealed and private: the label is in an opened angle, and the gradient of heads of zero is linear in it."""
    problem = sealed.Problem((3, 2, 4), rows=300)
    for block in problem.x.values():
        block[:] = (0.0, 0.5)[world]
    problem.y[:] = world
    grid = Grid((0.5, 4.0), (0.3, 0.3), 0.28125, 1.0, 0.0, sharpens=True, separate=True)
    noise = HeadNoise(3.0, 30.0, 1e-4, 2.0, tolerance=4.0)

    def job(session: Session) -> None:
        engine = SecureEngine(session, 0, [2])
        local = problem.of(session.rank, 3)
        batch = engine.bind(local.x, local.y, local.ridge, classes=True)
        some = {rank: np.full(len(ridge), 0.2) for rank, ridge in local.ridge.items()}
        for _ in range(10):
            descent = engine.second_order(batch, None, grid, Bounds(some, some, some), noise)
            head = engine.steps(engine.head(batch, 2, "binary"), descent, 3)
            descent = engine.sharpen(head, descent)
            head = engine.steps(engine.steps(head, descent, 2), descent, 1, fine=True)
            engine.finish(head, descent)

    return job, ReleasePlan(sealed.releases(3).values())


def split_steps(world: int) -> tuple[Callable[[Session], Any], ReleasePlan]:
    """Split: rounds 1 to 4 of its steps."""
    problem = split.Problem((6, 5, 7), (0, 1), ((1, 2),))
    for step in range(split.STEPS):
        for block in (*problem.h[step], *problem.deltas[step]):
            block[:] = (0.0, 1.5)[world]
    problem.label[:], problem.codes[0][:] = world, world
    return problem.session()


def sums(world: int) -> tuple[Callable[[Session], Any], ReleasePlan]:
    """The sums of mode dp."""
    rows, weights = np.full((400, 3), (0, 0.5)[world]), np.full((400, 1), (0, 0.5)[world])

    def job(session: Session) -> None:
        weight = session.share(weights, owner=0, shape=weights.shape, bits=weighted_sums.WEIGHT_BITS)
        weighted_sums.weighted_sums(side_by_side(session, (3, 3, 3), rows), weight)

    return job, ReleasePlan(())


ROUNDS = {
    training: ("masked block", "selection", "masked matrix", "head product", "sigmoid", "lift", "head gradient",
               "truncate", "log_cosh", "mul", "square", "compare"),
    second_order: ("masked block", "mul", "masked matrix", "doubling", "head product", "grid gradient", "sigmoid",
                   "lift", "head gradient", "truncate"),
    private_head: ("masked block", "mul", "masked matrix", "doubling", "head product", "grid gradient", "sigmoid",
                   "lift", "head gradient", "truncate", "square"),
    split_steps: ("split activations", "split logits", "split residual", "split update"),
    sums: ("weighted sums",),
}  # fmt: skip


def tells(make: Callable[[int], Any]) -> dict[str, bool]:
    """Of each kind of round, whether the two worlds can be told apart, or from noise."""
    seen = [Spy().run(*make(world)).kept for world in (0, 1)]
    distinguished = {}
    for step in ROUNDS[make]:
        at = [rank for rank in WATCHED if (rank, step) in seen[0]]
        bytes_seen = [[uniform_bytes(view[rank, step]) for view in seen] for rank in at]
        words = [sum(array.size for array in view[rank, step]) for view in seen for rank in at]
        assert min(words) > 320, f"too little was seen of {step}"
        distinguished[step] = any(distinguishable(*pair) for pair in bytes_seen)
    return distinguished


@pytest.mark.chance(1e-9)  # ten rounds of six checks at most
@pytest.mark.parametrize("make", ROUNDS, ids=lambda make: make.__name__)
def test_views_of_training_are_independent_of_the_data(make: Callable[[int], Any]) -> None:
    assert not any(tells(make).values())


@pytest.mark.parametrize("make", ROUNDS, ids=lambda make: make.__name__)
def test_missing_masks_are_noticed_in_every_round(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuples.Field, "expand", lambda self, draw, rank: np.zeros(self.shape, self.dtype))
    assert all(tells(make).values())
