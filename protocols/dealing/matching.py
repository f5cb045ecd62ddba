"""Which records are the same? The dealer matches tags that mean nothing to it. Both ends of that are here.

Before: each party has tags of its records, 128 bits each, under a key that the dealer does not have. All parties
give the dealer the same order. Then each sends its own tags, sorted, so that their order tells nothing. After: each
party knows how many places there are and the place of each of its own tags. Equal tags have the same place.

The dealer numbers the different tags and maps the numbers to places by a uniformly random order of its own. So the
places of a party's tags are a uniformly random choice, whatever the others sent. With `bounds` every party sends as
many tags as its bound, and there are as many places as all bounds together, so that numbers tell nothing either.

The dealer learns: the number of each party's tags (its bound), and how many tags are common to which parties.

Each party sends 16 bytes a tag and receives 4 bytes a tag. There is no round between parties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protocols.dealing.randomness import Draw
from protocols.errors import LocalError, PeerError, ProtocolError
from protocols.net.transport import Array, Spec, Transport

Tags = npt.NDArray[np.uint64]
"""One row of two words for each tag."""
Places = npt.NDArray[np.int64]
TAG_BYTES = 16
MOST = 1 << 28
"""The most tags of one party."""
_CHUNK = 1 << 16
_SENDING, _TOLD = "tags of records", "places of records"


@dataclass(frozen=True)
class Bounds:
    """How many tags each party sends, by rank, if these numbers are to be public bounds."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(count, int) and 0 <= count <= MOST for count in self.counts):
            raise ProtocolError(f"bounds on records must be whole numbers up to {MOST}, not {self.counts}")

    @property
    def places(self) -> int:
        """Enough for any lists within the bounds."""
        return sum(self.counts)


def sorted_rows(tags: Tags) -> npt.NDArray[np.intp]:
    """The rows in rising order of their tags."""
    return np.lexsort((tags[:, 1], tags[:, 0]))


def numbered(lists: Sequence[Tags]) -> tuple[int, list[Places]]:
    """How many different tags there are, and for each list the number of each tag among them."""
    tags = np.concatenate(lists)
    order = sorted_rows(tags)
    new = np.ones(len(tags), np.bool_)
    new[1:] = (tags[order[1:]] != tags[order[:-1]]).any(axis=1)
    numbers = np.empty(len(tags), np.int64)
    numbers[order] = np.cumsum(new) - 1
    ends = np.cumsum([len(part) for part in lists])[:-1]
    return int(new.sum()), np.split(numbers, ends)


def padded(tags: Tags, bounds: Bounds | None, rank: int, draw: Draw) -> Tags:
    """A party's tags as it will send them, checked before anything is sent.

    Up to its bound a party adds random tags. They equal no other, and nobody is told which they are.
    """
    order = sorted_rows(tags)
    twice = (tags[order[1:]] == tags[order[:-1]]).all(axis=1)
    if twice.any():
        raise LocalError("a tag occurs twice: every record needs an id of its own")
    if bounds is None:
        return tags
    missing = bounds.counts[rank] - len(tags)
    if missing < 0:
        raise LocalError(f"{len(tags)} records are more than the bound of {bounds.counts[rank]} for this party")
    return np.concatenate([tags, draw.words((missing, 2), np.uint64)])


def ask(transport: Transport, tags: Tags) -> tuple[int, Places]:
    """A party's end, after the order: the number of places, and the place of each of its tags."""
    dealer, order = transport.parties, sorted_rows(tags)
    transport.exchange(_SENDING, {dealer: [np.array([len(tags)])]}, {})
    for at in range(0, len(tags), _CHUNK):
        transport.exchange(_SENDING, {dealer: [tags[order[at : at + _CHUNK]]]}, {})
    size, told = transport.exchange(_TOLD, {}, {dealer: [Spec("<i8", (1,)), Spec("<u4", (len(tags),))]})[dealer]
    if len(told) and int(told.max()) >= int(size[0]):
        raise PeerError("dealer", _TOLD, "named a place that is not there")
    places = np.empty(len(tags), np.int64)
    places[order] = told
    return int(size[0]), places


def serve(transport: Transport, bounds: Bounds | None, draw: Draw) -> None:
    """The dealer's end, after the order of all parties."""
    parties = range(transport.parties)
    told = transport.exchange(_SENDING, {}, {rank: [Spec("<i8", (1,))] for rank in parties})
    counts = {rank: int(came[0][0]) for rank, came in told.items()}
    for rank, count in counts.items():
        if count not in (range(MOST + 1) if bounds is None else (bounds.counts[rank],)):
            raise PeerError(f"party {rank}", _SENDING, f"announced {count} tags")
    parts: dict[int, list[Array]] = {rank: [np.zeros((0, 2), np.uint64)] for rank in parties}
    for at in range(0, max(counts.values()), _CHUNK):
        wants = {rank: [Spec("<u8", (min(_CHUNK, counts[rank] - at), 2))] for rank in parties if counts[rank] > at}
        for rank, came in transport.exchange(_SENDING, {}, wants).items():
            parts[rank] += came
    lists = [np.concatenate(parts[rank]) for rank in parties]
    size, places = matched(lists, bounds, draw)
    for rank in parties:
        answer = [np.array([size]), places[rank].astype(np.uint32)]
        transport.exchange(_TOLD, {rank: answer}, {})


def matched(lists: Sequence[Tags], bounds: Bounds | None, draw: Draw) -> tuple[int, list[Places]]:
    """The number of places, and the place of each tag, in a random order."""
    different, numbers = numbered(lists)
    for rank, own in enumerate(numbers):
        if len(np.unique(own)) < len(own):
            raise PeerError(f"party {rank}", _SENDING, "sent a tag twice")
    size = different if bounds is None else bounds.places
    order = draw.order(size)
    return size, [order[own] for own in numbers]


def bounds_of(item: Any, parties: int) -> Bounds | None:
    """Bounds as they stand in an order to the dealer."""
    if item is None:
        return None
    bounds = Bounds(tuple(item))
    if len(bounds.counts) != parties:
        raise ProtocolError(f"bounds on records are needed for {parties} parties, not {len(bounds.counts)}")
    return bounds
