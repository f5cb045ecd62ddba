"""The audit of a sketch's epsilon: sound noise passes, noise at half its scale or none at all is caught.

Sketches of German Credit's training records with and without a canary, through the real protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from accounting.accountant import epsilons
from accounting.events import Event
from protocols import tuples
from protocols.gaussian import discrete_gaussian
from secure_sccvfl.party_data import pooled
from secure_sccvfl.security.dp_audit import Audit, CanaryAudit, audit, epsilon_of_mu, of_results
from secure_sccvfl.splits import make_split
from tests.harness import local_config, run_session

PARTIES, RELEASES = 3, 60
MULTIPLIER, DELTA = 1.4258, 1e-5


def audited(releases: int = RELEASES) -> tuple[Audit, list[dict[str, Any]]]:
    config, listeners = local_config(PARTIES, options={"releases": releases})
    for listener in listeners:
        listener.close()
    jobs = [CanaryAudit(config, rank) for rank in range(PARTIES)]
    results = run_session(
        lambda session: jobs[session.rank].run(session, lambda *step: None),
        PARTIES,
        jobs[0].plan(),
        deadline=60.0,
    )
    data = pooled("german", PARTIES)
    return of_results(results, data, make_split(data, "iid", 0)), results


def scaled(factor: float) -> Callable[[float, tuple[int, ...]], np.ndarray]:
    def draw(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
        return discrete_gaussian(sigma * factor, shape) if factor else np.zeros(shape, np.int64)

    return draw


def test_the_lower_bound_stays_below_the_accountant() -> None:
    found, results = audited()
    assert found.holds
    assert found.samples == 4 * RELEASES, "with and without, one canary in each of two groups"
    assert 0 < found.epsilon_low <= found.epsilon_high_tight <= found.epsilon_high
    cells = np.array(results[0]["cells"]["without"])
    assert len(np.unique(cells[:, 0])) > RELEASES / 4, "every release has noise of its own"


@pytest.mark.parametrize("factor", [0.5, 0.0], ids=["half", "none"])
def test_too_little_noise_is_caught(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(factor))
    found, _ = audited(400)
    assert not found.holds
    assert found.epsilon_low > found.epsilon_high


@pytest.mark.slow
def test_two_thirds_of_the_noise_are_caught_with_more_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(2 / 3))
    assert not audited(1000)[0].holds


def test_the_bound_is_right_at_its_confidence() -> None:
    """On simulated releases of known mu it is exceeded about as rarely as said, and near where it should be."""
    rng, bounds = np.random.default_rng(0), []
    for _ in range(200):
        found = audit(rng.normal(0, MULTIPLIER, 500), rng.normal(1, MULTIPLIER, 500), MULTIPLIER, DELTA)
        bounds.append(found.mu_low)
    wrong = sum(mu > 1 / MULTIPLIER for mu in bounds)
    assert wrong <= 10, "at most 5 %; less, since it needs both rates to be unlucky"
    assert np.mean(bounds) > 0.6 / MULTIPLIER


def test_a_mechanism_that_is_not_gaussian_is_bounded_too() -> None:
    """Zero or one, told right: both bounds are beyond any small epsilon."""
    found = audit(np.zeros(2000), np.ones(2000), MULTIPLIER, DELTA)
    assert found.epsilon_low_any > 5 and not found.holds


def test_epsilon_of_mu_is_the_accountants_tight_figure() -> None:
    for multiplier in (0.5, 1.4258, 4.0):
        tight = epsilons([Event("one", 1.0, multiplier, "records")], DELTA).pld
        assert epsilon_of_mu(1 / multiplier, DELTA) == pytest.approx(tight, rel=2e-3)
    assert epsilon_of_mu(0.0, DELTA) == 0.0 == epsilon_of_mu(1e-7, DELTA)
    mu, epsilon = 0.7, epsilon_of_mu(0.7, 1e-3)
    left = stats.norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    assert left == pytest.approx(1e-3)
