"""The Engine contract: what the plaintext and the secret engine both promise, each within its own tolerance."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from secure_sccvfl.training.engine import CURVATURE, Step
from tests.contract.engines import GROUPS, SIDES, TEMPERATURES, Problem
from tests.support.sessions import stopping

WIDTHS = (3, 2, 4)
WEIGHTED = Step(rate=0.1, momentum=0.5, lam=0.7, proxy_penalty=0.3)


@pytest.fixture(params=sorted(SIDES))
def side(request):
    return SIDES[request.param]


def whole(blocks):
    return np.concatenate([blocks[rank] for rank in sorted(blocks)], axis=-1)


def selected(problem):
    """The displacement of every record in the direction of its own group, for each draw."""
    rows = np.arange(problem.rows)
    return [np.stack([whole(blocks) for blocks in draw])[problem.s, rows] for draw in problem.deltas]


def objective(problem, step, weight, bias):
    """The stated objective of a step, for autograd."""
    logits, label = torch.tensor(whole(problem.x)) @ weight + bias, torch.tensor(problem.y)
    if problem.task == "binary":
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], label.double())
    elif problem.task == "multiclass":
        loss = F.binary_cross_entropy_with_logits(logits, F.one_hot(label.long(), 3).double(), reduction="sum") / len(
            label
        )
    else:
        loss = 0.5 * ((logits[:, 0] - label) ** 2).mean()
    shifts = [torch.tensor(draw) @ weight for draw in selected(problem)]
    gap = sum(0.5 * (v**2).sum(dim=1).mean() for v in shifts) / len(shifts)
    proxy_direction, ridge = (torch.tensor(whole(blocks)) for blocks in (problem.guard, problem.ridge))
    guarded = 0.5 * ((proxy_direction @ weight) ** 2).sum()
    return loss + step.lam * gap + step.proxy_penalty * guarded + 0.5 * (ridge[:, None] * weight**2).sum()


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3), ("regression", 1)])
def test_steps_follow_the_gradient_of_the_stated_objective(side, task, outputs):
    problem, step = Problem(WIDTHS, task, outputs), Step(0.1, 0.5, 0.2, 0.1)

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        return engine.logits(local.trained(engine, batch, penalty, step, 4), local.x)

    weight = torch.zeros(sum(WIDTHS), outputs, dtype=torch.float64)
    bias = torch.zeros(outputs, dtype=torch.float64)
    velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    curvature = torch.tensor(whole(problem.curvature))[:, None]
    for _ in range(4):
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        slope, bias_slope = torch.autograd.grad(objective(problem, step, w, b), (w, b))
        velocity = step.momentum * velocity - step.rate * slope / curvature
        bias_velocity = step.momentum * bias_velocity - step.rate / CURVATURE[task] * bias_slope
        weight, bias = weight + velocity, bias + bias_velocity
    expected = (torch.tensor(whole(problem.x)) @ weight + bias).numpy()
    assert expected.std() > 20 * side.tolerance, "there is something to compare"
    for logits in side.run(problem, script):
        assert np.abs(logits - expected).max() < side.tolerance


def test_a_head_continues_in_another_optimizer(side):
    """Heads are of the columns as they are, whatever curvature a descent scales by."""
    problem = Problem(WIDTHS)

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        head = local.trained(engine, batch, None, Step(0.1, 0.5), 4)
        before = engine.logits(head, local.x)
        wide = {rank: 3 * block for rank, block in local.curvature.items()}
        return before, engine.logits(
            engine.steps(head, engine.first_order(batch, penalty, WEIGHTED, wide), 0), local.x
        )

    for before, after in side.run(problem, script):
        assert np.abs(before).max() > 0.1
        assert np.abs(after - before).max() < side.tolerance


def test_a_descent_ends_where_the_next_one_is_prepared(side):
    def script(engine, local):
        batch, penalty = local.inputs(engine)
        ended = engine.first_order(batch, None, WEIGHTED, local.curvature)
        engine.first_order(batch, penalty, WEIGHTED, local.curvature)
        engine.steps(engine.head(batch, 1, "binary"), ended, 1)

    with stopping("this optimizer has ended"):
        side.run(Problem(WIDTHS), script)


def test_the_direction_is_selected_by_s_alone(side):
    problem, other = Problem(WIDTHS), Problem(WIDTHS)
    other.deltas = [
        [{k: np.where((problem.s == g)[:, None], v, 9.0) for k, v in draw[g].items()} for g in range(GROUPS)]
        for draw in problem.deltas
    ]

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        return engine.measure([local.trained(engine, batch, None, Step(0.1, 0.0), 3)], batch, penalty)[0]

    for a, b in zip(side.run(problem, script), side.run(other, script), strict=True):
        assert a.gap_rms > 0.05
        assert a.gap_rms == pytest.approx(b.gap_rms, abs=side.tolerance)


def test_rows_are_selected_by_s_alone(side):
    """What an owner would have shown as a member of another group has no effect."""
    problem, other = Problem(WIDTHS), Problem(WIDTHS)
    other.deltas[0] = [
        {k: np.where((problem.s == g)[:, None], v, 9.0) for k, v in problem.deltas[0][g].items()}
        for g in range(GROUPS)
    ]

    def script(engine, local):
        rows = engine.select(local.deltas[0], local.s)
        batch = engine.bind(rows, local.y, local.ridge)
        return engine.logits(local.trained(engine, batch, None, WEIGHTED, 3), rows)

    for a, b in zip(side.run(problem, script), side.run(other, script), strict=True):
        assert np.abs(a).max() > 0.1 and np.abs(a - b).max() < side.tolerance


def test_measures_are_what_they_are_called(side):
    problem = Problem(WIDTHS)

    def script(engine, local):
        batch, penalty = local.inputs(engine)
        head = local.trained(engine, batch, None, Step(0.5, 0.0), 2)
        (seen,) = engine.measure([head], batch, penalty)
        return seen, engine.measure([head], batch, None)[0], engine.logits(head, local.x)

    for seen, without, logits in side.run(problem, script):
        inputs = np.hstack([whole(problem.x), np.ones((problem.rows, 1))])
        weight = np.linalg.lstsq(inputs, logits, rcond=None)[0][:-1]
        shifts = np.concatenate([draw @ weight for draw in selected(problem)])
        loss = np.logaddexp(0, -(2 * problem.y - 1) * logits[:, 0]).mean()
        assert seen.loss == pytest.approx(loss, abs=side.tolerance)
        assert seen.spread == pytest.approx(logits.std(), abs=side.tolerance)
        assert seen.gap_rms == pytest.approx(np.sqrt((shifts**2).mean()), abs=side.tolerance)
        assert without.gap_rms == 0.0, "no edits, no gap"


def test_the_best_temperature_has_the_lowest_loss(side):
    problem = Problem(WIDTHS)

    def script(engine, local):
        batch, _ = local.inputs(engine)
        head = local.trained(engine, batch, None, Step(0.5, 0.9), 12)
        return engine.best_temperature(head, batch, TEMPERATURES), engine.logits(head, local.x)[:, 0]

    for index, logits in side.run(problem, script):
        losses = [np.logaddexp(0, -(2 * problem.y - 1) * logits / t).mean() for t in TEMPERATURES]
        best = int(np.argmin(losses))
        assert 0 < best < len(TEMPERATURES) - 1, "neither end of the grid"
        assert index == best


def test_numbers_of_all_parties_are_published_and_summed(side):
    def script(engine, local):
        published = engine.publish("numbers of parties", {str(rank): rank + 0.5 for rank in local.x})
        return published, engine.total("sums over parties", [sum(local.x), sum(2.0 + rank / 4 for rank in local.x)])

    for published, sums in side.run(Problem(WIDTHS), script):
        assert published == {"0": 0.5, "1": 1.5, "2": 2.5}
        assert sums == pytest.approx((3.0, 6.75), abs=1e-4)


@pytest.mark.parametrize("missing", ["the label", "s", "every draw"])
def test_what_is_needed_is_asked_for(side, missing):
    problem = Problem(WIDTHS)
    problem.y = None if missing == "the label" else problem.y
    problem.s = None if missing == "s" else problem.s
    problem.deltas = [] if missing == "every draw" else problem.deltas
    with pytest.raises(ExceptionGroup) as refused:
        side.run(problem, lambda engine, local: local.inputs(engine) and None)
    errors = [error for error in refused.value.exceptions if isinstance(error, ValueError)]
    assert any(("no draw" if missing == "every draw" else "needs") in str(error) for error in errors)


@pytest.mark.parametrize("bad", [{"rate": 0}, {"momentum": 1.0}, {"lam": -1}, {"proxy_penalty": -1}])
def test_a_bad_step_is_refused(bad):
    with pytest.raises(ValueError, match=r"need|must|unknown"):
        Step(**{"rate": 0.1, "momentum": 0.5, **bad})
