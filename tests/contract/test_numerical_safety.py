"""Data that are hard on the arithmetic: training ends at the optimum, or all parties stop and say why."""

import numpy as np
import pytest

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.session.runtime import share_of
from secure_sccvfl.protocols.steps import head
from secure_sccvfl.protocols.steps.head import largest_squares
from secure_sccvfl.training.engine import UNSETTLED
from tests.contract.engines import GROUPS, ROWS, SIDES, Problem, in_secret
from tests.contract.test_grid import CLOSE, bounds_of, descended, grid_of, guard_length, optima, whole
from tests.support.sessions import stopping

EXTREMES = (0.0, 1000.0)
TWO, FIVE = (5, 4), (2, 1, 1, 3, 2)
"""Columns of two parties, and of five."""
RIDGE = 5e-3
"""That of a run."""


def hard_problem(case, widths):
    """A problem of nine columns with a run's ridge."""
    rows = 200 if "rare" in case else ROWS
    problem = Problem(widths, rows=rows)
    rng = np.random.default_rng(1)
    problem.ridge = {rank: np.full(width, RIDGE) for rank, width in enumerate(widths)}
    x = whole(problem.x)
    if case == "constant columns":
        x[:, :4] = 1.0
    elif case == "duplicate columns":
        x[:, 5:8] = x[:, :3]
    elif case == "near-singular Gram":
        x[:, 1:] = x[:, :1] + 1e-3 * x[:, 1:]
    elif case == "separable":
        problem.y = (x.sum(axis=1) > 0).astype(int)
    elif case == "a column that is the label":
        x[:, 3] = np.where(problem.y == 1, 1.0, -1.0)
    elif case == "rare labels":
        problem.y = (rng.random(rows) < 0.05).astype(int)
    elif case == "two labels, rare and told by every column":
        problem.y = (np.arange(rows) < 2).astype(int)
        x[:] = (problem.y[:, None] - problem.y.mean()) / problem.y.std()
    elif case == "one class":
        problem.y = np.ones(rows, int)
    problem.x = dict(enumerate(np.split(x, np.cumsum(widths)[:-1], axis=1)))
    return problem


def checked(grid, length):
    """Train, check as a run does, and show the logits."""

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        descent = engine.second_order(batch, penalty, grid, bounds_of(local, length))
        heads = engine.apart(descended(engine, batch, descent, grid, "binary"))
        engine.check_range(heads, batch)
        return np.hstack([engine.logits(one, local.x) for one in heads])

    return script


@pytest.mark.parametrize(
    ("case", "widths"),
    [
        ("constant columns", TWO),
        ("duplicate columns", FIVE),
        ("near-singular Gram", FIVE),
        ("separable", TWO),
        ("a column that is the label", FIVE),
        ("rare labels", TWO),
    ],
)
def test_hard_data_train_to_the_optimum_at_both_ends_of_lambda(case, widths):
    problem = hard_problem(case, widths)
    grid = grid_of(problem, EXTREMES, proxy_penalty=0.1)
    expected = optima(problem, grid)
    for logits in in_secret(problem, checked(grid, guard_length(problem))):
        assert np.abs(logits - expected).max() < CLOSE


@pytest.mark.parametrize("side", sorted(SIDES))
@pytest.mark.parametrize("case", ["one class", "two labels, rare and told by every column"])
def test_training_that_is_not_at_its_optimum_stops_with_a_line(case, side):
    """No step is taken more: the number is public, and nothing is opened but the bit that stops the run."""
    problem = hard_problem(case, (3, 2, 4))
    problem.deltas = [[{rank: 0 * block for rank, block in b.items()} for b in draw] for draw in problem.deltas]
    grid = grid_of(problem, (0.0,), proxy_penalty=0.0)
    with pytest.raises(ExceptionGroup) as stopped:
        SIDES[side].run(problem, checked(grid, guard_length(problem)))
    messages = [str(error) for error in stopped.value.exceptions]
    assert all(UNSETTLED in line for line in messages) and len(messages) == (1 if side == "plain" else 3 + 1)


def edits_of(size):
    """Three columns whose edits are all of this size, at two parties, and the largest sum of their squares."""
    problem = Problem((2, 1))
    problem.deltas = [
        [{rank: np.full_like(v, size) for rank, v in b.items()} for b in draw] for draw in problem.deltas
    ]
    return problem, len(problem.deltas) * ROWS * (size * 2**ring.FRACTION_BITS) ** 2


EDGE = float(np.floor(np.sqrt(head.GRAM_LIMIT / (2 * ROWS)) / 2**ring.FRACTION_BITS))


def test_a_gram_matrix_is_right_up_to_the_edge_of_its_range():
    problem, squares = edits_of(EDGE)
    assert 0.99 * head.GRAM_LIMIT < squares < head.GRAM_LIMIT

    def script(engine, local):
        engine.bind(local.x, local.y, local.ridge)
        shares = engine.counterfactuals(local.deltas, local.s).gram
        came = engine.session.party.open_masked("test", [share_of(shares)])  # the values of a test are not secret
        return came[0]

    for gram in in_secret(problem, script):
        assert np.abs(gram / 2.0**28 / EDGE**2 - 1).max() < 1e-6


def test_edits_whose_gram_matrix_would_wrap_are_refused_before_they_are_sent():
    problem, squares = edits_of(EDGE + 1)
    assert squares >= head.GRAM_LIMIT
    rounds = []

    def script(engine, local):
        engine.bind(local.x, local.y, local.ridge)
        try:
            engine.counterfactuals(local.deltas, local.s)
        finally:
            rounds.append({name: cost.rounds for name, cost in engine.session.costs.items()})

    with stopping("too much"):
        in_secret(problem, script)
    assert all("gram of edits" not in phases for phases in rounds), "nothing of the matrix was computed"


def test_the_largest_choice_of_every_row_counts():
    rng = np.random.default_rng(0)
    choices = rng.integers(-9, 10, (7, GROUPS, 2))
    assert np.array_equal(largest_squares(choices), (choices**2).max(axis=1).sum(axis=0) * 2.0**32), (
        "as ring elements"
    )
