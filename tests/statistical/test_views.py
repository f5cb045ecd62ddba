"""What parties see of training, of decisions and of withheld records is the same whatever the data are.

Every word that reaches a party in a round of these protocols is kept, and every masked value that it then opens. In
two worlds the data of others are constants far apart: bytes must be uniform, and alike. Without masks the same check
fires. Training is watched at party 1, which owns columns, and at party 2, which holds s as well; decisions and
withheld records at parties 0 and 1, whose columns and answers are the same in both worlds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.what_if import DRAWS, majorities, strongest
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, crypten, share_of
from secure_sccvfl.protocols.steps import weighted_sums
from secure_sccvfl.protocols.steps.choice import withheld
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.protocols.steps.second_order import room_to_settle
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import side_by_side
from tests.contract import engines as sealed
from tests.contract import test_split as split
from tests.support.views import Spy, all_bytes, distinguishable

ANGLE_BITS = 50
"""At most, of a sum of three logits modulo a period: what a series opens is uniform two bits below that."""
HOLDER, WIDTHS = 2, (3, 2, 4)
Job = tuple[Callable[[Session], Any], ReleasePlan]


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


def training(world: int) -> Job:
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


def second_order(world: int) -> Job:
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


def private_head(world: int) -> Job:
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


def split_steps(world: int) -> Job:
    """Split: rounds 1 to 4 of its steps."""
    problem = split.Problem((6, 5, 7), (0, 1), ((1, 2),))
    for step in range(split.STEPS):
        for block in (*problem.h[step], *problem.deltas[step]):
            block[:] = (0.0, 1.5)[world]
    problem.label[:], problem.codes[0][:] = world, world
    return problem.session()


def sums(world: int) -> Job:
    """The sums of mode dp."""
    rows, weights = np.full((400, 3), (0, 0.5)[world]), np.full((400, 1), (0, 0.5)[world])

    def job(session: Session) -> None:
        weight = session.share(weights, owner=0, shape=weights.shape, bits=weighted_sums.WEIGHT_BITS)
        weighted_sums.weighted_sums(side_by_side(session, (3, 3, 3), rows), weight)

    return job, ReleasePlan(())


def head_of_noise(engine: SecureEngine, session: Session) -> Any:
    weight = session.wrap(session.party.zero_share((sum(WIDTHS), 1)), HEAD_BITS)
    return engine.restored(weight, session.wrap(session.party.zero_share((1,)), HEAD_BITS), "binary", WIDTHS)


def decisions_with_s(world: int) -> Job:
    """Mode aware, all records of one group or all of the other; returns the shares of the selected rows."""

    def job(session: Session) -> Any:
        engine, rank = SecureEngine(session, 0, [HOLDER]), session.rank
        choices = [{rank: np.full((600, WIDTHS[rank]), value)} for value in (-1.5, 1.5)]
        rows = engine.select(choices, np.full(600, world) if rank == HOLDER else None)
        logits = engine.shared_logits(head_of_noise(engine, session), rows)
        SecureEvaluation(session, "binary", 0, HOLDER).decisions(logits)
        return None if rank == HOLDER else share_of(rows.tensor)

    return job, ReleasePlan(sealed.releases(3).values())


def what_if_answers(world: int) -> Job:
    """Decisions of records in another group, and reasons; party 2 alone has other values and another group."""

    def job(session: Session) -> None:
        engine, rank, rows = SecureEngine(session, 0, [HOLDER]), session.rank, 120
        value = world * 0.7 if rank == HOLDER else 0.2
        head = head_of_noise(engine, session)
        logits = engine.shared_logits(head, {rank: np.full((rows, WIDTHS[rank]), value)})
        edits = [{rank: np.full((DRAWS * rows, WIDTHS[rank]), sign * value)} for sign in (-1, 1)]
        codes = np.full(DRAWS * rows, world) if rank == HOLDER else None
        shift = engine.shared_shift(engine.selected([edits], codes), {}, head)
        evaluation = SecureEvaluation(session, "binary", 0, HOLDER)
        copies = logits[np.tile(np.arange(rows), DRAWS)] + shift
        majorities(evaluation, evaluation.decisions(copies), rows)
        strongest(session, crypten.cat([logits, 2 * logits, -logits, logits - 1], dim=1))

    return job, ReleasePlan(sealed.releases(3).values())


def withheld_records(world: int, kind: str = "readable") -> Job:
    """Party 2 can read all records or none; or (`fresh`) has answered for everybody or for nobody."""

    def job(session: Session) -> None:
        changed, ones = np.full(8000, world if session.rank == 2 else 1, bool), np.ones(8000, bool)
        marks = {"readable": ones, "fresh": ones, kind: changed}
        withheld(session, session.share(np.zeros((8000, 1)), owner=0, shape=(8000, 1)), **marks)

    return job, ReleasePlan([])


def withheld_answers(world: int) -> Job:
    return withheld_records(world, "fresh")


@dataclass(frozen=True)
class Case:
    """Kinds of rounds, who watches them, and which kinds show something without masks: all, unless they are named."""

    rounds: tuple[str, ...]
    watched: tuple[int, int] = (1, 2)
    telling: tuple[str, ...] = ()
    bytes_of: Callable[[list[np.ndarray]], np.ndarray] = uniform_bytes


WITHHELD = Case(("bit product", "bit to number", "mul"), (0, 1), ("bit product",), all_bytes)
CASES = {
    training: Case(("masked block", "selection", "masked matrix", "head product", "sigmoid", "lift", "head gradient",
                    "truncate", "log_cosh", "mul", "square", "compare")),
    second_order: Case(("masked block", "mul", "masked matrix", "doubling", "head product", "grid gradient",
                        "sigmoid", "lift", "head gradient", "truncate")),
    private_head: Case(("masked block", "mul", "masked matrix", "doubling", "head product", "grid gradient",
                        "sigmoid", "lift", "head gradient", "truncate", "square")),
    split_steps: Case(("split activations", "split logits", "split residual", "split update")),
    sums: Case(("weighted sums",)),
    decisions_with_s: Case(("selection", "masked matrix", "truncate", "compare", "joint shares"), (0, 1)),
    what_if_answers: Case(("selection", "truncate", "compare", "mul"), (0, 1)),
    withheld_records: WITHHELD,
    withheld_answers: WITHHELD,
}  # fmt: skip


def tells(make: Callable[[int], Any]) -> dict[str, bool]:
    """Of each kind of round, whether the two worlds can be told apart, or from noise."""
    case, seen, distinguished = CASES[make], [], {}
    for world in (0, 1):
        spy = Spy().run(*make(world))
        if "joint shares" in case.rounds:
            spy.keep(0, "joint shares", [sum(share for share in spy.results if share is not None)])
        seen.append(spy.kept)
    for step in case.rounds:
        at = [rank for rank in case.watched if (rank, step) in seen[0]]
        bytes_seen = [[case.bytes_of(view[rank, step]) for view in seen] for rank in at]
        words = [sum(array.size for array in view[rank, step]) for view in seen for rank in at]
        assert min(words) > 320, f"too little was seen of {step}"
        distinguished[step] = any(distinguishable(*pair) for pair in bytes_seen)
    return distinguished


def unmasked(monkeypatch: pytest.MonkeyPatch, which: Callable[[tuples.Field], bool] = lambda field: True) -> None:
    """Zeros instead of the random words of these fields, at every party and at the dealer."""
    honest: Callable[[tuples.Field, Any, int], Any] = tuples.Field.expand
    monkeypatch.setattr(
        tuples.Field,
        "expand",
        lambda self, draw, rank: np.zeros(self.shape, self.dtype) if which(self) else honest(self, draw, rank),
    )


@pytest.mark.chance(1e-10)  # twelve rounds of six checks at most
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_views_are_independent_of_the_data(make: Callable[[int], Any]) -> None:
    assert not any(tells(make).values())


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_missing_masks_are_noticed_in_every_round(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unmasked(monkeypatch)
    told = tells(make)
    assert all(told[step] for step in CASES[make].telling or CASES[make].rounds)


def test_a_one_hot_that_is_not_masked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's own mask is all that hides s from the owner of columns."""
    unmasked(monkeypatch, lambda field: field.owner == HOLDER)
    told = tells(decisions_with_s)
    assert told["selection"] and not told["joint shares"]
