"""The check of active security: how often an error passes with few rows, and what parties see of each other in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.authentication.wide import Wide, tag_corrections
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.dealing.verification import Pending
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.chance import alike, of_rate, uniform
from tests.support.lying import attempt
from tests.support.sessions import results

PARTIES, ELEMENTS, TRIALS, TOP = 3, 24, 400, np.uint64(1 << 63)


class FirstRows(Pending):
    """A check with eight rows, of which only the first ones count."""

    def __init__(self, counted: int) -> None:
        super().__init__(8)
        self.counted = counted

    def sums(self, coin: bytes) -> tuple[Any, Wide]:
        expected, total = super().sums(coin)
        return expected[: self.counted], total[:, : self.counted]


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 1 << 64, shape, np.uint64)


def passes(rng: np.random.Generator, counted: int, error: np.ndarray, forged: bool = False) -> bool:
    """Whether three parties accept opened words with this error; forged: a liar fits the announced sums to it.

    Sums of shares and of tags as in `Party._agree`, without rho and shares of zero, which cancel.
    """
    values, keys = words(rng, PARTIES, ELEMENTS), [int(key) for key in words(rng, PARTIES)]
    tags = [Wide(words(rng, ELEMENTS), words(rng, ELEMENTS)) for _ in range(PARTIES - 1)]
    tags.append(tag_corrections(list(values), tags, sum(keys)))
    opened = (values.sum(axis=0, dtype=np.uint64) + error).view(np.int64)
    results, coin = [], rng.bytes(32)
    for value, tag in zip(values, tags, strict=True):
        pair = Wide(np.stack([value, tag.lo]), np.stack([np.zeros_like(value), tag.hi]))
        pending = FirstRows(counted)
        pending.add(Authenticated(pair, np.zeros(ELEMENTS, np.uint64)), opened)
        results.append(pending.sums(coin))
    total, left = Wide.zeros((counted,)), Wide.zeros((counted,))
    for _, sums in results:
        total = total + sums[0]
    expected = results[0][0]
    if forged:
        total = total + Wide.of(expected - total.lo)
    for (_, sums), key in zip(results, keys, strict=True):
        left = left + sums[1] - total.scaled(key)
    return bool((total.lo == expected).all()) and not left.lo.any() and not left.hi.any()


@pytest.mark.chance(1e-11)  # four binomial tests
@pytest.mark.parametrize("counted", [1, 2, 4, 6])
def test_an_error_in_the_top_bit_passes_with_half_for_each_row(counted: int) -> None:
    """Of one element and of several: the top bits of opened words are the hardest to check."""
    rng = np.random.default_rng()
    hits = 0
    for trial in range(TRIALS):
        error = np.zeros(ELEMENTS, np.uint64)
        error[rng.choice(ELEMENTS, 1 + trial % 3, replace=False)] = TOP
        hits += passes(rng, counted, error)
    print(f"{counted} rows: {hits} of {TRIALS} passed, {TRIALS * 2.0**-counted:.1f} expected")
    assert of_rate(hits, TRIALS, 2.0**-counted)


@pytest.mark.chance(1e-12)
def test_honest_words_pass_and_sums_that_fit_an_error_never_do() -> None:
    rng, none = np.random.default_rng(), np.zeros(ELEMENTS, np.uint64)
    assert all(passes(rng, 8, none) for _ in range(50))
    for bit in (0, 31, 48):
        error = none.copy()
        error[:] = np.uint64(1 << bit)
        assert not any(passes(rng, 8, error, forged=True) for _ in range(50))


def test_a_check_has_as_many_rows_as_is_said() -> None:
    assert Pending().rows == 48, "docs and verification.py state an escape probability of 2^-48"


def views(secret: float) -> dict[str, np.ndarray]:
    """What party 0 receives in the checks of some releases: high words of P, z, and commitments, as bytes."""
    plan = results(PARTIES)

    def job(session: Session) -> None:
        for _ in range(30):
            x = session.share(np.full(4, secret), owner=1, shape=(4,))
            session.open((x * x) * 0, plan[1])

    traces = attempt(job, ReleasePlan(plan.values()), PARTIES, name=None)
    assert not any(trace.error for trace in traces)
    received = traces[0].received
    seen = {
        name: np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
        for name, parts in (("P", received["sums"][1::2]), ("commitments", received["commitment"]))
    }
    low, high = (np.concatenate(received["sums of tags"][at::3]).view(np.uint8) for at in (0, 1))
    return seen | {"z": np.concatenate([low, high.reshape(-1, 8)[:, :6].reshape(-1)])}  # modulo 2^112


@pytest.mark.chance(1e-11)  # nine checks
def test_the_words_of_a_check_are_independent_of_the_data() -> None:
    first, second = views(0.0), views(1000.0)
    for name, one in first.items():
        assert one.size > 3000 and uniform(one) and uniform(second[name]) and alike(one, second[name]), name


@pytest.mark.chance(1e-11)
def test_sums_without_rho_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: the high words of P would count carries."""
    take = Party.take
    monkeypatch.setattr(
        Party,
        "take",
        lambda party, kind, *given: (
            {"a": take(party, kind, *given)["a"] * 0}
            if kind == "uniform" and len(given[0]) == 1 and given[1] is None
            else take(party, kind, *given)
        ),
    )
    assert not uniform(views(0.0)["P"])
