"""A process's view of a session on disk, for a security evaluation. Off unless requested.

`Recording` wraps the transport of a process and records, in order, every array and message, both ways. A session adds
the values of the releases it received. This is an adversary's view at that node, except its own inputs and
randomness. **It holds shares**: the transcripts of *all* parties together reveal every secret. So it is for data that
may be pooled, and readable by its owner only. Corrections of tuples that were cancelled before use are not recorded.

Two files: `index.jsonl` (one line per frame: direction, peers, kind, step, types and shapes, offset of its bytes) and
`words.bin` (the bytes). Beyond `LIMIT` the session stops, since half a view would look like a safe one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import LocalError
from secure_sccvfl.protocols.net.transport import Array, Meter, Spec, Transport

LIMIT = 1 << 32
"""The most bytes of one transcript."""

Way = Literal["in", "out"]
Kind = Literal["data", "message", "goodbye", "release"]


class Transcript:
    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        if folder.exists():
            raise ConfigError(f"{folder} already exists: choose a new folder for the transcript")
        folder.mkdir(parents=True, mode=0o700)
        self._index = open(folder / "index.jsonl", "x", opener=_private)  # noqa: SIM115 - closed by `close`
        self._words = open(folder / "words.bin", "xb", opener=_private)  # noqa: SIM115
        self._at, self._limit = 0, limit

    def note(self, way: Way, peers: Sequence[int], kind: Kind, step: str, arrays: Sequence[Array]) -> None:
        specs = [[array.dtype.str, list(array.shape)] for array in arrays]
        line = {"way": way, "peers": list(peers), "kind": kind, "step": step, "at": self._at, "arrays": specs}
        self._at += sum(array.nbytes for array in arrays)
        if self._at > self._limit:
            raise LocalError(f"the transcript is larger than {self._limit} bytes: record a smaller run")
        self._index.write(json.dumps(line) + "\n")
        for array in arrays:
            self._words.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def release(self, name: str, words: Array) -> None:
        """A value that a declared release opened to this party, as ring elements."""
        self.note("in", [], "release", name, [words])

    def close(self) -> None:
        self._index.close()
        self._words.close()


class Recording:
    def __init__(self, transport: Transport, transcript: Transcript) -> None:
        self._transport, self._transcript = transport, transcript
        self.node, self.parties = transport.node, transport.parties

    @property
    def meter(self) -> Meter:
        return self._transport.meter

    @meter.setter
    def meter(self, meter: Meter) -> None:
        self._transport.meter = meter

    @property
    def deadline(self) -> float:
        return self._transport.deadline

    @deadline.setter
    def deadline(self, seconds: float) -> None:
        self._transport.deadline = seconds

    def exchange(
        self, step: str, send: Mapping[int, Sequence[Array]], receive: Mapping[int, Sequence[Spec]]
    ) -> dict[int, list[Array]]:
        for peers, arrays in _by_content(send):
            self._transcript.note("out", peers, "data", step, arrays)
        received = self._transport.exchange(step, send, receive)
        for peer, arrays in received.items():
            self._transcript.note("in", [peer], "data", step, arrays)
        return received

    def send_message(self, peer: int, step: str, message: bytes) -> None:
        self._transcript.note("out", [peer], "message", step, [np.frombuffer(message, np.uint8)])
        self._transport.send_message(peer, step, message)

    def receive_message(self, peer: int, step: str, *, wait: float | None = None) -> bytes | None:
        message = self._transport.receive_message(peer, step, wait=wait)
        if message is not None:
            self._transcript.note("in", [peer], "message", step, [np.frombuffer(message, np.uint8)])
        return message

    def skip_to(self, peer: int, step: str) -> None:
        self._transport.skip_to(peer, step)

    def finish(self) -> None:
        self._transcript.note("out", [p for p in range(self.parties + 1) if p != self.node], "goodbye", "", [])
        self._transport.finish()
        self._transcript.close()

    def abort(self, reason: str, waited_for: str = "") -> None:
        self._transport.abort(reason, waited_for)
        self._transcript.close()


@dataclass(frozen=True)
class Frame:
    """One line of a transcript with its arrays."""

    way: Way
    peers: tuple[int, ...]
    kind: Kind
    step: str
    arrays: tuple[Array, ...] = field(repr=False)

    @property
    def specs(self) -> list[Spec]:
        return [Spec.of(array) for array in self.arrays]


def read_transcript(folder: Path) -> Iterator[Frame]:
    """All frames in order; ConfigError if there is no transcript, or it was cut off."""
    try:
        lines = (folder / "index.jsonl").read_text().splitlines()
        words = np.memmap(folder / "words.bin", np.uint8, "r") if os.path.getsize(folder / "words.bin") else b""
    except FileNotFoundError:
        raise ConfigError(f"no transcript in {folder}: make the run with --transcript") from None
    for text in lines:
        line = json.loads(text)
        arrays, at = [], line["at"]
        for dtype, shape in line["arrays"]:
            spec = Spec(dtype, tuple(shape))
            if at + spec.nbytes > len(words):
                raise ConfigError(f"the transcript in {folder} was cut off: make the run again")
            arrays.append(np.frombuffer(words[at : at + spec.nbytes], dtype).reshape(shape))
            at += spec.nbytes
        yield Frame(line["way"], tuple(line["peers"]), line["kind"], line["step"], tuple(arrays))


def _by_content(send: Mapping[int, Sequence[Array]]) -> list[tuple[list[int], Sequence[Array]]]:
    """Groups of peers that are sent the very same arrays."""
    groups: list[tuple[list[int], Sequence[Array]]] = []
    for peer, arrays in send.items():
        for peers, group_arrays in groups:
            if len(group_arrays) == len(arrays) and all(a is b for a, b in zip(group_arrays, arrays, strict=True)):
                peers.append(peer)
                break
        else:
            groups.append(([peer], arrays))
    return groups


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
