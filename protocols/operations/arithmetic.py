"""Products and truncation on additive shares. All parties run every function together.

| step | before | rounds | ring elements to each peer | learned |
|---|---|---|---|---|
| product, matmul | shares of x, y | 1 | size of x and y | nothing |
| square | shares of x | 1 | size of x | nothing |
| mask (owned block) | x at its owner | 1, once | owner: size of x; others: 0 | nothing |
| divide by a public integer (or several, by several) | shares of x | 1 | size of x | nothing |
| the same, from 2^15 values on | shares of x | 2 | an m-th of it, and a bit for each value | nothing |

Why it is secure: each opened value is a secret minus a uniform tuple value that is used for this secret only. A
mask may serve many products of the *same* secret, since it is opened once.

Division. Let X = x + h with h a multiple of the divisor d near 2^62, so 0 <= X < 2^63 for |x| < 2^62 - d. With r
uniform in [0, 2^64), open c = X + r mod 2^64. A wrap happened exactly when the top bit of r is 1 and the top bit of
c is 0, which is linear in the shared top bit. So X = c - r + wrap * 2^64 over the integers, and X // d is c // d -
r // d + wrap * round(2^64 / d), off by at most 1 (d a power of two) or 2 units. The error does not depend on the
magnitude of the shares, for any number of parties. It is random rounding: unbiased for powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.transport import Spec
from secure_sccvfl.protocols.ring import RingArray, unsigned_quotient

_SLICED = 1 << 15

Finish = Callable[[Sequence[RingArray]], RingArray]
"""What follows an opening: from the opened values to a share of the result."""
Halves = tuple[list[RingArray], Finish]
"""A protocol of one round in two halves, for a round that opens other values too: what to open, and what follows."""


def bilinear(party: Party, op: str, x: RingArray, y: RingArray) -> RingArray:
    """Shares of op(x, y), not truncated, by Beaver's triple."""
    if x.ndim == y.ndim == 0:
        return bilinear(party, op, x.reshape(1), y.reshape(1)).reshape(())
    if op == "matmul" and x.ndim == y.ndim == 1:
        return bilinear(party, op, x[None], y).reshape(())
    masked, finish = multiplication(party, op, x, y)
    return finish(party.open_masked(op, masked))


def scaled_bilinear(party: Party, op: str, x: RingArray, y: RingArray, divisor: int) -> RingArray:
    """Shares of op(x, y) / divisor, as `bilinear` and `divide` would give them.

    The tuple holds m = op(a, b) + r instead of op(a, b) and r, so the product comes out masked.
    """
    if x.ndim == y.ndim == 0:
        return scaled_bilinear(party, op, x.reshape(1), y.reshape(1), divisor).reshape(())
    if op == "matmul" and x.ndim == y.ndim == 1:
        return scaled_bilinear(party, op, x[None], y, divisor).reshape(())
    fields = party.take("scaled_bilinear", op, x.shape, y.shape, (), divisor)
    opened = party.open_masked(op, [x - fields["a"], y - fields["b"]])
    masked = _joined(party, op, opened, fields["a"], fields["b"], fields["m"])
    return unmask_quotient(party, masked, fields["q"], fields["top"], divisor)


def _joined(
    party: Party, op: str, opened: Sequence[RingArray], a: RingArray, b: RingArray, c: RingArray
) -> RingArray:
    """Shares of op(x, y) + (c - op(a, b)) once x - a and y - b are open. The tuple's arrays are overwritten."""
    e, d = opened
    if party.adds_public:
        b += d  # e*b + e*d in one product
    reuse = e.shape == d.shape and op == "mul" and not party.active
    c += ring.apply(op, e, b) if not reuse else np.multiply(e, b, out=b)
    c += ring.apply(op, a, d) if not reuse else np.multiply(a, d, out=a)
    return c


def multiplication(party: Party, op: str, x: RingArray, y: RingArray) -> Halves:
    """`bilinear` of arrays of at least one dimension, of which one has two for a matrix product, in two halves.

    For a round that opens other values too: what to open, and the step that follows.
    """
    triple = party.take("bilinear", op, x.shape, y.shape, ())
    a, b, c = triple["a"], triple["b"], triple["c"]
    return [x - a, y - b], lambda opened: _joined(party, op, opened, a, b, c)


def square(party: Party, x: RingArray) -> RingArray:
    """Shares of x * x, not truncated."""
    masked, finish = squaring(party, x)
    return finish(party.open_masked("square", masked))


def squaring(party: Party, x: RingArray) -> Halves:
    """`square` in two halves."""
    flat = x.reshape(-1)
    pair = party.take("square", flat.shape)

    def finish(opened: Sequence[RingArray]) -> RingArray:
        (e,) = opened
        result: RingArray = pair["b"] + 2 * e * pair["a"]
        if party.adds_public:
            result += e * e
        return result.reshape(x.shape)

    return [flat - pair["a"]], finish


@dataclass(frozen=True)
class Masked:
    """A matrix under a mask that was opened once: x = opened + mask.

    With an owner, `plaintext` is x itself there and None elsewhere. Without one, or with active security, `mask` is a
    share.
    """

    counter: int
    shape: tuple[int, int]
    opened: RingArray = field(repr=False)
    owner: int | None
    plaintext: RingArray | None = field(repr=False)
    mask: RingArray | None = field(repr=False)


def mask_blocks(party: Party, blocks: Sequence[RingArray], widths: Sequence[int]) -> list[tuple[Masked, ...]]:
    """Every party puts blocks that it knows under masks that only it and the dealer know. One round.

    All parties have as many blocks with the same rows; the party of rank p has widths[p] columns. Returns for each
    the masked blocks of all parties that have columns, side by side.
    """
    if any(block.ndim != 2 or block.shape[1] != widths[party.rank] for block in blocks):
        raise ProtocolError(f"the blocks of this party must have {widths[party.rank]} columns")
    owners = [rank for rank, width in enumerate(widths) if width]
    shapes = [[(len(block), widths[rank]) for rank in owners] for block in blocks]
    taken = [
        [party.tuples.take(Request("mask", (shape, rank))) for shape, rank in zip(row, owners, strict=True)]
        for row in shapes
    ]
    mine = owners.index(party.rank) if party.rank in owners else None
    sent = None
    if mine is not None:
        sent = [x - party.known(row[mine][1]["a"]) for x, row in zip(blocks, taken, strict=True)]
    specs = {rank: [Spec("<i8", (len(block), widths[rank])) for block in blocks] for rank in owners}
    received = party.broadcast("masked block", sent, {rank: specs[rank] for rank in owners if rank != party.rank})
    if sent is not None:
        received[party.rank] = sent
    if party.active:
        return [
            tuple(
                Masked(counter, shape, received[rank][at], None, None, fields["a"])
                for rank, shape, (counter, fields) in zip(owners, shapes[at], taken[at], strict=True)
            )
            for at in range(len(blocks))
        ]
    return [
        tuple(
            Masked(counter, shape, received[rank][at], rank, blocks[at] if rank == party.rank else None, None)
            for rank, shape, (counter, _) in zip(owners, shapes[at], taken[at], strict=True)
        )
        for at in range(len(blocks))
    ]


def mask_shared(party: Party, x: RingArray) -> Masked:
    """Mask a shared matrix once, for many products."""
    shape = (x.shape[0], x.shape[1])
    counter, fields = party.tuples.take(Request("mask", (shape, None)))
    (opened,) = party.open_masked("masked matrix", [x - fields["a"]])
    return Masked(counter, shape, opened, None, None, fields["a"])


def divide(party: Party, x: RingArray, divisor: int) -> RingArray:
    """Shares of x / divisor, rounded to a neighbouring integer; needs |x| < 2^62 - divisor."""
    if divisor == 0:
        raise ProtocolError("division by zero")
    if divisor < 0:
        return -divide(party, x, -divisor)
    if divisor == 1:
        return x.copy()
    if divisor >= 1 << 62:
        raise ProtocolError(f"a divisor must be below 2^62, not {divisor}")
    flat = x.reshape(-1)
    pair = party.take("truncation", flat.shape, divisor)
    masked = np.add(flat, pair["r"], out=pair["r"])
    return unmask_quotient(party, masked, pair["q"], pair["top"], divisor).reshape(x.shape)


def divisions(
    party: Party, work: Sequence[tuple[RingArray, int]]
) -> tuple[list[RingArray], Callable[[Sequence[RingArray]], list[RingArray]]]:
    """Several divisions by public divisors of at least 2 in one round, in two halves: what to open, and the rest."""
    pairs = [party.take("truncation", (x.size,), divisor) for x, divisor in work]
    masked = [
        _lift(party, x.reshape(-1) + pair["r"], divisor) for (x, divisor), pair in zip(work, pairs, strict=True)
    ]

    def finish(opened: Sequence[RingArray]) -> list[RingArray]:
        return [
            _quotient(party, c, pair["q"], pair["top"], divisor).reshape(x.shape)
            for (x, divisor), pair, c in zip(work, pairs, opened, strict=True)
        ]

    return masked, finish


def _lift(party: Party, masked: RingArray, divisor: int) -> RingArray:
    """Add to a share of a masked value the multiple of the divisor near 2^62."""
    if party.adds_public:
        masked += np.int64((1 << 62) // divisor * divisor)
    return masked


def _quotient(party: Party, opened: RingArray, q: RingArray, top: RingArray, divisor: int) -> RingArray:
    """Shares of x / divisor once c = x + r is open at every party."""
    result = _wraps(opened < 0, top, divisor) - q
    if party.adds_public:
        result += unsigned_quotient(opened, divisor) - (1 << 62) // divisor
    return result


def _wraps(negative: npt.NDArray[np.bool_], top: RingArray, divisor: int) -> RingArray:
    """The correction for a wrap around 2^64: if the top bit of c is 0, a top bit of 1 in r means a wrap."""
    wrap = ((1 << 64) + divisor // 2) // divisor
    return np.where(negative, np.int64(0), np.uint64(wrap % (1 << 64)).view(np.int64)) * top.reshape(-1)


def unmask_quotient(
    party: Party, product: RingArray, q: RingArray, top: RingArray, divisor: int, one_round: bool = False
) -> RingArray:
    """From shares of x + r, and of r // divisor and the top bit of r: shares of x / divisor.

    `one_round`: also where it takes more bytes. This uses up the arrays.
    """
    masked = _lift(party, product.reshape(-1), divisor)
    if one_round or party.active or masked.size < _SLICED:
        (opened,) = party.open_masked("truncate", [masked])
        return _quotient(party, opened, q.reshape(-1), top, divisor).reshape(product.shape)
    # One party adds the public quotient. So large arrays are opened in slices, each at one party.
    mine, opened, negative = party.open_slices("truncate", masked)
    factor = _wraps(negative, top, divisor)
    result: RingArray = np.subtract(factor, q.reshape(-1), out=factor)
    result[mine] += unsigned_quotient(opened, divisor) - (1 << 62) // divisor
    return result.reshape(product.shape)


def truncate(party: Party, x: RingArray, bits: int) -> RingArray:
    """Drop fractional bits."""
    return divide(party, x, 1 << bits)


def rescale(party: Party, x: RingArray, bits: int, wanted: int) -> RingArray:
    """The same values with another fraction: a longer one is exact and free, a shorter one takes a round."""
    if bits > wanted:
        return truncate(party, x, bits - wanted)
    return np.left_shift(x, wanted - bits) if bits < wanted else x
