"""The second transport: torch.distributed's gloo, for networks that are already private.

It has no TLS and no certificates: whoever can reach the ports can join. An onlooker of this network sees masked
values and the shares of released ones. Keys are still agreed with X25519. It uses its own process group, never
torch's default one. A header of four words goes before each body, so steps, shapes and sequence are checked as on
the mesh. It cannot look ahead on idle links. So a process sees a peer's abort only when it next expects something
from that peer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from protocols.config import SessionConfig, code_digest, split_address
from protocols.errors import ConfigurationMismatch, PeerError, PeerLate, PeerStopped, ProtocolError
from protocols.net.link import ABORT, DATA, GOODBYE, MESSAGE, NOTE_LIMIT, as_bytes
from protocols.net.transport import Array, Meter, Spec, describe

_HEADER_BYTES = 32


class Gloo:
    """Links over a gloo process group of parties and dealer."""

    def __init__(self, config: SessionConfig, node: int, group: Any, store: Any) -> None:
        self.node, self.parties = node, len(config.parties)
        self.meter = Meter()
        self.deadline = config.deadline
        self._config, self._group, self._store = config, group, store
        self._peers = [peer for peer in range(config.dealer + 1) if peer != node]
        self._sent = dict.fromkeys(self._peers, 0)
        self._read = dict.fromkeys(self._peers, 0)
        self._under_way: list[tuple[int, list[Any]]] = []

    @classmethod
    def connect(cls, config: SessionConfig, node: int) -> Gloo:
        """Meet at party 0's address, compare digests, build the group."""
        host, port = split_address(config.parties[0])
        wait = timedelta(seconds=config.connect)
        hello = config.digest() + code_digest()
        try:
            make: Any = dist  # its type stubs do not export the store
            store = make.TCPStore(host, port, config.dealer + 1, node == 0, wait, wait_for_workers=False)
            store.set(f"hello {node}", hello.hex())
        except Exception as error:
            raise PeerError("party 0", "connect", f"could not be reached ({type(error).__name__})") from None
        for peer in range(config.dealer + 1):
            name = config.node_name(peer)
            try:
                came = bytes.fromhex(store.get(f"hello {peer}").decode())
            except Exception:
                raise PeerError(name, "connect", f"did not connect within {config.connect:.0f} s") from None
            if came[:32] != hello[:32]:
                raise ConfigurationMismatch(name, "connect", "has another configuration")
            if came[32:] != hello[32:]:
                raise ConfigurationMismatch(name, "connect", "runs another version of the code")
        try:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            own = split_address(config.parties[node])[0] if node < config.dealer else host
            loopback = host in ("127.0.0.1", "localhost", "::1")
            options._devices = [
                dist.ProcessGroupGloo.create_device(hostname=own)
                if node < config.dealer or loopback
                else dist.ProcessGroupGloo.create_default_device()
            ]
            options._timeout = wait
            group = dist.ProcessGroupGloo(store, node, config.dealer + 1, options)
        except RuntimeError as error:
            raise ProtocolError(f"gloo cannot connect the processes ({type(error).__name__})") from None
        return cls(config, node, group, store)

    def exchange(
        self, step: str, send: Mapping[int, Sequence[Array]], receive: Mapping[int, Sequence[Spec]]
    ) -> dict[int, list[Array]]:
        result: dict[int, list[Array]] = {}
        sent = received = dealer = 0
        works = []
        for peer, arrays in send.items():
            description = describe(step, [Spec.of(array) for array in arrays])
            body = description + b"".join(as_bytes(array) for array in arrays if array.size)
            works.append((peer, self._post(peer, step, DATA, len(description), body)))
            size = _HEADER_BYTES + len(body)
            if self.parties in (peer, self.node):
                dealer += size
            else:
                sent += size
        for peer, specs in receive.items():
            description = describe(step, specs)
            length = sum(spec.nbytes for spec in specs)
            body = self._next(peer, step, DATA, description, length)
            offset = len(description)
            arrays = []
            for spec in specs:
                part = np.frombuffer(body, np.uint8, spec.nbytes, offset).copy()
                arrays.append(part.view(spec.dtype).reshape(spec.shape))
                offset += spec.nbytes
            result[peer] = arrays
            size = _HEADER_BYTES + len(body)
            if self.parties in (peer, self.node):
                dealer += size
            else:
                received += size
        for peer, work in works:
            self._wait(peer, step, work)
        self.meter.add(rounds=int(sent + received > 0), sent=sent, received=received, dealer=dealer)
        return result

    def send_message(self, peer: int, step: str, message: bytes) -> None:
        # Do not wait: gloo sends when the peer receives, and the peer may be sending to this process.
        self._under_way = [(p, works) for p, works in self._under_way if not all(w.is_completed() for w, _ in works)]
        self._under_way.append((peer, self._post(peer, step, MESSAGE, 0, message)))
        self.meter.add(dealer=_HEADER_BYTES + len(message))

    def receive_message(self, peer: int, step: str, *, wait: float | None = None) -> bytes | None:
        if wait == 0:  # gloo cannot look ahead
            return None
        usual, self.deadline = self.deadline, wait or self.deadline
        try:
            return self._next(peer, step, MESSAGE, None, None)
        finally:
            self.deadline = usual

    def skip_to(self, peer: int, step: str) -> None:
        while not self._next(peer, step, DATA, None, None).startswith(describe(step, [])):
            pass

    def finish(self) -> None:
        works = [(peer, self._post(peer, "goodbye", GOODBYE, 0, b"")) for peer in self._peers]
        for peer in self._peers:
            self._next(peer, "goodbye", GOODBYE, None, None)
        for peer, work in [*self._under_way, *works]:
            self._wait(peer, "goodbye", work)
        self._group = self._store = None

    def abort(self, reason: str, waited_for: str = "") -> None:
        missed = waited_for.encode()[:NOTE_LIMIT]
        if self._group is not None:
            with contextlib.suppress(PeerError, RuntimeError):
                for peer in self._peers:
                    self._post(peer, "abort", ABORT, len(missed), missed + reason.encode()[:NOTE_LIMIT])
        self._group = self._store = None

    def _post(self, peer: int, step: str, kind: int, described: int, body: bytes) -> list[Any]:
        header = torch.tensor([kind, described, self._sent[peer], len(body)], dtype=torch.int64)
        self._sent[peer] += 1
        parts = [header]
        if body:
            parts.append(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        if self._group is None:
            raise PeerError(self._config.node_name(peer), step, "the session is closed")
        try:
            # Keep the tensors beside the work: gloo reads them until it is done.
            return [(self._group.send([part], peer, 0), part) for part in parts]
        except RuntimeError:
            raise PeerError(self._config.node_name(peer), step, "closed the connection") from None

    def _next(self, peer: int, step: str, kind: int, description: bytes | None, length: int | None) -> bytes:
        name = self._config.node_name(peer)
        header = torch.zeros(4, dtype=torch.int64)
        self._receive(peer, step, header)
        came, described, sequence, size = (int(value) for value in header)
        if sequence != self._read[peer]:
            raise PeerError(name, step, f"sent frame {sequence} instead of {self._read[peer]}")
        self._read[peer] += 1
        if not 0 <= size <= self._config.frame_limit or not 0 <= described <= size:
            raise PeerError(name, step, f"sent an oversized frame: {size} bytes")
        if description is not None and came == DATA and size != len(description) + (length or 0):
            raise PeerError(name, step, f"sent {size} bytes instead of {len(description) + (length or 0)}")
        body = torch.zeros(size, dtype=torch.uint8)
        if size:
            self._receive(peer, step, body)
        text = body.numpy().tobytes()
        if came == ABORT:
            missed, told = (part.decode(errors="replace") for part in (text[:described], text[described:]))
            raise PeerStopped(name, step, told, missed)
        if came != kind:
            raise PeerError(name, step, f"sent a frame of kind {came} instead of {kind}")
        if description is not None and text[:described] != description:
            shown = text[: min(described, 200)].decode(errors="replace")
            raise PeerError(name, step, f"sent {shown!r} instead of {description.decode()!r}")
        return text

    def _receive(self, peer: int, step: str, tensor: torch.Tensor) -> None:
        if self._group is None:
            raise PeerError(self._config.node_name(peer), step, "the session is closed")
        try:
            work = self._group.recv([tensor], peer, 0)
        except RuntimeError:
            raise PeerError(self._config.node_name(peer), step, "closed the connection") from None
        self._wait(peer, step, [(work, tensor)])

    def _wait(self, peer: int, step: str, works: list[Any]) -> None:
        for work, _ in works:
            try:
                work.wait(timedelta(seconds=self.deadline))
            except RuntimeError as error:
                late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
                name = self._config.node_name(peer)
                if late:
                    raise PeerLate(name, step, f"did not answer within {self.deadline:.0f} s") from None
                raise PeerError(name, step, "closed the connection") from None
