"""From transcripts to columns: what an adversary holds about each record.

An array with one axis as long as the records tells something about each of them, in order: masked openings, shares,
corrections, releases. Where a party sent the same kind of array to all others and got theirs, it also knows the sum
(what was opened) and the exclusive or. Every word gives two columns: its value, and its low 16 bits (where
fractions are). Sources with many arrays of one kind (one for each step of training) also give their mean, in case
masks were biased. Data without rows (the dealer's requests) are cut into as many pieces as there are records.
`MOST_WORDS` bounds the columns; every source is served in turn. Releases have a bound of their own: what was opened
to somebody must not give way to masked words, of which there are far more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from protocols.net.transport import Array
from protocols.records.transcript import Frame

MOST_WORDS = 3000
MANY = 8
"""With at least this many arrays of one kind, their mean is a separate column."""

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
    """Mean over arrays of one kind, each scaled alike."""
    alike = [a for a in arrays if a.shape == arrays[0].shape]
    scaled = [(v - v.mean(axis=0)) / np.maximum(v.std(axis=0), 1e-12) for v in map(_value, alike)]
    return np.mean([*scaled], axis=0)
