"""The range penalty on both engines: heads minimise the stated objective, at no round, and privacy is as before."""

from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.grid import Bounds
from tests.contract.engines import SIDES, Problem, in_secret
from tests.contract.test_grid import (
    WIDTHS,
    bounds_of,
    descended,
    gram_of,
    grid_of,
    guard_length,
    optimum,
    whole,
)
from tests.contract.test_private_head import ROUNDING as PRIVATE_ROUNDING
from tests.contract.test_private_head import ROWS, problem_of, trained, weights_of
from tests.contract.test_private_head import WIDTHS as PRIVATE_WIDTHS

LAMBDAS = (0.0, 0.25, 1.0)


def ranges_of(widths, kappa=0.7):
    """A positive semidefinite block for each party."""
    rng = np.random.default_rng(9)
    roots = {rank: rng.normal(0, 0.5, (3, width)) for rank, width in enumerate(widths)}
    return {rank: kappa * root.T @ root for rank, root in roots.items()}


def training(grid, length, ranged):
    def script(engine, local):
        ranges = {rank: ranges_of(WIDTHS)[rank] for rank in local.ridge}
        batch, penalty = local.inputs(engine)
        bounds = bounds_of(local, length)
        if ranged:
            penalty = engine.with_ranges(penalty, ranges)
            bounds = Bounds({k: v + np.diag(ranges[k]) for k, v in bounds.flat.items()}, bounds.energy, bounds.reach)
        heads = engine.apart(
            descended(engine, batch, engine.second_order(batch, penalty, grid, bounds), grid, local.task)
        )
        session = getattr(engine, "session", None)
        rounds = session and sum(cost.rounds for cost in session.costs.values())
        return np.hstack([engine.logits(one, local.x) for one in heads]), rounds

    return script


@pytest.mark.parametrize("side", SIDES)
def test_heads_of_every_lambda_reach_the_minimum_with_the_same_range_penalty(side):
    problem = Problem(WIDTHS)
    grid, length = grid_of(problem, LAMBDAS), guard_length(problem)
    gram, direction = gram_of(problem), whole(problem.guard)
    fixed = np.diag(whole(problem.ridge)) + 0.3 * np.outer(direction, direction)
    ends = np.cumsum([0, *WIDTHS])
    ranged = fixed.copy()
    for rank, block in ranges_of(WIDTHS).items():
        ranged[ends[rank] : ends[rank + 1], ends[rank] : ends[rank + 1]] += block
    rows = whole(problem.x)
    expected, without = (
        np.column_stack([optimum(rows, problem.y, held + lam * gram, "binary") for lam in LAMBDAS])
        for held in (ranged, fixed)
    )
    assert (np.abs(expected - without).max(axis=0) > 0.05).all(), "the penalty matters at every lambda"
    for logits, _ in SIDES[side].run(problem, training(grid, length, True)):
        assert np.abs(logits - expected).max() < 0.02


def test_the_range_penalty_costs_no_round():
    problem = Problem(WIDTHS)
    grid, length = grid_of(problem, LAMBDAS), guard_length(problem)
    (_, ranged), (_, plain) = (in_secret(problem, training(grid, length, on))[0] for on in (True, False))
    assert ranged == plain


def test_first_order_steps_agree_on_both_engines():
    def script(engine, local):
        batch, penalty = local.inputs(engine)
        ranges = {rank: ranges_of(WIDTHS)[rank] for rank in local.ridge}
        step = Step(0.05, 0.0, 1.0, 0.3)
        heads = [local.trained(engine, batch, one, step, 4) for one in (engine.with_ranges(penalty, ranges), penalty)]
        return [engine.logits(head, local.x) for head in heads]

    (ranged, without), secret = SIDES["plain"].run(Problem(WIDTHS), script)[0], in_secret(Problem(WIDTHS), script)
    assert np.abs(ranged - without).max() > 0.01
    for logits, _ in secret:
        assert np.abs(logits - ranged).max() < 2e-3


def test_a_private_head_is_at_the_minimum_of_the_noisy_objective_with_ranges(monkeypatch):
    """Next to its own gradient, that of the range penalty n R w is left: the noise is fixed, so nothing else is."""
    from secure_sccvfl.releases.mechanisms import HeadNoise
    from secure_sccvfl.training.plain import PlainEngine, _gradient
    from secure_sccvfl.training.secure import SecureEngine
    from tests.contract import test_private_head as private

    noise, ranges = HeadNoise(1e-9, private.RIDGE, 1e-9, private.RADIUS), ranges_of(PRIVATE_WIDTHS, 0.05)
    for engine in (PlainEngine, SecureEngine):
        honest = engine.second_order

        def second_order(self, batch, penalty, grid, bounds, noise=None, honest=honest):
            mine = {rank: ranges[rank] for rank in bounds.flat}
            flat = {k: v + np.diag(mine[k]) for k, v in bounds.flat.items()}
            return honest(self, batch, self.with_ranges(penalty, mine), grid, bounds._replace(flat=flat), noise)

        monkeypatch.setattr(engine, "second_order", second_order)

    def script(engine, problem):
        return weights_of(engine, trained(engine, problem, "binary", 1, noise)[0])

    for weights in in_secret(problem_of("binary", 1), script):
        plain = PlainEngine()
        batch, descent = private.descent_of(plain, problem_of("binary", 1), "binary", 1, noise)
        head = replace(plain.head(batch, weights.shape[1], "binary"), weight=weights[:-1], bias=weights[-1])
        left = ROWS * _gradient(head, replace(descent, tilt=0.0))
        assert np.abs(left).max() < PRIVATE_ROUNDING * ROWS
        pull = np.zeros_like(weights)
        ends = np.cumsum([0, *PRIVATE_WIDTHS])
        for rank, block in ranges.items():
            pull[ends[rank] : ends[rank + 1]] = block @ weights[ends[rank] : ends[rank + 1]]
        assert ROWS * np.abs(pull).max() > 10 * PRIVATE_ROUNDING * ROWS, "without it the head would be elsewhere"
