"""Both ends of the dealer protocol.

Before: the dealer shares one key with each party. Every party sends its requests (kinds and shapes, see
protocols/dealing/tuples.py). All parties run the same program, so their requests are equal, byte for byte. The dealer
serves a request only when all parties have made it; where requests differ, it stops and names the party. Each party
expands tuple number c from its own key, at counter c and for this request. The dealer does the same for all of them,
completes the bound fields, and sends that correction to party c mod m. There is no round between parties. The dealer
sends one message for each tuple that has bound fields.

Working ahead: a loop requests the same tuples in every pass. `TupleSource.repeat` records the first pass and then
requests all the others at once. A small pass becomes one bundle: one draw, one correction. The dealer makes the
tuples in order and sends until the receivers' socket buffers are full, which bounds its queue. If a party requests
something else before they are used up, the rest is cancelled: once all parties have cancelled, the dealer answers
with a marker and the parties discard what came before it. Counters of cancelled tuples are never used again.

Matching: on an order of all parties the dealer also matches pseudonyms of records, and deals veils for rows that not
all parties hold (protocols/dealing/matching.py).

The dealer learns kinds, shapes, counts and times. It holds no input and sees no message between parties.

With active security it also receives the parties' parts of the MAC key, and deals tags of all fields, free ones too:
all parties but the receiver expand theirs, and the receiver gets 14 bytes for each element.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.authentication.wide import Wide, tag_corrections
from secure_sccvfl.protocols.config import DEALER
from secure_sccvfl.protocols.dealing import matching, verification
from secure_sccvfl.protocols.dealing.randomness import Draw, Stream, fresh_key
from secure_sccvfl.protocols.dealing.tuples import Field, Fields, Request, recipe, unbundle
from secure_sccvfl.protocols.errors import PeerError, PeerStopped, ProtocolError
from secure_sccvfl.protocols.net.transport import Array, Spec, Transport

_STREAM = "dealer tuples"
_ASKING = "request for tuples"
_CANCELLED = "tuples cancelled"
_BUNDLED = 1 << 22
"""Up to this many bytes of corrections, the tuples of a pass come in one frame."""


class Dealer:
    """The dealer's end: makes tuples while the parties request them."""

    def __init__(self, transport: Transport, keys: dict[int, bytes], idle: float, active: bool = False) -> None:
        self._transport = transport
        self._streams = [Stream(keys[rank], _STREAM) for rank in range(transport.parties)]
        self._mac_key = self._received_mac_key() if active else None
        self._draws = Stream(fresh_key(), "orders of places")
        self._idle = idle
        self._orders: list[bytes | None] = [None] * transport.parties
        self._work: deque[Iterator[tuple[int, Request]]] = deque()
        self._waiting: tuple[int, Request] | None = None
        self._masks: dict[int, Array] = {}
        self._forgotten: list[int] = []
        self._common = np.zeros(0, np.int64)
        self._announced = 0
        self.made = 0

    def serve(self) -> None:
        """Serve until the parties say that the session ends."""
        while True:
            while self._waiting is None and self._work:
                self._waiting = next(self._work[0], None)
                if self._waiting is None:
                    self._work.popleft()
            if self._waiting is None:
                self._forget()
            message = self._next_order(wait=0 if self._waiting else self._idle)
            if message is not None:
                if not self._obey(message):
                    return
            elif self._waiting is not None:
                self._make(*self._waiting)
                self._waiting = None

    def _next_order(self, wait: float) -> bytes | None:
        """The next order, once all parties have sent it: no single party directs the dealer.

        Returns None if `wait` is 0 and some party has not sent it yet: the dealer continues with other work.
        """
        for rank, message in enumerate(self._orders):
            if message is None:
                try:
                    message = self._orders[rank] = self._transport.receive_message(rank, _ASKING, wait=wait)
                except PeerStopped as error:
                    if DEALER not in error.waited_for.split(", "):
                        raise
                    # Another party stopped because it missed an answer that this one held up.
                    raise PeerError(
                        f"party {rank}", _ASKING, f"did not ask for what others wait for; {error}"
                    ) from None
            if message is None:
                return None
        first, *others = self._orders
        differing = [f"party {rank}" for rank, message in enumerate(others, start=1) if message != first]
        if differing:
            raise PeerError(", ".join(differing), _ASKING, "sent another request than party 0")
        self._orders = [None] * len(self._orders)
        return first

    def _obey(self, message: bytes) -> bool:
        try:
            order = json.loads(message)
            if "end" in order:
                return False
            if "cancel" in order:
                self._work.clear()
                self._waiting = None
                self._forget()
                for rank in range(self._transport.parties):
                    self._transport.exchange(_CANCELLED, {rank: []}, {})
            elif "forget" in order:
                self._forgotten.append(int(order["forget"]))
            elif "match" in order:
                bounds = matching.checked_bounds(order["match"], self._transport.parties)
                self._common = matching.serve(self._transport, bounds, self._draws.draw())
            elif "veil" in order:
                matching.serve_veil(self._transport, self._common, int(order["veil"]), self._draws.draw())
            else:
                requests, times = [Request.from_json(item) for item in order["make"]], int(order["times"])
                repeated = itertools.chain.from_iterable(itertools.repeat(requests, times))
                self._work.append(enumerate(repeated, start=self._announced))
                self._announced += len(requests) * times
        except (ValueError, KeyError, TypeError, IndexError):
            raise PeerError("all parties", _ASKING, "sent a request that cannot be read") from None
        return True

    def _forget(self) -> None:
        """Discard masks once no earlier request can still need them."""
        for counter in self._forgotten:
            self._masks.pop(counter, None)
        self._forgotten.clear()

    def _make(self, counter: int, request: Request) -> None:
        wanted = recipe(request)
        parties = range(self._transport.parties)
        receiver = counter % self._transport.parties
        draws = [stream.draw(counter, request.use) for stream in self._streams]
        shares = [{name: field.expand(draws[rank], rank) for name, field in wanted.free.items()} for rank in parties]
        totals = {name: field.total([share[name] for share in shares]) for name, field in wanted.free.items()}
        if request.kind == "mask":
            self._masks[counter] = totals["a"]
        try:
            values = wanted.compute(totals, self._masks)
        except KeyError:
            raise ProtocolError("a product was asked for with a mask that was forgotten") from None
        corrections = []
        for name, bound in wanted.bound.items():
            others: Iterable[Array] = (bound.expand(draws[rank], rank) for rank in parties if rank != receiver)
            if self._mac_key is not None:
                others = list(others)
                for rank, share in zip((rank for rank in parties if rank != receiver), others, strict=True):
                    shares[rank][name] = share
            corrections.append(bound.correction(values.pop(name), others))
            shares[receiver][name] = corrections[-1]
        if self._mac_key is not None:
            corrections += self._tags(wanted.fields, shares, draws, receiver, self._mac_key)
        if corrections:
            self._transport.exchange(_step(counter), {receiver: corrections}, {})
        self.made += 1

    def _received_mac_key(self) -> int:
        """The sum of the parts that the parties have chosen: fresh ones, or those of the model that they use."""
        parties = range(self._transport.parties)
        parts = self._transport.exchange("mac key", {}, {rank: [MAC_KEY] for rank in parties})
        keys = [verification.MacKey.of(parts[rank][0]) for rank in parties]
        if not verification.fits_elements(keys):
            raise PeerError("a party", "mac key", "uses another part of the MAC key than the one of its model")
        return sum(key.part for key in keys)

    def _tags(
        self, fields: Mapping[str, Field], shares: list[Fields], draws: Sequence[Draw], receiver: int, key: int
    ) -> list[Array]:
        """The receiver's tags of all elements of all fields, in 64, 32 and 16 bits; the others draw theirs."""
        others = [_drawn_tags(draws[rank], fields) for rank in range(len(draws)) if rank != receiver]
        result, at = np.empty((2, _elements(fields)), np.uint64), 0
        for name, one in fields.items():
            end = at + math.prod(one.shape)
            tags = [Wide(lo[at:end], hi[at:end]) for lo, hi in others]
            mine = tag_corrections([_unsigned(share[name]).reshape(-1) for share in shares], tags, key)
            result[0, at:end], result[1, at:end], at = mine.lo, mine.hi, end
        high = result[1]
        return [result[0], high.astype(np.uint32), (high >> np.uint64(32)).astype(np.uint16)]


MAC_KEY = Spec("<u8", (4,))
"""A party's `MacKey`, as it is sent to the dealer."""


def _elements(fields: Mapping[str, Field]) -> int:
    return sum(math.prod(field.shape) for field in fields.values())


def _drawn_tags(draw: Draw, fields: Mapping[str, Field]) -> Array:
    return draw.elements((2, _elements(fields)), np.uint64)


def _unsigned(elements: Array) -> Array:
    return elements.view(f"<u{elements.dtype.itemsize}")


def authenticated(fields: Mapping[str, Field], values: Mapping[str, Array], tags: Array) -> dict[str, Any]:
    """This party's shares of the fields of a tuple with their tags."""
    result, at = dict[str, Any](), 0
    for name, one in fields.items():
        if one.how != "add":
            raise ProtocolError("bits that are shared by exclusive or cannot be authenticated")
        end = at + math.prod(one.shape)
        value = _unsigned(values[name]).reshape(-1)
        low = np.stack([value.astype(np.uint64), tags[0, at:end]])
        high = np.stack([np.zeros(end - at, np.uint64), tags[1, at:end]])
        shape = (2, *one.shape)
        result[name] = Authenticated(Wide(low.reshape(shape), high.reshape(shape)), np.zeros(one.shape, np.uint64))
        at = end
    return result


class TupleSource:
    """A party's end: its share of each tuple, in the order in which the program asks."""

    def __init__(self, transport: Transport, key: bytes, active: bool = False) -> None:
        self._transport, self._active = transport, active
        self._stream = Stream(key, _STREAM)
        self._next = 0
        self._ahead: deque[_Ahead] = deque()
        self._recording: list[Request] | None = None
        self._looping = False
        self._table_rows = 0

    def take(self, request: Request) -> tuple[int, dict[str, Array]]:
        """The number of the tuple, and this party's share of every field of it."""
        if self._ahead and self._ahead[0].next() != request:
            self._cancel()
        if self._recording is not None:
            self._recording.append(request)
        if not self._ahead:
            self._ask([request], 1)
            return self._fetch(request)
        ahead = self._ahead[0]
        got = self._fetch(request) if ahead.bundle is None else self._from_bundle(ahead, ahead.bundle)
        ahead.left -= 1
        if not ahead.left:
            self._ahead.popleft()
        return got

    def _from_bundle(self, ahead: _Ahead, bundle: Request) -> tuple[int, dict[str, Array]]:
        if ahead.left % len(ahead.requests) == 0:
            counter, fields = self._fetch(bundle)
            ahead.counter, ahead.waiting = counter, deque(unbundle(fields, len(ahead.requests)))
        return ahead.counter, ahead.waiting.popleft()

    def _fetch(self, request: Request) -> tuple[int, dict[str, Array]]:
        counter = self._next
        self._next += 1
        wanted = recipe(request)
        rank = self._transport.node
        draw = self._stream.draw(counter, request.use)
        fields = {name: field.expand(draw, rank) for name, field in wanted.free.items()}
        if not wanted.bound and not self._active:
            return counter, fields
        tags = np.zeros((2, 0), np.uint64)
        if counter % self._transport.parties == rank:
            specs = [field.spec for field in wanted.bound.values()]
            if self._active:
                specs += [Spec(dtype, (_elements(wanted.fields),)) for dtype in ("<u8", "<u4", "<u2")]
            dealer = self._transport.parties
            received = self._transport.exchange(_step(counter), {}, {dealer: specs})[dealer]
            if self._active:
                *received, low, middle, top = received
                tags = np.stack([low, middle.astype(np.uint64) | top.astype(np.uint64) << np.uint64(32)])
            fields.update(zip(wanted.bound, received, strict=True))
        else:
            fields.update((name, field.expand(draw, rank)) for name, field in wanted.bound.items())
            if self._active:
                tags = _drawn_tags(draw, wanted.fields)
        return counter, authenticated(wanted.fields, fields, tags) if self._active else fields

    def repeat(self, times: int, requests: list[Request] | None = None) -> Iterator[int]:
        """Count the passes of a loop; the dealer works ahead from the second pass on.

        A loop that ends early leaves tuples. The next code that makes the same requests takes them; any other
        request cancels them. A loop inside another is part of the outer loop's passes. `requests` is a list that
        keeps the requests of one pass. When it is passed in again, the dealer works ahead from the first pass on.
        """
        if self._looping or (times < 2 and not requests):
            yield from range(times)
            return
        if self._ahead:
            self._cancel()
        self._looping = True
        try:
            first = 0
            if not requests:
                requests = requests if requests is not None else []
                with self.record(requests):
                    yield 0
                first = 1
            if requests:
                self._plan(requests, times - first)
            yield from range(first, times)
        finally:  # also when an exception passes through: this must not send anything
            self._looping = False

    @contextmanager
    def record(self, requests: list[Request]) -> Iterator[None]:
        """Keep the requests made inside in an empty list, unless they could not be made again."""
        if requests or self._recording is not None:
            yield
            return
        self._recording = []
        try:
            yield
            # A product with a mask made inside names a different mask every time.
            if not any(request.kind == "mask" for request in self._recording):
                requests.extend(self._recording)
        finally:
            self._recording = None

    def _plan(self, requests: Sequence[Request], times: int) -> None:
        if requests and times:
            together = _bundle_of(requests)
            self._ask([together] if together else requests, times)
            self._ahead.append(_Ahead(tuple(requests), len(requests) * times, together))

    def match(self, pseudonyms: matching.Pseudonyms, bounds: matching.Bounds | None, draw: Draw) -> matching.Aligned:
        """Let the dealer match pseudonyms of all parties: rows of this party's, and shares of the membership mask."""
        bounds = matching.checked_bounds(bounds, self._transport.parties)
        sent = matching.padded(pseudonyms, bounds, self._transport.node, draw)
        if self._ahead:
            self._cancel()
        self._tell("match tags", {"match": bounds})
        aligned = matching.ask(self._transport, sent)
        self._table_rows = aligned.size
        return replace(aligned, rows=aligned.rows[: len(pseudonyms)])

    def veil(self, columns: int) -> Array:
        """This party's shares (rows x columns) of a veil for the last match (protocols/dealing/matching.py)."""
        if self._ahead:
            self._cancel()
        self._tell("veil", {"veil": columns})
        rows = self._table_rows
        return matching.receive_shares(self._transport, rows * columns).reshape(rows, columns)

    def forget(self, counter: int) -> None:
        """Ask the dealer to discard a kept mask."""
        self._tell("forget a mask", {"forget": counter})

    def end(self) -> None:
        if self._ahead:
            self._cancel()
        self._tell("end", {"end": True})

    def _ask(self, requests: Sequence[Request], times: int) -> None:
        self._tell(_ASKING, {"make": [request.to_json() for request in requests], "times": times})

    def _tell(self, step: str, order: dict[str, Any]) -> None:
        self._transport.send_message(self._transport.parties, step, json.dumps(order).encode())

    def _cancel(self) -> None:
        self._tell("cancel tuples", {"cancel": self._next})
        self._transport.skip_to(self._transport.parties, _CANCELLED)
        self._next += sum(ahead.unmade for ahead in self._ahead)
        self._ahead.clear()


@dataclass
class _Ahead:
    """Requests announced to the dealer, repeated in passes, and how many are left."""

    requests: tuple[Request, ...]
    left: int
    bundle: Request | None = None
    counter: int = 0
    waiting: deque[dict[str, Array]] = field(default_factory=deque, repr=False)

    def next(self) -> Request:
        return self.requests[-(self.left % len(self.requests))]

    @property
    def unmade(self) -> int:
        """Counters that are not used yet."""
        return self.left if self.bundle is None else self.left // len(self.requests)


def _bundle_of(requests: Sequence[Request]) -> Request | None:
    """All requests of a pass as one, unless that is too large to be worth it."""
    size = sum(field.spec.nbytes for request in requests for field in recipe(request).bound.values())
    if len(requests) < 2 or size > _BUNDLED:
        return None
    return Request("bundle", tuple((request.kind, *request.arguments) for request in requests))


def _step(counter: int) -> str:
    return f"tuple {counter}"
