"""The default transport: a full mesh of mutual-TLS-1.3 connections.

One thread uses sockets that do not block. It writes and reads all links at the same time, so an opening is one
round for any size. Time for a step: the deadline plus one second per megabyte.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.errors import PeerError, PeerLate
from secure_sccvfl.protocols.net.link import DATA, GOODBYE, HEADER, MESSAGE, Frame, Link, Want
from secure_sccvfl.protocols.net.transport import Array, Meter, Spec, describe

_SLOWEST_BYTES_PER_SECOND = 1e6


class Mesh:
    def __init__(self, config: SessionConfig, node: int, links: dict[int, Link]) -> None:
        self.node, self.parties = node, len(config.parties)
        self.meter = Meter()
        self.deadline = config.deadline
        self._config = config
        self._links = links

    def exchange(
        self, step: str, send: Mapping[int, Sequence[Array]], receive: Mapping[int, Sequence[Spec]]
    ) -> dict[int, list[Array]]:
        result: dict[int, list[Array]] = {}
        sent = received = dealer = 0
        frames: dict[int, Frame] = {}  # most steps send the same to all
        for peer, arrays in send.items():
            frame = frames.get(id(arrays))
            if frame is None:
                described = describe(step, [Spec.of(array) for array in arrays])
                frame = frames[id(arrays)] = Frame.of(DATA, described, arrays)
            self._links[peer].queue(frame)
            if peer == self.parties or self.node == self.parties:
                dealer += frame.size
            else:
                sent += frame.size
        described_by: dict[int, bytes] = {}
        for peer, specs in receive.items():
            description = described_by.get(id(specs))
            if description is None:
                description = described_by[id(specs)] = describe(step, specs)
            whole, result[peer] = _arrays(specs)
            self._expect(peer, Want(step, DATA, self._expecting(peer, step, description, whole)))
            size = HEADER.size + len(description) + len(whole)
            if peer == self.parties or self.node == self.parties:
                dealer += size
            else:
                received += size
        self._run(step, self.deadline + (sent + received + dealer) / _SLOWEST_BYTES_PER_SECOND)
        self.meter.add(rounds=int(sent + received > 0), sent=sent, received=received, dealer=dealer)
        return result

    def send_message(self, peer: int, step: str, message: bytes) -> None:
        frame = Frame.of(MESSAGE, b"", [np.frombuffer(message, dtype=np.uint8)])
        self._links[peer].queue(frame)
        self._run(step, self.deadline)
        self.meter.add(dealer=frame.size)

    def receive_message(self, peer: int, step: str, *, wait: float | None = None) -> bytes | None:
        body = bytearray()

        def begin(description: bytes, payload: int) -> list[memoryview]:
            body.extend(bytes(payload))
            return [memoryview(body)]

        link = self._links[peer]
        self._expect(peer, Want(step, MESSAGE, begin))
        if wait == 0:
            link.read(step)
            if link.want is not None and link.between_frames:
                link.want = None
                return None
        self._run(step, wait or self.deadline)
        return bytes(body)

    def skip_to(self, peer: int, step: str) -> None:
        result = False

        def begin(description: bytes, payload: int) -> list[memoryview]:
            nonlocal result
            result = description == describe(step, [])
            return [memoryview(bytearray(payload))]

        while not result:
            self._expect(peer, Want(step, DATA, begin))
            self._run(step, self.deadline)

    def finish(self) -> None:
        for link in self._links.values():
            link.queue(Frame.of(GOODBYE, b"", []))
        self._run("goodbye", self.deadline, until=lambda link: link.said_goodbye)
        for link in self._links.values():
            link.close()

    def abort(self, reason: str, waited_for: str = "") -> None:
        for link in self._links.values():
            link.abort(reason, waited_for)

    def _expect(self, peer: int, want: Want) -> None:
        if self._links[peer].said_goodbye:
            raise PeerError(self._config.node_name(peer), want.step, "ended the session early")
        self._links[peer].want = want

    def _expecting(
        self, peer: int, step: str, description: bytes, whole: memoryview
    ) -> Callable[[bytes, int], list[memoryview]]:
        def begin(came: bytes, payload: int) -> list[memoryview]:
            name = self._config.node_name(peer)
            if came != description:
                shown = came[:200].decode(errors="replace")
                raise PeerError(name, step, f"sent {shown!r} instead of {description.decode()!r}")
            if payload != len(whole):
                raise PeerError(name, step, f"sent {payload} bytes instead of {len(whole)}")
            return [whole]

        return begin

    def _run(self, step: str, seconds: float, until: Callable[[Link], bool] | None = None) -> None:
        """Drive all links until everything queued is written and everything wanted has arrived."""
        end = time.monotonic() + seconds

        def open_work(link: Link) -> bool:
            return link.sending or link.want is not None or (until is not None and not until(link))

        for link in self._links.values():
            if link.sending:
                link.flush(step)
            if link.buffered and (not link.held or link.want is not None):
                link.read(step)
        while any(open_work(link) for link in self._links.values()):
            poller = select.poll()
            by_handle = {}
            for link in self._links.values():
                events = select.POLLOUT if link.sending else 0
                if not link.said_goodbye and (link.want is not None or not link.held):
                    events |= select.POLLIN
                if events:
                    handle = link.sock.fileno()
                    poller.register(handle, events)
                    by_handle[handle] = link
            left = end - time.monotonic()
            ready = poller.poll(left * 1000) if left > 0 else []
            if not ready and end - time.monotonic() <= 0:
                late = [link.name for link in self._links.values() if open_work(link)]
                raise PeerLate(", ".join(late), step, f"did not answer within {seconds:.0f} s")
            for handle, event in ready:
                link = by_handle[handle]
                if link.sending and event & ~select.POLLIN:
                    link.flush(step)
                if event & ~select.POLLOUT:
                    link.read(step)


def _arrays(specs: Sequence[Spec]) -> tuple[memoryview, list[Array]]:
    """Arrays of these shapes side by side in one piece of memory, and that memory."""
    whole = memoryview(np.empty(sum(spec.nbytes for spec in specs), np.uint8).data)
    arrays, at = [], 0
    for spec in specs:
        arrays.append(np.ndarray(spec.shape, spec.dtype, whole, at))
        at += spec.nbytes
    return whole, arrays
