"""A slow network on this machine: a relay in front of each party's port delays every byte.

`bench.py run` uses it to measure what a session costs between distant hosts. It holds no key: TLS runs through it.
Bandwidth is not limited.
"""

from __future__ import annotations

import asyncio
import socket
import threading

from protocols.config import split_address
from protocols.net.rendezvous import listen_anywhere

_CHUNK = 1 << 18


class SlowLink:
    """Relays for some addresses until it is closed; callers must dial `addresses` instead."""

    def __init__(self, targets: tuple[str, ...], seconds: float) -> None:
        """`seconds` is the travel time of a byte, in either direction."""
        made = [listen_anywhere() for _ in targets]
        self.addresses = tuple(address for _, address in made)
        self._listeners, self._targets, self._seconds = [listener for listener, _ in made], targets, seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        for listener, target in zip(self._listeners, self._targets, strict=True):
            loop.create_task(self._accept(listener, target))
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()

    async def _accept(self, listener: socket.socket, target: str) -> None:
        host, port = split_address(target)

        async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(host, port)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

        async with await asyncio.start_server(both_ways, sock=listener) as server:
            await server.serve_forever()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while came := await reader.read(_CHUNK):
            self._loop.call_later(self._seconds, writer.write, came)
        self._loop.call_later(self._seconds, writer.close)
