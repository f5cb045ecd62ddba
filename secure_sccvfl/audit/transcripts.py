"""From transcripts and tapped bytes to columns: what an adversary holds about each record.

An array with one axis as long as the records says something about each of them, in order: masked openings, shares,
corrections, releases. Where a party sent the same kind of array to all others and received theirs, it also knows the
sum (what was opened) and the exclusive or. Every ring element gives two columns: its value, and its low 16 bits
(where fractions are). Sources with many arrays of one kind (one for each step of training) also give their mean, in
case masks were biased. Data without rows (the dealer's requests) are cut into as many pieces as there are records.
`MOST_WORDS` bounds the columns; every source is served in turn. Releases have a separate bound, so that what was
opened to somebody does not give way to masked elements, of which there are far more.

*The network* sees TLS records. The protocol is public, so anyone who taps the wire knows which frame comes when and
how long it is. TLS 1.3 adds 22 bytes to each record and keeps the order. So the position of every encrypted element
is known: the last bytes of a direction are its frames, back from the goodbye. These encrypted elements, by record,
are the network's columns. The amounts of data reveal who called whom.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocols.config import ConfigError
from protocols.net.link import HEADER
from protocols.net.transport import Array, Spec, describe
from protocols.records.transcript import Frame, read_transcript

MOST_WORDS = 3000
MANY = 8
"""With at least this many arrays of one kind, their mean is a separate column."""

_RECORD_HEADER = 5
_APPLICATION_DATA = 23
_ADDED = 17
"""Bytes of a record that are not content: the type inside it and the tag."""
Source = tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """Words by record (records x words) from one source."""

    source: Source
    words: Array


def by_record(array: Array, records: int) -> Array | None:
    """The array with one row per record, or None if it has no such axis.

    A longer vector starts with some words for each record, as sketches of gradients do.
    """
    if array.dtype.kind not in "iu":
        return None
    for axis, length in enumerate(array.shape):
        if length == records:
            return np.moveaxis(array, axis, 0).reshape(records, -1)
    if array.ndim == 1 and array.size > records:
        return array[: array.size // records * records].reshape(records, -1)
    return None


def seen_by_party(frames: Iterable[Frame], records: int) -> Iterator[Seen]:
    """All words about records that one party received, and their sums with its own."""
    sent: Frame | None = None
    came: list[Frame] = []
    for frame in frames:
        if frame.way == "out":
            sent, came = frame, []
            continue
        kind = "tuple" if frame.step.startswith("tuple ") else frame.step
        for place, array in enumerate(frame.arrays):
            rows = by_record(array, records)
            if rows is not None:
                yield Seen((frame.kind, kind, *map(str, frame.peers), str(place)), rows)
        if frame.kind == "data" and sent is not None and sent.step == frame.step:
            came.append(frame)
            if len(came) == len(sent.peers) and all(f.specs == sent.specs for f in came):
                yield from _joined(sent, came, records)


def _joined(sent: Frame, came: Sequence[Frame], records: int) -> Iterator[Seen]:
    for place in range(len(sent.arrays)):
        shares = [by_record(f.arrays[place], records) for f in (sent, *came)]
        if any(share is None for share in shares):
            continue
        stack = np.stack([share for share in shares if share is not None])
        yield Seen(("opened", sent.step, str(place)), _total(stack))
        yield Seen(("opened by xor", sent.step, str(place)), np.bitwise_xor.reduce(stack))


def _total(shares: Array) -> Array:
    """The sum in the ring. If all shares lie below a power of two, the sum modulo that, as the series open them."""
    total: Array = shares.sum(axis=0, dtype=shares.dtype)
    if shares.size and shares.min() >= 0:
        bits = int(shares.max()).bit_length()
        if bits < 8 * shares.dtype.itemsize - 1:
            rest = total.astype(np.int64) & ((1 << bits) - 1)
            return np.where(rest >> max(bits - 1, 0), rest - (1 << bits), rest)
    return total


def in_pieces(frames: Iterable[Frame], records: int) -> Iterator[Seen]:
    """All that was received, in order, cut into one piece of bytes per record."""
    parts = [a.reshape(-1).view(np.uint8) for f in frames if f.way == "in" for a in f.arrays]
    whole = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    length = len(whole) // records
    yield Seen(("pieces",), whole[: length * records].reshape(records, length))


def as_columns(seen: Iterable[Seen], rows: np.ndarray) -> np.ndarray:
    """Features of these rows (rows x columns, float32), every source served in turn."""
    sources: dict[Source, list[Array]] = {}
    known: set[bytes] = set()
    for item in seen:
        digest = hashlib.blake2b(np.ascontiguousarray(item.words).data, digest_size=16).digest()
        if digest not in known:  # parties that work together hold many arrays twice
            known.add(digest)
            sources.setdefault(item.source, []).append(item.words[rows])
    released = {source: arrays for source, arrays in sources.items() if source[0] == "release"}
    others = {source: arrays for source, arrays in sources.items() if source not in released}
    words = np.concatenate([np.zeros((len(rows), 0), np.int64), *_in_turn(others), *_in_turn(released)], axis=1)
    means = [_mean(arrays) for arrays in sources.values() if len(arrays) >= MANY]
    columns = np.concatenate([_value(words), _low(words), *means], axis=1)
    return (columns / np.maximum(np.abs(columns).max(axis=0, initial=0.0), 1e-300)).astype(np.float32)


def _in_turn(sources: Mapping[Source, list[Array]]) -> list[Array]:
    picked: list[Array] = []
    left, turn = MOST_WORDS, 0
    while left > 0 and any(turn < len(arrays) for arrays in sources.values()):
        for arrays in sources.values():
            if turn < len(arrays) and left > 0:
                picked.append(arrays[turn][:, :left].astype(np.int64))
                left -= picked[-1].shape[1]
        turn += 1
    return picked


def _value(words: Array) -> np.ndarray:
    return np.asarray(words, dtype=np.float64)


def _low(words: Array) -> np.ndarray:
    return (words & 0xFFFF).astype(np.float64)


def _mean(arrays: Sequence[Array]) -> np.ndarray:
    """Mean over arrays of one kind, each scaled equally."""
    alike = [a for a in arrays if a.shape == arrays[0].shape]
    scaled = [(v - v.mean(axis=0)) / np.maximum(v.std(axis=0), 1e-12) for v in map(_value, alike)]
    return np.mean([*scaled], axis=0)


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
