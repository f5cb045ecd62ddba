"""The audit of a release's epsilon: sound noise passes, noise at half its scale or none at all is caught.

Sketches, clipped sketches and risk gains of German Credit's training records with s of one of them kept and changed,
through the real protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from accounting.accountant import Epsilons, epsilons
from accounting.events import Event
from protocols.dealing import tuples
from protocols.dealing.gaussian import discrete_gaussian
from secure_sccvfl.audit.bounds import (
    CONFIDENCE,
    MIDDLE,
    Audit,
    _any_low,
    _far_place,
    _mu_low,
    _rates,
    audit,
    epsilon_of_mu,
)
from secure_sccvfl.audit.canaries import canaries_of, charged_kinds
from secure_sccvfl.audit.dp_audit import CanaryAudit, of_results
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.training.modes.base import noise_multiplier_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.harness import local_config, run_session

PARTIES, RELEASES = 3, 300
MULTIPLIER, DELTA = 1.4258, 1e-5


PUBLIC = {"private_model": False}
"""Without a private head statistics have the whole budget and less noise, so fewer releases tell whether it is there.
MULTIPLIER is theirs."""
GAINS, CLIPPED = {**PUBLIC, "gain": True}, {**PUBLIC, "sketch": "clipped"}
BESIDE_A_HEAD = noise_multiplier_of(RunOptions.of({}), RunOptions.of({}).schema(3))
"""The multiplier of a run whose head is private."""


def session_of(settings: dict[str, Any], releases: int) -> list[dict[str, Any]]:
    config, listeners = local_config(PARTIES, options={**settings, "releases": releases})
    for listener in listeners:
        listener.close()
    jobs = [CanaryAudit(config, rank) for rank in range(PARTIES)]
    return run_session(
        lambda session: jobs[session.rank].run(session, lambda *step: None),
        PARTIES,
        jobs[0].plan(),
        deadline=60.0,
    )


def judged(
    results: list[dict[str, Any]], settings: dict[str, Any], confidence: float = CONFIDENCE
) -> dict[str, Audit]:
    data = pooled("german", PARTIES)
    options = RunOptions.of({k: v for k, v in settings.items() if k != "everything"})
    schema = options.schema(PARTIES)
    kinds = charged_kinds() if settings.get("everything") else charged_kinds(options, schema)
    canaries = canaries_of(kinds, options, schema)
    return of_results(results, data, make_split(data, "iid", 0), canaries, confidence)


def audited(releases: int = RELEASES) -> tuple[Audit, list[dict[str, Any]]]:
    """The audit of the sketch of a run with the usual settings but for its head."""
    results = session_of(PUBLIC, releases)
    return judged(results, PUBLIC)["sketch"], results


def scaled(factor: float) -> Callable[[float, tuple[int, ...]], np.ndarray]:
    def draw(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
        return discrete_gaussian(sigma * factor, shape) if factor else np.zeros(shape, np.int64)

    return draw


@pytest.mark.chance(1e-9)
def test_the_lower_bound_stays_below_the_accountant() -> None:
    """At a confidence that no suite will see exceeded; at the usual one a signal is found (8e-11 that it is not)."""
    found, results = audited()
    assert found.samples == 2 * RELEASES, "one of each data set"
    assert found.epsilon_low > 0
    sure = judged(results, PUBLIC, 1 - 9e-10)["sketch"]
    assert sure.holds and sure.epsilon_low <= sure.epsilon_high_tight <= sure.epsilon_high
    cells = np.array(results[0]["audited"]["sketch"]["cells"]["kept"])
    assert len(np.unique(cells[:, 0])) > RELEASES / 40, "every release has noise of its own"


@pytest.mark.chance(1e-9)
@pytest.mark.parametrize(
    ("factor", "releases"), [pytest.param(0.5, 400, marks=pytest.mark.slow), (0.0, 30)], ids=["half", "none"]
)
def test_too_little_noise_is_caught(factor: float, releases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the noise is missed with probability 2e-10, none never: binomials, all counts."""
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(factor))
    found, _ = audited(releases)
    assert not found.holds
    assert found.epsilon_low > found.epsilon_high


def test_the_canary_moves_what_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the statistic is exactly 0 or 1, and as far apart in cells as the claim says."""
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(0.0))
    found, results = audited(2)
    assert (found.false_positives, found.true_positives) == (0.0, 1.0)
    seen = [r["audited"]["sketch"]["cells"] for r in results]
    kept, changed = (np.sum([np.array(cells[w][0]) for cells in seen], axis=0) for w in ("kept", "changed"))
    features = len(pooled("german", PARTIES).features)
    assert sorted(changed - kept) == [-features, features], "two cells of each table, one record of either sign"
    alone = noise_multiplier_of(RunOptions.of(PUBLIC), RunOptions.of(PUBLIC).schema(3))
    assert found.mu_claimed == pytest.approx(1 / alone, rel=1e-3)
    assert found.reach == pytest.approx(1.0)
    beside = judged(session_of({}, 2), {})["sketch"]
    assert beside.mu_claimed == pytest.approx(1 / BESIDE_A_HEAD, rel=1e-3) and beside.reach == pytest.approx(1.0)


@pytest.mark.chance(1e-9)
def test_a_run_with_clipped_sketches_and_gains_has_both_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing noise is caught in both, by counts alone. The canary of gains moves all that is charged."""
    settings = {**GAINS, **CLIPPED}
    sound = judged(session_of(settings, 20), settings, 1 - 4e-10)
    assert list(sound) == ["clipped sketch", "risk gains"] and all(found.holds for found in sound.values())
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(0.0))
    none = judged(session_of(settings, 20), settings)
    for found in none.values():
        assert (found.false_positives, found.true_positives) == (0.0, 1.0) and not found.holds
    assert none["risk gains"].reach == pytest.approx(1.0)
    assert 0.1 < none["clipped sketch"].reach < 0.5, "scaled tables are at least twice as long as what they become"


@pytest.mark.slow
@pytest.mark.chance(1e-9)
def test_half_the_noise_of_gains_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missed with probability 1.6e-12: binomials of 1000 releases, mu of 1.28 beside the claimed .64."""
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(0.5))
    assert not judged(session_of(GAINS, 1000), GAINS)["risk gains"].holds


def caught(releases: int, multiplier: float) -> bool:
    """Whether perfect counts exceed the claim, in closed form: all right means rates of (error / 4)^(1/n)."""
    quarter = 0.05 / 4
    low = quarter ** (1 / releases)
    best = max(epsilon_of_mu(2 * stats.norm.ppf(low), DELTA), np.log((low - DELTA) / (1 - low)))
    return bool(best > claimed(multiplier).renyi)


@lru_cache
def claimed(multiplier: float) -> Epsilons:
    return epsilons([Event("one", 1.0, multiplier, "records")], DELTA)


@pytest.mark.parametrize("multiplier", [0.5, MULTIPLIER / 2**0.5, 20.0])
def test_no_noise_is_caught_at_every_number_of_releases_that_allows_it(multiplier: float) -> None:
    """1 to 500 releases; once there are enough, more never hide it."""
    seen = [not audit(np.zeros(n), np.ones(n), multiplier, DELTA).holds for n in range(1, 501)]
    assert seen == [caught(n, multiplier) for n in range(1, 501)]
    assert seen == sorted(seen) and seen[-1]
    assert seen.index(True) + 1 <= (15 if multiplier >= 1 else 500)


@pytest.mark.parametrize("multiplier", [0.5, MULTIPLIER / 2**0.5, 4.0])
def test_the_right_noise_is_accused_at_most_as_often_as_stated(multiplier: float) -> None:
    """Exact, no sampling: over all counts that binomials can give, at both thresholds, for 1 to 500 releases."""
    high = claimed(multiplier).renyi
    limit = optimize.brentq(lambda mu: epsilon_of_mu(mu, DELTA) - high, 1e-3, 50)
    error = 0.05 / 2
    for n in (*range(1, 40), *range(40, 501, 20)):
        total = 0.0
        for place in (MIDDLE, _far_place(multiplier, DELTA, (n, n), error)):
            counts = np.arange(n + 1)
            most, least = _rates(counts, counts, n, n, error)
            wrong = _any_low(most[:, None], least[None, :], DELTA) > high
            if place == MIDDLE:
                wrong |= _mu_low(most[:, None], least[None, :]) > limit
            chances = [stats.binom.pmf(counts, n, stats.norm.sf(place - at, scale=multiplier)) for at in (0, 1)]
            total += float(chances[0] @ wrong @ chances[1])
        assert total <= 0.05, n


@pytest.mark.slow
@pytest.mark.chance(1e-9)
def test_two_thirds_of_the_noise_are_caught_with_more_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(2 / 3))
    assert not audited(2000)[0].holds


def test_the_bound_is_right_at_its_confidence() -> None:
    """On simulated releases of known mu (seeded) it is exceeded about as rarely as said, and is near it."""
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
