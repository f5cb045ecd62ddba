"""Records that a party cannot read: their result is 0, and the receiver alone learns which they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.ring import FRACTION_BITS
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.choice import REFUSED, REPEATED, SHOWN, withheld
from tests.support.sessions import run_session

ROWS, NUMBERS = 40, 2


def results() -> np.ndarray:
    return np.linspace(-3, 3, ROWS * NUMBERS).reshape(ROWS, NUMBERS)


def readable(parties: int, seed: int) -> np.ndarray:
    """Which records each party can read (parties x records)."""
    return np.random.default_rng(seed).random((parties, ROWS)) > 0.2


def opened(marks: np.ndarray, receiver: int, fresh: np.ndarray | None = None, **settings: Any) -> list[Any]:
    """What each party learns. marks, fresh: of each party, which records it can read, and which are new to it."""
    parties = len(marks)
    fresh = np.ones_like(marks) if fresh is None else fresh
    plan = ReleasePlan(
        [
            Release("predictions", (receiver,), (ROWS, NUMBERS), "test"),
            Release("refused records", (receiver,), (ROWS,), "test"),
        ]
    )

    def job(session: Session) -> tuple[Any, Any]:
        shared = session.share(results(), owner=1, shape=(ROWS, NUMBERS))
        shown, refused = withheld(session, shared, marks[session.rank], fresh[session.rank])
        wanted = [(shown, session.declared("predictions")), (refused, session.declared("refused records"))]
        predictions, which = session.open_each(wanted)
        return predictions, which

    return run_session(job, parties, plan, **settings)


@pytest.mark.parametrize(("parties", "receiver"), [(2, 0), (3, 2), (5, 1)])
def test_refused_records_have_no_result_and_the_receiver_alone_knows_them(parties: int, receiver: int) -> None:
    marks = readable(parties, parties)
    outcomes = opened(marks, receiver)
    refused = ~marks.all(axis=0)
    assert 0 < refused.sum() < ROWS
    shown, which = outcomes[receiver]
    assert np.array_equal(np.asarray(which), refused.astype(int))
    assert (np.asarray(shown)[refused] == 0).all()
    assert np.abs(np.asarray(shown)[~refused] - results()[~refused]).max() < 2**-FRACTION_BITS
    assert all(other == (None, None) for rank, other in enumerate(outcomes) if rank != receiver)


@pytest.mark.parametrize(("parties", "receiver"), [(2, 0), (3, 2)])
def test_one_party_that_has_answered_before_withholds_a_record(parties: int, receiver: int) -> None:
    """The receiver learns that, unless the record is refused as well; it cannot undo another party's mark."""
    marks, fresh = readable(parties, parties), readable(parties, 10 + parties)
    fresh[receiver] = True
    outcomes = opened(marks, receiver, fresh)
    refused, repeated = ~marks.all(axis=0), marks.all(axis=0) & ~fresh.all(axis=0)
    shown, which = outcomes[receiver]
    assert repeated.any() and (refused & ~fresh.all(axis=0)).any()
    assert np.array_equal(np.asarray(which), np.where(refused, REFUSED, np.where(repeated, REPEATED, SHOWN)))
    assert (np.asarray(shown)[refused | repeated] == 0).all()
    left = ~(refused | repeated)
    assert np.abs(np.asarray(shown)[left] - results()[left]).max() < 2**-FRACTION_BITS
    assert all(other == (None, None) for rank, other in enumerate(outcomes) if rank != receiver)


def test_the_work_looks_the_same_whoever_refuses() -> None:
    """Steps, peers and sizes of everything that any place sends: with no refusal, and with many."""

    def sizes(marks: np.ndarray, fresh: np.ndarray | None = None) -> list[tuple[int, str, int, int]]:
        seen: list[tuple[int, str, int, int]] = []

        def watch(transport: Any) -> Any:
            plain = transport.exchange

            def exchange(step: str, send: Any, receive: Any) -> Any:
                seen.extend((transport.node, step, to, sum(a.nbytes for a in of)) for to, of in send.items())
                return plain(step, send, receive)

            transport.exchange = exchange
            return transport

        opened(marks, 0, fresh, wrap=watch)
        return sorted(seen)

    everything = np.ones((3, ROWS), bool)
    assert sizes(everything) == sizes(readable(3, 7)) == sizes(everything, readable(3, 8))
    assert len(sizes(everything)) > 10
