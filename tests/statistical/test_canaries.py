"""The audit covers everything that is charged, and what is wrong with any release makes it fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from accounting.accountant import epsilons
from accounting.events import Event, Sensitivity
from protocols.dealing import tuples
from secure_sccvfl.audit.bounds import audit, epsilon_of_mu
from secure_sccvfl.audit.canaries import HeadCanary, charged_kinds
from secure_sccvfl.audit.report import checks, not_audited
from secure_sccvfl.metrics.noisy import Sums
from secure_sccvfl.training.modes.options import RunOptions
from tests.statistical.test_dp_audit import DELTA, MULTIPLIER, PARTIES, audits_of, scaled

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
    found = audits_of(EVERYTHING, 20, 1 - 1e-10)
    assert found.keys() == {kind.name for kind in charged_kinds()}
    for name, one in found.items():
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
    found = audits_of(EVERYTHING, 20)
    for name in ("sketch", "risk gains", "residuals", "gram", "noisy gradient", "evaluation"):
        assert not found[name].ok and found[name].noise_ratio == pytest.approx(0.5, abs=0.15), name


def test_a_charge_for_less_than_a_record_moves_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise and charge agree with each other, and neither with the data."""
    honest = Sums.sensitivity.fget
    half = property(lambda sums: Sensitivity(honest(sums).replaced / 2, honest(sums).added / 2, honest(sums).unit))
    monkeypatch.setattr(Sums, "sensitivity", half)
    found = audits_of({"evaluation": "noisy"}, 10)["evaluation"]
    assert found.reach == pytest.approx(2.0) and found.noise_holds and not found.holds


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
    found = audit(noise[0], noise[1] + apart, MULTIPLIER, DELTA)
    assert [check["holds"] for check in checks([], {"sketch": found})] == held
    assert found.ok == all(held)


def test_the_lower_bound_is_near_the_accounted_epsilon_with_enough_releases() -> None:
    """With a tight statistic: 20,000 releases a side reach nine tenths of the tight figure. Seeded."""
    noise = np.random.default_rng(2).normal(0, MULTIPLIER, (2, 20_000))
    found = audit(noise[0], noise[1] + 1, MULTIPLIER, DELTA)
    tight = epsilons([Event("one", 1.0, MULTIPLIER, "records")], DELTA).pld
    assert 0.9 * tight < found.epsilon_low <= epsilon_of_mu(1 / MULTIPLIER, DELTA) <= found.epsilon_high
