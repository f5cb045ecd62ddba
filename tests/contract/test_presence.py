"""Rows that count under MPC: training on a union of records gives what training on the common ones gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.training.engine import CURVATURE, Step
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.secure import SecureEngine
from tests.contract.engines import Problem, releases
from tests.support.discovery import membership_shares
from tests.support.sessions import run_session

WIDTHS, ROWS = (3, 2, 4), 200
COUNT = 131
"""A noisy number of the common records: it takes part in scales, and must not change the result."""
"""Columns that a control is trained without."""
TOLERANCE = 2e-3
"""Of logits after as many steps as a test takes: that of the engines' own contract (tests/contract/engines.py)."""


def union(task: str = "binary", outputs: int = 1, share: float = 0.6, rows: int = ROWS) -> tuple[Problem, np.ndarray]:
    """A problem over all records, and at which rows each party has one: all three at this share of them."""
    problem = Problem(WIDTHS, task, outputs, rows=rows, seed=5)
    for displacement in (block for draw in problem.deltas for blocks in draw for block in blocks.values()):
        displacement[:, 0] = 0  # of a feature that no edit changes
    held = np.ones((rows, len(WIDTHS)), bool)
    for row, lacking in enumerate(np.random.default_rng(1).integers(0, 3, rows)):
        held[row, lacking] = row < share * rows
    return problem, held[np.random.default_rng(2).permutation(rows)]


def common(problem: Problem, held: np.ndarray) -> Problem:
    """The same problem over the records that all have."""
    rows = held.all(axis=1)
    shared = object.__new__(Problem)
    shared.__dict__.update(problem.__dict__)
    shared.x = {k: v[rows] for k, v in problem.x.items()}
    shared.y, shared.s, shared.rows = problem.y[rows], problem.s[rows], int(rows.sum())
    shared.deltas = [[{k: v[rows] for k, v in blocks.items()} for blocks in draw] for draw in problem.deltas]
    return shared


def in_secret(problem: Problem, held: np.ndarray, script: Any, count: int = COUNT) -> list[Any]:
    parties = len(problem.widths)

    def job(session: Any) -> Any:
        local = problem.of(session.rank, parties)
        membership = MembershipMask.of(membership_shares(session, held))
        membership.count = count
        return script(SecureEngine(session, 0, [parties - 1]), local, membership)

    return run_session(job, parties, ReleasePlan(releases(parties).values()))


def inputs(engine: Any, local: Problem, membership: MembershipMask | None) -> tuple[Any, Any]:
    batch = engine.bind(local.x, local.y, local.ridge, local.outputs, membership)
    moving = {rank: np.arange(width) > 0 for rank, width in enumerate(local.widths)}
    return batch, engine.join([engine.counterfactuals(local.deltas, local.s, 0, moving, membership)], [local.guard])


def grid(engine: Any, local: Problem, membership: MembershipMask | None = None) -> np.ndarray:
    """Logits of all records after second-order steps at two lambdas. Of several classes each has a head for both."""
    batch, penalty = inputs(engine, local, membership)
    count = local.rows if membership is None else membership.count
    flat = {k: CURVATURE[local.task] * (v**2).sum(axis=0) / count + local.ridge[k] for k, v in local.x.items()}
    energy = {k: np.full(v.shape[1], 2.0 * local.rows / count) for k, v in local.x.items()}
    reach = {k: np.abs(v) * sum(np.abs(g).sum() for g in [v]) * 3 for k, v in local.guard.items()}
    lambdas = tuple(lam for lam in (0.5, 4.0) for _ in range(local.outputs))
    settings = Grid(lambdas, (0.1,) * len(lambdas), CURVATURE[local.task])
    descent = engine.second_order(batch, penalty, settings, Bounds(flat, energy, reach))
    trained = engine.apart(engine.steps(engine.head(batch, len(settings), local.task), descent, 30), local.outputs)
    engine.check_range(trained, batch)
    return np.hstack([engine.logits(one, local.x) for one in trained])


@pytest.mark.parametrize(
    ("task", "outputs", "share"),
    [("binary", 1, 0.6), ("regression", 1, 0.6), ("multiclass", 3, 0.6), ("binary", 1, 1.0)],
)
def test_second_order_heads_of_a_union_are_those_of_the_common_records(task: str, outputs: int, share: float) -> None:
    problem, held = union(task, outputs, share)
    expected = _expected(common(problem, held), problem, grid)
    count = COUNT if share < 1 else ROWS + 11
    for logits in in_secret(problem, held, grid, count):
        assert np.abs(logits - expected).max() < TOLERANCE
    difference = np.abs(_expected(problem, problem, grid) - expected).max()
    assert (difference > 20 * TOLERANCE) == (share < 1), "records that are not common make a difference"


def _expected(train: Problem, shown: Problem, script: Any) -> np.ndarray:
    """In plaintext: train on some records, and show logits of others."""

    class Shown(PlainEngine):
        def logits(self, head: Any, encodings: Any) -> np.ndarray:
            return super().logits(head, shown.x)

    return script(Shown(), train)


STEPS = 6


def first_order(engine: Any, local: Problem, membership: MembershipMask | None = None) -> dict[str, Any]:
    batch, penalty = inputs(engine, local, membership)
    step = Step(0.2, 0.5, 1.5, 0.3)
    trained = engine.head(batch, local.outputs, local.task)
    descent = engine.first_order(batch, penalty, step, local.curvature)
    first = engine.steps(trained, descent, 1)
    session = getattr(engine, "session", None)
    before = session.costs["training step"].rounds if session else 0
    trained = engine.steps(first, descent, STEPS)
    rounds = session.costs["training step"].rounds - before if session else 0
    engine.check_range([trained], batch)
    return {"rounds": rounds, "logits": engine.logits(trained, local.x)}


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3)])
def test_first_order_steps_too(task: str, outputs: int) -> None:
    problem, held = union(task, outputs)
    expected: Any = _expected(common(problem, held), problem, first_order)
    # Steps of a given size end where the noisy number of records says; with the exact one they end at the same place.
    for results in in_secret(problem, held, first_order, common(problem, held).rows):
        assert np.abs(results["logits"] - expected["logits"]).max() < TOLERANCE
        if task == "binary":
            assert results["rounds"] == 5 * STEPS, "a sealed step has five rounds"


def sent_in_steps(engine: Any, local: Problem, membership: MembershipMask | None = None) -> int:
    """Bytes to peers in a few steps."""
    batch, penalty = inputs(engine, local, membership)
    descent = engine.first_order(batch, penalty, Step(0.2, 0.5, 1.5, 0.3), local.curvature)
    engine.steps(engine.head(batch, local.outputs, local.task), descent, STEPS)
    return int(engine.session.costs["training step"].sent)


def test_bytes_of_a_step_are_in_proportion_to_the_union_whoever_is_common() -> None:
    few, small, large = (
        max(in_secret(*union(share=share, rows=rows), sent_in_steps))
        for share, rows in ((0.1, ROWS), (0.6, ROWS), (0.6, 3 * ROWS))
    )
    assert few == small, "how many records are common does not show"
    assert 2.5 * small < large <= 3 * small


def aware(engine: Any, local: Problem, membership: MembershipMask | None = None) -> np.ndarray:
    """Logits of a head on rows that s has selected, as in mode `aware`."""
    if membership is not None:
        rank = engine.session.rank
        engine.bind({rank: local.x[rank]}, local.y, local.ridge, 1)  # learns the widths
    rows = engine.select(local.deltas[0], local.s)
    batch = engine.bind(rows, local.y, local.ridge, local.outputs, membership)
    descent = engine.first_order(batch, None, Step(0.2, 0.5), local.curvature)
    return engine.logits(engine.steps(engine.head(batch, 1, local.task), descent, STEPS), rows)


def test_rows_that_s_selects_are_weighted_too() -> None:
    problem, held = union()
    shared = common(problem, held)
    expected = aware(PlainEngine(), shared)
    for logits in in_secret(problem, held, aware, shared.rows):
        assert np.abs(logits[held.all(axis=1)] - expected).max() < TOLERANCE
