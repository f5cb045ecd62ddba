"""What the network saw: TLS records, aligned with the frames inside them.

The protocol is public, so anyone who taps the wire knows which frame comes when and how long it is. TLS 1.3 adds 22
bytes to each record and keeps the order. So the encrypted byte of every word is at a known place: the last bytes of
a direction are its frames, back from the goodbye. These encrypted words, by record, are the network's columns. The
amounts of data tell who called whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from protocols.config import ConfigError
from protocols.net.link import HEADER
from protocols.net.transport import Spec, describe
from protocols.records.transcript import Frame, read_transcript
from secure_sccvfl.audit.transcripts import Seen, by_record

_RECORD_HEADER = 5
_APPLICATION_DATA = 23
_ADDED = 17
"""Bytes of a record that are not content: the type inside it and the tag."""


def contents(stream: bytes) -> bytes:
    """The encrypted contents of all application records, one after the other."""
    parts, at = [], 0
    while at + _RECORD_HEADER <= len(stream):
        length = int.from_bytes(stream[at + 3 : at + 5])
        body = stream[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        if stream[at] == _APPLICATION_DATA and len(body) >= _ADDED:
            parts.append(body[:-_ADDED])
        at += _RECORD_HEADER + length
    return b"".join(parts)


def frames_to(frames: Sequence[Frame], peer: int) -> list[tuple[int, str, list[Spec]]]:
    """Length, step and shapes of every frame that went to a peer; all of it is public."""
    found = []
    for frame in frames:
        if frame.way == "out" and peer in frame.peers:
            payload = sum(spec.nbytes for spec in frame.specs)
            description = describe(frame.step, frame.specs) if frame.kind == "data" else b""
            found.append((HEADER.size + len(description) + payload, frame.step, frame.specs))
    return found


def seen_by_network(folder: Path, transcripts: Mapping[int, Path], records: int) -> Iterator[Seen]:
    """Encrypted words about records, from the wire-tap's files and the public order of the frames.

    Only lengths and shapes are read from the transcripts; the program alone would give them too.
    """
    frames = {node: list(read_transcript(path)) for node, path in transcripts.items()}
    calls = sorted(folder.glob("*-to.bin"))
    if not calls:
        raise ConfigError(f"no bytes of the network in {folder}: make the run with --transcript")
    for call in calls:
        there = contents(call.read_bytes())
        back = contents(call.with_name(call.name.replace("-to", "-from")).read_bytes())
        rank = int(call.name.split("-")[0])
        caller = _caller(len(there), len(back), rank, frames)
        if caller is None:  # a call that was given up before a session
            continue
        yield from _lined_up(there, frames_to(frames[caller], rank), f"{caller} to {rank}", records)
        yield from _lined_up(back, frames_to(frames[rank], caller), f"{rank} to {caller}", records)


def _caller(there: int, back: int, rank: int, frames: Mapping[int, list[Frame]]) -> int | None:
    """Who sent about this much to a party and got about that much back."""
    spare = {}
    for node in frames:
        if node > rank:
            ways = ((there, frames_to(frames[node], rank)), (back, frames_to(frames[rank], node)))
            left = [length - sum(size for size, _, _ in known) for length, known in ways]
            if min(left) >= 0:
                spare[node] = sum(left)
    return min(spare, key=lambda node: spare[node]) if spare else None


def _lined_up(stream: bytes, frames: Sequence[tuple[int, str, list[Spec]]], way: str, records: int) -> Iterator[Seen]:
    at = len(stream) - sum(size for size, _, _ in frames)
    for size, step, specs in frames:
        at += size
        here = at - sum(spec.nbytes for spec in specs)
        for place, spec in enumerate(specs):
            array = np.frombuffer(stream[here : here + spec.nbytes], spec.dtype).reshape(spec.shape)
            here += spec.nbytes
            rows = by_record(array, records)
            if rows is not None:
                yield Seen(("wire", "tuple" if step.startswith("tuple ") else step, way, str(place)), rows)
