"""Row shards: the rows of tall tensors lie in several sessions of the same parties, for tables beyond one machine.

Before: party p has a process in the *head group*, the session of the run, and one *worker* for each shard, on
machines that p alone controls. Worker k of all parties and a process of the dealer form *shard session* k. Rows are
cut in multiples of a band (protocols/operations/banded.py). The number of shards is in the session file, and the size
of each follows from the public number of rows.

A party's process in the head group runs the same program as without shards. A tensor with a row for each record is a
`ShardedTensor`, the name of one tensor in each shard session. Operators on it become orders to the own workers, in
the same order at every party. What is small travels with an order as this party's share; what only the owner knows,
as its rows, or as how its workers make them (rows.py). A sum over rows (X^T r, X^T X, counts by group) returns to the
head process as its workers' shares, and these are added there, or kept apart as bands that the head group truncates
before it adds them. Logits of which more than sums are needed return as shares too. Noise, charges and releases are
in the head group, once, after the sum.

| order | rounds | ring elements to each peer, all shards together |
|---|---|---|
| rows of owners, small shares, sums back to the head | 0 | 0: between processes of one party |
| X w, sigmoid, X^T r | as in protocols/steps/head.py | those of one session; w once for each shard |
| before each release: `confirm` | 1 | 4 for each shard |

What each learns. Workers and head process of a party are one trust domain: together they hold what its one process
holds without shards. The other parties see in each shard session what they see in any session: secrets minus uniform
tuple values, each used once. w is opened under another mask in every shard. The dealer sees kinds and shapes of
requests for each shard, so also how many rows it has, which is public.

Why it is secure. A shard session is an ordinary session with an *empty release plan*, so `Session.open` raises in it
at every party, and there is no order to open anything. It has its own configuration (name and addresses), which is
part of what the certificates of the same nodes authenticate and of the key agreement. Every pair of processes agrees
on a fresh key in every shard session, so no mask or zero share of one shard occurs in another. Additive shares of
the terms are additive shares of the sum; they are made fresh before a release, as all shares are. Before each release
the parties check in every shard session that all received the same broadcasts and asked the dealer for the same
(`Party.confirm`): a party that sent different values to two honest ones in a shard stops the run before anything
depends on it. A worker that fails stops its head process and, over its own session, its peers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from secure_sccvfl.protocols.config import CONNECT_BY_HAND, SessionConfig
from secure_sccvfl.protocols.errors import ProtocolError, reason_for_peers
from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.operations.banded import BAND_ROWS, even
from secure_sccvfl.protocols.ring import FRACTION_BITS, RingArray
from secure_sccvfl.protocols.session import binding_tensors
from secure_sccvfl.protocols.session.rows import RowSource, part_of, pieces_of
from secure_sccvfl.protocols.session.runtime import MPCTensor, Session, bits_of, crypten, share_of
from secure_sccvfl.protocols.session.tensors import Late, Parts, Value

_SAME_SHAPE = frozenset(
    {"__add__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__neg__", "rescale", "with_fraction"}
    | {"exact", "pinned", "sigmoid", "capped_slope", "product"}
)
_PAIRS = frozenset({"sigmoid_and_slope", "capped_slope_and_bend"})
_OTHER_SHAPE = frozenset({"__matmul__", "__getitem__", "repeat", "selected", "t"})
_BY_ROW = _SAME_SHAPE | _PAIRS | _OTHER_SHAPE
_OVER_ROWS = frozenset({"__matmul__", "gram", "group_sums", "sum"})
_WIDE = _PAIRS | {"sigmoid", "capped_slope", "product"}
_TOGETHER = 1 << 17
"""How many values go through a sigmoid, or a product with a shared one, at once: each takes hundreds of bytes."""
_FINE_TOGETHER = 1 << 15
"""The same of a precise sigmoid: each value takes 1.6 kB."""
_MADE = frozenset({"owned", "public", "share", "wrap", "zeros"})


class Channel(Protocol):
    """Between a head process and one of its workers: in order, reliable, private to their party."""

    def send(self, message: Any, /) -> None: ...

    def recv(self) -> Any: ...

    def close(self) -> None: ...


class _Tensor(NamedTuple):
    """In an order: a tensor of the worker."""

    number: int


class _Words(NamedTuple):
    """In an order: this party's share of a tensor of the head group, or public values (no bits)."""

    array: Array
    bits: int | None


class _Following(NamedTuple):
    """In an order: rows that follow it in pieces."""

    shape: tuple[int, ...]


class _Received(RowSource):
    """The pieces that follow an order, as they come."""

    def __init__(self, channel: Channel, shape: tuple[int, ...]) -> None:
        self.channel, self.shape = channel, shape

    def pieces(self) -> Iterator[Array]:
        missing = len(self)
        while missing:
            piece = self.channel.recv()
            missing -= len(piece)
            yield piece


@dataclass(frozen=True)
class _Order:
    """`made`: the number of the (first) result; none if it is sent back. dropped: numbers that are not used again."""

    name: str
    target: int | None = None
    made: int | None = None
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Used:
    """What a worker has used so far: CPU seconds, peak resident bytes, and rounds and bytes of its session."""

    processor: float
    memory: int
    rounds: int
    sent: int
    dealer: int


def shard_config(config: SessionConfig, shard: int) -> SessionConfig:
    """The public settings of a shard session: another name and other addresses, so another digest and other keys.

    All heads have met before, and their workers start together; what takes long is to load libraries.
    """
    name = f"{config.name}, shard {shard + 1} of {config.shards['count']}"
    connect = max(config.connect, CONNECT_BY_HAND)
    return replace(config, name=name, parties=config.shard_addresses(shard), shards={}, jobs=(), connect=connect)


def cuts(rows: int, count: int) -> list[tuple[int, int]]:
    """First row and end of each shard, in multiples of a band; a shard has no row if there are fewer bands."""
    bands = -(-rows // BAND_ROWS)
    return list(pairwise(min(rows, BAND_ROWS * (bands * at // count)) for at in range(count + 1)))


class ShardedTensor(binding_tensors.Elsewhere):
    """A tensor with a row for each record, which lies in the shards. rows: of each shard. axis: that of the rows."""

    def __init__(self, shards: RowShards, rows: Sequence[int], shape: Sequence[int], axis: int = 0) -> None:
        self.shards, self.rows, self.shape, self.axis = shards, tuple(rows), tuple(shape), axis
        self.number = shards.next_number()

    def __del__(self) -> None:
        self.shards.dropped.append(self.number)

    def size(self, dim: int | None = None) -> Any:
        return torch.Size(self.shape) if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def sampled(self, most: int) -> ShardedTensor:
        """Those bands of a pinned matrix that would be taken if all were in one session."""
        edges = np.cumsum([0, *(-(-count // BAND_ROWS) for count in self.rows)])
        chosen = np.array(even(int(edges[-1]), most))
        picks = [(chosen[(low <= chosen) & (chosen < high)] - low).tolist() for low, high in pairwise(edges)]
        rows = [
            sum(min(BAND_ROWS, count - at * BAND_ROWS) for at in some)
            for count, some in zip(self.rows, picks, strict=True)
        ]
        result = ShardedTensor(self.shards, rows, (sum(rows), *self.shape[1:]))
        self.shards.order("bands", self, result, [(some,) for some in picks])
        return result

    def joined(self, parts: Sequence[Any], dim: int) -> ShardedTensor:
        """`crypten.cat` of tall tensors: columns side by side, or in every shard its rows below each other."""
        if not all(isinstance(one, ShardedTensor) and one.axis == 0 for one in parts):
            raise ProtocolError("[shards] does not cover a tensor that has rows in shards and others elsewhere")
        rows = [sum(counts) for counts in zip(*(one.rows for one in parts), strict=True)] if dim == 0 else self.rows
        columns = self.shape[1:] if dim == 0 else (sum(one.shape[1] for one in parts),)
        result = ShardedTensor(self.shards, rows, (sum(rows), *columns))
        self.shards.order("cat", self, result, [([_Tensor(one.number) for one in parts], dim)] * len(rows))
        return result

    def gathered(self) -> Any:
        """All rows as a tensor of the head group: workers send their shares to their head process."""
        answers = self.shards.order("gathered", self, None, [()] * len(self.rows))
        return self.shards.session.wrap(np.concatenate([words for words, *_ in answers]), answers[0][1])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in _BY_ROW | _OVER_ROWS:
            raise ProtocolError(f"[shards] does not cover {name} of a tensor with a row for each record")
        return partial(self.shards.apply, name, self)


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *args: self.shards.apply(name, self, *args)


for _name in _BY_ROW:
    if _name.startswith("__"):
        setattr(ShardedTensor, _name, _operator(_name))


class RowShards:
    """The workers of one party, at its process of the head group. Makes tall tensors as `Session` does."""

    active = False
    """Active security does not cover row shards."""

    def __init__(self, session: Session, channels: Sequence[Channel]) -> None:
        self.session, self._channels = session, tuple(channels)
        self.rank, self.parties, self._numbers = session.rank, session.parties, 0
        self.dropped: list[int] = []

    @property
    def count(self) -> int:
        return len(self._channels)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # tall tensors

    def owned(
        self, values: Array | None = None, *, owner: int, shape: Sequence[int], **options: Any
    ) -> ShardedTensor:
        """As `Session.owned`: each worker makes, or gets, its rows of what this party knows."""
        return self._made("owned", values if owner == self.rank else None, shape, owner=owner, **options)

    def share(
        self, values: Array | None = None, *, owner: int, shape: Sequence[int], **options: Any
    ) -> ShardedTensor:
        """As `Session.share`, in every shard."""
        return self._made("share", values if owner == self.rank else None, shape, owner=owner, **options)

    def public(self, values: Array, bits: int = FRACTION_BITS) -> ShardedTensor:
        return self._made("public", values, values.shape, bits=bits)

    def zeros(self, shape: Sequence[int], bits: int = FRACTION_BITS) -> ShardedTensor:
        return self._made("zeros", None, shape, bits=bits)

    def wrap(self, words: RingArray, bits: int) -> ShardedTensor:
        """Shares of the head group that go to the shards."""
        return self._made("wrap", words, words.shape, bits=bits)

    def _made(self, name: str, values: Any, shape: Sequence[int], **options: Any) -> ShardedTensor:
        slices = cuts(shape[0], len(self._channels))
        result = ShardedTensor(self, [end - start for start, end in slices], shape)
        for shard, (start, end) in enumerate(slices):
            if end > start:
                here = {"shape": (end - start, *shape[1:])} if name in ("owned", "share", "zeros") else {}
                rows: Any = None if values is None else part_of(values, start, end)
                follows = name == "owned" and rows is not None and not getattr(rows, "at_worker", False)
                part = () if name == "zeros" else (_Following(tuple(rows.shape)) if follows else rows,)
                self._send(shard, _Order(name, None, result.number, part, {**options, **here}))
                for piece in pieces_of(rows) if follows else ():
                    self._send(shard, piece)
        return result

    # orders

    def order(
        self, name: str, target: ShardedTensor, made: ShardedTensor | None, args: Sequence[Any], **options: Any
    ) -> list[Any]:
        """Send an order to every worker that has rows of `target`, which makes a tensor there or sends it back."""
        dropped, self.dropped = tuple(self.dropped), []
        asked = [k for k, rows in enumerate(target.rows) if rows]
        number = None if made is None else made.number
        for k in range(len(self._channels)):
            if k in asked:
                self._send(k, _Order(name, target.number, number, tuple(args[k]), options, dropped))
            elif dropped:
                self._send(k, _Order("drop", dropped=dropped))
        return [self._answer(k) for k in asked] if made is None else []

    def apply(self, name: str, target: ShardedTensor, *args: Any, **options: Any) -> Any:
        """A tall tensor of which every worker computes its rows; of a sum over rows, a tensor of the head group."""
        self.session.operations[name] += 1
        if name == "__getitem__":
            return self._item(target, args[0])
        for one in (*args, *options.values()):
            if isinstance(one, ShardedTensor) and one.rows != target.rows:
                raise ProtocolError("[shards] does not cover operands whose rows are cut at other places")
        sent = [tuple(map(_sent, args))] * len(self._channels)
        given = {key: _sent(value) for key, value in options.items()}
        if name in _OVER_ROWS and (name != "__matmul__" or target.axis == 1):
            if name == "sum" and args[:1] != (target.axis,):
                raise ProtocolError("[shards] does not cover a sum that is not over the records alone")
            return self._added(self.order(name, target, None, sent, **given))
        if name in _PAIRS:
            first, second = (ShardedTensor(self, target.rows, target.shape, target.axis) for _ in range(2))
            self.order(name, target, first, sent, **given)
            return first, second
        shape, axis = target.shape, 1 - target.axis if name == "t" else target.axis
        if name == "selected":
            shape = (shape[0], shape[2])
        elif name in _OTHER_SHAPE:
            tensors = (ShardedTensor, MPCTensor, torch.Tensor)
            stands = [
                torch.empty(tuple(one.size()), device="meta") if isinstance(one, tensors) else one for one in args
            ]
            shape = tuple(getattr(torch.empty(shape, device="meta"), name)(*stands).shape)
        result = ShardedTensor(self, target.rows, shape, axis)
        self.order(name, target, result, sent, **given)
        return result

    def _item(self, target: ShardedTensor, index: Any) -> ShardedTensor:
        """All rows, some columns of all rows, or the rows of a public mask."""
        whole = index[0] if isinstance(index, tuple) else index
        rows, count = target.rows, target.shape[0]
        parts: list[Any] = [(index,)] * len(rows)
        if target.axis == 0 and isinstance(whole, torch.Tensor) and whole.dtype == torch.bool and whole is index:
            masks = torch.split(whole, list(rows))
            rows, parts = tuple(int(mask.sum()) for mask in masks), [(_sent(mask),) for mask in masks]
            shape: tuple[int, ...] = (sum(rows), *target.shape[1:])
        elif target.axis == 0 and isinstance(whole, slice) and whole.indices(count) == (0, count, 1):
            if whole is index:
                return target
            parts = [((slice(None), *index[1:]),)] * len(rows)
            shape = tuple(torch.empty(target.shape, device="meta")[index].shape)
        else:
            raise ProtocolError("[shards] does not cover some rows of a tensor, by number")
        result = ShardedTensor(self, rows, shape)
        self.order("__getitem__", target, result, parts)
        return result

    def _added(self, answers: Sequence[tuple[RingArray, int, bool]]) -> Any:
        """The sum of the workers' shares. Bands stay apart: the head group truncates them before it adds them."""
        (_, bits, apart), *_ = answers
        if apart:
            return binding_tensors.of(Parts(np.concatenate([words for words, *_ in answers]), bits))
        total: RingArray = np.sum([words for words, *_ in answers], axis=0)
        return self.session.wrap(total, bits)

    # the sessions

    def forget(self, tensor: ShardedTensor) -> None:
        """Let the dealer drop the masks of a pinned tensor."""
        self.order("forget", tensor, None, [()] * len(self._channels))

    def confirm(self, step: str) -> None:
        """Before a release: the check of `Party.confirm` in every shard session. Waits for all of them."""
        self._all(_Order("confirm", args=(step,)))

    def used(self) -> list[Used]:
        return self._all(_Order("used"))

    def end(self) -> None:
        """End all shard sessions; each compares broadcasts and logs once more."""
        self._all(_Order("end"))
        self.close()

    def close(self) -> None:
        """Without an end: workers see that their head process has gone, and stop their sessions."""
        for channel in self._channels:
            channel.close()

    def _all(self, order: _Order) -> list[Any]:
        for k in range(len(self._channels)):
            self._send(k, order)
        return [self._answer(k) for k in range(len(self._channels))]

    def _send(self, shard: int, order: _Order | Array) -> None:
        try:
            self._channels[shard].send(order)
        except (EOFError, OSError):
            self._answer(shard)  # why it has stopped

    def _answer(self, shard: int) -> Any:
        try:
            answer = self._channels[shard].recv()
        except (EOFError, OSError):
            raise ProtocolError(f"the worker of shard {shard + 1} is gone; resume the run") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _sent(value: Any) -> Any:
    """An operand as it travels in an order."""
    if isinstance(value, ShardedTensor):
        return _Tensor(value.number)
    if isinstance(value, MPCTensor):
        return _Words(share_of(value), bits_of(value))
    return _Words(value.numpy(), None) if isinstance(value, torch.Tensor) else value


# the worker


def work(opened: Callable[[], Session], channel: Channel) -> None:
    """Run by a worker: meet the other parties' workers, then obey the head process until it ends the session."""
    try:
        with opened() as session:
            tensors: dict[int, Any] = {}
            while (order := channel.recv()).name != "end":
                if order.args and isinstance(order.args[0], _Following):
                    order = replace(order, args=(_Received(channel, order.args[0].shape),))
                answer = _obeyed(session, tensors, order)
                if order.made is None and order.name != "drop":
                    channel.send(answer)
                del order, answer  # they hold rows
        channel.send(None)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the head process may have gone
            channel.send(error if isinstance(error, ProtocolError) else ProtocolError(reason_for_peers(error)))
        raise


def _obeyed(session: Session, tensors: dict[int, Any], order: _Order) -> Any:
    """What to send back, if the order made no tensor here. No order opens a value."""
    for number in order.dropped:
        tensors.pop(number, None)

    def operand(value: Any) -> Any:
        if isinstance(value, _Tensor):
            return tensors[value.number]
        if isinstance(value, _Words):
            return torch.from_numpy(value.array) if value.bits is None else session.wrap(value.array, value.bits)
        return value

    name, target = order.name, None if order.target is None else tensors[order.target]
    args, options = [*map(operand, order.args)], {key: operand(value) for key, value in order.options.items()}
    if name == "confirm":
        return session.party.confirm(*args)
    if name == "used":
        cost = session.total_cost
        return Used(time.process_time(), peak_memory(), cost.rounds, cost.sent, cost.dealer)
    if name == "forget":
        return session.forget(target)
    if name in _MADE and target is None:
        result = getattr(session, name)(*args, **options)
    elif name == "cat":
        result = crypten.cat([*map(operand, args[0])], dim=args[1])
    elif name == "bands":
        pinned: Any = binding_tensors.value_of(target)
        result = binding_tensors.of(pinned.chosen(args[0]))
    elif name == "gathered":
        result = target
    elif name in (_OVER_ROWS if order.made is None else _BY_ROW):
        result = _in_pieces(target, name, args, options) if name in _WIDE else getattr(target, name)(*args, **options)
    elif name == "drop":
        return None
    else:
        raise ProtocolError(f"a shard has no order {name!r}")
    if order.made is None:
        return _share_of_sum(binding_tensors.value_of(result), name)
    pair = result if name in _PAIRS else (result,)
    tensors.update(enumerate(pair, start=order.made))
    return None


def _in_pieces(target: Any, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """A function of each row that takes much memory, over some rows at a time."""
    together = _FINE_TOGETHER if options.get("fine") else _TOGETHER << 3 * (name == "product")
    each, count = max(1, together // target.size(1)), target.size(0)
    results = []
    for rows in (slice(start, start + each) for start in range(0, count, each)):
        these = [one[rows] if isinstance(one, MPCTensor) and one.size(0) == count else one for one in args]
        if name == "product":
            factor, bits = these
            both = target[rows] * factor
            results.append(both if bits is None else both.rescale(bits))
        else:
            results.append(getattr(target[rows], name)(*these, **options))
    if name in _PAIRS:
        return tuple(crypten.cat([*part]) for part in zip(*results, strict=True))
    return crypten.cat(results)


def peak_memory() -> int:
    """The largest memory of this process so far, in bytes; `resource` reports at least that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def _share_of_sum(value: Value, name: str) -> tuple[RingArray, int, bool]:
    """This worker's share, its fraction, and whether its first axis is one of parts that are truncated apart."""
    words = value.divided() if isinstance(value, (Late, Parts)) else value.share()
    apart = value.bits > 0 and name in ("__matmul__", "gram")
    return words[None] if apart and value.parts == 1 else words, value.bits, apart
