"""Being dialled: it goes on after an error that passes, and ends when all have met."""

from __future__ import annotations

import contextlib
import errno
import functools
import socket
from typing import Any

from protocols.errors import ProtocolError
from protocols.net.rendezvous import listen
from protocols.session.node import connect
from tests.support.harness import credentials, in_threads, local_config


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
