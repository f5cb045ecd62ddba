"""The audit of a release's epsilon: sound noise passes, noise at half its scale or none at all is caught.

It covers everything that is charged, through the real protocol, and what is wrong with any release makes it fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from secure_sccvfl.accounting.accountant import Epsilons, epsilons
from secure_sccvfl.accounting.events import Event, Sensitivity
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
from secure_sccvfl.audit.canaries import CanaryAudit, HeadCanary, canaries_of, charged_kinds, of_results
from secure_sccvfl.audit.report import checks, not_audited
from secure_sccvfl.metrics.noisy import Sums
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.dealing.gaussian import discrete_gaussian
from secure_sccvfl.training.modes.base import noise_multiplier_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.sessions import local_config, run_session

PARTIES, RELEASES = 3, 300
MULTIPLIER, DELTA = 1.4258, 1e-5


PUBLIC = {"private_model": False}
"""Without a private head statistics have the whole budget and less noise, so fewer releases tell whether it is there.
MULTIPLIER is theirs."""
BESIDE_A_HEAD = noise_multiplier_of(RunOptions.of({}), RunOptions.of({}).schema(3))
"""The multiplier of a run whose head is private."""


def audits_of(settings: dict[str, Any], releases: int, confidence: float = CONFIDENCE) -> dict[str, Audit]:
    """The audits of a session with these settings, by name."""
    results, canaries = session_of(settings, releases)
    return of_results(results, canaries, confidence)


def session_of(settings: dict[str, Any], releases: int) -> tuple[list[dict[str, Any]], Any]:
    config, listeners = local_config(PARTIES, options={**settings, "releases": releases})
    for listener in listeners:
        listener.close()
    jobs = [CanaryAudit(config, rank) for rank in range(PARTIES)]
    results = run_session(
        lambda session: jobs[session.rank].run(session, lambda *step: None), PARTIES, jobs[0].plan(), deadline=60.0
    )
    options = RunOptions.of({k: v for k, v in settings.items() if k != "everything"})
    schema = options.schema(PARTIES)
    kinds = charged_kinds() if settings.get("everything") else charged_kinds(options, schema)
    return results, canaries_of(kinds, options, schema)


def scaled(factor: float) -> Callable[[float, tuple[int, ...]], np.ndarray]:
    def draw(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
        return discrete_gaussian(sigma * factor, shape) if factor else np.zeros(shape, np.int64)

    return draw


@pytest.mark.chance(1e-9)
def test_the_lower_bound_stays_below_the_accountant() -> None:
    """At a confidence that no suite will see exceeded; at the usual one a signal is found (8e-11 that it is not)."""
    results, canaries = session_of(PUBLIC, RELEASES)
    result = of_results(results, canaries)["sketch"]
    assert result.samples == 2 * RELEASES, "one of each data set"
    assert result.epsilon_low > 0
    sure = of_results(results, canaries, 1 - 9e-10)["sketch"]
    assert sure.holds and sure.epsilon_low <= sure.epsilon_high_tight <= sure.epsilon_high
    values = np.array(results[0]["audited"]["sketch"]["values"]["kept"])
    assert len(np.unique(values[:, 0])) > RELEASES / 40, "every release has noise of its own"


@pytest.mark.chance(1e-9)
@pytest.mark.slow
@pytest.mark.parametrize(("factor", "releases"), [(0.5, 400), (2 / 3, 2000)], ids=["half", "two thirds"])
def test_too_little_noise_is_caught(factor: float, releases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lower bound. Half the noise is missed with probability 2e-10: binomials, all counts."""
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(factor))
    result = audits_of(PUBLIC, releases)["sketch"]
    assert not result.holds and result.epsilon_low > result.epsilon_high


def test_the_canary_moves_what_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the statistic is exactly 0 or 1, and as far apart in cells as the claim says."""
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(0.0))
    results, canaries = session_of(PUBLIC, 2)
    sketch_audit = of_results(results, canaries)["sketch"]
    assert (sketch_audit.false_positives, sketch_audit.true_positives) == (0.0, 1.0)
    seen = [result["audited"]["sketch"]["values"] for result in results]
    kept, changed = (np.concatenate([values[world][0] for values in seen]) for world in ("kept", "changed"))
    features = PARTIES * canaries[0].each
    assert sorted(np.flatnonzero(changed - kept)) and np.abs(changed - kept).sum() == 2 * features
    alone = noise_multiplier_of(RunOptions.of(PUBLIC), RunOptions.of(PUBLIC).schema(3))
    assert sketch_audit.mu_claimed == pytest.approx(1 / alone, rel=1e-3) and sketch_audit.reach == pytest.approx(1.0)
    beside = audits_of({}, 2)["sketch"]
    assert beside.mu_claimed == pytest.approx(1 / BESIDE_A_HEAD, rel=1e-3) and beside.reach == pytest.approx(1.0)


@pytest.mark.chance(1e-9)
def test_a_run_with_clipped_sketches_and_gains_has_both_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing noise is caught in both, by counts alone. The canary of gains moves all that is charged."""
    settings = {**PUBLIC, "gain": True, "sketch": "clipped"}
    sound = audits_of(settings, 20, 1 - 4e-10)
    assert list(sound) == ["clipped sketch", "risk gains"] and all(result.holds for result in sound.values())
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(0.0))
    none = audits_of(settings, 20)
    for result in none.values():
        assert (result.false_positives, result.true_positives) == (0.0, 1.0) and not result.holds
    assert none["risk gains"].reach == pytest.approx(1.0)
    assert 0.1 < none["clipped sketch"].reach < 0.5, "scaled tables are at least twice as long as what they become"


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
        for threshold in (MIDDLE, _far_place(multiplier, DELTA, (n, n), error)):
            counts = np.arange(n + 1)
            most, least = _rates(counts, counts, n, n, error)
            wrong = _any_low(most[:, None], least[None, :], DELTA) > high
            if threshold == MIDDLE:
                wrong |= _mu_low(most[:, None], least[None, :]) > limit
            chances = [stats.binom.pmf(counts, n, stats.norm.sf(threshold - at, scale=multiplier)) for at in (0, 1)]
            total += float(chances[0] @ wrong @ chances[1])
        assert total <= 0.05, n


def test_the_bound_is_right_at_its_confidence() -> None:
    """On simulated releases of known mu (seeded) it is exceeded about as rarely as said, and is near it."""
    rng, bounds = np.random.default_rng(0), []
    for _ in range(200):
        result = audit(rng.normal(0, MULTIPLIER, 500), rng.normal(1, MULTIPLIER, 500), MULTIPLIER, DELTA)
        bounds.append(result.mu_low)
    wrong = sum(mu > 1 / MULTIPLIER for mu in bounds)
    assert wrong <= 10, "at most 5 %; less, since it needs both rates to be unlucky"
    assert np.mean(bounds) > 0.6 / MULTIPLIER


def test_epsilon_of_mu_is_the_accountants_tight_figure() -> None:
    for multiplier in (0.5, 1.4258, 4.0):
        tight = epsilons([Event("one", 1.0, multiplier, "records")], DELTA).pld
        assert epsilon_of_mu(1 / multiplier, DELTA) == pytest.approx(tight, rel=2e-3)
    assert epsilon_of_mu(0.0, DELTA) == 0.0 == epsilon_of_mu(1e-7, DELTA)
    mu, epsilon = 0.7, epsilon_of_mu(0.7, 1e-3)
    left = stats.norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    assert left == pytest.approx(1e-3)


EVERYTHING: dict[str, Any] = {"everything": True}
REACH = {"residuals": 0.593, "noisy gradient": 0.999}
"""What canaries move of the charged sensitivity, where it is not all of it."""


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["sketch", "head", "head output"]),
        ({"private_model": False}, ["sketch"]),
        ({"consistency_from": "records"}, ["sketch", "gram", "head", "head output"]),
        ({"private_model": False, "consistency_from": "records"}, ["sketch"]),
        ({"gain": True, "conditional": True}, ["sketch", "residuals", "risk gains", "head", "head output"]),
        ({"mode": "dp", "evaluation": "noisy"}, ["sketch", "head", "head output", "evaluation", "noisy gradient"]),
        ({"mode": "split"}, ["sketch"]),
    ],
)
def test_what_a_run_is_charged_for_is_what_is_audited(settings: dict[str, Any], names: list[str]) -> None:
    options = RunOptions.of(settings)
    assert [kind.name for kind in charged_kinds(options, options.schema(PARTIES))] == names


@pytest.mark.chance(1e-9)  # ten kinds: lower bounds at 1e-10 each, noise tests at 1e-12 each
def test_all_charged_kinds_stay_below_the_accountant() -> None:
    audits = audits_of(EVERYTHING, 20, 1 - 1e-10)
    assert audits.keys() == {kind.name for kind in charged_kinds()}
    for name, one in audits.items():
        assert one.holds, name
        assert one.reach == pytest.approx(REACH.get(name, 1.0), abs=2e-3), name
        assert one.noise_p > 1e-12, name


def test_missing_noise_is_caught_in_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(0.0))
    monkeypatch.setattr(HeadCanary, "_drawn", lambda canary, shape: np.zeros(shape))
    for name, one in audits_of(EVERYTHING, 20).items():
        assert not one.holds and not one.noise_holds, name
        assert (one.false_positives, one.true_positives) == (0.0, 1.0), name


@pytest.mark.chance(1e-9)  # half the noise of 360 values or more passes less often than 1e-12
def test_half_the_noise_is_caught_by_twenty_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower bounds of so few releases would not show it: recomputed noise does."""
    monkeypatch.setattr(tuples, "discrete_gaussian", scaled(0.5))
    audits = audits_of(EVERYTHING, 20)
    for name in ("sketch", "risk gains", "residuals", "gram", "noisy gradient", "evaluation"):
        assert not audits[name].ok and audits[name].noise_ratio == pytest.approx(0.5, abs=0.15), name


def test_a_charge_for_less_than_a_record_moves_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise and charge agree with each other, and neither with the data."""
    honest = Sums.sensitivity.fget
    half = property(lambda sums: Sensitivity(honest(sums).replaced / 2, honest(sums).added / 2, honest(sums).unit))
    monkeypatch.setattr(Sums, "sensitivity", half)
    result = audits_of({"evaluation": "noisy"}, 10)["evaluation"]
    assert result.reach == pytest.approx(2.0) and result.noise_holds and not result.holds


def test_a_charged_release_that_was_not_audited_is_a_broken_promise() -> None:
    options = RunOptions.of({"evaluation": "noisy"})
    run: Any = SimpleNamespace(options=options, parties=range(PARTIES))
    noise = np.random.default_rng(0).normal(0, MULTIPLIER, (2, 400))
    sound = audit(noise[0], noise[1] + 1, MULTIPLIER, DELTA)
    audited = dict.fromkeys(("sketch", "head", "head output"), sound)
    assert not_audited(run, audited) == ["evaluation"]
    assert not_audited(run, {**audited, "evaluation": sound}) == []
    assert all(check["holds"] for check in checks([], {"sketch": sound}))
    (*_, missing) = checks([], {"sketch": sound}, ["evaluation"])
    assert (missing["kind"], missing["holds"]) == ("promise", False) and "evaluation" in missing["check"]


@pytest.mark.parametrize(
    ("scale", "apart", "held"), [(1.0, 1.0, [True, True]), (0.6, 1.0, [True, False]), (1.0, 6.0, [False, False])]
)
def test_a_bound_above_the_accountant_and_wrong_noise_are_two_broken_promises(
    scale: float, apart: float, held: list[bool]
) -> None:
    """Noise of .6 of its scale passes the lower bounds of 60 releases, and is caught. Seeded."""
    noise = np.random.default_rng(1).normal(0, MULTIPLIER * scale, (2, 60))
    result = audit(noise[0], noise[1] + apart, MULTIPLIER, DELTA)
    assert [check["holds"] for check in checks([], {"sketch": result})] == held
    assert result.ok == all(held)
