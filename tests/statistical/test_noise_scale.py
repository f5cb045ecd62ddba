"""Noise of opened statistics: the scale that was charged, and a full copy of it against whom it is promised."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from scipy import stats

from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.dealing.gaussian import discrete_gaussian
from secure_sccvfl.protocols.errors import ProtocolError, RangeError
from secure_sccvfl.protocols.operations import noise as noise_module
from secure_sccvfl.protocols.operations.noise import copies, copies_against_dealer, hidden_copies
from tests.support.chance import LEVEL, fits, fits_alone
from tests.support.discovery import MULTIPLIER, Consortium

GROUP = Consortium(
    rows=60, columns={0: {"a": 130}, 1: {"b": 120}, 2: {"c": 110}}, holders=(1, 2), counts=(2, 3), seed=1
)
SIGMA = MULTIPLIER * GROUP.sensitivity
"""Of one copy of `dealer+holder`: two together are MULTIPLIER times what a replaced record moves, sqrt(2) D."""


def sigma_of(kind: str) -> float:
    return SIGMA * np.sqrt(2 / hidden_copies(kind, 3))


def opened_noise(kind: str) -> np.ndarray:
    """Opened tables minus the true ones, of all parties: 1800 values in the order of the columns."""

    def job(session, statistics, budget):
        return GROUP.release_counts(session, statistics), statistics.deviation(GROUP.sensitivity)

    opened = GROUP.run(
        job,
        kind=SecureStatistics,
        noise=kind,
        cap=1e3,
    )
    assert all(deviation == pytest.approx(sigma_of(kind) * np.sqrt(copies(kind, 3))) for _, deviation in opened)
    rows = []
    for rank, (tables, _) in enumerate(opened):
        for name in GROUP.columns[rank]:
            rows.append(np.hstack([tables[j][name] - GROUP.table(name, j) for j in range(2)]))
    return np.vstack(rows)


class Spy:
    """Keeps what each thread draws; a session's parties and dealer are threads of their own."""

    def __init__(self) -> None:
        self.drawn: dict[int, list[np.ndarray]] = {}

    def __call__(self, sigma: float, shape: tuple[int, ...]) -> np.ndarray:
        noise = discrete_gaussian(sigma, shape)
        self.drawn.setdefault(threading.get_ident(), []).append(noise)
        return noise


@pytest.mark.chance(1e-9)
def test_the_sampler_has_the_distribution_of_its_name():
    """Chi-square at LEVEL; cells of 100 or more, so that its tail is right. A shift by one adds 20,000 * .41."""
    sigma, size = 1.7, 20_000
    drawn = discrete_gaussian(sigma, (size,))
    support = np.arange(-30, 31)
    weight = np.exp(-(support**2) / (2 * sigma**2))
    expected = size * weight / weight.sum()
    inner = expected > 100
    counts = np.array([(drawn == value).sum() for value in support])
    seen = [*counts[inner], counts[~inner].sum()]
    wanted = [*expected[inner], expected[~inner].sum()]
    assert stats.chisquare(seen, wanted).pvalue > LEVEL
    shifted = [*np.roll(counts, 1)[inner], np.roll(counts, 1)[~inner].sum()]
    assert stats.chisquare(shifted, wanted).pvalue < LEVEL, "the test sees a shift by one"


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf, 2.0**60])
def test_a_deviation_that_makes_no_sense_is_refused(sigma):
    with pytest.raises(RangeError):
        discrete_gaussian(sigma, (2,))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ProtocolError, match="unknown noise"):
        copies("none", 3)


def test_how_many_copies_are_hidden_from_whom():
    kinds = ("dealer+holder", "dealer", "all-parties")
    assert [hidden_copies(kind, 5) for kind in kinds] == [2, 1, 1]
    assert [copies_against_dealer(kind, 5) for kind in kinds] == [1, 0, 5]


@pytest.mark.chance(1e-9)  # `fits_alone`
@pytest.mark.parametrize("kind", ["dealer+holder", "dealer", "all-parties"])
def test_opened_values_carry_the_stated_noise_and_no_other_scale(kind):
    assert fits_alone(opened_noise(kind), sigma_of(kind) * np.sqrt(copies(kind, 3)))


@pytest.mark.chance(1e-9)  # five fits
def test_each_kind_leaves_a_full_copy_against_whom_it_promises(monkeypatch):
    """What is left when those who put their views together take away the noise that they know."""
    at_dealer, at_parties = Spy(), Spy()
    monkeypatch.setattr(tuples, "discrete_gaussian", at_dealer)
    monkeypatch.setattr(noise_module, "discrete_gaussian", at_parties)
    drawn = opened_noise("dealer+holder")
    (dealers,) = next(iter(at_dealer.drawn.values()))
    holders = sorted((noise[0] for noise in at_parties.drawn.values()), key=lambda noise: noise.shape[1])
    assert fits(drawn - dealers, SIGMA), "the dealer, who reads the report"
    assert fits(drawn - np.hstack(holders), SIGMA), "all parties together, who know the holders'"
    assert fits(drawn, SIGMA * np.sqrt(2)), "parties that hold no protected attribute lack both"
    assert (drawn == dealers + np.hstack(holders)).all()
    at_parties.drawn.clear()
    drawn = opened_noise("all-parties")
    noise_of_parties = [noise[0] for noise in at_parties.drawn.values()]
    assert len(noise_of_parties) == 3 and len(at_dealer.drawn) == 1
    for honest in range(3):
        left = drawn - sum(noise for rank, noise in enumerate(noise_of_parties) if rank != honest)
        assert fits(left, sigma_of("all-parties"))


@pytest.mark.chance(1e-9)  # how often .7 of the scale passes for the whole: test_chance.py
@pytest.mark.parametrize("module", [tuples, noise_module], ids=["dealer", "holder"])
def test_a_missing_copy_is_noticed(module, monkeypatch):
    monkeypatch.setattr(module, "discrete_gaussian", lambda sigma, shape: np.zeros(shape, np.int64))
    assert not fits(opened_noise("dealer+holder"), SIGMA * np.sqrt(2))


@pytest.mark.chance(1e-9)  # one fit; noise that is used again leaves a difference of zero
def test_noise_is_fresh_in_every_release():
    def job(session, statistics, budget):
        return [GROUP.release_counts(session, statistics, number) for number in range(2)]

    first, second = GROUP.run(job, kind=SecureStatistics, cap=1e3)[0]
    difference = first[1]["a"] - second[1]["a"]
    assert fits(difference, 2 * SIGMA)
