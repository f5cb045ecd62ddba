"""A party sends the dealer another request than the others: it reads nothing, and the run stops before an opening.

The dealer compares requests, ring elements are bound to their request, and every release is confirmed. Without the
first two the attack reads every secret. With the binding alone it guesses. With all of them the dealer names the
party that differs, and no share of a release is sent.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.dealer import Dealer, TupleSource
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.dealing.tuples import Request, recipe
from secure_sccvfl.protocols.net.transport import Array, Spec, Transport
from secure_sccvfl.protocols.operations import group_table
from secure_sccvfl.protocols.session.node import connect, serve_as_dealer
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs.jobs import make_job
from tests.support.sessions import credentials, in_threads, local_config, results, run_session

ROWS = 2000
STANDARD_ERRORS = 6.3
"""A normal value is further off than this with probability 3e-10."""
Change = Callable[[dict[str, Any]], None]
"""What a liar does to its order before the dealer gets it."""
DIFFERS = "sent another request than party 0"


def gullible(self: Dealer, wait: float) -> bytes | None:
    """The dealer as it was: it obeys party 0, whatever the others say."""
    for rank, order in enumerate(self._orders):
        if order is None:
            order = self._orders[rank] = self._transport.receive_message(rank, "", wait=wait)
        if order is None:
            return None
    first, self._orders = self._orders[0], [None] * len(self._orders)
    return first


def obeys_party_0(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dealer, "_next_order", gullible)


def words_by_counter_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "use", b"")


class Misrequesting(TupleSource):
    """Party 0 calls a tuple noise of deviation .001 and receives the others' ring elements as its correction."""

    kind: str
    words: Array | None = None

    def _is_aim(self, request: Request) -> bool:
        return request.kind == self.kind and self.words is None and self._next % self._transport.parties == 0

    def _ask(self, requests: Any, times: int) -> None:
        if len(requests) == 1 and self._is_aim(requests[0]):
            wanted = recipe(requests[0])
            fields = [f for f in (*wanted.free.values(), *wanted.bound.values()) if f.owner != 0]
            self._size = sum(f.spec.nbytes for f in fields) // 8
            requests = [Request("noise", ((self._size,), 1e-3))]
        super()._ask(requests, times)

    def _fetch(self, request: Request) -> tuple[int, dict[str, Array]]:
        if not self._is_aim(request):
            return super()._fetch(request)
        counter, dealer = self._next, self._transport.parties
        self._next += 1
        draw = self._stream.draw(counter, request.use)
        wanted = recipe(request)
        fields = {name: field.expand(draw, 0) for name, field in wanted.free.items()}
        (came,) = self._transport.exchange(f"tuple {counter}", {}, {dealer: [Spec("<i8", (self._size,))]})[dealer]
        self.words = -came
        fields |= {name: np.zeros(field.shape, field.dtype) for name, field in wanted.bound.items()}
        return counter, fields


def misrequest(session: Session, kind: str) -> Misrequesting:
    source: Any = session.party.tuples
    source.__class__ = Misrequesting
    source.kind = kind
    return source


def read_groups() -> tuple[np.ndarray, np.ndarray]:
    """Party 0 owns columns, party 1 holds s: what party 0 reads of s (one-hot), and s."""
    codes = np.random.default_rng(0).integers(0, 2, ROWS)
    one_hot = np.eye(2, dtype=np.int64)[codes]

    def job(session: Session) -> np.ndarray | None:
        evil = misrequest(session, "cross") if session.rank == 0 else None
        seen = []
        if evil is not None:
            honest = session.party.transport.exchange

            def tap(step: str, send: Any, receive: Any) -> Any:
                came = honest(step, send, receive)
                if step == "group table":
                    seen.append(came[1][0].copy())
                return came

            session.party.transport.exchange = tap  # type: ignore[method-assign]
        held = None if session.rank == 0 else lambda part: one_hot[part]
        block = lambda part: np.ones((part.stop - part.start, 1 - session.rank), np.int64)  # noqa: E731
        group_table.group_table(session.party, ROWS, (1, 0), block, 1, 2, held, wide=True)
        if evil is None or evil.words is None:
            return None
        return np.asarray(seen[0] + evil.words[: 2 * ROWS].reshape(ROWS, 2))

    read = run_session(job, 2)[0]
    assert read is not None
    return read, codes


def test_without_guards_party_0_reads_every_s(monkeypatch: pytest.MonkeyPatch) -> None:
    obeys_party_0(monkeypatch)
    words_by_counter_alone(monkeypatch)
    read, codes = read_groups()
    assert (read == np.eye(2)[codes]).all()


@pytest.mark.chance(3e-10)
def test_words_bound_to_the_request_leave_it_at_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    obeys_party_0(monkeypatch)
    read, codes = read_groups()
    right = int((read.argmax(axis=1) == codes).sum())
    assert abs(right - ROWS / 2) < STANDARD_ERRORS * ROWS**0.5 / 2
    assert not (read == np.eye(2)[codes]).all(axis=1).any()


def stopped(work: Callable[[], Any]) -> list[str]:
    """What the processes say when the run stops."""
    with pytest.raises(ExceptionGroup) as caught:
        work()
    return [str(error) for error in caught.value.exceptions]


def test_the_dealer_stops_before_it_answers() -> None:
    assert any(DIFFERS in line for line in stopped(read_groups))


# what each party may say to the dealer


class Lying:
    """A transport whose party changes one kind of order to the dealer; it notes what is opened."""

    def __init__(self, inner: Transport, liar: int, change: Change, opened: list[str]) -> None:
        self._inner, self._liar, self._change, self._opened = inner, liar, change, opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_message(self, peer: int, step: str, message: bytes) -> None:
        order = json.loads(message)
        if self._inner.node == self._liar:
            self._change(order)
        self._inner.send_message(peer, step, json.dumps(order).encode())

    def exchange(self, step: str, send: Any, receive: Any) -> Any:
        if step.startswith("release ") and step != "release plan":
            self._opened.append(step)
        return self._inner.exchange(step, send, receive)


def shape(order: dict[str, Any]) -> None:
    if order.get("make", [[""]])[0][0] == "square":
        order["make"][0][1] = [7]


def times(order: dict[str, Any]) -> None:
    if order.get("times", 1) > 1:
        order["times"] += 1


def other(key: str) -> Change:
    """Another number in the order of this kind."""

    def change(order: dict[str, Any]) -> None:
        if key in order:
            order[key] = int(order[key]) + 1

    return change


@pytest.mark.parametrize("liar", [0, 2])
@pytest.mark.parametrize("change", [shape, times, other("cancel"), other("forget")])
def test_whoever_differs_is_named(liar: int, change: Change) -> None:
    opened: list[str] = []

    def job(session: Session) -> None:
        session.forget(session.owned(np.ones((2, 2)), owner=0, shape=(2, 2)).pinned())
        for step in session.repeat(5):
            session.party.take("square", (6,))
            if step == 3:
                break
        session.open(session.share(np.ones(3), owner=0, shape=(3,)), results(3)[1])

    messages = stopped(lambda: run_session(job, wrap=lambda inner: Lying(inner, liar, change, opened)))
    names = "party 1, party 2" if liar == 0 else f"party {liar}"
    assert any(f"{names}: {DIFFERS}" in line for line in messages), messages
    assert not opened, "nothing is opened after a difference"


def test_the_dealers_word_cannot_be_made_up() -> None:
    """Party 0 asks for nothing and makes its part of the confirmation up: the others open nothing."""
    opened: list[str] = []

    def made_up(party: Party, step: str) -> None:
        shares, spec = [np.ones(2, np.int64)], [Spec("<i8", (2,))]
        party.compared(step, {peer: shares for peer in party.others}, {peer: spec for peer in party.others})

    def job(session: Session) -> None:
        if session.rank == 0:
            session.party.confirm = functools.partial(made_up, session.party)  # type: ignore[method-assign]
        session.open(session.share(np.ones(3), owner=0, shape=(3,)), results(3)[1])
        raise AssertionError("party 0 got what it wanted")

    messages = stopped(lambda: run_session(job, wrap=lambda inner: Lying(inner, -1, shape, opened)))
    assert any("cannot show that all sent the dealer the same" in line for line in messages), messages
    assert not any("got what it wanted" in line for line in messages) and len(opened) <= 1, "party 0 alone goes on"


# noise


def removed(order: dict[str, Any]) -> None:
    for request in order.get("make", []):
        if request[0] == "noise":
            request[2] = 1e-3


def noisy(parties: int = 3) -> np.ndarray:
    """What a release of zeros under noise of deviation 1000 opens when party 0 tells the dealer .001."""
    opened: list[str] = []

    def job(session: Session) -> np.ndarray:
        words = session.party.take("noise", (ROWS,), 1000.0)["e"]
        value = session.open(session.wrap(words, 0), results(3)[1])
        assert value is not None
        return value.numpy()

    values = run_session(job, parties, wrap=lambda inner: Lying(inner, 0, removed, opened))
    return np.asarray(values[1])


def test_without_guards_the_noise_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    obeys_party_0(monkeypatch)
    words_by_counter_alone(monkeypatch)
    assert not noisy().any()


@pytest.mark.chance(1e-12)
def test_bound_words_turn_removed_noise_into_words_without_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    obeys_party_0(monkeypatch)
    assert (np.abs(noisy()) > 2.0**50).mean() > 0.9  # 1 - 2^-13 of uniform ring elements are as large


def test_removed_noise_stops_the_run_unopened() -> None:
    assert any(f"party 1, party 2: {DIFFERS}" in line for line in stopped(noisy))


# whole jobs


def run_job(name: str, parties: int, change: Change, folder: Path, **options: Any) -> list[str]:
    """Steps that opened something while party 0 lies to the dealer in a job on German."""
    opened: list[str] = []
    config, listeners = local_config(parties, job=name, options={"dataset": "german", "pooled": True, **options})

    def party(rank: int) -> Any:
        job = make_job(config, rank)
        transport: Any = Lying(connect(config, rank, credentials(rank, parties), listeners[rank]), 0, change, opened)
        with Session(transport, config, job.plan(), folder / f"party-{rank}" / "releases.jsonl") as session:
            return job.run(session, lambda *step: None)

    works = [functools.partial(party, rank) for rank in range(parties)]
    dealer = functools.partial(serve_as_dealer, config, credentials(parties, parties))
    assert any(DIFFERS in line for line in stopped(lambda: in_threads([*works, dealer])))
    return opened


def as_noise(order: dict[str, Any]) -> None:
    for number, request in enumerate(order.get("make", [])):
        if request[0] == "cross":
            rows, widths, groups, _, dtype = request[1:]
            size = np.dtype(dtype).itemsize * (rows * groups + sum(widths) * groups)
            order["make"][number] = ["noise", [(size + 7) // 8], 1e-3]


@pytest.mark.parametrize(
    ("job", "parties", "change", "options"),
    [
        ("discovery", 2, as_noise, {"refreshes": 0}),
        ("discovery", 3, removed, {"refreshes": 0, "noise": "dealer", "epsilon": 1.0}),
    ],
    ids=["s", "noise"],
)
def test_a_run_stops_before_s_is_opened(
    job: str, parties: int, change: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    opened = run_job(job, parties, change, tmp_path, **options)
    assert {step.split()[1] for step in opened} == {"alignment"}, "what came before the lie, and nothing more"
