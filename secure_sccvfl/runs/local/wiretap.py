"""A wire-tap: a relay in front of each party's port that passes every byte on and keeps a copy.

It stands in the place of a network's owner: it holds no certificate and no key, and sees TLS records, addresses and
times. There is one file for each connection and direction: `0-2-to.bin` holds what the third caller of party 0
sent, `0-2-from.bin` the answers. It is used with --transcript only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

from protocols.net.rendezvous import dial, listen_anywhere

_CHUNK = 1 << 18
_MOST_WAITING = 1 << 22
_LOOK_SECONDS = 0.2


@dataclass
class _Half:
    """One direction of a connection: from one socket to another, through a file."""

    source: socket.socket
    target: socket.socket
    copy: IO[bytes]
    waiting: bytearray = field(default_factory=bytearray)
    ended: bool = False
    """The source will send no more."""
    closed: bool = False


class Wiretap:
    """Relays for some addresses; callers must dial `addresses` instead."""

    def __init__(self, targets: tuple[str, ...], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = [listen_anywhere() for _ in targets]
        self.addresses = tuple(address for _, address in made)
        self._folder, self._targets = folder, targets
        self._select = selectors.DefaultSelector()
        for rank, (listener, _) in enumerate(made):
            listener.setblocking(False)
            self._select.register(listener, selectors.EVENT_READ, rank)
        self._callers = [0] * len(targets)
        self._halves: list[_Half] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Wiretap:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for key, events in self._select.select(_LOOK_SECONDS):
                    if isinstance(key.data, int):
                        self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                    else:
                        self._serve(key.data, events)
        finally:
            for key in list(self._select.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._select.close()
            for half in self._halves:
                half.copy.close()
                half.source.close()  # a socket is the source of one half

    def _accept(self, listener: socket.socket, rank: int) -> None:
        caller, _ = listener.accept()
        try:
            answerer = dial(self._targets[rank], 5.0)
        except OSError:
            caller.close()
            return
        number = self._callers[rank]
        self._callers[rank] += 1
        there = _Half(caller, answerer, self._file(f"{rank}-{number}-to.bin"))
        back = _Half(answerer, caller, self._file(f"{rank}-{number}-from.bin"))
        self._halves += [there, back]
        for end in (caller, answerer):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for end, halves in ((caller, (there, back)), (answerer, (back, there))):
            self._select.register(end, selectors.EVENT_READ, halves)

    def _file(self, name: str) -> IO[bytes]:
        return open(self._folder / name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600))

    def _serve(self, halves: tuple[_Half, _Half], events: int) -> None:
        """One socket is ready: the first half reads from it, the second writes to it."""
        reading, writing = halves
        if events & selectors.EVENT_READ and not reading.ended:
            try:
                came = reading.source.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                came = b""
            reading.copy.write(came)
            reading.waiting += came
            reading.ended = not came
        for half in halves if events & selectors.EVENT_READ else (writing,):
            self._pass_on(half)
        self._watch(reading, writing)
        self._watch(writing, reading)

    def _pass_on(self, half: _Half) -> None:
        try:
            while half.waiting:
                sent = half.target.send(memoryview(half.waiting)[:_CHUNK])
                del half.waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:
            half.waiting.clear()
            half.ended = True
        if half.ended and not half.waiting and not half.closed:
            half.closed = True
            half.copy.flush()
            with contextlib.suppress(OSError):
                half.target.shutdown(socket.SHUT_WR)

    def _watch(self, out: _Half, into: _Half) -> None:
        """Register the remaining work of the socket between two halves: `out` reads it, `into` writes it."""
        sock = out.source
        wanted = selectors.EVENT_WRITE if into.waiting else 0
        if not out.ended and len(out.waiting) < _MOST_WAITING:
            wanted |= selectors.EVENT_READ
        known = self._select.get_map().get(sock)
        if wanted and known is None:
            self._select.register(sock, wanted, (out, into))
        elif wanted and known is not None and known.events != wanted:
            self._select.modify(sock, wanted, (out, into))
        elif not wanted and known is not None:
            self._select.unregister(sock)
        if out.closed and into.closed:
            sock.close()
