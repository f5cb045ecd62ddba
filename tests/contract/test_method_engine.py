"""The Engine contract on the plaintext engine, the reference; test_secure_engine.py holds the secret one to it."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from secure_sccvfl.privacy.noise import NoNoise
from secure_sccvfl.training.engine import SIGN_WIDTH, Step
from secure_sccvfl.training.plain import PlainEngine

N, WIDTHS, GROUPS = 40, (3, 2), 3


@pytest.fixture(params=["plain"])
def engine(request):
    return {"plain": lambda: PlainEngine(NoNoise())}[request.param]()


def blocks(rng, rows=N):
    return {rank: rng.normal(size=(rows, width)) for rank, width in enumerate(WIDTHS)}


def whole(parts):
    return np.hstack([parts[r] for r in sorted(parts)])


def ones():
    return {rank: np.ones(width) for rank, width in enumerate(WIDTHS)}


def problem(engine, task, outputs, seed=0):
    rng = np.random.default_rng(seed)
    x, s = blocks(rng), rng.integers(0, GROUPS, N)
    y = rng.normal(size=N) if task == "regression" else rng.integers(0, max(outputs, 2), N)
    deltas = [[blocks(rng) for _ in range(GROUPS)] for _ in range(2)]
    guard = {rank: rng.normal(size=width) for rank, width in enumerate(WIDTHS)}
    ridge = {rank: rng.uniform(0.1, 1, width) for rank, width in enumerate(WIDTHS)}
    batch = engine.bind(x, y, ridge, outputs)
    penalty = engine.join([engine.edits(deltas, s)], [guard])
    return x, y, s, deltas, guard, ridge, batch, penalty


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3), ("regression", 1)])
@pytest.mark.parametrize("kind", ["squared", "l1"])
def test_two_steps_follow_the_gradient_of_the_stated_objective(engine, task, outputs, kind):
    x, y, s, deltas, guard, ridge, batch, penalty = problem(engine, task, outputs)
    step = Step(rate=0.05, momentum=0.5, lam=0.7, kind=kind, guard=0.3)
    head = engine.head(batch, outputs, task)
    weight = torch.zeros(sum(WIDTHS), outputs, dtype=torch.float64)
    velocity = torch.zeros_like(weight)
    bias, bias_velocity = torch.zeros(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
    rows = torch.tensor(whole(x))
    selected = [torch.tensor(np.stack([whole(draw[s[i]])[i] for i in range(N)])) for draw in deltas]
    g, r = (torch.tensor(np.concatenate([v[k] for k in sorted(v)])) for v in (guard, ridge))
    flat = {"binary": 0.25, "multiclass": 0.5, "regression": 1.0}[task]
    for _ in range(2):
        head = engine.steps(head, batch, penalty, step, ones(), 1)
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        logits = rows @ w + b
        if task == "binary":
            loss = F.binary_cross_entropy_with_logits(logits[:, 0], torch.tensor(y).double())
        elif task == "multiclass":
            loss = F.cross_entropy(logits, torch.tensor(y))
        else:
            loss = 0.5 * ((logits[:, 0] - torch.tensor(y)) ** 2).mean()
        shifts = [d @ w for d in selected]
        if kind == "squared":
            cons = sum(0.5 * (v**2).sum(dim=1).mean() for v in shifts) / 2
        else:
            soft = [SIGN_WIDTH * torch.log(torch.cosh(v / SIGN_WIDTH)) for v in shifts]
            cons = sum(v.sum(dim=1).mean() for v in soft) / 2
        total = loss + 0.7 * cons + 0.3 * 0.5 * ((g @ w) ** 2).sum() + 0.5 * (r[:, None] * w**2).sum()
        dw, db = torch.autograd.grad(total, (w, b))
        velocity = 0.5 * velocity - 0.05 * dw
        bias_velocity = 0.5 * bias_velocity - 0.05 / flat * db
        weight, bias = weight + velocity, bias + bias_velocity
    expected = (rows @ weight + bias).numpy()
    assert np.allclose(engine.logits(head, x), expected, atol=1e-8)


def test_the_direction_is_selected_by_s_alone(engine):
    _, _, s, deltas, guard, _, batch, penalty = problem(engine, "binary", 1)
    other = [
        [{k: np.where((s == g)[:, None], v, 99.0) for k, v in draw[g].items()} for g in range(GROUPS)]
        for draw in deltas
    ]
    again = engine.join([engine.edits(other, s)], [guard])
    head = engine.steps(engine.head(batch, 1, "binary"), batch, None, Step(0.1, 0.0), ones(), 1)
    assert engine.measure(head, batch, penalty) == engine.measure(head, batch, again)


def test_measures_are_what_they_are_called(engine):
    x, y, s, deltas, _, _, batch, penalty = problem(engine, "binary", 1)
    head = engine.steps(engine.head(batch, 1, "binary"), batch, None, Step(0.5, 0.0), ones(), 1)
    logits = engine.logits(head, x)[:, 0]
    chosen = [{k: x[k] + np.stack([draw[s[i]][k][i] for i in range(N)]) for k in x} for draw in deltas]
    moved = [engine.logits(head, rows)[:, 0] for rows in chosen]
    seen = engine.measure(head, batch, penalty)
    loss = np.logaddexp(0, -(2 * y - 1) * logits).mean()
    shifts = np.concatenate([m - logits for m in moved])
    assert seen.loss == pytest.approx(loss)
    assert seen.spread == pytest.approx(logits.std())
    assert seen.gap_rms == pytest.approx(np.sqrt((shifts**2).mean()))


def test_the_coolest_temperature_has_the_lowest_loss(engine):
    x, y, _, _, _, _, batch, _ = problem(engine, "binary", 1)
    head = engine.steps(engine.head(batch, 1, "binary"), batch, None, Step(1.0, 0.9), ones(), 60)
    logits, grid = engine.logits(head, x)[:, 0], (0.2, 0.6, 1.0, 1.5, 4.0)
    losses = [np.logaddexp(0, -(2 * y - 1) * logits / t).mean() for t in grid]
    best = int(np.argmin(losses))
    assert engine.coolest(head, batch, grid) == best
    assert np.allclose(engine.logits(engine.cooled(head, batch, grid), x)[:, 0], logits / grid[best])


def test_the_order_of_rows_and_of_parties_changes_nothing_but_order(engine):
    x, y, s, deltas, guard, ridge, batch, penalty = problem(engine, "binary", 1)
    order = np.random.default_rng(1).permutation(N)
    flip = {0: 1, 1: 0}

    def turned(parts, rows=True):
        return {flip[k]: (v[order] if rows else v) for k, v in parts.items()}

    batch2 = engine.bind(turned(x), y[order], turned(ridge, False))
    edits2 = engine.edits([[turned(b) for b in draw] for draw in deltas], s[order])
    penalty2 = engine.join([edits2], [turned(guard, False)])
    a = b = engine.head(batch, 1, "binary")
    a = engine.steps(a, batch, penalty, Step(0.1, 0.5, 1.0, guard=0.2), ones(), 5)
    b = engine.steps(b, batch2, penalty2, Step(0.1, 0.5, 1.0, guard=0.2), turned(ones(), False), 5)
    assert np.allclose(engine.logits(a, x)[order], engine.logits(b, turned(x)))


def test_group_sums_by_attribute(engine):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, N), rng.integers(0, 3, N)
    columns = {"x": rng.integers(0, 4, (N, 4)), "y": rng.integers(0, 2, (N, 1))}
    first, second = engine.group_sums(columns, [a, b], [2, 3], "t", 12.0)
    assert np.allclose(first["x"][:, 1], columns["x"][a == 1].sum(axis=0))
    assert np.allclose(second["y"][:, 2], columns["y"][b == 2].sum(axis=0))


def test_published_numbers_come_back_from_all(engine):
    assert engine.publish("scores", {"a": 1.0, "b": 0.5}) == {"a": 1.0, "b": 0.5}


def test_what_only_a_holder_has_is_asked_for(engine):
    with pytest.raises(ValueError, match="needs"):
        engine.bind({0: np.zeros((2, 1))}, None, {0: np.ones(1)})
    with pytest.raises(ValueError, match="needs"):
        engine.edits([[{0: np.zeros((2, 1))}]], None)


@pytest.mark.parametrize("bad", [{"rate": 0}, {"momentum": 1.0}, {"lam": -1}, {"kind": "x"}, {"guard": -1}])
def test_a_bad_step_is_refused(bad):
    with pytest.raises(ValueError, match=r"need|must|unknown"):
        Step(**{"rate": 0.1, "momentum": 0.5, **bad})
