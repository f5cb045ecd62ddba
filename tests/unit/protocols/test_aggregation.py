"""Secure aggregation: the sum over those who take part and nothing else; who sits out; what is refused or noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.errors import PeerError, ProtocolError, RangeError
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.aggregation import TooFew, aggregate
from tests.support.sessions import run_session

TOTAL = Release("total", (0, 2), (ANY,), "only the sum over parties", times=2)
PARTS = np.random.default_rng(0).uniform(-5, 5, (5, 4))


def sums(absent: tuple[int, ...] = (), parties: int = 3, minimum: int = 2, **session: Any) -> list[Any]:
    """What each party gets, rounds and number of releases."""

    def job(party: Session) -> Any:
        with party.measure("aggregation") as cost:
            outcome = aggregate(
                party, PARTS[party.rank], 5.0, TOTAL, present=party.rank not in absent, minimum=minimum
            )
        return outcome, cost.rounds, len(party.released)

    return run_session(job, parties, ReleasePlan([TOTAL]), **session)


@pytest.mark.parametrize(("parties", "absent"), [(3, ()), (3, (1,)), (3, (2,)), (5, ()), (5, (0, 3)), (5, (0, 1, 2))])
def test_the_sum_over_those_who_take_part_and_only_at_the_receivers(parties: int, absent: tuple[int, ...]) -> None:
    """Also where a receiver sits out. The vector of one that does is not in the sum, whatever it is."""
    there = [rank for rank in range(parties) if rank not in absent]
    for rank, (outcome, rounds, released) in enumerate(sums(absent, parties)):
        assert outcome.participants == tuple(there) and released == 1
        assert rounds == 3 or (rounds == 2 and rank in absent and rank not in TOTAL.receivers)
        if rank not in TOTAL.receivers:
            assert outcome.total is None
            continue
        assert np.allclose(outcome.total, PARTS[there].sum(axis=0), atol=parties * 2**-17)
        assert all(not np.allclose(outcome.total, PARTS[[*there, k]].sum(axis=0), atol=0.01) for k in absent)


@pytest.mark.parametrize(("absent", "minimum"), [((0, 2), 2), ((0, 1, 2), 2), ((1,), 3)])
def test_too_few_are_refused_everywhere_and_nothing_is_opened(absent: tuple[int, ...], minimum: int) -> None:
    def job(session: Session) -> int:
        with pytest.raises(TooFew, match=f"{3 - len(absent)} of 3 parties"):
            aggregate(session, [1.0], 5.0, TOTAL, present=session.rank not in absent, minimum=minimum)
        return len(session.released)

    assert run_session(job, 3, ReleasePlan([TOTAL])) == [0, 0, 0]


def test_a_sum_of_one_cannot_be_asked_for() -> None:
    def job(session: Session) -> None:
        for minimum in (1, 4):
            with pytest.raises(ProtocolError, match="participants at least"):
                aggregate(session, [1.0], 5.0, TOTAL, minimum=minimum)

    run_session(job, 3, ReleasePlan([TOTAL]))


@pytest.mark.parametrize("bad", [[6.0], [np.nan], [np.inf]])
def test_a_summand_outside_its_bound_never_leaves_its_party(bad: list[float]) -> None:
    def job(session: Session) -> int:
        with pytest.raises(RangeError):
            aggregate(session, bad, 5.0, TOTAL)
        with pytest.raises(RangeError, match="bound of a summand"):
            aggregate(session, [0.0], 2.0**30, TOTAL)
        return len(session.released)

    assert run_session(job, 3, ReleasePlan([TOTAL])) == [0, 0, 0]


class TwoRosters:
    """A transport whose party 0 tells party 2 alone that it sits out; notes what the others open."""

    def __init__(self, inner: Transport, opened: list[str]) -> None:
        self._inner, self._opened = inner, opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, step: str, send: Any, receive: Any) -> Any:
        if step.startswith("roster") and self._inner.node == 0:
            send = {peer: [np.zeros(1, np.uint8)] if peer == 2 else arrays for peer, arrays in send.items()}
        if step.startswith("release total") and self._inner.node != 0:
            self._opened.append(step)
        return self._inner.exchange(step, send, receive)


def test_different_rosters_are_noticed_before_a_masked_vector_is_sent() -> None:
    opened: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        sums(wrap=lambda transport: TwoRosters(transport, opened))
    assert caught.group_contains(PeerError, match="received something else")
    assert opened == []


def test_masks_over_another_roster_do_not_pass_for_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Party 1 masks for all although party 2 sits out: the word that counts is not what the roster says."""
    honest = Party.zero_share

    def forgetful(self: Party, shape: Any, among: Any = None) -> Any:
        return honest(self, shape, None if self.rank == 1 else among)

    monkeypatch.setattr(Party, "zero_share", forgetful)
    with pytest.raises(ExceptionGroup) as caught:
        sums(absent=(2,))
    assert caught.group_contains(ProtocolError, match="did not cancel")
