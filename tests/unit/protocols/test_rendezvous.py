"""Being dialled: it goes on after an error that passes, and ends when all have met."""

from __future__ import annotations

import contextlib
import errno
import functools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from protocols.errors import PeerStopped, ProtocolError
from protocols.net.rendezvous import Rendezvous, listen
from protocols.session.node import connect
from tests.support.harness import credentials, in_threads, local_config


def wait_until(reached: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.01)


class Strained:
    """A listening socket of a host that at first has no handles left, or whose callers are gone again."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner, self.errors = inner, [errno.EMFILE, errno.ECONNABORTED, errno.ENOBUFS]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def accept(self) -> Any:
        if self.errors:
            raise OSError(self.errors.pop(), "passing")
        return self._inner.accept()


def test_a_passing_error_of_accept_does_not_end_the_waiting() -> None:
    config, listeners = local_config(2, connect=20.0)
    strained = Strained(listeners[0])

    def node(rank: int) -> bool:
        listener: Any = strained if rank == 0 else listeners[1] if rank == 1 else None
        transport = connect(config, rank, credentials(rank, 2), listener)
        transport.finish()
        return True

    assert in_threads([functools.partial(node, rank) for rank in range(3)]) == [True] * 3
    assert not strained.errors


def test_an_address_is_free_as_soon_as_all_have_met() -> None:
    """Sessions follow each other, and a thread may still wait for callers of the last one."""
    config, listeners = local_config(2, connect=20.0)

    def node(rank: int) -> bool:
        transport = connect(config, rank, credentials(rank, 2), listeners[rank] if rank < 2 else None)
        free = rank > 0
        if rank == 0:
            with contextlib.suppress(ProtocolError):
                listen(config.parties[0]).close()
                free = True
        transport.finish()
        return free

    assert in_threads([functools.partial(node, rank) for rank in range(3)]) == [True] * 3


@pytest.mark.parametrize("under_way", [False, True], ids=["connected", "handshake under way"])
def test_a_process_that_gives_up_tells_peers_that_it_has_not_taken_yet(
    under_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its peers report a closed connection instead of the party that caused the stop."""
    config, listeners = local_config(2, connect=20.0)
    dealer = Rendezvous(config, config.dealer, credentials(config.dealer, 2), None)
    checked, reached = Rendezvous._check, threading.Event()

    def check(self: Rendezvous, sock: Any, expected: int, name: str) -> None:
        if self is dealer and under_way:
            reached.set()
            self.stop.wait(20.0)
        checked(self, sock, expected, name)

    monkeypatch.setattr(Rendezvous, "_check", check)

    def give_up() -> str:
        dealer._begin()
        try:
            if under_way:
                assert reached.wait(20.0)
            else:
                wait_until(lambda: not dealer.found.empty())
            dealer._give_up("party 1: stopped: its data")
        finally:
            dealer._end()
        return ""

    def wait_for_all() -> str:
        with pytest.raises(PeerStopped) as caught:
            connect(config, 0, credentials(0, 2), listeners[0])
        return str(caught.value)

    listeners[1].close()
    assert "party 1: stopped: its data" in in_threads([give_up, wait_for_all])[1]
