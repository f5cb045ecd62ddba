"""All parties know who is in, so the question is what a record's s is. Changing it moves two cells of each table.

The charged epsilon covers that for whoever lacks both copies of the noise: on the secret tables themselves, and on
the exact distribution of the discrete noise. With one copy it would not, which these tests see.
"""

import math

import numpy as np
import pytest

from secure_sccvfl.accounting.accountant import epsilon_against_dealer, epsilon_of, epsilons
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.discovery.noisy_tables import release_tables
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.discovery import Consortium

CAP, DELTA, ROUNDS, FEATURES = 8.0, 1e-5, 5, 19
KINDS = pytest.mark.parametrize("kind", ["dealer+holder", "dealer", "all-parties"])


def test_a_changed_s_moves_every_table_by_the_root_of_two_and_a_changed_record_no_further():
    data = load("german")
    parties, attribute = make_parties(data), data.protected[0]
    before = release_tables(PlainStatistics(NoNoise()), parties, data.protected, "s", FEATURES)[0].tables
    moved = Sensitivity.of_counts(math.sqrt(FEATURES))
    rng = np.random.default_rng(0)
    for record in rng.integers(0, data.n, 5):
        changed = attribute.codes.copy()
        changed[record] = 1 - changed[record]
        other = release_tables(
            PlainStatistics(NoNoise()),
            parties,
            [type(attribute)("s", attribute.holder, attribute.groups, changed)],
            "s",
            19,
        )[0].tables
        each = [np.linalg.norm(before[k] - other[k]) for k in before]
        assert each == pytest.approx([math.sqrt(2)] * FEATURES)
        assert np.linalg.norm(each) == pytest.approx(moved.replaced)
        columns = [party.bins() for party in parties]
        twin = rng.integers(0, data.n)
        whole = [  # the record becomes another's, columns and all
            np.outer(b[record], np.eye(2)[attribute.codes[record]]) - np.outer(b[twin], np.eye(2)[changed[record]])
            for bins in columns
            for b in bins.values()
        ]
        assert np.linalg.norm(np.concatenate(whole)) <= moved.replaced * (1 + 1e-12)


def test_the_secret_tables_move_as_far_as_is_charged_for():
    group, other = Consortium(), Consortium()
    for codes, count in zip(other.codes, other.counts, strict=True):
        codes[7] = (codes[7] + 1) % count
    tables = []
    for one in (group, other):
        releases = one.run(lambda session, statistics, budget, one=one: one.release_counts(session, statistics))
        tables.append(np.concatenate([t.ravel() for party in releases for part in party for t in part.values()]))
    (event, *_) = group.run(
        lambda session, statistics, budget: (group.release_counts(session, statistics), budget.events[0])[1],
        kind=SecureStatistics,
    )
    assert np.linalg.norm(tables[0] - tables[1]) == pytest.approx(event.sensitivity)
    assert event.sensitivity == pytest.approx(math.sqrt(2) * group.sensitivity) and event.copies == 2


def masses(sigma: float, copies: int, reach: int = 120) -> np.ndarray:
    """Chances of -reach..reach under the sum of this many discrete Gaussians."""
    support = np.arange(-reach, reach + 1)
    one = np.exp(-(support**2) / (2 * sigma**2))
    density = one = one / one.sum()
    for _ in range(copies - 1):
        density = np.convolve(density, one, "same")
    return density / density.sum()


def exact_delta(noise: np.ndarray, cells: int, epsilon: float, upwards: bool) -> float:
    """Delta at epsilon when this many cells move by one, by the distribution of the privacy loss on a fine grid."""
    step, size = 2e-4, 1 << 22
    here, there = noise[:-1], noise[1:]
    positive = (here > 1e-250) & (there > 1e-250)
    loss = np.log(here[positive] / there[positive]) / step
    rounded = (np.ceil(loss) if upwards else np.floor(loss)).astype(int)
    pmf = np.bincount(rounded % size, weights=here[positive], minlength=size)
    total = np.fft.irfft(np.fft.rfft(pmf) ** cells, size)
    indices = np.arange(size)
    losses = np.where(indices < size // 2, indices, indices - size) * step
    beyond = losses > epsilon
    return float((np.maximum(total[beyond], 0) * -np.expm1(epsilon - losses[beyond])).sum())


def test_the_real_noise_keeps_a_changed_s_within_the_cap_and_one_copy_would_not():
    """Five sketches of German: 5 x 19 tables, two cells of each. No sampling: exact but for the grid."""
    multiplier = noise_multiplier(CAP, DELTA, ROUNDS)
    level = NoiseLevel(multiplier, "dealer+holder", 3)
    event = noised_event("sketch", Sensitivity.of_counts(math.sqrt(FEATURES)), level, "records")
    assert event.sigma == pytest.approx(multiplier * math.sqrt(FEATURES)), "a copy is as large as it ever was"
    cells = 2 * FEATURES * ROUNDS
    assert exact_delta(masses(event.sigma, 2), cells, CAP, upwards=True) <= DELTA
    assert exact_delta(masses(event.sigma, 1), cells, CAP, upwards=False) > 10 * DELTA
    tight = epsilons([event] * ROUNDS, DELTA).pld
    assert exact_delta(masses(event.sigma, 2), cells, tight - 0.1, upwards=False) > DELTA, "the figure is no fiction"


@KINDS
def test_the_cap_holds_for_a_replaced_record_with_every_kind_of_noise(kind: NoiseKind):
    level = RunOptions.of_flat(noise=kind, refreshes=ROUNDS - 1, late_refreshes=0).simulated_budget(3).level
    event = noised_event("s", Sensitivity.of_counts(math.sqrt(FEATURES)), level, "records")
    events = [event] * ROUNDS
    assert 7.999 < epsilon_of(events, DELTA) <= CAP
    left = {
        "dealer+holder": pytest.approx(12.18, abs=0.01),
        "dealer": math.inf,
        "all-parties": pytest.approx(4.2, abs=0.1),
    }
    assert epsilon_against_dealer(events, DELTA) == left[kind]


@KINDS
def test_plaintext_statistics_add_as_much_noise_as_the_secret_ones(kind: NoiseKind):
    group, settings = Consortium(), {}

    def job(session, statistics, budget):
        settings["multiplier"] = statistics._charger.multiplier
        return statistics.deviation(group.sensitivity)

    (secret, *_) = group.run(job, noise=kind)

    class Fixed(SpendingPlan):
        @property
        def multiplier(self) -> float:
            return settings["multiplier"]

    plain = PlainStatistics(GaussianNoise(Fixed(noise=kind, parties=3), 0))
    assert plain.deviation(group.sensitivity) == pytest.approx(secret)


def test_noise_too_small_for_its_grid_counts_one_copy():
    """Two discrete copies below two steps are not one of the root of two times the deviation."""
    small, large = (
        noised_event("s", Sensitivity.of_counts(1.0), NoiseLevel(multiplier, "dealer+holder", 3), "r")
        for multiplier in (1.9, 2.1)
    )
    assert (small.copies, small.dealer_copies) == (1, 1) and small.sigma == pytest.approx(1.9 * math.sqrt(2))
    assert (large.copies, large.dealer_copies) == (2, 1) and large.sigma == pytest.approx(2.1)
    for event, multiplier in ((small, 1.9), (large, 2.1)):
        assert event.multiplier == pytest.approx(multiplier)
