"""A relay in front of each party's port: it passes every byte on, late or with a copy on disk. It holds no key.

With `folder` it is a wire-tap in the position of a network's owner, which sees TLS records, addresses and times
(--transcript). `0-2-to.bin` holds what the third caller of party 0 sent, `0-2-from.bin` the answers. With `delay` it
is a slow network for benchmarks; bandwidth is not limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import IO

from secure_sccvfl.protocols.config import split_address
from secure_sccvfl.protocols.net.rendezvous import listen_anywhere

_CHUNK = 1 << 18


class Relay:
    """Relays for some addresses until it is closed; callers must dial `addresses` instead."""

    def __init__(self, targets: tuple[str, ...], delay: float = 0.0, folder: Path | None = None) -> None:
        """`delay`: seconds that a byte travels, in either direction."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        listeners = [listen_anywhere() for _ in targets]
        self.addresses = tuple(address for _, address in listeners)
        self._listeners, self._targets = [listener for listener, _ in listeners], targets
        self._delay, self._folder = delay, folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        tasks = [loop.create_task(self._accept(rank)) for rank in range(len(self._targets))]
        loop.run_forever()
        pending = asyncio.all_tasks(loop) | set(tasks)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _accept(self, rank: int) -> None:
        (host, port), callers = split_address(self._targets[rank]), iter(range(1 << 20))

        async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                answers, forward = await asyncio.open_connection(host, port)
            except OSError:
                writer.close()
                return
            number = next(callers)
            try:
                await asyncio.gather(
                    self._pump(reader, forward, f"{rank}-{number}-to.bin"),
                    self._pump(answers, writer, f"{rank}-{number}-from.bin"),
                )
            finally:
                for end in (writer, forward):
                    self._loop.call_later(self._delay, end.close)

        async with await asyncio.start_server(both_ways, sock=self._listeners[rank]) as server:
            await server.serve_forever()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._copy(name) as copy, contextlib.suppress(OSError):
            while came := await reader.read(_CHUNK):
                if copy is not None:
                    copy.write(came)
                if self._delay:
                    self._loop.call_later(self._delay, writer.write, came)
                else:
                    writer.write(came)
                    await writer.drain()
            self._loop.call_later(self._delay, self._end, writer)

    @staticmethod
    def _end(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _copy(self, name: str) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        if self._folder is None:
            return contextlib.nullcontext()
        return open(self._folder / name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600))
