"""Sessions: what is released to whom, dealing ahead, faults; real sockets and a real dealer, parties as threads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.errors import LogError, ProtocolError, RangeError, UndeclaredRelease
from secure_sccvfl.protocols.net.transport import Spec
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.records.transcript import read_transcript
from secure_sccvfl.protocols.session import runtime, tensors
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.sessions import run_session, stopping
from tests.unit.protocols.values import opened, secret

RNG = np.random.default_rng(5)


def test_what_was_taken_before_a_cancel_is_still_made() -> None:
    """Party 0 waits for no correction but its own: it may cancel before the dealer has made what others wait for."""

    def job(session: Session) -> list[tuple[np.ndarray, np.ndarray]]:
        taken: list[tuple[np.ndarray, np.ndarray]] = []
        requests: list[Request] = []

        def take(size: int) -> None:
            fields = session.party.take("square", (size,))
            taken.append((fields["a"].copy(), fields["b"].copy()))

        for _ in session.repeat(2, requests):
            take(1)
        for _ in range(100):
            for _ in range(3):
                take(2)
            for _ in session.repeat(2, requests):
                take(3)  # not what was known
                break
        return taken

    for parts in zip(*run_session(job), strict=True):
        a, b = (sum(part[k] for part in parts) for k in (0, 1))
        assert (a * a == b).all()


def test_the_dealer_works_ahead_and_can_be_cancelled() -> None:
    x = RNG.normal(size=(30, 30))

    def job(session: Session) -> None:
        shared = secret(session, x)
        for step in session.repeat(50):  # left early
            result = shared * shared
            if step == 7:
                break
        assert np.abs(opened(session, result) - x * x).max() < 1e-3
        for step in session.repeat(6):  # another recipe in the middle
            result = shared.matmul(shared) if step == 3 else shared * shared
        assert np.abs(opened(session, result) - x * x).max() < 1e-3
        for _ in session.repeat(3):
            for _ in session.repeat(3):  # inner loops are part of the recipe
                result = shared.square()
        assert np.abs(opened(session, result) - x * x).max() < 1e-3

    run_session(job)


def test_bad_inputs_stop_before_sharing() -> None:
    for bad in (np.nan, np.inf, 2.0**31):

        def job(session: Session, bad: float = bad) -> None:
            secret(session, np.array([1.0, bad]), owner=1)
            session.barrier()

        with pytest.raises(ExceptionGroup) as caught:
            run_session(job)
        errors = caught.value.exceptions
        assert sum(isinstance(error, RangeError) for error in errors) == 1
        assert any("party 1: stopped: " in str(error) for error in errors)


def test_public_operands_are_checked_too() -> None:
    def job(session: Session) -> None:
        shared = secret(session, np.array([1.0]))
        for bad in (float("nan"), torch.tensor([float("inf")]), 1e300):
            with pytest.raises(RangeError):
                shared * bad
            with pytest.raises(RangeError):
                shared + bad

    run_session(job)


def test_only_receivers_are_sent_a_share(tmp_path: Any) -> None:
    """What crosses the wire, not what the call returns: two releases in one round, distinguished by their lengths."""
    releases = {5: Release("for party 1", (1,), (5,), "test"), 7: Release("for 0 and 2", (0, 2), (7,), "test")}

    def job(session: Session) -> list[bool]:
        values = session.open_each([(secret(session, np.ones(size)), release) for size, release in releases.items()])
        assert all(value is None or (value == 1).all() for value in values)
        return [value is not None for value in values]

    given = run_session(job, plan=ReleasePlan(releases.values()), folder=tmp_path, transcripts=True)
    assert given == [[False, True], [True, False], [False, True]]
    for size, release in releases.items():
        allowed = {(s, receiver) for s in range(3) for receiver in release.receivers if s != receiver}
        assert crossings(tmp_path, size, "out") == crossings(tmp_path, size, "in") == allowed


def crossings(folder: Path, size: int, way: str) -> set[tuple[int, int]]:
    """(sender, receiver) of every array of so many ring elements that these parties say they sent, or got."""
    pairs = set()
    for rank in range(3):
        for frame in read_transcript(folder / f"party-{rank}" / "transcript"):
            if frame.kind == "data" and frame.way == way and Spec("<i8", (size,)) in frame.specs:
                pairs |= {(rank, peer) if way == "out" else (peer, rank) for peer in frame.peers}
    return pairs


def test_an_announcement_goes_to_every_party_or_to_none() -> None:
    some = Release("sent to some", (0, 1), (3,), "test")

    def job(session: Session) -> None:
        before = session._transport.meter.total.sent
        with pytest.raises(UndeclaredRelease, match="must go to every party"):
            session.announce({str(session.rank): 1.0}, some)
        assert session._transport.meter.total.sent == before and session.released == []

    run_session(job, plan=ReleasePlan([some]))


def test_different_plans_never_start() -> None:
    from tests.support import sessions

    config, listeners = sessions.local_config(2)

    def party(rank: int) -> None:
        release = Release("a", (0,) if rank else (0, 1), (), "test")
        with sessions.Session(
            sessions.connect(config, rank, sessions.credentials(rank, 2), listeners[rank]),
            config,
            ReleasePlan([release]),
        ):
            pass

    works = [lambda rank=rank: party(rank) for rank in range(2)]
    dealer = lambda: sessions.serve_as_dealer(config, sessions.credentials(2, 2))  # noqa: E731
    with stopping("plans other releases"):
        sessions.in_threads([*works, dealer])


def test_a_second_session_in_the_same_process() -> None:
    """One after the other, and two at once, in one process."""
    assert run_session(lambda session: session.parties, 2) == [2, 2]
    assert run_session(lambda session: session.parties, 3) == [3, 3, 3]
    from tests.support.sessions import in_threads

    both = in_threads([lambda: run_session(_long, 2), lambda: run_session(_long, 3)])
    assert both == [[2, 2], [3, 3, 3]]


def _long(session: Session) -> int:
    x = RNG.normal(size=50)
    shared = secret(session, x)
    for _ in range(5):
        assert np.abs(opened(session, (shared * shared).reciprocal().sigmoid())).max() <= 1.001
    return session.parties


def test_outside_a_session_nothing_works() -> None:
    run_session(lambda session: None, 2)
    with pytest.raises(ProtocolError, match="no session is open"):
        tensors.current()
    with pytest.raises(ProtocolError, match="no session is open"):
        runtime.crypten.cryptensor(torch.zeros(2))


def test_an_undeclared_release_raises_on_every_party_and_sends_nothing() -> None:
    undeclared = Release("undeclared", (0, 1, 2), (1,), "test")
    raised = []

    def job(session: Session) -> None:
        shared = secret(session, np.zeros(1))
        before = session._transport.meter.total.sent
        with pytest.raises(UndeclaredRelease, match="not in the run plan"):
            session.open(shared, undeclared)
        assert session._transport.meter.total.sent == before and session.released == []
        raised.append(session.rank)

    run_session(job)
    assert sorted(raised) == [0, 1, 2]


def test_different_release_logs_are_noticed_at_the_end() -> None:
    def job(session: Session) -> None:
        opened(session, secret(session, np.zeros(2)))
        if session.rank == 1:
            session._desk.chain.append({"release": "something else"})

    with pytest.raises(ExceptionGroup) as caught:
        run_session(job)
    messages = [str(error) for error in caught.value.exceptions if isinstance(error, LogError)]
    assert messages and all("has another log of releases" in line for line in messages)
    assert len(caught.value.exceptions) == 4, "no process ends without an error"


def test_a_fault_inside_a_repeated_loop_is_reported_at_once() -> None:
    """The party's own error reaches the others; nothing waits for tuples of later passes."""

    def job(session: Session) -> None:
        value = secret(session, np.ones(1000))
        for step in session.repeat(50):
            if step == 3 and session.rank == 1:
                raise ZeroDivisionError
            value = value * 1.0

    with pytest.raises(ExceptionGroup) as caught:
        run_session(job)
    messages = [str(error) for error in caught.value.exceptions]
    assert any("party 1: stopped: ZeroDivisionError" in line for line in messages), messages
    assert not any("did not answer" in line for line in messages), messages


def test_masks_made_inside_a_repeated_loop() -> None:
    x = RNG.normal(size=(20, 4))

    def job(session: Session) -> None:
        weights = secret(session, np.ones((4, 1)))
        for _ in session.repeat(4):
            block = session.owned(x, owner=0, shape=x.shape).pinned()
            product = block @ weights
            session.forget(block)
            assert np.abs(opened(session, product) - x.sum(axis=1, keepdims=True)).max() < 1e-3

    run_session(job)
