"""Noise of private heads, recomputed from heads and records; the canary of a head. Seeded, with a small trainer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from secure_sccvfl.audit.bounds import CONFIDENCE
from secure_sccvfl.audit.dp_audit import of_results
from secure_sccvfl.audit.head_noise import (
    LEVEL,
    LOGISTIC,
    HeadCanary,
    Loss,
    Records,
    capped,
    head_noise,
    log_cosh,
    noise_checks,
    noise_is_right,
    standard_noise,
    train,
)
from secure_sccvfl.audit.noise_tests import correlation_test, scale_power, scale_test
from secure_sccvfl.releases.kinds import Kind
from secure_sccvfl.releases.releases import SKETCH

HEADS, COLUMNS, SIGMA, RIDGE = 40, 61, 4.0, 6.0


OUTPUT = 0.05
"""Deviation of noise on finished weights. Of 2,000 records it makes the recomputed noise larger by a quarter."""


@dataclass(frozen=True)
class Problem:
    records: Records
    penalty: np.ndarray


def problem(seed: int = 0, records: int = 300, columns: int = COLUMNS) -> Problem:
    """Rows with a column of the bias, labels that depend on them, and a positive semidefinite penalty n P."""
    rng = np.random.default_rng(seed)
    rows = np.hstack([rng.uniform(-0.5, 0.5, (records, columns - 1)), np.ones((records, 1))])
    labels = (rows @ rng.normal(size=columns) + rng.logistic(size=records) > 0).astype(float)
    root = rng.normal(size=(columns, 5))
    return Problem(Records(rows, labels), root @ root.T)


def drawn(seed: int = 1, heads: int = HEADS, columns: int = COLUMNS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, SIGMA, (heads, columns))


def recomputed(noise: np.ndarray, loss: Loss = LOGISTIC) -> np.ndarray:
    """Noise as the heads carry it that were trained with it."""
    given = problem()
    heads = train(given.records, given.penalty, RIDGE, noise, loss)
    return head_noise(heads, given.records, given.penalty, RIDGE, loss)


LOSSES = [
    pytest.param(LOGISTIC, id="logistic"),
    pytest.param(capped(0.75), id="capped"),
    pytest.param(log_cosh(0.5), id="number"),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_noise_of_a_head_is_recomputed_exactly(loss: Loss) -> None:
    noise = drawn()
    assert recomputed(noise, loss) == pytest.approx(noise, abs=1e-6)
    given = problem()
    alone = train(given.records, given.penalty, RIDGE, noise[:1], loss)[0]
    assert head_noise(alone, given.records, given.penalty, RIDGE, loss) == pytest.approx(noise[0], abs=1e-6)


@pytest.mark.parametrize("loss", [*LOSSES, pytest.param(capped(1.0), id="not capped")])
def test_slope_and_curvature_belong_to_one_loss(loss: Loss) -> None:
    logits, step = np.linspace(-6, 6, 61), 1e-5
    for label in (0.0, 1.0):
        labels = np.full(len(logits), label)
        bent = (loss.slope(logits + step, labels) - loss.slope(logits - step, labels)) / (2 * step)
        assert loss.curvature(logits, labels) == pytest.approx(bent, abs=1e-8)
        assert np.abs(loss.slope(10 * logits, labels)).max() == pytest.approx(loss.cap, rel=1e-6)
        if loss.cap > 0.5:  # of classes: at 0 the slope is that of the log loss
            assert abs(loss.slope(np.zeros(1), np.array([label]))[0]) == pytest.approx(0.5)


def test_the_heads_are_minima() -> None:
    """The trainer is right: the recomputed noise rests on it. Compared with steps of gradient descent."""
    given, noise = problem(columns=4), drawn(heads=2, columns=4)
    heads = train(given.records, given.penalty, RIDGE, noise)
    rows, labels = given.records.rows, given.records.labels
    for head, own in zip(heads, noise, strict=True):
        found = np.zeros(4)
        for _ in range(5000):
            slope = (1 / (1 + np.exp(-rows @ found)) - labels) @ rows
            found = found - 0.005 * (slope + given.penalty @ found + RIDGE * found + own)
        assert head == pytest.approx(found, abs=1e-6)


def test_right_noise_passes() -> None:
    checks = noise_checks(recomputed(drawn()), SIGMA)
    assert checks.keys() == {"scale", "pairs", "together"} and noise_is_right(checks)
    assert noise_checks(drawn(heads=1), SIGMA).keys() == {"scale"}


def shared(noise: np.ndarray) -> np.ndarray:
    made = noise.copy()
    made[7] = made[3]
    return made


def partly_shared(noise: np.ndarray) -> np.ndarray:
    """Half of the variance is common to all heads, and each has the right deviation."""
    return (noise + drawn(5, 1)) / np.sqrt(2)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        pytest.param(lambda noise: 0.9 * noise, "scale", id="nine tenths"),
        pytest.param(lambda noise: 0.5 * noise, "scale", id="half"),
        pytest.param(lambda noise: 0 * noise, "scale", id="none"),
        pytest.param(lambda noise: 2 * noise, "scale", id="added twice"),
        pytest.param(lambda noise: noise + drawn(2), "scale", id="two draws"),
        pytest.param(shared, "pairs", id="two heads share it"),
        pytest.param(lambda noise: noise[[0] * HEADS], "pairs", id="all heads share it"),
        pytest.param(partly_shared, "together", id="all heads share half of it"),
    ],
)
def test_wrong_noise_is_noticed(broken, check) -> None:
    checks = noise_checks(recomputed(broken(drawn())), SIGMA)
    assert not checks[check].holds and not noise_is_right(checks)


@pytest.mark.parametrize(("objective", "output"), [(1.0, 1.0), (0.8, 1.0), (1.0, 0.0), (0.5, 0.5)])
def test_noise_on_finished_weights_is_allowed_for(objective: float, output: float) -> None:
    """Both noises at their scale pass; too little of either, or of both, does not."""
    given, rng = problem(records=2000), np.random.default_rng(9)
    heads = train(given.records, given.penalty, RIDGE, objective * drawn())
    heads = heads + output * rng.normal(0.0, OUTPUT, heads.shape)
    noises = [standard_noise(w, given.records, given.penalty, RIDGE, SIGMA, OUTPUT) for w in heads]
    assert noise_is_right(noise_checks(np.array(noises), 1.0)) == (objective == output == 1.0)
    plain = head_noise(heads, given.records, given.penalty, RIDGE)
    if output == 1.0:
        assert plain.std() > 1.15 * objective * SIGMA, "it shows in the recomputed noise"


def test_the_stated_power_and_false_alarms() -> None:
    """40 heads of 61 columns notice .9 sigma with power .99; right noise is refused as often as said. Seeded."""
    values, level = HEADS * COLUMNS, 0.9 * LEVEL
    assert scale_power(values, 0.9, level) > 0.99 and scale_power(values, 1.1, level) > 0.96
    assert scale_power(values, 0.5, level) > 1 - 1e-12
    assert noise_checks(drawn(), SIGMA)["scale"].level == pytest.approx(level)
    noises = np.random.default_rng(3).normal(0, SIGMA, (2000, 4, 12))
    refused = {
        "scale": sum(not scale_test(one, SIGMA, 0.05).holds for one in noises),
        "pair": sum(not correlation_test(one[0], one[1], 0.05).holds for one in noises),
    }
    assert all(65 < count < 135 for count in refused.values()), "100 of 2000, give or take 3.6 deviations"
    assert sum(not noise_is_right(noise_checks(one, SIGMA, 0.2)) for one in noises) < 470, "400 at most, the same"


def test_tests_of_noise_need_noise() -> None:
    with pytest.raises(ValueError, match="needs values"):
        scale_test(np.zeros(0))
    with pytest.raises(ValueError, match="above 0"):
        scale_test(np.ones(3), 0.0)
    with pytest.raises(ValueError, match="same length"):
        correlation_test(np.ones(4), np.ones(5))
    assert not correlation_test(np.zeros(9), np.zeros(9)).holds, "no noise at all is no independent noise"
    with pytest.raises(ValueError, match="cap of a slope"):
        capped(0.5)
    with pytest.raises(ValueError, match="cap of a slope"):
        log_cosh(0.0)


KAPPA = 2.0
SIGMAS = {1.0: 10.5, 2.0: 4.33, 4.0: 2.18, 8.0: 1.20}
"""sigma / R by the epsilon of one head at delta 1e-5, where R^2 is KAPPA times the ridge, for slopes up to 1."""


def canary(accounted: float, loss: Loss = LOGISTIC, radius: float = 3.0) -> HeadCanary:
    sigma = SIGMAS[accounted] * radius * loss.cap
    kind: Kind = SKETCH
    return HeadCanary(kind, sigma, radius, radius**2 / KAPPA, 1e-5, accounted, loss)


def normal(seed: int, sigma: float):
    rng = np.random.default_rng(seed)
    return lambda shape: rng.normal(0.0, sigma, shape)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("accounted", SIGMAS)
def test_the_canary_of_a_head_stays_below_its_epsilon_and_comes_near(accounted: float, loss: Loss) -> None:
    one = canary(accounted, loss)
    found = one.audit(10_000, CONFIDENCE, normal(0, one.sigma))
    assert found.ok and found.epsilon_high == accounted
    assert found.reach == pytest.approx(1.0, abs=2e-3) and found.reach < 1
    assert found.epsilon_low > (0.85 if accounted > 2 else 0.4) * accounted


def test_both_records_are_misclassified_by_every_head() -> None:
    """Otherwise the canary would move the gradient by half of what is charged."""
    one = canary(4.0)
    for records in one.pair():
        heads = train(records, np.zeros((2, 2)), one.ridge, normal(1, one.sigma)((2000, 2)))
        for other in one.pair():
            assert (heads @ other.rows[0]).max() < -10
        assert np.linalg.norm(records.rows[0]) == pytest.approx(one.radius)
        assert np.linalg.norm(records.rows[1]) < 1e-2 * one.radius


@pytest.mark.parametrize("accounted", SIGMAS)
def test_half_the_noise_of_a_head_is_caught(accounted: float) -> None:
    one = canary(accounted)
    found = one.audit(2000, CONFIDENCE, normal(2, one.sigma / 2))
    assert not found.ok and not found.noise_holds
    assert accounted < 2 or not found.holds, "by the lower bound too, unless epsilon is small"


def test_the_canary_of_a_head_is_part_of_an_audit() -> None:
    """With fresh noise, of which nothing is asserted."""
    (found,) = of_results([{"audited": {"head": {}}}], None, None, [canary(4.0)]).values()
    assert found.samples == 4000 and found.epsilon_high == 4.0
