"""What one party sees does not depend on the secret; without a mask the same test notices.

A spy between party 1 and its transport keeps every word that reaches it, and every masked
value that it then opens. The secrets are two constants far apart. Bytes of what was seen
must be uniform for both, and alike for both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from protocols import tuples
from protocols.dealer import Dealer
from protocols.party import Party
from protocols.runtime import Session
from tests.harness import run_session

SECRETS = (0.0, 11.9)
SIZE = 20_000
LEVEL = 1e-6


def seen(secret: float, watch: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """All bytes that party 1 holds or sees while one operation runs on a constant secret."""
    kept: list[np.ndarray] = []
    honest = Party.open_masked

    def spying(self: Party, step: str, shares: Any, how: Any = "add") -> Any:
        totals = honest(self, step, shares, how)
        if self.rank == 1:
            for total in totals:
                # The series opens words below 2^21: their low 16 bits are the uniform ones.
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
            block = session.mask(
                value.reshape(-1, 10) if session.rank == 0 else None, owner=0, shape=(SIZE // 10, 10)
            )
            if session.rank == 1:
                kept.append(block.opened)

    with monkeypatch.context() as patch:
        patch.setattr(Party, "open_masked", spying)
        run_session(job)
    return np.concatenate([np.ascontiguousarray(words).reshape(-1).view(np.uint8) for words in kept])


def tells_the_secret(watch: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the views for the two secrets can be told apart, or from noise."""
    views = [seen(secret, watch, monkeypatch) for secret in SECRETS]
    counts = [np.bincount(view, minlength=256) for view in views]
    uniform = [stats.chisquare(count).pvalue for count in counts]
    alike = stats.chi2_contingency(np.array(counts) + 1).pvalue
    return min(*uniform, alike) < LEVEL


WATCHED = ["share", "product", "comparison", "series", "block"]


@pytest.mark.parametrize("watch", WATCHED)
def test_views_are_independent_of_the_secret(watch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tells_the_secret(watch, monkeypatch)


def no_zero_shares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Party, "zero_share", lambda self, shape, how="add": np.zeros(shape, np.int64))


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


def test_neighbours_cannot_read_a_summand_of_an_opened_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five parties open a sum. Parties 1 and 4 join what they hold and look for party 0's part.

    With zero shares between neighbours only, as CrypTen has them, they would know party 0's
    share but for its input.
    """
    parts = [3.0, 5.0, 7.0, 11.0, 13.0]
    sent_by_zero: list[np.ndarray] = []
    known: dict[int, np.ndarray] = {}

    def job(session: Session) -> None:
        shares = [session.share(np.array([part]), owner=owner, shape=(1,)) for owner, part in enumerate(parts)]
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        if session.rank == 0:
            sent_by_zero.append(total.share.numpy().copy())
        else:
            known[session.rank] = total.share.numpy().copy()

    run_session(job, 5)
    # What is left of party 0's share after the coalition takes away all that it knows.
    rest = sent_by_zero[0] + known[1] + known[4]
    assert not (np.abs(rest) < 2**40).any()
    # All five together do know the sum: the shares are right.
    assert (rest + known[2] + known[3] == round(sum(parts) * 2**16)).all()


def test_the_dealer_is_told_the_same_whatever_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that reaches the dealer after the key agreement: requests, equal byte for byte."""
    heard: list[bytes] = []
    honest = Dealer._obey

    def listening(self: Dealer, message: bytes) -> bool:
        heard.append(message)
        return honest(self, message)

    monkeypatch.setattr(Dealer, "_obey", listening)

    def told(secret: float) -> list[bytes]:
        def job(session: Session) -> None:
            value = session.share(np.full(50, secret), owner=1, shape=(50,))
            for _ in session.repeat(3):
                _ = value.sigmoid() * value.reciprocal()
            session.mask(np.full((5, 2), secret), owner=2, shape=(5, 2))

        heard.clear()
        run_session(job)
        return list(heard)

    first, second = (told(secret) for secret in SECRETS)
    assert first == second and len(first) > 3
