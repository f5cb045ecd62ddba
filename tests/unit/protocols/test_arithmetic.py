"""Secret operations against plain arithmetic, with real sockets and a real dealer, parties as threads."""

import hashlib

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.tuples import Request, recipe
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.operations import arithmetic, comparison, sigmoid
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.sessions import run_session
from tests.unit.protocols.values import ULP, opened, secret

RNG = np.random.default_rng(5)


@pytest.fixture(params=[2, 3, 5], ids=lambda parties: f"{parties} parties")
def parties(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_sharing_and_opening_is_exact(parties: int) -> None:
    counts = RNG.integers(-(2**30), 2**30, size=50)
    reals = RNG.normal(size=(4, 5)) * 1000

    def job(session: Session) -> None:
        assert (opened(session, secret(session, counts, owner=1, bits=0)) == counts).all()
        assert np.abs(opened(session, secret(session, reals)) - reals).max() <= ULP / 2

    run_session(job, parties)


def test_division_by_any_integer(parties: int) -> None:
    values = np.concatenate([RNG.uniform(-(2.0**29), 2.0**29, size=2000), [0, 1, -1, 2.0**30, -(2.0**30)]])

    def job(session: Session) -> None:
        shared = secret(session, values)
        for divisor in (2, 3, 7, 1000, 65536, 10**9, -5):
            error = opened(session, shared / divisor) - np.round(values / ULP) * ULP / divisor
            assert np.abs(error).max() <= 2 * ULP, divisor

    run_session(job, parties)


@pytest.mark.parametrize("size", [50, 1 << 15])
@pytest.mark.parametrize("divisor", [2, 1 << 16, 1 << 40])
def test_a_multiple_of_a_power_of_two_is_divided_exactly(size: int, divisor: int, parties: int) -> None:
    """No rounding, so no tolerance: a unit too many anywhere is seen. The larger size is opened in slices."""
    largest = (1 << 61) // divisor
    quotients = RNG.integers(-largest, largest, size=size)

    def job(session: Session) -> None:
        share = session.party.zero_share(quotients.shape) + quotients * divisor * (session.rank == 0)
        divided = session.wrap(arithmetic.divide(session.party, share, divisor), 0)
        assert (opened(session, divided) == quotients).all()

    run_session(job, parties)


@pytest.mark.parametrize("chance", [1, 19_661, 65_535])
def test_exactly_so_many_of_all_values_are_in_a_sample(chance: int) -> None:
    """One word more or less would be another rate than the one that is charged."""
    words = np.arange(1 << 16, dtype=np.uint16)[:, None]
    fields = recipe(Request("sampled", (1 << 16, chance))).compute({"u": words, "a": words.astype(np.int64)}, {})
    assert fields["b"].sum() == chance and (fields["b"][:chance] == 1).all()
    assert (fields["ab"] == fields["b"] * words).all()


def test_comparison_at_the_edges(parties: int) -> None:
    edges = np.array([0, ULP, -ULP, 2.0**30, -(2.0**30), 1, -1, 15 * ULP, 16 * ULP, -16 * ULP, -17 * ULP])
    words = np.concatenate([np.round(edges / ULP).astype(np.int64), RNG.integers(-(2**62), 2**62, size=3000)])

    def job(session: Session) -> None:
        share = session.party.zero_share(words.shape)
        if session.rank == 0:
            share = share + words
        assert (opened(session, session.wrap(comparison.negative(session.party, share), 0)) == (words < 0)).all()

    run_session(job, parties)


@pytest.mark.parametrize(("name", "bound"), [("sigmoid", 12.0), ("sigmoid", 40.0), ("tanh", 6.0), ("tanh", 2.0)])
def test_series_stay_within_their_error(name: sigmoid.Name, bound: float) -> None:
    x = np.linspace(-bound, bound, 20_001)
    expected = 1 / (1 + np.exp(-x)) if name == "sigmoid" else np.tanh(x)

    def job(session: Session) -> None:
        shared = secret(session, x)
        with session.measure("series") as cost:
            result = getattr(session, name)(shared, bound=bound)
        assert cost.rounds == 1
        assert np.abs(opened(session, result) - expected).max() <= 5e-4

    run_session(job)


def test_without_a_promised_bound_values_are_clamped() -> None:
    """A false promise gives a wrong result, which the clamp prevents."""
    x = np.concatenate([RNG.uniform(-1000, 1000, size=500), [2.0**30, -(2.0**30), 32, -32, 16, 12.1, -12.1, 0]])

    def job(session: Session) -> None:
        shared = secret(session, x)
        with session.measure("clamped") as cost:
            result = session.sigmoid(shared)
        assert cost.rounds == 8  # one comparison (6), one product (1), the series (1)
        assert np.abs(opened(session, result) - 1 / (1 + np.exp(-np.clip(x, -700, 700)))).max() <= 5e-4
        assert np.abs(opened(session, session.tanh(shared)) - np.tanh(x)).max() <= 5e-4
        assert opened(session, session.sigmoid(secret(session, np.array([32.0])), bound=12))[0] < 0.6

    run_session(job)


def test_masked_blocks_are_sent_once_by_their_owner(parties: int) -> None:
    x, y = RNG.normal(size=(300, 40)), RNG.normal(size=(40, 2))

    def job(session: Session) -> None:
        with session.measure("block") as cost:
            block = session.owned(x, owner=1, shape=x.shape).pinned()
        size = x.size * 8
        if session.rank == 1:
            assert size * (parties - 1) < cost.sent < size * (parties - 1) + 500 and cost.received == 0
        else:
            assert cost.sent == 0 and size < cost.received < size + 200
        weights = secret(session, y)
        for _ in range(3):
            product = block @ weights
            assert np.abs(opened(session, product) - x @ y).max() < 40 * 8 * ULP
            back = block.t() @ product
            assert np.abs(opened(session, back) - x.T @ (x @ y)).max() < 0.1

    run_session(job, parties)


def test_shared_matrices_are_masked_once(parties: int) -> None:
    x, y = RNG.normal(size=(40, 8)), RNG.normal(size=(8, 2))

    def job(session: Session) -> None:
        block = secret(session, x, owner=1).pinned()
        weights = secret(session, y)
        for _ in session.repeat(3):
            with session.measure("product") as cost:
                before = cost.sent
                product = block @ weights
            # Only the narrow factor and the truncated product travel, not the matrix.
            assert cost.sent - before < (y.size + 80) * 8 * (parties - 1) + 500
        back = block.t() @ product
        assert np.abs(opened(session, product) - x @ y).max() < 1e-3
        assert np.abs(opened(session, back) - x.T @ (x @ y)).max() < 1e-2

    run_session(job, parties)


@pytest.mark.parametrize("bits", [63, -1])
def test_other_fractions_are_refused(bits: int) -> None:
    def job(session: Session) -> None:
        with pytest.raises(ProtocolError, match="0 to 62"):
            session.share(np.ones(2), owner=0, shape=(2,), bits=bits)

    run_session(job, 2)


def test_public_multipliers_are_the_same_on_every_machine() -> None:
    """Integers alone: known values, whatever the processor, its libraries and their threads."""
    angles = np.arange(0, 1 << 22, 4097)
    cosines, sines = sigmoid.turn(angles, 22)
    assert np.abs(cosines - np.cos(2 * np.pi * angles / (1 << 22)) * 2**30).max() < 2
    assert np.abs(sines - np.sin(2 * np.pi * angles / (1 << 22)) * 2**30).max() < 2
    digest = hashlib.sha256(cosines.tobytes() + sines.tobytes())
    for name, bound in (("sigmoid", 12.0), ("sigmoid", 50.0), ("tanh", 6.0), ("log_cosh", 50.0)):
        digest.update(repr(sigmoid.series(name, bound)).encode())
    assert digest.hexdigest() == "b9dbefec5262c6a61376f476b53a0f3b3a1ee15d3d3491069e06292a84157c33"
