"""A party sends different things to different parties where all must get the same: caught before anything is opened.

What a party may still do is here too: shift what it sends by the same to all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.party import BroadcastTags
from secure_sccvfl.protocols.dealing.randomness import Stream, fresh_key
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.operations import arithmetic, group_table
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, share_of
from secure_sccvfl.protocols.steps import weighted_sums
from secure_sccvfl.training.shared import side_by_side
from tests.contract import test_split as split
from tests.support.sessions import results, run_session, stopping

SAYS_SO = "received something else: a party sent different data to different parties"
SHIFT = 1


class TwoFaced:
    """A transport whose party 0 shifts the first word it sends to party 2 in one step; it notes what others open."""

    def __init__(self, inner: Transport, step: str, opened: list[str], victims: tuple[int, ...] = (2,)) -> None:
        self._inner, self._step, self._opened, self._victims = inner, step, opened, victims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, step: str, send: Any, receive: Any) -> Any:
        if self._inner.node != 0 and step.startswith("release ") and step != "release plan":
            self._opened.append(step)
        if step == self._step and self._inner.node == 0:
            send = {peer: _shifted(arrays) if peer in self._victims else arrays for peer, arrays in send.items()}
        return self._inner.exchange(step, send, receive)


def _shifted(arrays: Any) -> list[np.ndarray]:
    first = np.array(arrays[0])
    first.reshape(-1)[0] += SHIFT
    return [first, *arrays[1:]]


def opens(session: Session) -> None:
    session.open(session.share(np.ones(2), owner=1, shape=(2,)), results(3)[1])


def product(session: Session) -> None:
    x = session.share(np.ones(5), owner=1, shape=(5,))
    _ = x * x
    opens(session)


def large_truncation(session: Session) -> None:
    words = session.party.zero_share((1 << 15,))
    arithmetic.divide(session.party, words, 1 << 16)
    opens(session)


def owned_block(session: Session) -> None:
    session.owned(np.ones((3, 2)), owner=0, shape=(3, 2)).pinned()
    opens(session)


def shared_block(session: Session) -> None:
    session.share(np.ones((3, 2)), owner=1, shape=(3, 2)).pinned()
    opens(session)


def sums(session: Session) -> None:
    weighted_sums.weighted_sums(side_by_side(session, (2, 2, 2), np.ones((4, 2))), session.zeros((4, 1)))
    opens(session)


def comparison(session: Session) -> None:
    _ = session.share(np.ones(5), owner=1, shape=(5,)) > 0
    opens(session)


def flag(session: Session) -> None:
    session.tell_all("a flag", 1)
    opens(session)


def announcement(session: Session) -> None:
    session.announce({str(session.rank): 3.0}, results(3)[1])
    opens(session)


def announcement_after_a_flag(session: Session) -> None:
    session.tell_all("a flag", 1)
    session.announce({str(session.rank): 3.0}, results(3)[1])


def flag_at_the_end(session: Session) -> None:
    session.tell_all("a flag", 1)


@pytest.mark.parametrize(
    ("job", "step"),
    [
        (product, "mul"),
        (product, "truncate"),
        (large_truncation, "truncate signs"),
        (owned_block, "masked block"),
        (shared_block, "masked matrix"),
        (sums, "weighted sums"),
        (comparison, "compare"),
        (comparison, "bit product"),
        (comparison, "bit to number"),
        (flag, "a flag"),
        (announcement_after_a_flag, "a flag"),
        (flag_at_the_end, "a flag"),
    ],
)
def test_broadcasts_are_compared_before_an_opening(job: Callable[[Session], None], step: str) -> None:
    opened: list[str] = []
    messages = stopped(job, step, opened)
    assert any(f"party 2: {SAYS_SO}" in line or f"party 1: {SAYS_SO}" in line for line in messages), messages
    assert not opened


def stopped(
    job: Callable[[Session], None], step: str, opened: list[str], plan: ReleasePlan | None = None
) -> list[str]:
    with pytest.raises(ExceptionGroup) as caught:
        run_session(job, plan=plan, wrap=lambda inner: TwoFaced(inner, step, opened))
    return [str(error) for error in caught.value.exceptions]


def test_different_shares_of_a_release_to_all_are_noticed() -> None:
    """Who sees it computes with different numbers from then on: at the latest the end of the session tells."""

    class OtherShare(TwoFaced):
        def exchange(self, step: str, send: Any, receive: Any) -> Any:
            if step.startswith("release result") and self._inner.node == 0:
                send = {**send, 2: _shifted(send[2])}
            return self._inner.exchange(step, send, receive)

    with stopping(SAYS_SO):
        run_session(opens, wrap=lambda inner: OtherShare(inner, "", []))


def test_split_activations_are_compared_before_a_gradient_is_opened() -> None:
    opened: list[str] = []
    job, plan = split.Problem((6, 5, 7), (0, 1), ((1, 2),)).session()
    assert any(SAYS_SO in line for line in stopped(job, "split activations", opened, plan))
    assert not opened


def test_an_announcement_is_compared_before_what_follows() -> None:
    """Its lengths come first under the same name; the numbers are what differs here."""

    class OtherNumber(TwoFaced):
        def exchange(self, step: str, send: Any, receive: Any) -> Any:
            numbers = step == "result 1" and any(a.dtype == np.float64 for arrays in send.values() for a in arrays)
            if numbers and self._inner.node == 0:
                send = {**send, 2: [send[2][0], np.array([4.0])]}
            return self._inner.exchange(step, send, receive)

    with stopping(SAYS_SO):
        run_session(announcement, wrap=lambda inner: OtherNumber(inner, "", []))


def product_with(victims: tuple[int, ...]) -> np.ndarray:
    """What is opened of x y when party 0 shifts its share of x - a by 1, for some parties."""
    x, y = np.arange(1, 6), np.arange(5, 0, -1) * 1000

    def job(session: Session) -> np.ndarray:
        left, right = (share_of(session.share(v, owner=1, shape=(5,), bits=0)) for v in (x, y))
        value = session.open(session.wrap(arithmetic.bilinear(session.party, "mul", left, right), 0), results(3)[1])
        assert value is not None
        return value.numpy() - x * y

    return np.asarray(run_session(job, wrap=lambda inner: TwoFaced(inner, "mul", [], victims))[1])


@pytest.mark.chance(1e-12)
def test_without_the_comparison_the_error_is_another_partys_secret_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The opened product is off by party 2's share of the mask of y: a word below 2^20 with probability 2^-43."""
    monkeypatch.setattr(BroadcastTags, "add", lambda self, received: None)
    off = product_with((2,))
    assert abs(int(off[0])) > 1 << 20 and not off[1:].any()


def test_the_same_shift_for_all_goes_through() -> None:
    """Not protected, and SECURITY.md says so: party 0, which keeps to it itself, made (x + 1) y of x y."""

    def both(inner: Transport) -> Any:
        return TwoFaced(inner, "mul", [], (1, 2))

    def job(session: Session) -> float:
        left, right = (share_of(session.share(np.full(1, v), owner=1, shape=(1,), bits=0)) for v in (6, 1000))
        if session.rank == 0:
            honest = session.party.open_masked
            session.party.open_masked = lambda step, shares, how="add": [  # type: ignore[method-assign]
                word + (SHIFT if number == 0 else 0) for number, word in enumerate(honest(step, shares, how))
            ]
        value = session.open(session.wrap(arithmetic.bilinear(session.party, "mul", left, right), 0), results(3)[1])
        assert value is not None
        return float(value[0])

    assert run_session(job, wrap=both) == [7000.0] * 3


@pytest.mark.chance(1e-12)
def test_an_owner_that_lies_about_its_block_reads_s_through_the_noise() -> None:
    """Not protected, and SECURITY.md says so: noise is scaled to honest blocks. Record 7 weighs a million here."""
    codes = np.arange(50) % 2

    def job(session: Session) -> Any:
        block = np.zeros((50, 1 if session.rank == 0 else 0), np.int64)
        block[7] = 1 << 20
        held = (lambda part: np.eye(2, dtype=np.int64)[codes[part]]) if session.rank == 1 else None
        shares = group_table.group_table(
            session.party, 50, (1, 0, 0), lambda part: block[part], 1, 2, held, wide=True
        )
        noise = session.party.take("noise", (1, 2), 1000.0)["e"]
        return session.open(session.wrap(shares + noise, 0), results(3)[2])

    assert int(run_session(job)[0][0].argmax()) == codes[7]


def pair(parties: int) -> tuple[BroadcastTags, BroadcastTags]:
    keys = {rank: fresh_key() for rank in range(1, parties)}
    first = BroadcastTags({rank: Stream(key, "heard") for rank, key in keys.items()})
    return first, BroadcastTags({0: Stream(keys[1], "heard"), 2: Stream(fresh_key(), "heard")})


@pytest.mark.chance(1e-12)
def test_tags_are_of_what_third_parties_said() -> None:
    """Parties 0 and 1: their own words do not matter, those of party 2 do, once; then the keys are new."""
    zero, one = pair(3)
    word = np.arange(3)
    zero.add({1: [word], 2: [word]})
    one.add({0: [word + 5], 2: [word]})
    first = zero.mac_tags()[1]
    assert (first == one.mac_tags()[0]).all()
    zero.add({1: [word], 2: [word]})
    one.add({0: [word], 2: [word + 1]})
    second = zero.mac_tags()[1]
    assert (second != one.mac_tags()[0]).any() and (first != second).any()
    assert (zero.mac_tags()[1] == one.mac_tags()[0]).all(), "a difference that was told is behind them"


@pytest.mark.chance(1e-12)
@pytest.mark.parametrize("index", [0, 5_000, 99_999])
def test_tags_are_of_every_word_of_a_long_array(index: int) -> None:
    zero, one = pair(3)
    words = np.arange(100_000)
    zero.add({2: [words]})
    one.add({2: [words]})
    assert (zero.mac_tags()[1] == one.mac_tags()[0]).all()
    other = words.copy()
    other[index] += 1
    zero.add({2: [words]})
    one.add({2: [other]})
    assert (zero.mac_tags()[1] != one.mac_tags()[0]).any()
