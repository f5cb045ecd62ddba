"""Values behind a CrypTen tensor that are not plain shares: waiting for a round, known to owners, or under masks.

| kind | what it is | rounds |
|---|---|---|
| `Owned` | blocks side by side, each known to its owner | none: nothing is sent until it is multiplied or pinned |
| `Pinned` | a tall matrix, or its transpose, under masks that were opened once (operations/banded.py) | none |
| `Stack` | square matrices of one size under one such mask | none |
| `Late` | the result of one opening: a product, a square, a truncation | one, with all that waits |
| `Sum` | terms with exact public coefficients | none until it is rescaled: one |

Rounds. An opening waits until some operation needs its result. Then everything that waits goes in one round, in the
order in which it was written. Tuples are taken then too, in this order: the order of requests is the contract between
parties and dealer, so all parties must run the same program, and no party may look at a share that another does not.
What still waits at the end of a session is never sent.

Fractions. A product has the fractional bits of both factors. A public factor or divisor costs nothing: it becomes a
coefficient of a `Sum`. `rescale(bits)` truncates every term by its own divisor, all of them in one round, and adds
them up: for a term x p / q with b bits that is 2^(b - bits) q / p, rounded, or, where that is below 2^14 and p is not
1, x times p at 2^16 over 2^(b - bits + 16) q. A product that is rescaled at once is one operation with the truncation
inside (`arithmetic.scaled_bilinear`). Products of a transposed tall matrix come band by band, and each band is
truncated before they are added, so that none leaves the range of a truncation.

Why it is secure: only the kernels of protocols/operations open values, each of them a secret minus a uniform tuple
value that is used once. Opening several of them in one round sends the same values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.operations import arithmetic, banded, group_table, sigmoid
from secure_sccvfl.protocols.operations.arithmetic import Halves, Masked
from secure_sccvfl.protocols.ring import FRACTION_BITS, RingArray, Shape, Share

if TYPE_CHECKING:
    from secure_sccvfl.protocols.session.runtime import Session

CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)

USUAL = frozenset({0, FRACTION_BITS, 2 * FRACTION_BITS})
"""Fractions of CrypTen's own functions: a product of two such values is truncated to FRACTION_BITS at once."""
LONGEST = 61
"""Most fractional bits of a product."""
_FACTOR_BITS = 16
_FINE = 1 << 14
"""A divisor of at least this size may stand for a factor: rounding it is off by 2^-15."""
_LARGEST = 1 << 62
"""No divisor is larger: a factor that would need one is below the unit of every result."""
_LARGE = 1 << 8
"""A divisor of at least this size may be rounded where it is only divided."""
_SHORT_SUM, _MOST_SUM = 2.0**30, 2.0**62
"""Sums by group below the first fit 32-bit shares; none is larger than the second."""
_SHORT_ROWS = 32.0
"""Products of 32 / bound bands with entries of at most `bound` add up to less than 2^60."""

Start = Callable[[Party], Halves]
"""Takes the tuples of an opening: what to open, and what follows."""


def current() -> Session:
    """The session of this context."""
    session = CURRENT.get()
    if session is None:
        raise ProtocolError("no session is open here")
    return session


class Value:
    """A secret value; `share` returns this party's share of it, with `bits` fractional bits.

    parts: into how many parts it is divided that must be truncated before they are added.
    """

    shape: Shape
    bits: int
    parts = 1

    def share(self) -> RingArray:
        raise NotImplementedError

    @property
    def long(self) -> bool:
        """Whether products with it, and public factors of it, keep the whole fraction: all but regular ones do."""
        return self.bits not in USUAL or self.parts > 1


class Held(Value):
    """A share. exact: its products keep the whole fraction, although its own is a regular one."""

    def __init__(self, elements: RingArray, bits: int, exact: bool = False) -> None:
        self._share, self.shape, self.bits, self.exact = elements, elements.shape, bits, exact

    def share(self) -> RingArray:
        return self._share

    @property
    def long(self) -> bool:
        return self.exact or super().long


class Openings:
    """The openings that wait for a round of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[Late] = []

    def add(self, late: Late) -> None:
        self._waiting.append(late)

    def drop(self, late: Late) -> None:
        self._waiting.remove(late)

    def flush(self) -> None:
        """One round for everything that waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        party = self._session.party
        halves = [late.start(party) for late in waiting]
        opened = iter(party.open_masked(waiting[0].step, [one for masked, _ in halves for one in masked]))
        for late, (masked, finish) in zip(waiting, halves, strict=True):
            late.result = finish([next(opened) for _ in masked])


class Late(Value):
    """The result of an opening, once it is made. With several parts it has one more axis, the first."""

    def __init__(self, step: str, shape: Sequence[int], bits: int, start: Start, parts: int = 1) -> None:
        self._openings, self.step, self.start = current().openings, step, start
        self.shape, self.bits, self.parts = tuple(shape), bits, parts
        self.result: RingArray | None = None
        self._openings.add(self)

    def divided(self) -> RingArray:
        """The share, with an axis of parts if there are several."""
        if self.result is None:
            self._openings.flush()
        if self.result is None:
            raise ProtocolError("a tensor of another session, or of a round that failed")
        return self.result

    def share(self) -> RingArray:
        if self.parts > 1:
            raise ProtocolError("a product of many rows is a sum of bands, which are truncated first: use rescale")
        return self.divided()


class Parts(Value):
    """A sum whose parts, the first axis, must be truncated before they are added."""

    long = True

    def __init__(self, elements: RingArray, bits: int) -> None:
        self._share, self.shape, self.bits, self.parts = elements, elements.shape[1:], bits, len(elements)

    def divided(self) -> RingArray:
        result: RingArray = self._share if self.parts > 1 else self._share[0]
        return result

    def share(self) -> RingArray:
        if self.parts > 1:
            raise ProtocolError("a sum over many rows is truncated part by part: use rescale")
        return self.divided()


class Product(Late):
    """A product of two shared values that may still become one with a truncation (`rescale`)."""

    def __init__(self, op: str, x: Value, y: Value) -> None:
        bits = x.bits + y.bits
        if bits > LONGEST:
            raise ProtocolError(f"a product would have {bits} fractional bits: rescale a factor first")
        self.op, self.factors = op, (x.share(), y.share())
        super().__init__(op, ring.shape_of(op, x.shape, y.shape), bits, self._start)

    def _start(self, party: Party) -> Halves:
        return arithmetic.multiplication(party, self.op, *self.factors)

    def scaled(self, divisor: int) -> RingArray:
        """Shares of the product over a divisor. The product itself no longer waits: it is used up."""
        self._openings.drop(self)
        return arithmetic.scaled_bilinear(current().party, self.op, *self.factors, divisor)


class Sum(Value):
    """Terms x p / q. p: a number, or one for each index of the last axis. Used without `rescale`, it is exact if all
    coefficients are integers; otherwise it has FRACTION_BITS.
    """

    long = True

    def __init__(self, shape: Shape, terms: Sequence[tuple[Value, Any, Any]]) -> None:
        self.shape, self.terms = shape, tuple(terms)
        self._share: RingArray | None = None
        self._exact, self.bits = True, 0
        for term, p, q in self.terms:
            self.bits = max(self.bits, term.bits)
            if q != 1 or term.parts > 1 or not _whole(p):
                self._exact, self.bits = False, FRACTION_BITS
                break

    def share(self) -> RingArray:
        if self._share is None:
            if self._exact:
                output = current().party.nothing(self.shape)
                for term, p, _ in self.terms:
                    output = output + np.left_shift(term.share() * np.asarray(p, np.int64), self.bits - term.bits)
                self._share = output
            else:
                self._share = rescale(self, FRACTION_BITS).share()
        return self._share


def _whole(p: Any) -> bool:
    if isinstance(p, int):
        return True
    return p.is_integer() if isinstance(p, float) else bool((np.rint(p) == p).all())


def _number(p: Any) -> bool:
    """Whether a coefficient is the same for all indices."""
    return isinstance(p, (int, float)) or np.ndim(p) == 0


def _common_shape(x: Shape, y: Shape) -> Shape:
    return x if x == y else np.broadcast_shapes(x, y)


def terms_of(value: Value) -> Sequence[tuple[Value, Any, Any]]:
    return value.terms if isinstance(value, Sum) else [(value, 1, 1)]


def scaled(value: Value, p: Any = 1, q: Any = 1) -> Sum:
    """The value times p / q, exactly."""
    if not _number(p) and p.shape == value.shape[-1:] and len(set(p.tolist())) == 1:
        p = p.item(0)
    shape = value.shape if _number(p) else _common_shape(value.shape, np.shape(p))
    return Sum(shape, [(term, of * p, by * q) for term, of, by in terms_of(value)])


def added(x: Value, y: Value, sign: int) -> Sum:
    """x + y or x - y; nothing is rounded or sent."""
    others = [(term, sign * p, q) for term, p, q in terms_of(y)]
    return Sum(_common_shape(x.shape, y.shape), [*terms_of(x), *others])


@lru_cache(maxsize=1 << 12)
def division(have: int, wanted: int, p: float, q: float) -> tuple[int, int]:
    """The whole factor and the divisor that turn x with `have` fractional bits into |p| / q x with `wanted`."""
    size, lift, unit = abs(p), 1 << max(0, wanted - have), 1 << max(0, have - wanted)
    if size == 1 or (size > 0 and _FINE <= unit * q / size < _LARGEST):
        divisor: float = unit * q if size == 1 else unit * q / size
        if divisor >= _LARGE or float(divisor).is_integer():
            return lift, round(divisor)
    if float(size).is_integer() and float(q).is_integer() and size != 0:
        return lift * int(size), unit * int(q)
    return lift * round(size / q * (1 << _FACTOR_BITS)), unit << _FACTOR_BITS


def _pieces(value: Value, p: Any) -> list[tuple[RingArray, float, Any]]:
    """The ring elements of a term with one factor each, and the indices of the last axis that they belong to (None:
    all).
    """
    elements = value.divided() if isinstance(value, (Late, Parts)) else value.share()
    if _number(p):
        return [(elements, p, None)]
    each = np.broadcast_to(p, value.shape[-1:])
    factors = sorted(set(each.tolist()), key=abs)
    return [(elements[..., at], factor, at) for factor in factors for at in (np.flatnonzero(each == factor),)]


def rescale(value: Value, bits: int, sliced: bool = False) -> Value:
    """The value with this fraction: all terms are truncated in one round, together with whatever else waits.

    sliced: a single term of 2^15 values or more is opened in slices instead, at once, in two rounds with fewer bytes.
    """
    terms = terms_of(value)
    term, p, q = terms[0]
    if len(terms) == 1 and isinstance(term, Product) and term.result is None and _number(p):
        factor, divisor = division(term.bits, bits, p, q)
        if factor == 1 and divisor > 1:
            output = term.scaled(divisor)
            return Held(output if p > 0 else -output, bits)
    work: list[tuple[RingArray, int]] = []
    columns: list[tuple[int, bool, Any]] = []
    exact: list[tuple[RingArray, Any]] = []
    for term, p, q in terms:
        for elements, each, at in _pieces(term, p):
            by, divisor = division(term.bits, bits, each, q)
            sign = -1 if each < 0 else 1
            if divisor == 1:
                exact.append((elements * np.int64(sign * by), at))
                if term.parts > 1:
                    raise ProtocolError("parts of a sum have no bits to truncate")
                continue
            work.append((elements * np.int64(by) if by != 1 else elements, divisor))
            columns.append((sign, term.parts > 1, at))

    def assembled(quotients: Sequence[RingArray]) -> Share:
        if len(quotients) == 1 and not exact and columns[0][2] is None:
            sign, several, _ = columns[0]
            result = quotients[0].sum(axis=0) if several else quotients[0]
            return result if sign > 0 else -result
        total = current().party.nothing(value.shape)
        for (sign, several, at), quotient in zip(columns, quotients, strict=True):
            part = quotient.sum(axis=0) if several else quotient
            here = (Ellipsis,) if at is None else (Ellipsis, at)
            total[here] += part if sign > 0 else -part
        for part, at in exact:
            total[(Ellipsis,) if at is None else (Ellipsis, at)] += part
        return total

    if not work:
        return Held(assembled([]), bits)
    if sliced and len(work) == 1:
        return Held(assembled([arithmetic.divide(current().party, *work[0])]), bits)

    def start(party: Party) -> Halves:
        masked, finish = arithmetic.divisions(party, work)
        return masked, lambda opened: assembled(finish(opened))

    return Late("truncate", value.shape, bits, start)


# what is known to owners, or under a mask


class Owned(Value):
    """Blocks side by side (last axis), each known to its owner: `blocks` are owner, its values there, and width.

    Values are ring elements, or integers of fewer bytes that stand for them.
    """

    def __init__(self, lead: Shape, blocks: Sequence[tuple[int, Array | None, int]], bits: int) -> None:
        self.lead, self.blocks, self.bits = lead, tuple(blocks), bits
        self.shape = (*lead, sum(width for *_, width in blocks))
        self._inputs: Any = None

    def share(self) -> Share:
        party = current().party
        if party.active:
            if self._inputs is None:
                blocks = [
                    (owner, None if block is None else _whole_numbers(block), (*self.lead, width))
                    for owner, block, width in self.blocks
                ]
                self._inputs = np.concatenate(party.inputs("inputs of owners", blocks), axis=-1)
            return self._inputs
        parts = [
            np.zeros((*self.lead, width), np.int64) if block is None else block for _, block, width in self.blocks
        ]
        return np.concatenate(parts, axis=-1, dtype=np.int64) if len(parts) > 1 else _whole_numbers(parts[0])

    def widths(self, parties: int) -> list[int]:
        """The columns of each party. They must be in the order of their owners."""
        owners = [owner for owner, *_ in self.blocks]
        if owners != sorted(owners):
            raise ProtocolError("columns must be in the order of their owners")
        return [sum(width for owner, _, width in self.blocks if owner == rank) for rank in range(parties)]

    def of(self, rank: int, rows: slice) -> Array:
        """What a party knows of some rows."""
        party_blocks = [block[rows] for owner, block, _ in self.blocks if owner == rank and block is not None]
        if not party_blocks:
            return np.zeros((len(range(*rows.indices(self.lead[0]))), 0), np.int8)
        return np.concatenate(party_blocks, axis=1)

    def joined(self, others: Sequence[Owned]) -> Owned:
        if any(other.lead != self.lead or other.bits != self.bits for other in others):
            raise ProtocolError("blocks of several owners must have as many rows, and the same fraction")
        return Owned(self.lead, [block for part in (self, *others) for block in part.blocks], self.bits)

    def pinned(self, bands_per_truncation: int) -> Pinned:
        """Every owner masks its columns and sends them once. Integers are never truncated: all bands add up."""
        party = current().party
        if self.bits not in (0, FRACTION_BITS):
            raise ProtocolError("only integer columns, or columns with 16 fractional bits, can be pinned")
        tall = banded.mask_columns(party, self.of(party.rank, slice(None)), self.widths(party.parties))
        return Pinned(tall, self.bits, bands_per_truncation if self.bits else max(1, len(tall.bands)))


def _whole_numbers(values: Array) -> RingArray:
    return values.astype(np.int64, copy=False)


class Pinned(Value):
    """A tall matrix under masks, or its transpose. Sums of `bands_per_truncation` bands are truncated."""

    def __init__(
        self, tall: banded.BandedMatrix, bits: int, bands_per_truncation: int = 1, turned: bool = False
    ) -> None:
        self.tall, self.bits, self.bands_per_truncation, self.turned = tall, bits, bands_per_truncation, turned
        self.shape = (tall.columns, tall.rows) if turned else (tall.rows, tall.columns)

    def sampled(self, most: int) -> Pinned:
        """Some of the bands, at even distances, if there are more than this many."""
        return Pinned(self.tall.sampled(most), self.bits, self.bands_per_truncation, self.turned)

    def chosen(self, bands: Sequence[int]) -> Pinned:
        """Some of the bands, by number."""
        tall = banded.BandedMatrix(tuple(self.tall.bands[at] for at in bands), self.tall.columns)
        return Pinned(tall, self.bits, self.bands_per_truncation, self.turned)

    def turn(self) -> Pinned:
        return Pinned(self.tall, self.bits, self.bands_per_truncation, not self.turned)

    def share(self) -> RingArray:
        shares = banded.shares_of(current().party, self.tall)
        return np.ascontiguousarray(shares.T) if self.turned else shares

    def times(self, y: Value) -> Late:
        """This matrix times y, with the whole fraction."""
        elements, bits, tall = y.share(), self.bits + y.bits, self.tall
        if elements.ndim != 2 or bits > LONGEST:
            raise ProtocolError(f"a pinned matrix takes columns, with at most {LONGEST - self.bits} fractional bits")
        if not self.turned:
            shape = (tall.rows, elements.shape[1])
            return Late("head product", shape, bits, lambda party: banded.multiplication(party, tall, elements))
        starts = range(0, len(tall.bands), self.bands_per_truncation)

        def start_turned(party: Party) -> Halves:
            masked, finish = banded.multiplication(party, tall, elements, transposed=True)

            def grouped(opened: Sequence[RingArray]) -> RingArray:
                bands = finish(opened)
                if len(starts) < len(bands):
                    bands = np.add.reduceat(bands, list(starts), axis=0)
                return bands if len(bands) > 1 else bands[0]

            return masked, grouped

        return Late("head gradient", (tall.columns, elements.shape[1]), bits, start_turned, len(starts))


class Stack(Value):
    """Square matrices below each other under one mask; `indices`: which of them, in this order."""

    def __init__(self, masked: Masked, columns: int, indices: Sequence[int], bits: int) -> None:
        self.masked, self.columns, self.indices, self.bits = masked, columns, tuple(indices), bits
        self.shape = (len(self.indices), columns, columns)

    def chosen(self, index: Any) -> Stack:
        indices = self.indices[index] if isinstance(index, slice) else [self.indices[at] for at in index]
        return Stack(self.masked, self.columns, indices, self.bits)

    def share(self) -> RingArray:
        shares = banded.shares_of(current().party, banded.BandedMatrix(((self.masked,),), self.columns))
        return shares.reshape(-1, self.columns, self.columns)[list(self.indices)]

    def each(self, y: Value) -> Late:
        """Matrix number g times column g, with the whole fraction."""
        elements, bits = y.share(), self.bits + y.bits
        if elements.shape != (self.columns, len(self.indices)) or bits > LONGEST:
            raise ProtocolError(f"{len(self.indices)} matrices of {self.columns} columns take as many such columns")
        start = partial(banded.stack_product, stack=self.masked, indices=self.indices, vectors=elements)
        return Late("grid gradient", elements.shape, bits, start)


def bands_per_truncation(bound: float | None) -> int:
    """How many bands of rows whose entries are at most `bound` may be added before they are truncated."""
    return 1 if bound is None else max(1, math.floor(_SHORT_ROWS / bound))


def pinned(value: Value, bound: float | None = None) -> Value:
    """The value under masks that are opened once: columns of owners, a shared tall matrix, or square matrices."""
    if isinstance(value, Owned) and len(value.shape) == 2:
        return value.pinned(bands_per_truncation(bound))
    party, elements = current().party, value.share()
    if elements.ndim == 2:
        return Pinned(banded.mask_rows(party, elements), value.bits, bands_per_truncation(bound))
    if elements.ndim != 3 or elements.shape[1] != elements.shape[2]:
        raise ProtocolError(f"a tensor of shape {elements.shape} cannot be pinned")
    masked = arithmetic.mask_shared(party, elements.reshape(-1, elements.shape[2]))
    return Stack(masked, elements.shape[2], range(len(elements)), value.bits)


def gram(value: Value, weights: Value | None = None) -> Parts:
    """The upper triangle of X^T X of a pinned matrix; no round. With weights, X^T D X for each row of them; at once.

    Of a matrix that is not pinned, the whole of X^T X; at once.
    """
    party = current().party
    if not isinstance(value, Pinned):
        return Parts(banded.gram(party, value.share())[None], 2 * value.bits)
    if value.turned:
        raise ProtocolError("the Gram matrix of a transposed matrix")
    if weights is None:
        return Parts(banded.gram_sums(party, value.tall), 2 * value.bits)
    return Parts(banded.weighted_grams(party, value.tall, weights.share()), 2 * value.bits + weights.bits)


def _owned(value: Value, whole: bool, message: str) -> Owned:
    """Blocks that their owners know; of integers only if `whole`."""
    if not isinstance(value, Owned) or (whole and value.bits):
        raise ProtocolError(message)
    return value


def selected(choices: Value, one_hot: Value) -> Held:
    """choices[i, s_i, :] of what two parties know: choices for every group, and the one-hot of the group."""
    wrong = "a selection takes choices that one party knows, and the one-hot rows of another"
    blocks = *_owned(choices, False, wrong).blocks, *_owned(one_hot, True, wrong).blocks
    if len(blocks) != 2:
        raise ProtocolError(wrong)
    (owner, of_owner, _), (holder, of_holder, _) = blocks
    rows, groups, columns = choices.shape
    chosen, member = (None if one is None else _whole_numbers(one) for one in (of_owner, of_holder))
    elements = group_table.select(current().party, owner, holder, chosen, member, (rows, groups, columns))
    return Held(elements, choices.bits)


def group_sums(columns: Value, groups: Value, bound: float) -> Held:
    """X^T S: sums of the owners' whole-number columns by the groups that one party knows (one-hot rows); exact.

    bound: of the magnitude of what the sums are used for, noise included. Below 2^30 they are shared modulo 2^32,
    which halves the bytes, and lifted: the tensor has 32 fractional bits, all zero. A round for each chunk of rows
    (operations/group_table.py).
    """
    wrong = "sums by group take integer columns of owners, and one-hot rows of as many records"
    values, one_hot = _owned(columns, True, wrong), _owned(groups, True, wrong)
    if len(values.lead) != 1 or values.lead != one_hot.lead:
        raise ProtocolError(wrong)
    holders = {owner for owner, *_ in one_hot.blocks}
    if len(holders) != 1 or not 0 < bound < _MOST_SUM:
        raise ProtocolError("the groups of records are known to one party, and their sums stay below 2^62")
    party, holder = current().party, holders.pop()
    block, member = partial(values.of, party.rank), partial(one_hot.of, holder) if party.rank == holder else None
    rows, count = groups.shape
    widths = values.widths(party.parties)
    table = group_table.group_table(party, rows, widths, block, holder, count, member, bound >= _SHORT_SUM)
    return Held(*group_table.lifted(table))


def numbers(value: Value) -> Iterator[int]:
    """The counters of the masks that the dealer keeps for a pinned value."""
    if isinstance(value, Pinned):
        yield from value.tall.numbers()
    elif isinstance(value, Stack):
        yield value.masked.counter
    else:
        raise ProtocolError("only a pinned tensor has masks to forget")


def square(value: Value) -> Late:
    """The square, with the whole fraction."""
    elements, bits = value.share(), 2 * value.bits
    if bits > LONGEST:
        raise ProtocolError(f"a square would have {bits} fractional bits: rescale the value first")
    return Late("square", elements.shape, bits, lambda party: arithmetic.squaring(party, elements))


def multiplied(op: str, x: Value, y: Value) -> Value:
    """A product of two shared values of which one is long, with the whole fraction; or with a pinned matrix.

    A pinned matrix times a regular value has FRACTION_BITS; of integers, none.
    """
    if op == "matmul" and isinstance(x, Pinned):
        result = x.times(y)
        return result if x.long or y.long or result.bits == 0 else rescale(result, FRACTION_BITS)
    if op not in ("mul", "matmul"):
        raise ProtocolError(f"{op} takes tensors with 0, 16 or 32 fractional bits: rescale them first")
    if not x.shape or not y.shape or (op == "matmul" and len(x.shape) == len(y.shape) == 1):
        raise ProtocolError("a product of long fractions needs at least one dimension, a matrix product two")
    return Product(op, x, y)


def slopes(logits: Value, label: Value | None, fine: bool, bent: bool) -> list[Held]:
    """The slope of the capped loss of a private head or, without a label, the sigmoid; and its derivative if `bent`.

    From the same openings (protocols/operations/sigmoid.py).
    """
    party, elements = current().party, logits.share()
    if label is None:
        result = sigmoid.sigmoid_and_slope(party, elements, logits.bits, sloped=bent)
    elif label.bits != 0:
        raise ProtocolError("the label of a class is an integer")
    elif bent:
        result = sigmoid.capped_slope_and_bend(party, elements, label.share(), logits.bits)
    else:
        result = [sigmoid.capped_slope(party, elements, label.share(), logits.bits, fine=fine)]
    return [Held(one, sigmoid.SIGMOID_BITS) for one in result]
