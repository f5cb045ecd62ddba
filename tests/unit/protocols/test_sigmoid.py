"""The sigmoid on 32-bit shares: its error, its price, and what happens without the parts that make it right."""

import numpy as np
import pytest
from scipy.special import expit

from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.dealing.tuples import Request, recipe, sines_and_cosines
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.operations.sigmoid import BOUND, SIGMOID_BITS, sigmoid
from secure_sccvfl.protocols.records.releases import ReleasePlan
from tests.support.sessions import run_session

BITS = 40
X = np.linspace(-BOUND, BOUND, 20_001)
ERROR = 1.2e-3
"""2.7e-4 of the series; the rest is rounding with a deviation of 1e-4, and nine of these are allowed."""


def sigmoid_values(parties, x=X):
    """Values of the sigmoid, and the rounds and bytes of each party."""
    words = np.rint(x * 2**BITS).astype(np.int64)

    def job(session):
        shares = session.party.zero_share(words.shape)
        if session.rank == 0:
            shares += words
        before = session.total_cost.rounds
        output = sigmoid(session.party, shares, BITS)
        return output, session.total_cost.rounds - before

    results = run_session(job, parties, ReleasePlan(()))
    return sum(output for output, _ in results) / 2.0**SIGMOID_BITS, results[0][1]


@pytest.mark.chance(1e-12)
@pytest.mark.parametrize("parties", [2, 3, 5])
def test_the_error_is_small_within_the_bound_in_two_rounds(parties):
    values, rounds = sigmoid_values(parties)
    assert np.abs(values - expit(X)).max() < ERROR
    assert abs((values - expit(X)).mean()) < 2e-5, "errors do not add up"
    assert rounds == 2


def test_the_dealer_sends_less_than_half_of_what_64_bit_shares_take():
    def sent(*request):
        return sum(field.spec.nbytes for field in recipe(Request(request[0], request[1:])).bound.values())

    small = sent("trig", 100, 24, 13, 14, "<u4") + sent("lifting", 100)
    assert small == 100 * (26 * 4 + 12)
    assert small < sent("trig", 100, 46, 16, 14) / 2


@pytest.mark.chance(1e-12)
def test_a_share_that_wrapped_is_noticed_only_by_its_top_bit(monkeypatch):
    """Without it one value of sixteen, on average, would be off by 2^32, far outside of every range."""
    honest = tuples.lifting

    def without_top(count):
        original = honest(count)

        def compute(free, masks):
            return {**original.compute(free, masks), "top": np.zeros(count, np.uint32)}

        return tuples.Recipe(original.free, original.bound, compute)

    monkeypatch.setitem(tuples._KINDS, "lifting", without_top)
    recipe.cache_clear()
    try:
        values, _ = sigmoid_values(3)
    finally:
        recipe.cache_clear()
    off = np.abs(values - expit(X)) > 1
    assert 0.04 < off.mean() < 0.09


def test_a_fraction_that_does_not_fit_the_angle_is_refused():
    with pytest.raises(ExceptionGroup) as refused:
        run_session(lambda session: sigmoid(session.party, np.zeros(3, np.int64), 60), 2, ReleasePlan(()))
    assert refused.group_contains(RangeError, match="60 fractional bits")


@pytest.mark.parametrize("word", ["<i8", "<u4"])
def test_fourier_terms_are_sines_and_cosines(word):
    t = np.random.default_rng(0).integers(0, 1 << 24, 20_000)
    terms = sines_and_cosines(t.astype(word), 24, 16, 14, word)
    for k in (1, 7, 31):
        angle = 2 * np.pi * k * t / 2**24
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            signed = terms[name][k // 2].view(f"<i{word[2]}")
            assert np.abs(signed - function(angle) * 2**14).max() < 0.51
