"""What one party sees does not depend on the secret; without a mask the same test notices.

A spy between party 1 and its transport keeps every word that reaches it, and every masked
value that it then opens. The secrets are two constants far apart. Bytes of what was seen
must be uniform for both, and alike for both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.dealing.dealer import Dealer
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.dealing.randomness import Stream
from secure_sccvfl.protocols.session import binding_tensors
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.chance import alike, uniform
from tests.support.sessions import results, run_session

SECRETS = (0.0, 11.9)
SIZE = 20_000


def seen(secret: float, watch: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """All bytes that party 1 holds or sees while one operation runs on a constant secret."""
    kept: list[np.ndarray] = []
    honest = Party.open_masked

    def spying(self: Party, step: str, shares: Any, how: Any = "add") -> Any:
        totals = honest(self, step, shares, how)
        if self.rank == 1:
            for total in totals:
                # The series opens ring elements below 2^21: their low 16 bits are the uniform ones.
                kept.append(total.astype(np.uint16).view(np.uint8) if total.dtype == np.uint32 else total)
        return totals

    def job(session: Session) -> None:
        value = np.full(SIZE, secret)
        shared = session.share(value if session.rank == 0 else None, owner=0, shape=value.shape)
        if watch == "share":
            if session.rank == 1:
                kept.append(shared.share.numpy())
        elif watch == "product":
            _ = shared * shared
        elif watch == "comparison":
            shared._ltz()
        elif watch == "series":
            session.sigmoid(shared, bound=12)
        elif watch == "block":
            block = session.owned(value.reshape(-1, 10), owner=0, shape=(SIZE // 10, 10)).pinned()
            if session.rank == 1:
                kept.extend(one.opened for band in binding_tensors.value_of(block).tall.bands for one in band)

    with monkeypatch.context() as patch:
        patch.setattr(Party, "open_masked", spying)
        run_session(job)
    return np.concatenate([np.ascontiguousarray(words).reshape(-1).view(np.uint8) for words in kept])


def tells_the_secret(watch: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the views for the two secrets can be told apart, or from noise."""
    views = [seen(secret, watch, monkeypatch) for secret in SECRETS]
    return not (alike(*views) and all(uniform(view) for view in views))


WATCHED = ["share", "product", "comparison", "series", "block"]


@pytest.mark.chance(1e-9)  # three checks
@pytest.mark.parametrize("watch", WATCHED)
def test_views_are_independent_of_the_secret(watch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tells_the_secret(watch, monkeypatch)


def no_zero_shares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Party, "zero_share", lambda self, shape, among=None: np.zeros(shape, np.int64))


def no_masks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tuples.Field, "expand", lambda self, draw, rank: np.zeros(self.shape, self.dtype))


@pytest.mark.parametrize(
    ("watch", "sabotage"),
    [
        ("share", no_zero_shares),
        ("product", no_masks),
        ("comparison", no_masks),
        ("series", no_masks),
        ("block", no_masks),
    ],
)
def test_a_missing_mask_is_noticed(
    watch: str, sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    assert tells_the_secret(watch, monkeypatch)


def neighbours_read_a_summand() -> bool:
    """Five parties add up their parts. Parties 1 and 4 take from party 0's share all that their keys tell.

    What is left must not be party 0's part, however the ring elements are signed. With zero shares
    between neighbours only, as CrypTen has them, it is.
    """
    parts = [3.0, 5.0, 7.0, 11.0, 13.0]
    share_of_zero: list[int] = []
    masks: dict[int, list[int]] = {}

    def job(session: Session) -> None:
        streams = session.party._zeros
        if session.rank in (1, 4):
            twin = Stream(bytes(32), "replaced below")
            twin._key = streams[0]._key
            masks[session.rank] = [int(twin.draw(number).elements((1,))[0]) for number in range(len(parts))]
        shares = [session.share(np.array([part]), owner=owner, shape=(1,)) for owner, part in enumerate(parts)]
        if session.rank == 0:
            share_of_zero.extend(int(share.share[0]) for share in shares)

    run_session(job, 5)
    rests = [
        (share_of_zero[0] + one * masks[1][0] + four * masks[4][0]) % 2**64 for one in (1, -1) for four in (1, -1)
    ]
    return round(parts[0] * 2**16) in rests


def test_neighbours_cannot_read_a_summand_of_an_opened_sum() -> None:
    assert not neighbours_read_a_summand()


def test_a_ring_of_zero_shares_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ring_only(self: Party, shape: tuple[int, ...], among: object = None) -> np.ndarray:
        following, previous = (self.rank + 1) % self.parties, (self.rank - 1) % self.parties
        return self._zeros[previous].draw().elements(shape) - self._zeros[following].draw().elements(shape)

    monkeypatch.setattr(Party, "zero_share", ring_only)
    assert neighbours_read_a_summand()


def shares_sent_in_two_openings(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What party 1 sends when the same value is opened twice."""
    sent: list[np.ndarray] = []
    honest = Party.collect_all

    def spying(self: Party, admitted: Any, among: Any = None) -> Any:
        if self.rank == 1:
            sent.extend(share.copy() for _, share in admitted)
        return honest(self, admitted, among)

    def job(session: Session) -> None:
        value = session.share(np.ones(100), owner=0, shape=(100,))
        for _ in range(2):
            session.open(value, results(3)[1])

    with monkeypatch.context() as patch:
        patch.setattr(Party, "collect_all", spying)
        run_session(job)
    return sent


def test_shares_are_fresh_in_every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = shares_sent_in_two_openings(monkeypatch)
    assert not (first == second).any()


def test_stale_shares_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    no_zero_shares(monkeypatch)
    first, second = shares_sent_in_two_openings(monkeypatch)
    assert (first == second).all()


def test_the_dealer_receives_the_same_whatever_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that reaches the dealer after the key agreement: requests, equal byte for byte."""
    heard: list[bytes] = []
    honest = Dealer._obey

    def listening(self: Dealer, message: bytes) -> bool:
        heard.append(message)
        return honest(self, message)

    monkeypatch.setattr(Dealer, "_obey", listening)

    def dealer_messages(secret: float) -> list[bytes]:
        def job(session: Session) -> None:
            value = session.share(np.full(50, secret), owner=1, shape=(50,))
            for _ in session.repeat(3):
                _ = value.sigmoid() * value.reciprocal()
            session.owned(np.full((5, 2), secret), owner=2, shape=(5, 2)).pinned()

        heard.clear()
        run_session(job)
        return list(heard)

    first, second = (dealer_messages(secret) for secret in SECRETS)
    assert first == second and len(first) > 3
