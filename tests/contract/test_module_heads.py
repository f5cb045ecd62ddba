"""Heads that are CrypTen modules: both engines take the same steps, and other modules are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.session.runtime import crypten
from secure_sccvfl.training import modules
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modules import HEADS, HeadError, HeadSpec, register_head
from tests.contract.engines import SIDES, TEMPERATURES, Problem
from tests.support.sessions import stopping

nn = crypten.nn
WIDTHS, RIDGE, SEED = (3, 2, 4), 0.02, 7
STEP = Step(0.1, 0.75, 0.5, 0.25)
PUBLIC = {"private_model": False}


def deep(inputs: int, outputs: int, hidden: int) -> Any:
    """Every layer that a head may have."""
    first, second = [nn.Linear(inputs, hidden), nn.ReLU()], [nn.Linear(hidden, 5), nn.Sigmoid()]
    return nn.Sequential(*first, *second, nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, outputs))


@pytest.fixture(autouse=True)
def heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "HEADS", dict(HEADS))
    register_head("deep", deep)


def script(spec: HeadSpec, steps: int = 10, step: Step = STEP) -> Any:
    """What a run does with a module, on any engine; without a penalty first."""

    def of_engine(engine: Any, problem: Problem) -> dict[str, Any]:
        batch, penalty = problem.inputs(engine)
        head = engine.module_head(batch, problem.outputs, problem.task, spec, SEED)
        head = engine.steps(head, engine.autograd(batch, None, step, RIDGE), 2)
        head = engine.steps(head, engine.autograd(batch, penalty, step, RIDGE), steps - 2)
        engine.check_range([head], batch)
        results = {
            "measures": engine.measure([head], batch, penalty)[0],
            "logits": engine.logits(head, problem.x),
        }
        if problem.task != "regression":
            results["temperature"] = engine.best_temperature(head, batch, TEMPERATURES)
        return results

    return of_engine


@pytest.mark.parametrize(
    ("kind", "task", "outputs"),
    [("mlp", "binary", 1), ("mlp", "multiclass", 3), ("deep", "binary", 1), ("deep", "regression", 1)],
)
def test_both_engines_take_the_same_steps(kind: str, task: str, outputs: int) -> None:
    problem, spec = Problem(WIDTHS, task, outputs), HeadSpec(kind, 6)
    (plain,) = SIDES["plain"].run(problem, script(spec))
    for secure in SIDES["secure"].run(problem, script(spec)):
        assert np.abs(secure["logits"] - plain["logits"]).max() < 2e-3
        for name in ("loss", "gap_rms", "spread"):
            assert abs(getattr(secure["measures"], name) - getattr(plain["measures"], name)) < 2e-3
        assert secure.get("temperature") == plain.get("temperature")


def test_consistency_holds_a_module_back() -> None:
    """The penalty does what it is for: without it the gap under counterfactuals is larger."""
    problem, spec = Problem(WIDTHS), HeadSpec("mlp", 6)
    gaps = {}
    for lam in (0.0, 8.0):
        (results,) = SIDES["plain"].run(problem, script(spec, 60, Step(0.1, 0.75, lam)))
        gaps[lam] = results["measures"].gap_rms
    assert gaps[8.0] < 0.6 * gaps[0.0]


def test_a_linear_module_has_the_penalty_of_a_linear_head() -> None:
    """Where both are defined, in one layer from the same start, a module has the consistency of the linear head."""
    register_head("flat", lambda inputs, outputs, hidden: nn.Sequential(nn.Linear(inputs, outputs)))
    problem, step = Problem(WIDTHS), Step(0.1, 0.5, 0.7, 0.2)
    problem.ridge = {rank: np.full(width, RIDGE) for rank, width in enumerate(WIDTHS)}
    problem.curvature = {rank: np.ones(width) for rank, width in enumerate(WIDTHS)}

    def both(engine: Any, given: Problem) -> tuple[np.ndarray, np.ndarray]:
        batch, penalty = given.inputs(engine)
        module = engine.module_head(batch, 1, "binary", HeadSpec("flat"), SEED)
        zero = {name: np.zeros_like(value) for name, value in module.weights.items()}
        module = type(module)(module.spec, zero, zero, "binary", 1)
        module = engine.steps(module, engine.autograd(batch, penalty, step, RIDGE), 1)
        linear = engine.steps(
            engine.head(batch, 1, "binary"), engine.first_order(batch, penalty, step, given.curvature), 1
        )
        return module.weights["0.weight"][0], linear.weight[:, 0]

    ((weight, expected),) = SIDES["plain"].run(problem, both)
    assert np.abs(weight - expected).max() < 1e-5  # inputs of a module are rounded


def test_logits_out_of_range_stop_a_module() -> None:
    problem, spec = Problem(WIDTHS, size=30.0), HeadSpec("mlp", 6)
    with stopping("left the range of the sigmoid"):
        SIDES["secure"].run(problem, script(spec, 6, Step(2.0, 0.9)))


def test_first_weights_follow_from_the_seed_alone() -> None:
    spec = HeadSpec("mlp", 4)
    one, same, other = (spec.first_weights(9, 2, seed) for seed in (1, 1, 2))
    assert all((one[name] == same[name]).all() for name in one) and sorted(one) == sorted(other)
    assert not (one["0.weight"] == other["0.weight"]).any() and not one["0.bias"].any()


def odd(layer: Any) -> Any:
    return lambda inputs, outputs, hidden: nn.Sequential(
        nn.Linear(inputs, hidden), layer(), nn.Linear(hidden, outputs)
    )


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (
            odd(lambda: nn.Softmax(1)),
            "layer 1 is a Softmax, which cannot be trained under MPC here; available: Linear",
        ),
        (odd(nn.Exp), "layer 1 is a Exp"),
        (lambda *sizes: nn.Sequential(nn.ReLU()), "has no weights"),
        (lambda inputs, outputs, hidden: nn.Sequential(nn.Linear(inputs, outputs + 1)), "gives .* logits"),
        (lambda inputs, outputs, hidden: nn.Sequential(nn.Linear(inputs + 1, outputs)), "does not take"),
        (lambda *sizes: "mlp", "is a str: build a crypten.nn.Module"),
    ],
)
def test_a_module_that_cannot_be_trained_is_one_line_before_a_session(builder: Any, message: str) -> None:
    register_head("odd", builder)
    options = RunOptions.of({**PUBLIC, "head": "odd"})
    with pytest.raises(ConfigError, match=message) as refused:
        gradient_mode("sealed").check(options, options.schema(3))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"head": "mlp"}, "head mlp cannot be private: .* private_model = false \\(public data only\\)"),
        ({"head": "mlp", "pooled": False, **PUBLIC}, "are for public data"),
        ({"head": "forest", **PUBLIC}, "no head 'forest'; available: linear, mlp"),
        ({"head": "mlp", "hidden": 0, **PUBLIC}, "hidden must be from 1"),
        ({"head": "mlp", "mode": "split", **PUBLIC}, "head mlp is for mode sealed, not split"),
        ({"head": "mlp", "mode": "dp", **PUBLIC}, "head mlp is for mode sealed, not dp"),
        ({"head": "mlp", "mode": "aware", **PUBLIC}, "head mlp is for mode sealed, not aware"),
        ({"head": "mlp", "evaluation": "noisy", **PUBLIC}, "whose evaluation is exact"),
        ({"head": "mlp", "consistency_from": "tables", **PUBLIC}, "consistency over records"),
        ({"head": "mlp", "align": "hidden", **PUBLIC}, "align = hidden does not work with"),
    ],
)
def test_settings_that_do_not_go_with_a_module_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        RunOptions.of(given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["linear", "my head", ""])
def test_a_head_needs_a_unique_name(name: str) -> None:
    with pytest.raises(HeadError, match="cannot be named"):
        register_head(name, deep)


def test_gradients_of_a_product_are_computed_for_factors_that_need_one() -> None:
    """CrypTen multiplies for all factors: here a constant costs nothing, and both gradients share their rounds."""

    def job(engine: Any, problem: Problem) -> tuple[int, int, np.ndarray]:
        session = engine.session
        values = np.random.default_rng(3).uniform(-1, 1, (4, 5))
        left, right = session.public(values), session.public(values.T)
        right.requires_grad = True
        rounds = []
        for needed in (False, True):
            left.requires_grad, left.grad, right.grad = needed, None, None
            out = left.matmul(right)
            before = session.total_cost.rounds
            out.backward(session.public(np.ones((4, 4))))
            session.flush()
            rounds.append(session.total_cost.rounds - before)
            if not needed and left.grad is not None:
                raise ProtocolError("a gradient that nobody asked for")
        gradient_of_left = session.open(left.grad, session.declared("predictions"))
        return rounds[0], rounds[1], np.asarray(gradient_of_left)

    values = np.random.default_rng(3).uniform(-1, 1, (4, 5))
    for one, both, gradient in SIDES["secure"].run(Problem(WIDTHS), job):
        assert one == both == 2
        assert np.abs(gradient - np.ones((4, 4)) @ values).max() < 1e-3
