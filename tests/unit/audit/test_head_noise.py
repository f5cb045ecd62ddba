"""Noise of private heads, recomputed from heads and records; the canary of a head. Seeded, with a small trainer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from secure_sccvfl.audit.bounds import CONFIDENCE, Loss, Records, capped, head_noise, log_cosh, scale_test, train
from secure_sccvfl.audit.canaries import HeadCanary

HEADS, COLUMNS, SIGMA, RIDGE = 40, 61, 4.0, 6.0
LOGISTIC = capped(1.0)


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


@pytest.mark.parametrize("loss", LOSSES)
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
    heads = train(given.records, given.penalty, RIDGE, noise, LOGISTIC)
    rows, labels = given.records.rows, given.records.labels
    for head, contribution in zip(heads, noise, strict=True):
        weights = np.zeros(4)
        for _ in range(5000):
            slope = (1 / (1 + np.exp(-rows @ weights)) - labels) @ rows
            weights = weights - 0.005 * (slope + given.penalty @ weights + RIDGE * weights + contribution)
        assert head == pytest.approx(weights, abs=1e-6)


def test_a_test_of_noise_refuses_right_noise_as_often_as_said_and_needs_noise() -> None:
    noises = np.random.default_rng(3).normal(0, SIGMA, (2000, 48))
    refused = sum(not scale_test(one, SIGMA, 0.05).holds for one in noises)
    assert 65 < refused < 135, "100 of 2000, give or take 3.6 deviations"
    for factor in (0.0, 0.5, 0.9, 2.0):
        assert not scale_test(factor * recomputed(drawn()), SIGMA).holds
    for values, deviation in ((np.zeros(0), 1.0), (np.ones(3), 0.0)):
        with pytest.raises(ValueError, match="needs values and a deviation above 0"):
            scale_test(values, deviation)
    for loss in (lambda: capped(0.5), lambda: log_cosh(0.0)):
        with pytest.raises(ValueError, match="cap of a slope"):
            loss()


KAPPA = 2.0
SIGMAS = {1.0: 10.5, 4.0: 2.18}
"""sigma / R by the epsilon of one head at delta 1e-5, where R^2 is KAPPA times the ridge, for slopes up to 1."""


def canary(accounted: float, loss: Loss = LOGISTIC, radius: float = 3.0) -> HeadCanary:
    sigma = SIGMAS[accounted] * radius * loss.cap
    return HeadCanary(sigma, radius, radius**2 / KAPPA, 1e-5, accounted, loss)


def normal(seed: int, sigma: float):
    rng = np.random.default_rng(seed)
    return lambda shape: rng.normal(0.0, sigma, shape)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("accounted", SIGMAS)
def test_the_canary_of_a_head_stays_below_its_epsilon_and_comes_near(accounted: float, loss: Loss) -> None:
    one = canary(accounted, loss)
    report = one.audit(10_000, CONFIDENCE, normal(0, one.sigma))
    assert report.ok and report.epsilon_high == accounted
    assert report.reach == pytest.approx(1.0, abs=2e-3) and report.reach < 1
    assert report.epsilon_low > (0.85 if accounted > 2 else 0.4) * accounted


def test_both_records_are_misclassified_by_every_head() -> None:
    """Otherwise the canary would move the gradient by half of what is charged."""
    one = canary(4.0)
    for records in one.pair():
        heads = train(records, np.zeros((2, 2)), one.ridge, normal(1, one.sigma)((2000, 2)), LOGISTIC)
        for other in one.pair():
            assert (heads @ other.rows[0]).max() < -10
        assert np.linalg.norm(records.rows[0]) == pytest.approx(one.radius)
        assert np.linalg.norm(records.rows[1]) < 1e-2 * one.radius


@pytest.mark.parametrize("accounted", SIGMAS)
def test_half_the_noise_of_a_head_is_caught(accounted: float) -> None:
    one = canary(accounted)
    report = one.audit(2000, CONFIDENCE, normal(2, one.sigma / 2))
    assert not report.ok and not report.noise_holds
    assert accounted < 2 or not report.holds, "by the lower bound too, unless epsilon is small"
