"""Which records are the same? The dealer matches tags that mean nothing to it. Both ends of that are here.

Before: each party has tags of its records, 128 bits each, under a key that the dealer does not have. All parties give
the dealer the same order. Then each sends its own tags, sorted, so that their order tells nothing. After: each party
knows how many places there are and the place of each of its own tags. Equal tags have the same place. Each party also
has an additive share of one bit for each place: whether all parties sent the tag that is there.

The dealer numbers the different tags and maps the numbers to places by a uniformly random order of its own. So the
places of a party's tags are a uniformly random choice, whatever the others sent. With `bounds` every party sends as
many tags as its bound, and there are as many places as all bounds together, so that numbers tell nothing either.

Shares of the bits of all parties but the first are uniform words of the dealer, and those of the first complete them.
So any m-1 parties see uniform words. The dealer made the bits from the tags that it was sent. So a party cannot claim
to hold a record at a place that it sent no tag for.

A veil is for values that are opened to one receiver: shares of 0 at places that all parties hold, and of uniform
words elsewhere. With it added, an opened value is uniform at all other places, whatever a party that deviates has
added to its shares before. The dealer deals it on an order of all parties, for the last match.

The dealer learns: the number of each party's tags (its bound), and how many tags are common to which parties.

Each party sends 16 bytes a tag and receives 4 bytes a tag and 8 bytes a place; 8 bytes for each word of a veil. There
is no round between parties.
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
from protocols.ring import Words

Tags = npt.NDArray[np.uint64]
"""One row of two words for each tag."""
Places = npt.NDArray[np.int64]
TAG_BYTES = 16
MOST = 1 << 28
"""The most tags of one party."""
_CHUNK = 1 << 16
MOST_COLUMNS = 1 << 16
_SENDING, _TOLD, _SHARED = "tags of records", "places of records", "shares of presence"


@dataclass(frozen=True)
class Matched:
    """What a party gets: the number of places, the place of each of its tags, and its shares of the presence bits."""

    size: int
    places: Places
    shares: Words


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


def ask(transport: Transport, tags: Tags) -> Matched:
    """A party's end, after the order."""
    dealer, order = transport.parties, sorted_rows(tags)
    transport.exchange(_SENDING, {dealer: [np.array([len(tags)])]}, {})
    for at in range(0, len(tags), _CHUNK):
        transport.exchange(_SENDING, {dealer: [tags[order[at : at + _CHUNK]]]}, {})
    size, told = transport.exchange(_TOLD, {}, {dealer: [Spec("<i8", (1,)), Spec("<u4", (len(tags),))]})[dealer]
    if len(told) and int(told.max()) >= int(size[0]):
        raise PeerError("dealer", _TOLD, "named a place that is not there")
    places = np.empty(len(tags), np.int64)
    places[order] = told
    return Matched(int(size[0]), places, receive_shares(transport, int(size[0])))


def receive_shares(transport: Transport, count: int) -> Words:
    """A party's end of `_deal`: its shares of so many words."""
    dealer, shares = transport.parties, [np.zeros(0, np.int64)]
    for at in range(0, count, _CHUNK):
        spec = Spec("<i8", (min(_CHUNK, count - at),))
        shares += transport.exchange(_SHARED, {}, {dealer: [spec]})[dealer]
    return np.concatenate(shares)


def _deal(transport: Transport, rank: int, shares: Words) -> None:
    """The dealer sends a party its shares, piece by piece."""
    for at in range(0, len(shares), _CHUNK):
        transport.exchange(_SHARED, {rank: [shares[at : at + _CHUNK]]}, {})


def _shared(value: Words, parties: int, draw: Draw) -> list[Words]:
    """Additive shares of words, by rank: uniform ones of the dealer, and the first completes them."""
    others = [draw.words(value.shape) for _ in range(1, parties)]
    return [value - sum(others, np.zeros_like(value)), *others]


def serve(transport: Transport, bounds: Bounds | None, draw: Draw) -> Words:
    """The dealer's end, after the order of all parties. Returns the bits: 1 at places that all parties hold."""
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
    found = matched(lists, bounds, draw)
    for rank in parties:
        answer = [np.array([found[rank].size]), found[rank].places.astype(np.uint32)]
        transport.exchange(_TOLD, {rank: answer}, {})
        _deal(transport, rank, found[rank].shares)
    return sum((one.shares for one in found), np.zeros_like(found[0].shares))


def serve_veil(transport: Transport, bits: Words, columns: int, draw: Draw) -> None:
    """The dealer's end of a veil for the places of these bits, after the order of all parties."""
    if not 1 <= columns <= MOST_COLUMNS:
        raise ProtocolError(f"a veil has 1 to {MOST_COLUMNS} columns, not {columns}")
    for rank, share in enumerate(_shared(veil(bits, columns, draw), transport.parties, draw)):
        _deal(transport, rank, share.reshape(-1))


def veil(bits: Words, columns: int, draw: Draw) -> Words:
    """Zeros at places whose bit is 1, uniform words elsewhere."""
    return draw.words((len(bits), columns)) * (1 - bits)[:, None]


def matched(lists: Sequence[Tags], bounds: Bounds | None, draw: Draw) -> list[Matched]:
    """What each party gets, by rank: places in a random order, and shares of which of them all parties hold."""
    different, numbers = numbered(lists)
    for rank, own in enumerate(numbers):
        if len(np.unique(own)) < len(own):
            raise PeerError(f"party {rank}", _SENDING, "sent a tag twice")
    size = different if bounds is None else bounds.places
    order = draw.order(size)
    held = np.bincount(np.concatenate(numbers), minlength=size) == len(lists)
    bits = np.zeros(size, np.int64)
    bits[order] = held
    shares = _shared(bits, len(lists), draw)
    return [Matched(size, order[own], share) for own, share in zip(numbers, shares, strict=True)]


def bounds_of(item: Any, parties: int) -> Bounds | None:
    """Bounds as they stand in an order to the dealer."""
    if item is None:
        return None
    bounds = Bounds(tuple(item))
    if len(bounds.counts) != parties:
        raise ProtocolError(f"bounds on records are needed for {parties} parties, not {len(bounds.counts)}")
    return bounds
