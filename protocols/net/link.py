"""One authenticated connection, as frames, and the state of all connections for people who watch a run.

A frame: kind (1 byte), length of the description (2), sequence number (8), length of the payload (8), description,
payload. The description names the step and the types and shapes that follow. It must equal, byte for byte, what the
receiver expects. So a wrong shape, a replayed or missing frame, or two programs out of step are detected before a
byte of payload is read. While nothing is expected, at most one header is read ahead: that is how a process notices a
dead peer or an abort wherever it waits.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from secure_sccvfl.protocols.errors import PeerError, PeerStopped, ProtocolError
from secure_sccvfl.protocols.net.transport import Array, Cost, Meter

HEADER = struct.Struct(">BHQQ")
DATA, MESSAGE, ABORT, GOODBYE = 1, 2, 3, 4
NOTE_LIMIT = 1024
_KINDS = {DATA: "data", MESSAGE: "message", ABORT: "abort", GOODBYE: "goodbye"}
_MESSAGE_LIMIT = 1 << 24
_SMALL = 1 << 16
_RECORD = 1 << 14
"""The longest TLS record. Shorter reads go through a buffer of this size, so that a short frame takes one call."""


def as_bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class Frame:
    """A frame without its sequence number, which is each link's own: one frame may be sent to several peers."""

    kind: int
    described: int
    payload: int
    parts: tuple[memoryview, ...]

    @classmethod
    def of(cls, kind: int, description: bytes, arrays: Sequence[Array]) -> Frame:
        if len(description) >= 1 << 16:
            raise ProtocolError("a step has too many arrays for one frame")
        parts = [as_bytes(array) for array in arrays if array.size]
        payload = sum(part.nbytes for part in parts)
        if payload <= _SMALL:
            return cls(kind, len(description), payload, (memoryview(b"".join([description, *parts])),))
        return cls(kind, len(description), payload, (memoryview(description), *parts))

    @property
    def size(self) -> int:
        return HEADER.size + self.described + self.payload


@dataclass
class Want:
    """What a link waits for; `begin` checks the header and description and returns the buffers."""

    step: str
    kind: int
    begin: Callable[[bytes, int], list[memoryview]]


class Link:
    """One authenticated connection: an outgoing queue, and one incoming frame at a time."""

    def __init__(self, sock: ssl.SSLSocket, node: int, name: str, frame_limit: int) -> None:
        sock.setblocking(False)
        self.sock, self.node, self.name = sock, node, name
        self._frame_limit = frame_limit
        self._out: deque[memoryview] = deque()
        self._sent_frames = self._read_frames = 0
        self._half_sent = False
        self.want: Want | None = None
        self.said_goodbye = False
        self.heard = time.monotonic()
        """When the last bytes came."""
        self._kind = self._payload = 0
        self._record = memoryview(bytearray(_RECORD))
        self._unread = self._record[:0]
        self._stage = self._read_header
        self._into(memoryview(bytearray(HEADER.size)))

    # sending

    @property
    def sending(self) -> bool:
        return bool(self._out)

    def queue(self, frame: Frame) -> None:
        head = HEADER.pack(frame.kind, frame.described, self._sent_frames, frame.payload)
        self._sent_frames += 1
        first, *rest = frame.parts
        self._out.append(memoryview(b"".join([head, first])))
        self._out.extend(rest)

    def flush(self, step: str) -> None:
        try:
            while self._out:
                view = self._out[0]
                count = self.sock.send(view)
                if count == len(view):
                    self._out.popleft()
                else:
                    self._out[0] = view[count:]
                self._half_sent = bool(self._out)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._half_sent = True
        except (OSError, ValueError) as error:
            self._hear_why(step)
            raise PeerError(self.name, step, f"closed the connection ({why(error)})") from None

    def _hear_why(self, step: str) -> None:
        """Raise the reason that a peer sent before it closed the connection, if any."""
        try:
            self.read(step)
        except PeerStopped:
            raise
        except PeerError:
            pass

    # receiving

    @property
    def between_frames(self) -> bool:
        return self._stage == self._read_header

    @property
    def held(self) -> bool:
        """A header was read ahead; its body waits until it is asked for."""
        return self._stage == self._hold

    @property
    def buffered(self) -> bool:
        """Something has arrived that no poll will report: bytes, or the end of the connection."""
        return bool(self._unread) or self.sock.fileno() < 0 or self.sock.pending() > 0

    def read(self, step: str) -> None:
        """Advance the incoming frame by what the socket has."""
        self._step = step
        try:
            if self.want is not None and self._untouched and self._take_whole(self.want, step):
                return
            while not (self.held and self.want is None) and not self.said_goodbye:
                while self._buffers:
                    view = self._buffers[0]
                    count = self._receive(view, step)
                    if count == len(view):
                        self._buffers.popleft()
                    else:
                        self._buffers[0] = view[count:]
                wanted = self.want
                self._stage()
                if wanted is not None and self.want is None:
                    return
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (OSError, ValueError) as error:
            raise PeerError(self.name, step, f"closed the connection ({why(error)})") from None

    @property
    def _untouched(self) -> bool:
        """Nothing of the next frame has been read."""
        return self.between_frames and len(self._buffers) == 1 and len(self._buffers[0]) == HEADER.size

    def _take_whole(self, want: Want, step: str) -> bool:
        """Take a short, correct frame that has arrived completely, in one go; other frames are read step by step."""
        if not self._unread:
            count = self.sock.recv_into(self._record)
            if count == 0:
                raise PeerError(self.name, step, "closed the connection")
            self._unread, self.heard = self._record[:count], time.monotonic()
        if len(self._unread) < HEADER.size:
            return False
        kind, described, sequence, payload = HEADER.unpack_from(self._unread)
        end = HEADER.size + described + payload
        expected = kind == want.kind and sequence == self._read_frames and payload <= self._frame_limit
        if not expected or len(self._unread) < end:
            return False
        at = HEADER.size + described
        for buffer in want.begin(bytes(self._unread[HEADER.size : at]), payload):
            buffer[:] = self._unread[at : at + len(buffer)]
            at += len(buffer)
        self._read_frames += 1
        self._unread = self._unread[end:]
        self.want = None
        return True

    def _receive(self, view: memoryview, step: str) -> int:
        """Fill the front of a buffer; returns the number of bytes."""
        if not self._unread:
            direct = len(view) >= _RECORD
            count = self.sock.recv_into(view if direct else self._record)
            if count == 0:
                raise PeerError(self.name, step, "closed the connection")
            self.heard = time.monotonic()
            if direct:
                return count
            self._unread = self._record[:count]
        count = min(len(view), len(self._unread))
        view[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        return count

    def _into(self, *buffers: memoryview) -> None:
        self._target = buffers
        self._buffers = deque(buffer for buffer in buffers if buffer.nbytes)

    def _fault(self, reason: str) -> PeerError:
        return PeerError(self.name, self.want.step if self.want else self._step, reason)

    def _read_header(self) -> None:
        kind, described, sequence, payload = HEADER.unpack(self._target[0])
        if kind not in _KINDS:
            raise self._fault(f"sent a frame of unknown kind {kind}")
        if sequence != self._read_frames:
            reason = "repeated" if sequence < self._read_frames else "skipped"
            raise self._fault(f"{reason} a frame: number {sequence} came instead of {self._read_frames}")
        limit = {DATA: self._frame_limit, MESSAGE: _MESSAGE_LIMIT}.get(kind, NOTE_LIMIT)
        if payload > limit:
            raise self._fault(f"sent an oversized frame: {payload} bytes, {limit} allowed")
        self._read_frames += 1
        self._kind, self._payload = kind, payload
        self._description = bytearray(described)
        if kind == ABORT:
            self._note = bytearray(payload)
            self._into(memoryview(self._description), memoryview(self._note))
            self._stage = self._read_note
        elif kind == GOODBYE:
            if self.want is not None:
                raise self._fault("ended the session early")
            self.said_goodbye = True
        else:
            self._stage = self._hold

    def _read_note(self) -> None:
        note = self._note.decode(errors="replace")
        printable = "".join(char if char.isprintable() else "?" for char in note)
        step = self.want.step if self.want else self._step
        raise PeerStopped(self.name, step, printable, self._description.decode(errors="replace"))

    def _hold(self) -> None:
        if self.want is None:
            return
        if self._kind != self.want.kind:
            raise self._fault(f"sent a {_KINDS[self._kind]} frame instead of {_KINDS[self.want.kind]}")
        self._into(memoryview(self._description))
        self._stage = self._read_description

    def _read_description(self) -> None:
        if self.want is None:
            raise self._fault("sent a body that nothing asked for")
        self._into(*self.want.begin(bytes(self._description), self._payload))
        self._stage = self._read_payload

    def _read_payload(self) -> None:
        self.want = None
        self._into(memoryview(bytearray(HEADER.size)))
        self._stage = self._read_header

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()

    def abort(self, reason: str, waited_for: str = "") -> None:
        """Tell the peer why this process stops, unless a frame is half written; then close."""
        if not self._half_sent and not self.said_goodbye:
            with contextlib.suppress(PeerError):
                note = np.frombuffer(reason.encode()[:NOTE_LIMIT], dtype=np.uint8)
                self.queue(Frame.of(ABORT, waited_for.encode()[:NOTE_LIMIT], [note]))
                self.flush("abort")
        self.close()


def why(error: Exception) -> str:
    """A short reason without machine details."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS error").lower().replace("_", " ")
    if isinstance(error, TimeoutError):
        return "time ran out"
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return type(error).__name__


@dataclass(frozen=True)
class PeerSeen:
    """One peer: whether it is connected, seconds since its last word, and the step that it owes an answer to."""

    name: str
    connected: bool
    silent: float | None
    awaited: str


class Activity:
    """The links of one process, as they are."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._links: dict[int, Link] = {}
        self._until: float | None = None
        self._meter, self._past = Meter(), Cost()
        self.facts: dict[str, float] = {}
        """Public numbers that a job wants people to see, such as what the privacy budget has come to."""

    def connecting(self, names: Mapping[int, str], until: float) -> None:
        """A session begins: the expected peers, and the deadline (`time.monotonic`)."""
        self._past, self._meter = self.cost, Meter()
        self._links, self._names, self._until = {}, dict(names), until

    def joined(self, link: Link) -> None:
        self._links[link.node] = link

    def running(self, meter: Meter) -> None:
        """All peers are connected; the session counts here."""
        self._meter, self._until = meter, None

    @property
    def connect_left(self) -> float | None:
        """Seconds in which the missing peers must connect; None while none is missing."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    @property
    def cost(self) -> Cost:
        now = self._meter.total
        return Cost(**{f.name: getattr(self._past, f.name) + getattr(now, f.name) for f in fields(Cost)})

    def peers(self) -> list[PeerSeen]:
        now, seen = time.monotonic(), []
        for node, name in sorted(self._names.items()):
            link = self._links.get(node)
            want = link.want if link is not None else None
            silent = None if link is None else max(0.0, now - link.heard)
            seen.append(PeerSeen(name, link is not None, silent, want.step if want is not None else ""))
        return seen
