"""A member that is not who, or does not send what, it should: refused by the one it deals with.

Nodes are threads. tests/multiprocess/test_faults.py has strangers and dead processes.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.config import SessionConfig, code_digest
from secure_sccvfl.protocols.errors import PeerError
from secure_sccvfl.protocols.net.certificates import Credentials
from secure_sccvfl.protocols.net.link import DATA, Frame
from secure_sccvfl.protocols.net.rendezvous import _HELLO, _MAGIC, Rendezvous, dial
from secure_sccvfl.protocols.net.transport import Spec, describe
from secure_sccvfl.protocols.session.node import connect
from tests.support.sessions import CERTIFICATES, credentials, in_threads, local_config

ODD, DEALER = 1, 2

# When a peer is gone before the handshake, ssl.wrap_socket leaves its half-made socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


def meet(
    odd: int = ODD, shown: Credentials | None = None, hello: Callable[[SessionConfig], bytes] | None = None
) -> list[str]:
    """Two parties and the dealer, one of them with this certificate and this hello; what made each of them stop."""
    config, listeners = local_config(2)
    shown_credentials = [credentials(node, 2) if shown is None or node != odd else shown for node in range(3)]
    meetings = [
        Rendezvous(config, node, shown_credentials[node], listener)
        for node, listener in enumerate([*listeners, None])
    ]
    if hello is not None:
        meetings[odd].hello = hello(config)
    waiting, together = {0, 1, DEALER} - {odd}, threading.Barrier(3)

    def run_node(node: int) -> str:
        try:
            links = meetings[node].run()
        except PeerError as error:
            together.abort()
            waiting.discard(node)
            if not waiting:
                meetings[odd].end = 0.0  # nobody else will call it
            if node == odd:  # somebody refused it, and it listens no longer: others must not wait for it
                for other in waiting:
                    meetings[other].end = 0.0
            return str(error)
        with suppress(threading.BrokenBarrierError):  # whoever closes a link early stops those who still look
            together.wait(60)
        for link in links.values():
            link.close()
        return "met"

    return in_threads([partial(run_node, node) for node in range(3)])


def test_members_that_say_the_truth_meet() -> None:
    assert meet() == ["met"] * 3
    assert meet(hello=lambda config: _HELLO.pack(_MAGIC, ODD, 2, config.digest(), code_digest())) == ["met"] * 3


def test_giving_up_waits_for_a_handshake_that_is_about_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has not started cannot be joined: the caller would learn that, not why its peer stopped."""
    config, listeners = local_config(2)
    meeting, created, given_up = Rendezvous(config, 0, credentials(0, 2), listeners[0]), threading.Event(), []

    class SlowToStart(threading.Thread):
        def start(self) -> None:
            created.set()
            threading.Event().wait(0.5)
            super().start()

    monkeypatch.setattr("secure_sccvfl.protocols.net.rendezvous.threading.Thread", SlowToStart)

    def give_up() -> None:
        assert created.wait(60)
        meeting._give_up("a reason")
        given_up.append(meeting.reason)

    in_threads([lambda: meeting._start(lambda: None), give_up])
    for listener in listeners:
        listener.close()
    assert given_up == ["a reason"]


def test_a_certificate_of_another_rank() -> None:
    """Whoever meets it refuses it; the other may find that it has gone by then."""
    endings = meet(odd=0, shown=Credentials.of(CERTIFICATES, "party-1"))
    refused = [line == "party 0: its certificate is for party 1 (step: connect)" for line in endings[1:]]
    assert any(refused), endings
    assert all(yes or "did not connect" in line for yes, line in zip(refused, endings[1:], strict=True)), endings


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (lambda c: _HELLO.pack(_MAGIC, 0, 2, c.digest(), code_digest()), "but its handshake says party 0"),
        (lambda c: _HELLO.pack(_MAGIC, ODD, 3, c.digest(), code_digest()), "has another configuration"),
        (lambda c: _HELLO.pack(_MAGIC, ODD, 2, bytes(32), code_digest()), "has another configuration"),
        (lambda c: _HELLO.pack(_MAGIC, ODD, 2, c.digest(), bytes(32)), "runs another version of the code"),
        (lambda c: _HELLO.pack(b"sccvfl00", ODD, 2, c.digest(), code_digest()), "does not speak this protocol"),
    ],
    ids=["rank", "parties", "configuration", "code", "protocol"],
)
def test_a_hello_that_does_not_fit(hello: Callable[[SessionConfig], bytes], reason: str) -> None:
    endings = meet(hello=hello)
    assert any(line.startswith("party 1: ") and reason in line for line in (endings[0], endings[DEALER])), endings
    assert "met" not in (endings[0], endings[DEALER])


def between(misbehave: Callable[[Any], None], spec: Spec) -> str:
    """Party 1 sends an array of this kind as it should, then as `misbehave` does; why party 0 stops at the second."""
    config, listeners = local_config(2, frame_limit=1 << 16)
    over = threading.Event()

    def run_node(node: int) -> str:
        mesh = connect(config, node, credentials(node, 2), listeners[node] if node < DEALER else None)
        try:
            if node == ODD:
                mesh.exchange("first", {0: [np.zeros(3)]}, {})
                misbehave(mesh)
            if node == 0:
                mesh.exchange("first", {}, {ODD: [Spec("<f8", (3,))]})
                mesh.exchange("second", {}, {ODD: [spec]})
            else:
                over.wait(60)
        except PeerError as error:
            return str(error)
        finally:
            over.set()
            mesh.abort("test")
        return "nothing was noticed"

    return str(in_threads([partial(run_node, node) for node in range(3)])[0])


def numbered(mesh: Any, number: int, array: Any) -> None:
    mesh._links[0]._sent_frames = number
    mesh.exchange("second", {0: [array]}, {})


SHORT, LONG = np.zeros(3), np.zeros(5000)


@pytest.mark.parametrize(("array", "kind"), [(SHORT, "in one go"), (LONG, "in pieces")], ids=["short", "long"])
@pytest.mark.parametrize(
    ("number", "reason"), [(0, "repeated a frame"), (1, "nothing was noticed"), (2, "skipped a frame")]
)
def test_a_frame_has_the_number_after_the_last(number: int, reason: str, array: Any, kind: str) -> None:
    assert reason in between(lambda mesh: numbered(mesh, number, array), Spec.of(array)), kind


def test_a_frame_beyond_the_limit_is_refused_even_if_its_shape_was_expected() -> None:
    huge = np.zeros(1 << 14)
    message = between(lambda mesh: numbered(mesh, 1, huge), Spec.of(huge))
    assert message == "party 1: sent an oversized frame: 131072 bytes, 65536 allowed (step: second)"


def cut(mesh: Any, array: Any) -> None:
    """Half of a frame, and then the end of the connection."""
    link = mesh._links[0]
    link.queue(Frame.of(DATA, describe("second", [Spec.of(array)]), [array]))
    whole = b"".join(bytes(part) for part in link._out)
    link._out.clear()
    link._out.append(memoryview(whole[: len(whole) // 2]))
    link.flush("second")
    link.sock.close()


def too_short(mesh: Any, array: Any) -> None:
    """The right description over a payload that is too short."""
    mesh._links[0].queue(Frame.of(DATA, describe("second", [Spec.of(array)]), [array[:-1]]))
    mesh._links[0].flush("second")


@pytest.mark.parametrize("array", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(("fault", "reason"), [(cut, "closed the connection"), (too_short, "bytes instead of")])
def test_a_frame_that_is_not_whole_is_refused(fault: Any, reason: str, array: Any) -> None:
    message = between(lambda mesh: fault(mesh, array), Spec.of(array))
    assert message.startswith(f"party 1: {reason}" if fault is cut else "party 1: sent ") and reason in message


def test_only_tls_1_3_and_certificates_on_both_sides() -> None:
    for server in (True, False):
        context = credentials(0, 2).context(server=server)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3 and context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize("shown", [0, ODD])
def test_a_member_that_should_be_dialled_cannot_call(shown: int) -> None:
    """Who calls party 1 is the dealer alone; party 0, and party 1 itself, are turned away though they are members."""
    config, listeners = local_config(2)
    meeting = Rendezvous(config, ODD, credentials(ODD, 2), listeners[ODD])

    def call() -> None:
        raw = dial(config.parties[ODD], 10)
        with suppress(OSError), credentials(shown, 2).context(server=False).wrap_socket(raw) as sock:
            sock.sendall(_HELLO.pack(_MAGIC, shown, 2, config.digest(), code_digest()))
            sock.recv(1)
        raw.close()

    def answer() -> None:
        meeting.pending.acquire()
        meeting._answer(listeners[ODD].accept()[0], "a caller")

    in_threads([call, answer])
    for listener in listeners:
        listener.close()
    assert meeting.refused == ["a caller (its certificate names no node that should connect here)"]
    assert meeting.found.empty()
