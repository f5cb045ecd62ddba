"""The secret engine against the plaintext one on whole scripts and odd data; test_engine.py has what both promise."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secure_sccvfl.training.engine import Step
from tests.contract.engines import Problem, in_plaintext, in_secret
from tests.support.sessions import stopping

CLOSE = 2e-3


def both(problem, step, steps=6):
    """What the script finds in plaintext, and at every party in secret."""

    def script(engine, local):
        return local.script(engine, step, steps)

    secret = in_secret(problem, script)
    return in_plaintext(problem, script)[0], secret


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3), ("regression", 1)])
def test_the_secret_engine_follows_the_plain_one(task, outputs):
    plain, secret = both(Problem((3, 2, 4), task, outputs), Step(0.1, 0.5, 0.7, 0.3))
    for seen in secret:
        for name in ("loss", "spread", "gap_rms"):
            assert getattr(seen["measures"], name) == pytest.approx(getattr(plain["measures"], name), abs=CLOSE), name
        assert np.abs(seen["logits"] - plain["logits"]).max() < CLOSE
        assert seen.get("temperature") == plain.get("temperature")


def test_logits_beyond_the_range_of_the_sigmoid_stop_every_party():
    problem = Problem((3, 2, 4), size=8.0)
    problem.y = (problem.x[0][:, 0] > 0).astype(int)
    problem.ridge = {k: 1e-4 * np.ones_like(v) for k, v in problem.ridge.items()}
    problem.curvature = {k: 1e-2 * np.ones_like(v) for k, v in problem.curvature.items()}
    with pytest.raises(ExceptionGroup) as raised:
        both(problem, Step(0.5, 0.9), steps=20)
    errors = [str(e) for e in raised.value.exceptions]
    assert sum("range of the sigmoid" in e for e in errors) == 4, "the dealer gets the reason too"


@pytest.mark.parametrize("selected", [False, True])
def test_encodings_that_do_not_fit_are_refused_before_they_are_masked(selected):
    """Also rows that s selects."""
    problem = Problem((3, 2, 4), size=2.0)
    problem.curvature = {k: 1e-6 * np.ones_like(v) for k, v in problem.curvature.items()}

    def script(engine, local):
        rows = engine.select(local.deltas[0], local.s) if selected else local.x
        local.trained(engine, engine.bind(rows, local.y, local.ridge), None, Step(0.1, 0.5), 3)

    with stopping("scale the columns"):
        in_secret(problem, script)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple),
    seed=st.integers(0, 10**6),
    rows=st.integers(8, 60),
    lam=st.sampled_from([0.0, 0.3, 5.0]),
    proxy_penalty=st.sampled_from([0.0, 0.4]),
    rate=st.floats(0.02, 0.3),
    momentum=st.floats(0.0, 0.9),
)
def test_the_secret_engine_follows_the_plain_one_whatever_the_problem(
    widths, seed, rows, lam, proxy_penalty, rate, momentum
):
    problem = Problem(widths, rows=rows, seed=seed)
    problem.curvature = {k: v + 2 * (lam + proxy_penalty) * sum(widths) for k, v in problem.curvature.items()}
    plain, secret = both(problem, Step(rate, momentum, lam, proxy_penalty=proxy_penalty))
    for seen in secret:  # a bit may fall either way when two objectives are as good as equal
        assert np.abs(seen["logits"] - plain["logits"]).max() < CLOSE
        assert seen["measures"].loss == pytest.approx(plain["measures"].loss, abs=CLOSE)


def test_edits_of_some_columns_alone_give_the_same_head():
    problem = Problem((3, 2, 4))
    moving = {0: np.array([True, False, True]), 1: np.zeros(2, bool), 2: np.array([False, True, False, True])}
    problem.deltas = [
        [{rank: block * moving[rank] for rank, block in blocks.items()} for blocks in draw] for draw in problem.deltas
    ]

    def script(engine, local):
        batch = engine.bind(local.x, local.y, local.ridge, 1)
        penalty = engine.join([engine.counterfactuals(local.deltas, local.s, moving=moving)], [local.guard])
        head = local.trained(engine, batch, penalty, Step(0.1, 0.5, 0.3), 4)
        return engine.measure([head], batch, penalty)[0], engine.logits(head, local.x)

    ((measures, logits),) = in_plaintext(problem, script)
    for seen, secure_logits in in_secret(problem, script):
        assert np.abs(secure_logits - logits).max() < CLOSE
        assert seen.gap_rms == pytest.approx(measures.gap_rms, abs=CLOSE)


def test_an_edit_of_a_column_that_must_not_move_is_refused():
    problem = Problem((3, 2, 4))

    def script(engine, local):
        engine.bind(local.x, local.y, local.ridge, 1)
        return engine.counterfactuals(
            local.deltas, local.s, moving={rank: np.zeros(w, bool) for rank, w in enumerate((3, 2, 4))}
        )

    with stopping("not edited"):
        in_secret(problem, script)
