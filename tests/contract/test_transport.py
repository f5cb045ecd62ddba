"""What a transport must do, on the TLS mesh."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import ConfigurationMismatch, PeerError, PeerLate, PeerStopped, waited_for
from secure_sccvfl.protocols.net.transport import Spec, Transport
from secure_sccvfl.protocols.session.node import connect
from tests.support.sessions import LONG, credentials, in_threads, local_config, stopping

Work = Callable[[Transport], Any]

# When a peer is gone before the handshake, ssl.wrap_socket leaves its half-made socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


def run(work: Work, parties: int = 3, **settings: Any) -> list[Any]:
    """`work` at every node, the dealer too, on a fresh transport that is closed afterwards."""
    config, listeners = local_config(parties, **settings)

    def run_node(node: int) -> Any:
        listener = listeners[node] if node < parties else None
        transport = connect(config, node, credentials(node, parties), listener)
        try:
            result = work(transport)
            transport.finish()
            return result
        except BaseException as error:
            transport.abort(type(error).__name__, waited_for(error))
            raise

    return in_threads([functools.partial(run_node, node) for node in range(parties + 1)])


def others(transport: Transport) -> list[int]:
    return [node for node in range(transport.parties + 1) if node != transport.node]


@pytest.mark.parametrize("parties", [2, 5])
def test_everyone_hears_everyone(parties: int) -> None:
    def work(transport: Transport) -> list[int]:
        sent = np.full((3, 2), transport.node, dtype=np.int64)
        peers = others(transport)
        came = transport.exchange("round", {p: [sent] for p in peers}, {p: [Spec.of(sent)] for p in peers})
        assert all((came[p][0] == p).all() for p in peers)
        return sorted(came)

    assert run(work, parties) == [[p for p in range(parties + 1) if p != n] for n in range(parties + 1)]


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_any_size_without_deadlock(size: int) -> None:
    """All send before they receive: more than any buffer between them must still pass."""

    def work(transport: Transport) -> None:
        array = np.arange(size, dtype=np.int32) + transport.node
        empty = np.zeros((0, 4), dtype=np.uint8)
        peers = others(transport)
        specs = [Spec.of(array), Spec.of(empty)]
        came = transport.exchange("big", {p: [array, empty] for p in peers}, {p: specs for p in peers})
        for p in peers:
            assert (came[p][0] == np.arange(size, dtype=np.int32) + p).all() and came[p][1].shape == (0, 4)

    run(work)


def test_messages_of_any_length_and_skipping_to_a_marker() -> None:
    def work(transport: Transport) -> None:
        if transport.node == 0:
            for length in (0, 1, 100_000):
                transport.send_message(3, "order", b"x" * length)
            transport.skip_to(3, "marker")
            assert (transport.exchange("after", {}, {3: [Spec("<f8", (2,))]})[3][0] == 1).all()
        if transport.node == 3:
            lengths = [len(transport.receive_message(0, "order") or b"") for _ in range(3)]
            assert lengths == [0, 1, 100_000]
            for number in range(5):
                transport.exchange(f"tuple {number}", {0: [np.zeros(number + 1)]}, {})
            transport.exchange("marker", {0: []}, {})
            transport.exchange("after", {0: [np.ones(2)]}, {})

    run(work)


@pytest.mark.parametrize(
    ("sent", "step"),
    [
        (np.zeros((2, 3), dtype=np.int64), "other step"),
        (np.zeros((3, 2), dtype=np.int64), "step"),
        (np.zeros((2, 3), dtype=np.int32), "step"),
        (np.zeros((2, 3), dtype=np.float64), "step"),
    ],
    ids=["step", "shape", "size", "dtype"],
)
def test_what_was_not_expected_is_refused(sent: np.ndarray, step: str) -> None:
    def work(transport: Transport) -> None:
        if transport.node == 1:
            transport.exchange(step, {0: [sent]}, {})
        if transport.node == 0:
            with pytest.raises(PeerError, match=r"party 1: sent .* instead of .*\(step: step\)"):
                transport.exchange("step", {}, {1: [Spec("<i8", (2, 3))]})
            raise PeerError("party 1", "step", "seen")

    with stopping("seen"):
        run(work)


def test_a_silent_peer_is_named_after_the_deadline() -> None:
    finished = threading.Event()

    def work(transport: Transport) -> None:
        if transport.node == 0:
            try:
                transport.deadline = 1.0
                with pytest.raises(PeerError, match=r"party 2: did not answer within 1 s \(step: wait\)"):
                    transport.exchange("wait", {}, {2: [Spec("<i8", (1,))]})
            finally:
                finished.set()
            raise PeerError("party 2", "wait", "seen")
        finished.wait(LONG)

    with stopping("seen"):
        run(work)


@pytest.mark.parametrize(
    ("error", "waited"), [(ZeroDivisionError(), ""), (PeerLate("dealer", "tuple 3", "did not answer"), "dealer")]
)
def test_a_peer_that_stops_says_why_and_for_whom_it_waited(error: Exception, waited: str) -> None:
    received: list[PeerStopped] = []
    over = threading.Event()

    def work(transport: Transport) -> None:
        if transport.node == 1:
            raise error
        if transport.node == 0:
            try:
                with pytest.raises(PeerStopped) as caught:
                    transport.exchange("wait", {}, {1: [Spec("<i8", (1,))]})
                received.append(caught.value)
            finally:
                over.set()
        over.wait(LONG)

    with pytest.raises(ExceptionGroup):
        run(work)
    (stop,) = received
    assert str(stop).startswith(f"party 1: stopped: {type(error).__name__}") and "(step: wait)" in str(stop)
    assert stop.waited_for == waited_for(stop) == waited, "those who hear it from this one are told the same"


def test_counters() -> None:
    def work(transport: Transport) -> tuple[int, int, int, int]:
        if transport.node < transport.parties:
            peers = [p for p in others(transport) if p < transport.parties]
            array = np.zeros(100, dtype=np.int64)
            with transport.meter.scope("counted"):
                transport.exchange("round", {p: [array] for p in peers}, {p: [Spec.of(array)] for p in peers})
            with transport.meter.scope("dealer"):
                transport.exchange("to dealer", {transport.parties: [array]}, {})
        else:
            for p in range(transport.parties):
                transport.exchange("to dealer", {}, {p: [Spec("<i8", (100,))]})
            return (0, 0, 0, 0)
        counted, dealer = transport.meter.by_protocol["counted"], transport.meter.by_protocol["dealer"]
        assert dealer.rounds == 0 and dealer.sent == 0 and 800 < dealer.dealer < 900
        return counted.rounds, counted.sent, counted.received, counted.dealer

    for rounds, sent, received, dealer in run(work)[:3]:
        assert rounds == 1 and dealer == 0
        assert 1600 < sent < 1800 and received == sent


def test_different_configurations_never_meet() -> None:
    config, listeners = local_config(2, connect=20.0)  # to dial one that has left takes all of it
    other = type(config)(**{**config.__dict__, "options": {"seed": 1}})

    def run_node(node: int) -> None:
        listener = listeners[node] if node < 2 else None
        connect(other if node == 1 else config, node, credentials(node, 2), listener)

    with pytest.raises(ExceptionGroup) as caught:
        in_threads([functools.partial(run_node, node) for node in range(3)])
    assert len(caught.value.exceptions) == 3
    assert any(isinstance(error, ConfigurationMismatch) for error in caught.value.exceptions)
    said = "party 1: has another configuration: options.seed is 1 there and not set here (step: connect)"
    assert any(said in str(e) for e in caught.value.exceptions)


def test_a_removed_transport_is_refused() -> None:
    """Session files of old runs may name it; they load, and no session runs on them."""
    with pytest.raises(ConfigError, match="was removed; set transport to tls"):
        connect(SessionConfig(("127.0.0.1:1", "127.0.0.1:2"), transport="gloo"), 0, credentials(0, 2))
