"""Record matching by the dealer, on keyed pseudonyms under a key that it does not have. Both ends of the protocol.

Before: each party has pseudonyms of its records, 128 bits each, under a key that the dealer does not have. All
parties send the dealer the same order, then their own pseudonyms, sorted, so that their order reveals nothing. After:
each party knows the number of rows and the row of each of its own pseudonyms; equal pseudonyms have the same row.
Each party also has an additive share of the membership mask: for each row, whether all parties sent its pseudonym.

The dealer numbers the distinct pseudonyms and maps the numbers to rows by its own uniformly random permutation. So
the rows of a party are a uniformly random choice, whatever the others sent. With `bounds` every party sends as many
pseudonyms as its bound, and there are as many rows as all bounds together, so that counts reveal nothing either.

Shares of the mask of all parties but the first are uniform elements drawn by the dealer, and those of the first
complete them. So any m-1 parties see uniform elements. The dealer computes the mask from the pseudonyms that it
received, so a party cannot claim a row that it sent no pseudonym for.

A veil is for values that are opened to one receiver: shares of 0 at rows that all parties hold, and of uniform ring
elements elsewhere. With it added, an opened value is uniform at all other rows, whatever a deviating party has added
to its shares before. The dealer deals it on an order of all parties, for the last match.

The dealer learns the number of each party's pseudonyms (its bound), and how many are common to which parties. Each
party sends 16 bytes a pseudonym and receives 4 bytes a pseudonym and 8 bytes a row; 8 bytes for each element of a
veil. There is no round between parties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.dealing.randomness import Draw
from secure_sccvfl.protocols.errors import LocalError, PeerError, ProtocolError
from secure_sccvfl.protocols.net.transport import Array, Spec, Transport
from secure_sccvfl.protocols.ring import RingArray

Pseudonyms = npt.NDArray[np.uint64]
"""One row of two ring elements for each pseudonym."""
Rows = npt.NDArray[np.int64]
Bounds = tuple[int, ...]
"""How many pseudonyms each party sends, by rank, if these numbers are to be public bounds."""
PSEUDONYM_BYTES = 16
MOST = 1 << 28
"""The most pseudonyms of one party."""
ABSENT = -1
"""The row of a record that is not in the common table."""
_CHUNK = 1 << 16
MOST_COLUMNS = 1 << 16
_SENDING, _ASSIGNING, _SHARED = "tags of records", "places of records", "shares of presence"
"""Steps on the wire; their lengths count in the bytes of a frame."""


@dataclass(frozen=True)
class Aligned:
    """The number of rows of the common table, and the row of each of a party's own records, in the order of its ids.

    shares: this party's shares of the membership mask, if nobody may know which records are common; otherwise empty.
    """

    size: int
    rows: Rows = field(repr=False)
    shares: RingArray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)

    def __post_init__(self) -> None:
        inside = self.rows[self.rows != ABSENT]
        if len(np.unique(inside)) < len(inside) or (
            len(inside) and not 0 <= inside.min() <= inside.max() < self.size
        ):
            raise ProtocolError("two records have the same row, or a row is outside the table")

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """For each row of the table, whether this party has a record there."""
        return self.spread(np.ones(len(self.rows), np.bool_))

    def spread(self, values: Array) -> Array:
        """Values of this party's records as rows of the table; zeros where there is no record."""
        table = np.zeros((self.size, *values.shape[1:]), values.dtype)
        kept = self.rows != ABSENT
        table[self.rows[kept]] = values[kept]
        return table


def sorted_rows(pseudonyms: Pseudonyms) -> npt.NDArray[np.intp]:
    return np.lexsort((pseudonyms[:, 1], pseudonyms[:, 0]))


def numbered(lists: Sequence[Pseudonyms]) -> tuple[int, list[Rows]]:
    """The number of distinct pseudonyms, and for each list the index of each pseudonym among them."""
    pseudonyms = np.concatenate(lists)
    order = sorted_rows(pseudonyms)
    new = np.ones(len(pseudonyms), np.bool_)
    new[1:] = (pseudonyms[order[1:]] != pseudonyms[order[:-1]]).any(axis=1)
    numbers = np.empty(len(pseudonyms), np.int64)
    numbers[order] = np.cumsum(new) - 1
    ends = np.cumsum([len(part) for part in lists])[:-1]
    return int(new.sum()), np.split(numbers, ends)


def padded(pseudonyms: Pseudonyms, bounds: Bounds | None, rank: int, draw: Draw) -> Pseudonyms:
    """A party's pseudonyms as it will send them, checked before anything is sent.

    Up to its bound a party adds random pseudonyms. They equal no other, and no other party learns which they are.
    """
    order = sorted_rows(pseudonyms)
    twice = (pseudonyms[order[1:]] == pseudonyms[order[:-1]]).all(axis=1)
    if twice.any():
        raise LocalError("a pseudonym occurs twice: every record needs its own id")
    if bounds is None:
        return pseudonyms
    missing = bounds[rank] - len(pseudonyms)
    if missing < 0:
        raise LocalError(f"{len(pseudonyms)} records are more than the bound of {bounds[rank]} for this party")
    return np.concatenate([pseudonyms, draw.elements((missing, 2), np.uint64)])


def ask(transport: Transport, pseudonyms: Pseudonyms) -> Aligned:
    """A party's end, after the order."""
    dealer, order = transport.parties, sorted_rows(pseudonyms)
    transport.exchange(_SENDING, {dealer: [np.array([len(pseudonyms)])]}, {})
    for at in range(0, len(pseudonyms), _CHUNK):
        transport.exchange(_SENDING, {dealer: [pseudonyms[order[at : at + _CHUNK]]]}, {})
    size, rows = transport.exchange(_ASSIGNING, {}, {dealer: [Spec("<i8", (1,)), Spec("<u4", (len(pseudonyms),))]})[
        dealer
    ]
    if len(rows) and int(rows.max()) >= int(size[0]):
        raise PeerError("dealer", _ASSIGNING, "named a row outside the table")
    unsorted = np.empty(len(pseudonyms), np.int64)
    unsorted[order] = rows
    return Aligned(int(size[0]), unsorted, receive_shares(transport, int(size[0])))


def receive_shares(transport: Transport, count: int) -> RingArray:
    """A party's end of `_deal`: its shares of so many ring elements."""
    dealer, shares = transport.parties, [np.zeros(0, np.int64)]
    for at in range(0, count, _CHUNK):
        spec = Spec("<i8", (min(_CHUNK, count - at),))
        shares += transport.exchange(_SHARED, {}, {dealer: [spec]})[dealer]
    return np.concatenate(shares)


def _deal(transport: Transport, rank: int, shares: RingArray) -> None:
    for at in range(0, len(shares), _CHUNK):
        transport.exchange(_SHARED, {rank: [shares[at : at + _CHUNK]]}, {})


def _shared(value: RingArray, parties: int, draw: Draw) -> list[RingArray]:
    """Additive shares of ring elements, by rank: uniform ones of the dealer, and the first completes them."""
    others = [draw.elements(value.shape) for _ in range(1, parties)]
    return [value - sum(others, np.zeros_like(value)), *others]


def serve(transport: Transport, bounds: Bounds | None, draw: Draw) -> RingArray:
    """The dealer's end, after the order of all parties. Returns the bits: 1 at rows that all parties hold."""
    parties = range(transport.parties)
    announced = transport.exchange(_SENDING, {}, {rank: [Spec("<i8", (1,))] for rank in parties})
    counts = {rank: int(received[0][0]) for rank, received in announced.items()}
    for rank, count in counts.items():
        if count not in (range(MOST + 1) if bounds is None else (bounds[rank],)):
            raise PeerError(f"party {rank}", _SENDING, f"announced {count} pseudonyms")
    parts: dict[int, list[Array]] = {rank: [np.zeros((0, 2), np.uint64)] for rank in parties}
    for at in range(0, max(counts.values()), _CHUNK):
        wants = {rank: [Spec("<u8", (min(_CHUNK, counts[rank] - at), 2))] for rank in parties if counts[rank] > at}
        for rank, received in transport.exchange(_SENDING, {}, wants).items():
            parts[rank] += received
    lists = [np.concatenate(parts[rank]) for rank in parties]
    result = matched(lists, bounds, draw)
    for rank in parties:
        answer = [np.array([result[rank].size]), result[rank].rows.astype(np.uint32)]
        transport.exchange(_ASSIGNING, {rank: answer}, {})
        _deal(transport, rank, result[rank].shares)
    return sum((one.shares for one in result), np.zeros_like(result[0].shares))


def serve_veil(transport: Transport, bits: RingArray, columns: int, draw: Draw) -> None:
    """The dealer's end of a veil for the rows of these bits, after the order of all parties."""
    if not 1 <= columns <= MOST_COLUMNS:
        raise ProtocolError(f"a veil has 1 to {MOST_COLUMNS} columns, not {columns}")
    for rank, share in enumerate(_shared(veil(bits, columns, draw), transport.parties, draw)):
        _deal(transport, rank, share.reshape(-1))


def veil(bits: RingArray, columns: int, draw: Draw) -> RingArray:
    """Zeros at rows whose bit is 1, uniform ring elements elsewhere."""
    return draw.elements((len(bits), columns)) * (1 - bits)[:, None]


def matched(lists: Sequence[Pseudonyms], bounds: Bounds | None, draw: Draw) -> list[Aligned]:
    """The results by rank: rows in a random order, and shares of the membership mask."""
    different, numbers = numbered(lists)
    for rank, list_numbers in enumerate(numbers):
        if len(np.unique(list_numbers)) < len(list_numbers):
            raise PeerError(f"party {rank}", _SENDING, "sent a pseudonym twice")
    size = different if bounds is None else sum(bounds)
    order = draw.order(size)
    held = np.bincount(np.concatenate(numbers), minlength=size) == len(lists)
    bits = np.zeros(size, np.int64)
    bits[order] = held
    shares = _shared(bits, len(lists), draw)
    return [Aligned(size, order[list_numbers], share) for list_numbers, share in zip(numbers, shares, strict=True)]


def checked_bounds(bounds: Any, parties: int) -> Bounds | None:
    """The bounds in an order to the dealer, or None."""
    if bounds is None:
        return None
    if len(bounds) != parties:
        raise ProtocolError(f"bounds on records are needed for {parties} parties, not {len(bounds)}")
    if not all(isinstance(count, int) and 0 <= count <= MOST for count in bounds):
        raise ProtocolError(f"bounds on records must be integers up to {MOST}, not {bounds}")
    return tuple(bounds)
