"""Second-order steps of a grid: both engines reach the optimum, the secret one follows, and odd data do no harm."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.protocols.operations import banded
from secure_sccvfl.protocols.steps import second_order
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.training.config import SMALLEST_RIDGE, TrainConfig, second_order_schedule
from secure_sccvfl.training.engine import CURVATURE
from secure_sccvfl.training.grid import LEFT, Bounds, Grid, inverses
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.shared import SharedPenalty
from secure_sccvfl.training.trainer import Trainer, train
from tests.contract.engines import GROUPS, ROWS, SIDES, Problem, in_plaintext, in_secret
from tests.support.sessions import stopping

WIDTHS = (3, 2, 4)
LAMBDAS = (0.0, 0.25, 1.0, 16.0, 1000.0)
CONFIG = TrainConfig()
STEP_ROUNDS = 7
CLOSE = 0.02
"""How far logits may be from the optimum."""
FOLLOWS = 2e-3
"""How far they may be from those of the plaintext engine: see `test_the_secret_engine_follows_the_plain_one`."""


def grid_of(problem, lambdas=LAMBDAS, proxy_penalty=0.3):
    sharpens = problem.task != "regression"
    return Grid(lambdas, (proxy_penalty,) * len(lambdas), CURVATURE[problem.task], sharpens=sharpens)


def bounds_of(problem, length, selected=None):
    """What the owners of these blocks know. `selected`: the draw whose rows are trained on, of which s chooses."""
    steep = CURVATURE[problem.task]
    energy = {
        rank: GROUPS
        * np.max([(blocks[rank] ** 2).mean(axis=0) for draw in problem.deltas for blocks in draw], axis=0)
        for rank in problem.ridge
    }
    squares = {
        rank: problem.x[rank] ** 2
        if selected is None
        else np.max([blocks[rank] ** 2 for blocks in problem.deltas[selected]], axis=0)
        for rank in problem.ridge
    }
    flat = {rank: steep * square.mean(axis=0) + problem.ridge[rank] for rank, square in squares.items()}
    return Bounds(flat, energy, {rank: np.abs(direction) * length for rank, direction in problem.guard.items()})


def whole(blocks):
    return np.concatenate([blocks[rank] for rank in sorted(blocks)], axis=-1)


def guard_length(problem):
    return float(np.abs(whole(problem.guard)).sum())


def descended(engine, batch, descent, grid, task, config=CONFIG):
    """A head of the whole grid after all its steps."""
    head = engine.head(batch, len(grid), task)
    for count, sharp, _ in second_order_schedule(config, task):
        descent = engine.sharpen(head, descent) if sharp else descent
        head = engine.steps(head, descent, count)
    return head


def inversion_rounds(grid, sharp):
    """Of the first inverse, and of the one at the heads."""
    columns = sum(WIDTHS) + 1
    first, second = len(grid.doublings(columns)), len(grid.sharp_doublings(columns))
    return 6 + 2 * first + (8 + 2 * second if sharp else 0)


def step_rounds(steps, task):
    """The gradient of the first step along the second inverse comes with that inverse."""
    return steps * (STEP_ROUNDS - 1) if task == "regression" else steps * STEP_ROUNDS - 5


def training(grid, length, steps=CONFIG.grid_steps, second_order_steps=CONFIG.sharpened):
    """A script that trains the heads of a grid and shows their logits; in secret also rounds."""
    config = replace(CONFIG, grid_steps=steps, sharpened=second_order_steps)

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        descent = engine.second_order(batch, penalty, grid, bounds_of(local, length))
        heads = engine.apart(descended(engine, batch, descent, grid, local.task, config))
        session = getattr(engine, "session", None)
        rounds = session and {name: cost.rounds for name, cost in session.costs.items()}
        return np.hstack([engine.logits(one, local.x) for one in heads]), rounds

    return script


def gram_of(problem):
    rows = np.arange(problem.rows)
    drawn = [np.stack([whole(blocks) for blocks in draw])[problem.s, rows] for draw in problem.deltas]
    return sum(d.T @ d for d in drawn) / (len(drawn) * problem.rows)


def optimum(rows, label, penalty, task):
    """Logits at the minimum of the stated objective, by another method."""
    inputs = np.column_stack([rows, np.ones(len(rows))])

    def objective(weights):
        logits = inputs @ weights
        if task == "binary":
            loss, residual = np.logaddexp(0, logits) - label * logits, expit(logits) - label
        else:
            loss, residual = 0.5 * (logits - label) ** 2, logits - label
        pulled = penalty @ weights[:-1]
        slope = inputs.T @ residual / len(rows)
        slope[:-1] += pulled
        return loss.mean() + 0.5 * weights[:-1] @ pulled, slope

    def curvature(weights):
        logits = inputs @ weights
        steep = expit(logits) * expit(-logits) if task == "binary" else np.ones(len(rows))
        hessian = (inputs * steep[:, None]).T @ inputs / len(rows)
        hessian[:-1, :-1] += penalty
        return hessian

    minimum = minimize(
        objective, np.zeros(inputs.shape[1]), jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-9}
    )
    return inputs @ minimum.x


def optima(problem, grid):
    gram, direction = gram_of(problem), whole(problem.guard)
    ridge = np.diag(whole(problem.ridge))
    return np.column_stack(
        [
            optimum(
                whole(problem.x),
                problem.y,
                ridge + lam * gram + weight * np.outer(direction, direction),
                problem.task,
            )
            for lam, weight in zip(grid.lambdas, grid.proxy_penalties, strict=True)
        ]
    )


@pytest.mark.parametrize("side", sorted(SIDES))
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_all_heads_of_a_grid_reach_the_optimum_of_the_stated_objective(side, task):
    problem = Problem(WIDTHS, task)
    grid = grid_of(problem)
    expected = optima(problem, grid)
    assert expected.std(axis=0).max() > 5 * CLOSE and np.abs(expected[:, 0] - expected[:, -1]).max() > 5 * CLOSE
    for logits, _ in SIDES[side].run(problem, training(grid, guard_length(problem))):
        assert np.abs(logits - expected).max() < CLOSE


@pytest.mark.parametrize(
    "widths", [(3, 2), WIDTHS, (2, 1, 1, 3, 2), (3, 0, 2)], ids=["two", "three", "five", "one without columns"]
)
def test_the_secret_engine_follows_the_plain_one(widths):
    """Rounding: the gradient's 2^-26 by P (below 2^10), in each of 9 steps, moves a logit of 9 columns by 2e-4.

    Encodings are rounded to 2^-17 and series to 1e-4, which the heads of a strictly convex objective follow by
    less than 1e-3.
    """
    problem = Problem(widths)
    grid = grid_of(problem)
    script = training(grid, guard_length(problem))
    ((expected, _),) = in_plaintext(problem, script)
    for logits, _ in in_secret(problem, script):
        assert np.abs(logits - expected).max() < FOLLOWS


def test_rounds_do_not_depend_on_the_number_of_lambdas():
    problem = Problem(WIDTHS)
    rounds_of_grids = [
        in_secret(problem, training(grid_of(problem, lambdas), 1.0, 3, 2))[0][1] for lambdas in ((16.0,), LAMBDAS[:4])
    ]
    for rounds in rounds_of_grids:
        assert rounds["mask encodings"] == 1 and rounds["training step"] == step_rounds(3, "binary")
        assert rounds["inverse curvature"] == inversion_rounds(grid_of(problem, (16.0,)), sharp=True)


def odd(case):
    rows = banded.BAND_ROWS + 1 if case == "one row in a band" else ROWS
    problem = Problem(WIDTHS, rows=rows)
    if case == "zero columns":
        problem.x = {k: v * (k == 1) for k, v in problem.x.items()}
    elif case == "constant columns":
        problem.x[0][:] = 1.0
    elif case == "duplicate columns":
        problem.x[2][:, :3] = problem.x[0]
        problem.deltas = [[{**b, 2: np.column_stack([b[0], b[2][:, 3]])} for b in draw] for draw in problem.deltas]
    elif case == "separable":
        problem.y = (whole(problem.x).sum(axis=1) > 0).astype(int)
    elif case == "no edits":
        problem.deltas = [[{k: 0 * v for k, v in b.items()} for b in draw] for draw in problem.deltas]
    return problem


@pytest.mark.parametrize(
    "case",
    ["zero columns", "constant columns", "duplicate columns", "separable", "no edits", "one row in a band"],
)
def test_odd_data_train_to_the_optimum_too(case):
    problem = odd(case)
    grid = grid_of(problem)
    script = training(grid, guard_length(problem))
    ((expected, _),) = in_plaintext(problem, script)
    assert np.abs(expected - optima(problem, grid)).max() < CLOSE
    for logits, _ in in_secret(problem, script):
        assert np.abs(logits - expected).max() < FOLLOWS


def test_steps_may_be_taken_in_parts_and_a_descent_ends_with_the_next():
    problem = Problem(WIDTHS)
    grid, length = grid_of(problem), guard_length(problem)

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        bounds = bounds_of(local, length)
        descent = engine.second_order(batch, penalty, grid, bounds)
        zero = engine.head(batch, len(grid), local.task)
        once = engine.steps(zero, descent, 5)
        parts = engine.steps(engine.steps(zero, descent, 2), descent, 3)
        again = engine.second_order(batch, penalty, grid, bounds)
        resumed = engine.steps(engine.steps(engine.steps(zero, again, 0), again, 2), again, 3)
        with pytest.raises(ValueError, match="has ended"):
            engine.steps(zero, descent, 1)
        return [
            np.hstack([engine.logits(one, local.x) for one in engine.apart(heads)])
            for heads in (once, parts, resumed)
        ]

    for side in SIDES.values():
        for once, parts, resumed in side.run(problem, script):
            assert np.abs(once).max() > 0.1
            assert max(np.abs(parts - once).max(), np.abs(resumed - once).max()) < side.tolerance


def test_many_rows_step_in_parts_of_the_grid(monkeypatch):
    """The sigmoid of a part takes as many tuples as memory allows; results stay the same."""
    problem = Problem(WIDTHS)
    script = training(grid_of(problem), guard_length(problem), 3)
    ((expected, _),) = in_plaintext(problem, script)
    monkeypatch.setattr("secure_sccvfl.training.secure_steps._TOGETHER", 2 * ROWS)
    for logits, rounds in in_secret(problem, script):
        assert rounds["training step"] == 3 * 3 * STEP_ROUNDS
        assert np.abs(logits - expected).max() < FOLLOWS


def test_rows_that_s_selects_train_as_if_they_were_the_parties_own():
    problem, own_rows = Problem(WIDTHS), Problem(WIDTHS)
    drawn = np.stack([whole(blocks) for blocks in problem.deltas[1]])[problem.s, np.arange(problem.rows)]
    own_rows.x = dict(enumerate(np.split(drawn, np.cumsum(WIDTHS)[:-1], axis=1)))
    grid, length = grid_of(problem), guard_length(problem)

    def selecting(engine, local):
        rows = engine.select(iter(local.deltas[1]), local.s)
        batch = engine.bind(rows, local.y, local.ridge)
        penalty = engine.join([engine.counterfactuals(local.deltas, local.s)], [local.guard])
        descent = engine.second_order(batch, penalty, grid, bounds_of(local, length, selected=1))
        heads = engine.apart(descended(engine, batch, descent, grid, "binary"))
        return np.hstack([engine.logits(one, rows) for one in heads])

    expected = optima(own_rows, grid)
    for logits in in_secret(problem, selecting):
        assert np.abs(logits - expected).max() < CLOSE


def test_measures_are_those_of_each_head_alone():
    problem = Problem(WIDTHS)
    grid, length = grid_of(problem, LAMBDAS[:4]), guard_length(problem)

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        descent = engine.second_order(batch, penalty, grid, bounds_of(local, length))
        heads = engine.apart(engine.steps(engine.head(batch, len(grid), "binary"), descent, 12))
        engine.check_range(heads, batch)
        return engine.measure(heads, batch, penalty), [engine.measure([one], batch, penalty)[0] for one in heads]

    for side in SIDES.values():
        for together, alone in side.run(problem, script):
            gaps = [one.relative_gap for one in together]
            assert gaps[3] < gaps[2] < gaps[1] < gaps[0]
            both = [np.array([[m.loss, m.spread, m.gap_rms] for m in measured]) for measured in (together, alone)]
            assert np.abs(both[0] - both[1]).max() < side.tolerance


# ranges


def test_one_head_out_of_range_stops_every_party():
    problem = Problem(WIDTHS)

    def script(engine, local):
        batch, _ = local.inputs(engine)
        zero = engine.head(batch, 1, "binary")
        weight, bias = engine.unscaled(zero)
        engine.check_range([zero, engine.restored(weight, bias + 30.0, "binary", WIDTHS)], batch)

    with pytest.raises(ExceptionGroup) as stopped:
        in_secret(problem, script)
    assert sum("range of the sigmoid" in str(error) for error in stopped.value.exceptions) == len(WIDTHS) + 1


def test_a_column_whose_inverse_would_leave_its_range_is_refused():
    problem = Problem(WIDTHS)
    problem.ridge = {k: np.full_like(v, 1e-6) for k, v in problem.ridge.items()}
    with stopping("times its ridge"):
        in_secret(problem, training(grid_of(problem), guard_length(problem)))


@pytest.mark.parametrize(
    "bad",
    [
        {"lambdas": (2000.0,)},
        {"lambdas": (-1.0,)},
        {"lambdas": ()},
        {"curvature": 0.0},
        {"rate": 2.0},
        {"momentum": 1.0},
    ],
    ids=str,
)
def test_impossible_grids_are_refused(bad):
    with pytest.raises(ValueError, match=r"weights|proxy penalty|curvature"):
        Grid(
            **{
                "lambdas": (1.0,),
                "proxy_penalties": (0.1,) * len(bad.get("lambdas", (1.0,))),
                "curvature": 0.25,
                **bad,
            }
        )


def test_near_lambdas_share_the_inverse_of_the_largest():
    grid = Grid((0.0, 0.25, 0.5, 1.0, 1.5, 4.0), (0.0, 0.1, 0.2, 0.3, 0.1, 0.1), 0.25)
    assert grid.inverted == ((4.0, 0.3), (0.5, 0.2), (0.0, 0.0))
    assert grid.matrix_of == (2, 1, 1, 0, 0, 0)


@pytest.mark.parametrize("columns", [1, 2, 10, 79, 300, 2000])
def test_the_number_of_doublings_keeps_values_in_range(columns):
    for largest in (1.0, 1000.0):
        grid = Grid((largest,), (0.0,), 0.25)
        weights = ((largest, 0.0),)
        doublings = grid.doublings(columns), grid.sharp_doublings(columns)
        span = grid.span(columns)
        plan = second_order.Plan(weights, weights, (0,), 0.25, span, doublings[0], 1.0, 0.2, doublings[1])
        plan.check(columns)
        assert plan.inverse_bits >= 17


def test_doubling_inverts_what_has_a_diagonal_of_one():
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    rows = rng.normal(size=(200, 20)) @ np.diag(np.geomspace(1, 0.1, 20)) @ turned
    gram = rows.T @ rows
    scale = 1 / np.sqrt(np.diag(gram))
    curved = gram * np.outer(scale, scale)
    assert np.linalg.cond(curved) > 100
    grid = Grid((1.0,), (0.0,), 0.25)
    inverse = inverses(grid, [curved])[0]
    assert np.linalg.norm(inverse @ curved - np.eye(20), 2) < LEFT
    # One doubling less would leave more, and without relaxation even as many leave much more.
    least = grid.least / grid.span(20)
    assert len(second_order.relaxations(least, LEFT)) == len(grid.doublings(20)) < 10
    assert (1 - second_order.FIRST * least) ** (2 ** len(grid.doublings(20))) > 0.5


# real data: the very problem of a run, trained in secret from its encodings and its Gram matrix


class _Caught(Exception):
    """Ends a run once its problem is known."""


class _Catching(Trainer):
    def proxy_bound(self, guards):
        self.guarded = guards
        return super().proxy_bound(guards)

    def train_grid(self, penalty, grid, bounds):
        raise _Caught(self.encodings, self.batch, penalty, bounds, self.guarded)


@pytest.mark.parametrize(("dataset", "weak"), [("german", None), ("german", SMALLEST_RIDGE), ("acs12", None)])
def test_a_run_under_mpc_is_near_the_optimum(dataset, weak):
    """weak: the smallest ridge that the rule gives, which is that of large data."""
    data, ridge = pooled(dataset, 3), 0.0 if weak is None else weak
    split = make_split(data, "iid", 0)
    config = TrainConfig(ridge=ridge).with_ridge(len(split.train))
    noise = GaussianNoise(SpendingPlan(releases=config.charged), 0)
    with pytest.raises(_Caught) as caught:
        train(PlainEngine(), PlainStatistics(noise), data, split, config, 0, driver=_Catching)
    encodings, batch, penalty, bounds, guards = caught.value.args
    grid = Grid(config.lambdas, (config.guard,) * len(config.lambdas), 0.25, sharpens=True)
    penalties = [
        np.diag(batch.ridge) + lam * penalty.gram + config.guard * penalty.proxy_gram for lam in grid.lambdas
    ]
    expected = np.column_stack([optimum(batch.rows, batch.label, each, "binary") for each in penalties])
    problem = Problem(tuple(block.shape[1] for block in encodings.values()), rows=len(batch.rows))
    problem.x, problem.y = dict(encodings), batch.label

    def script(engine, local):
        rank = engine.session.rank
        bound = engine.bind(local.x, local.y, {rank: np.full(local.x[rank].shape[1], config.ridge)})
        shares = engine.session.public(penalty.gram, second_order.MATRIX_BITS)
        shared = SharedPenalty((), shares, tuple(direction[rank] for direction in guards))
        mine = Bounds(*({rank: blocks[rank]} for blocks in bounds))
        descent = engine.second_order(bound, shared, grid, mine)
        heads = engine.apart(descended(engine, bound, descent, grid, "binary", config))
        return np.hstack([engine.logits(one, local.x) for one in heads])

    for logits in in_secret(problem, script):
        assert np.abs(logits - expected).max() < CLOSE
