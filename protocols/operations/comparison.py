"""Comparison with zero in six rounds, instead of adding shares as binary circuits.

Before: shares of x. After: arithmetic shares of the bit [x < 0]. Nobody learns anything.

1. Open c = x + r for a uniform r (1 round, 8 bytes a value). Then x = c - r mod 2^64. Its top bit is
   top(c) xor top(r) xor [low(c) < low(r)], where low means the other 63 bits.
2. The dealer has shared each hexadecimal digit of low(r) as a one-hot row of 16 bits. For a public digit v of c,
   [v < digit] and [v = digit] are exclusive ors of entries of that row: 16 pairs (less, equal) without communication.
3. Neighbouring digits are joined, (l, e) o (l', e') = (l xor e l', e e'), four times: 16 to 1. Each time takes one
   round of bit products: 4, 2, 1 and 1/4 bytes a value.
4. The bit is opened under a random bit that is shared both ways, which turns it into an arithmetic share (1 round,
   1/8 byte).

Together this takes 6 rounds and about 15.4 bytes a value to each peer. Everything opened is under a fresh uniform
mask. CrypTen instead adds m binary numbers of 64 bits (dozens of rounds).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.operations import arithmetic, inputs
from secure_sccvfl.protocols.ring import RingArray, Share

Bits = npt.NDArray[np.uint8]

_GREATER = np.array([0xFFFF & ~((2 << v) - 1) for v in range(16)], dtype=np.uint16)
_EQUAL = np.array([1 << v for v in range(16)], dtype=np.uint16)
_PARITY = np.array([v.bit_count() & 1 for v in range(16)], dtype=np.uint8)
_AT_ONCE = 2048
"""So many values are looked up at once: their digits stay in the cache."""


def negative(party: Party, x: RingArray) -> Share:
    """Arithmetic shares (integers, no fraction) of [x < 0] for every element."""
    flat = x.reshape(-1)
    if not flat.size:
        return party.nothing(x.shape)
    if party.active:
        return _negative_by_addition(party, flat).reshape(x.shape)
    tuple_ = party.take("comparison", flat.size)
    (opened,) = party.open_masked("compare", [flat + tuple_["r"]])
    c = opened.view(np.uint64)
    less, equal = _digits_below(c, tuple_["digits"])
    while less.shape[1] > 1:
        less, equal = _join(party, less, equal)
    bit = less[:, 0] ^ tuple_["top"]
    if party.rank == 0:
        bit ^= (c >> np.uint64(63)).astype(np.uint8)
    return to_arithmetic(party, bit).reshape(x.shape)


def _negative_by_addition(party: Party, flat: Any) -> Any:
    """`negative` with bits that are shared by addition, so that they have tags as all ring elements do.

    A one-hot row of a digit is linear in its entries, so comparing a public digit with it is a sum. Joining takes
    products of ring elements: 6 rounds, 24 bytes for each of 15 pairs of products of a value.
    """
    fields = party.take("digits", flat.size)
    (opened,) = party.open_masked("compare", [flat + fields["r"]])
    c = opened.view(np.uint64)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digit = (((c[:, None] & np.uint64((1 << 63) - 1)) >> shifts) & np.uint64(15)).astype(np.int64)[:, :, None]
    values, rows = np.arange(16), fields["digits"]
    less, equal = ((rows * chosen.astype(np.int64)).sum(2) for chosen in (values > digit, values == digit))
    while less.shape[1] > 1:
        both = np.stack([less[:, 1::2], equal[:, 1::2]], axis=1)
        joined = arithmetic.bilinear(party, "mul", equal[:, None, 0::2], both)
        less, equal = less[:, 0::2] + joined[:, 0], joined[:, 1]
    # less xor top xor the top bit of c, where less and top are shared bits
    less, top = less[:, 0], fields["top"]
    product = arithmetic.bilinear(party, "mul", less, top)
    bit = less + top - 2 * product
    flipped = (c >> np.uint64(63)).astype(np.int64)
    return bit * (1 - 2 * flipped) + flipped


def to_arithmetic(party: Party, bits: Bits) -> RingArray:
    """Arithmetic shares of bits that are shared by exclusive or."""
    pair = party.take("bit", bits.shape)
    opened = _open_bits(party, "bit to number", bits ^ pair["b"]).astype(np.int64)
    result: RingArray = pair["a"] * (1 - 2 * opened)
    if party.rank == 0:
        result += opened
    return result


def all_ones(party: Party, bits: Bits) -> Share:
    """Arithmetic shares of whether all bits of a row are 1, where the exclusive or of all parties' bits is meant.

    Each halving of the row takes one round, and the result one more.
    """
    if party.active:
        return _all_ones_by_addition(party, bits)
    while bits.shape[1] > 1:
        half = bits.shape[1] // 2
        joined = _bit_and(party, bits[:, :half], bits[:, half : 2 * half])
        bits = np.concatenate([joined, bits[:, 2 * half :]], axis=1)
    return to_arithmetic(party, bits[:, 0])


def _all_ones_by_addition(party: Party, bits: Bits) -> Any:
    """`all_ones` with tags. A round more for each party."""
    rows, columns = bits.shape
    whole, *others = inputs.proven_bits(party, bits.astype(np.int64), rows, [columns] * party.parties)
    for one in others:
        whole = whole + one - 2 * arithmetic.bilinear(party, "mul", whole, one)
    while whole.shape[1] > 1:
        half = whole.shape[1] // 2
        joined = arithmetic.bilinear(party, "mul", whole[:, :half], whole[:, half : 2 * half])
        whole = np.concatenate([joined, whole[:, 2 * half :]], axis=1)
    return whole[:, 0]


def _digits_below(c: npt.NDArray[np.uint64], rows: npt.NDArray[np.uint16]) -> tuple[Bits, Bits]:
    """Shares of [digit of c < digit of r] and of equality, most significant digit first."""
    less, equal = np.empty(rows.shape, np.uint8), np.empty(rows.shape, np.uint8)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    for start in range(0, len(c), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        digits = ((c[here, None] & np.uint64((1 << 63) - 1)) >> shifts) & np.uint64(15)
        index = digits.astype(np.intp)
        less[here], equal[here] = _parity(rows[here] & _GREATER[index]), _parity(rows[here] & _EQUAL[index])
    return less, equal


def _join(party: Party, less: Bits, equal: Bits) -> tuple[Bits, Bits]:
    """Halve the number of digits; the last halving needs `less` only."""
    high_less, low_less = less[:, 0::2], less[:, 1::2]
    high_equal, low_equal = equal[:, 0::2], equal[:, 1::2]
    if high_less.shape[1] == 1:
        return high_less ^ _bit_and(party, high_equal, low_less), low_equal
    both = _bit_and(
        party, np.concatenate([high_equal, high_equal], axis=1), np.concatenate([low_less, low_equal], axis=1)
    )
    half = high_less.shape[1]
    return high_less ^ both[:, :half], both[:, half:]


def _bit_and(party: Party, x: Bits, y: Bits) -> Bits:
    triple = party.take("bit_and", x.shape)
    a, b = triple["a"], triple["b"]
    opened = _open_bits(party, "bit product", np.stack([x ^ a, y ^ b]))
    e, d = opened[0], opened[1]
    result: Bits = triple["c"] ^ (e & b) ^ (a & d)
    if party.rank == 0:
        result ^= e & d
    return result


def _open_bits(party: Party, step: str, masked: Bits) -> Bits:
    """Open masked bits, eight to a byte on the wire."""
    (packed,) = party.open_masked(step, [np.packbits(masked)], how="xor")
    return np.unpackbits(packed, count=masked.size).reshape(masked.shape)


def _parity(elements: npt.NDArray[np.uint16]) -> Bits:
    folded = elements ^ (elements >> 8)
    folded = folded ^ (folded >> 4)
    bits: Bits = _PARITY[folded & 15]
    return bits
