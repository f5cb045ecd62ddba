"""How often the whole suite fails although the code is right, from the rates that its tests state."""

from __future__ import annotations

import contextlib
import io
import itertools
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.randomness import KeyAgreement, fresh_key
from secure_sccvfl.protocols.session.runtime import Session
from tests.support import chance
from tests.support.randomness import REAL, drawn_from
from tests.support.sessions import results, run_session

ROOT = Path(__file__).resolve().parents[2]
MOST, MOST_OF_ONE = 1e-6, 1e-9


class Rates:
    """Collects the stated rate of every test, once for each of its parameters."""

    def __init__(self) -> None:
        self.stated: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("chance"):
                (self.stated[item.nodeid],) = marker.args


def test_the_stated_rates_add_up_to_less_than_one_in_a_million() -> None:
    rates = Rates()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        options = ["--collect-only", "-q", "-o", "addopts=--strict-markers", "-p", "no:cacheprovider"]
        code = pytest.main([*options, str(ROOT / "tests")], plugins=[rates])
    assert code == 0, output.getvalue()[-2000:]
    assert len(rates.stated) > 30, "the markers were found"
    assert all(0 < rate <= MOST_OF_ONE for rate in rates.stated.values()), rates.stated
    assert sum(rates.stated.values()) < MOST


def test_noise_of_another_scale_does_not_pass() -> None:
    """The power of `fits`, from the chi-square distribution: for noise alone, and for one copy of two that is off."""
    assert chance.passing(chance.ENOUGH, 2 / 3) + chance.passing(chance.ENOUGH, 3 / 2) < 1e-10
    assert chance.passing(1800, np.sqrt(1 / 2)) < 1e-10, "a missing copy"
    assert chance.passing(1800, 0.5) < 1e-100, "half the sensitivity"
    for ratio in (1 / 2, 2 / 3, 3 / 2, 2):
        drawn = np.random.default_rng(0).normal(0, ratio, chance.ENOUGH)
        assert not chance.fits(drawn, 1.0) and chance.fits_alone(drawn, ratio)
    assert not chance.fits(np.random.default_rng(0).normal(0.5, 1.0, chance.ENOUGH), 1.0), "drift"


def test_the_level_of_a_fit_is_the_stated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level that can be counted, of 4,000 right samples about as many are refused."""
    monkeypatch.setattr(chance, "LEVEL", 0.05)
    drawn = np.random.default_rng(1).normal(0, 3.0, (4_000, 60))
    refused = sum(not chance.fits(sample, 3.0) for sample in drawn)
    assert 0.085 < refused / 4_000 < 0.11, "two checks of .05 each, nearly independent"


def test_a_trial_is_repeated_only_while_it_finds_something() -> None:
    for outcomes in itertools.product([True, False], repeat=3):
        asked = iter(outcomes)
        assert chance.confirmed(lambda asked=asked: next(asked), 3) == all(outcomes)


def drawn() -> list[tuple[bytes, bytes]]:
    """What a session of this test draws: a share and a key of every party."""

    def job(session: Session) -> tuple[bytes, bytes]:
        shared = session.share(np.zeros(4), owner=0, shape=(4,))
        session.open(shared * shared, results(2)[1])
        return shared.share.numpy().tobytes(), fresh_key()

    return run_session(job, 2)


def test_randomness_is_fixed_by_a_name_and_without_the_marker() -> None:
    draws = []
    for name in ("one", "one", "another"):
        with drawn_from(name):
            draws.append(drawn())
    assert draws[0] == draws[1] != draws[2]
    assert KeyAgreement.agree is not REAL[1][2]


@pytest.mark.chance(1e-12)
def test_with_the_marker_it_is_fresh() -> None:
    """Keys of 256 bits are never equal by chance."""
    assert all(getattr(owner, name) is value for owner, name, value in REAL)
    assert drawn() != drawn()
