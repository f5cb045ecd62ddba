"""The sigmoid of a bounded shared value on 32-bit shares: for training steps, which dominate the dealer's traffic.

Before: shares of x with |x| <= 22; the caller ensures the bound. After: shares of sigmoid(x) with 28 fractional bits.
Nobody learns anything. The series is that of protocols/operations/series.py, with 13 Fourier terms. The omitted terms
add up to less than 2.2e-4: b_k falls by exp(-.617) from one odd k to the next, and b_27 is 9.5e-5.

1. Open the angle x + t, 24 bits of it. Each party cuts its share of x below 2^-18 locally. So the sum of the cut
   shares is short of x by less than one unit for each party, and no wrap is lost: the period is a power of two.
2. Add up the Fourier terms in 32-bit shares. The sum y is the sigmoid modulo 2^32, moved to (0, 2) at 28 bits. So the
   dealer sends 4 bytes for each sine and cosine, not 8.
3. Extend y to 64 bits. Open c = y + b modulo 2^32 for a uniform b. As 0 < y < 2^31, the sum wrapped exactly if the
   top bit of b is 1 and that of c is 0. So y = c - b + 2^32 top(b) [c < 2^31] is linear in the shares of b and
   top(b).

| | rounds | bytes a value |
|---|---|---|
| to each peer | 2 | 4 for the angle, 4 for the ring extension |
| from the dealer, to one party | | 26 x 4 for sines and cosines, 12 for the extension (64-bit, 16 terms: 256) |

Why it is secure: t and b are uniform over what they mask, and are used once.

`fine_sigmoid` is precise to 1e-7 for |x| <= 46, in two rounds for each 2^17 values: the whole angle is opened, sines
and cosines have 30 fractional bits, the period is 128, and there are 52 terms. It takes 8 bytes for the angle and 8
to truncate to each peer, and 52 x 16 bytes from the dealer. `capped_slope` is the slope of the loss of a private
head, by either of the two (protocols/steps/second_order.py). It opens two angles for each value and extends once. The
derivative of the coarse one is another sum of the same terms; what the series omits of it adds up to less than 7e-4.
Public coefficients must be equal at all parties: those of a private head come from floating point, rounded to 28 or
32 bits, which every IEEE machine rounds in the same way.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from functools import cache
from math import cos, log, pi, sin

import numpy as np

from protocols.dealing.party import Party
from protocols.errors import RangeError
from protocols.net.transport import Array
from protocols.operations.arithmetic import truncate
from protocols.operations.series import (
    COEFFICIENT_BITS,
    fine_turn,
    fourier_coefficients,
    series,
    turn,
    weighted_terms,
)
from protocols.ring import RingArray

BOUND = 22.0
"""Beyond this the answer is wrong."""
FINE_BOUND = 46.0
"""Up to this magnitude `fine_sigmoid` is precise to 2^-23: series 4e-8, neighbouring periods 2e-8, rounding 4e-9."""
CAP = 0.75
"""Largest slope of the loss of a private head: CAP sigmoid(CAP_STEEPNESS z + CAP_SHIFT) where the label is 0."""
CAP_STEEPNESS = 1.5
CAP_SHIFT = log(2.0)
CAPPED_BOUND = (FINE_BOUND - CAP_SHIFT) / CAP_STEEPNESS
"""Up to this magnitude of a logit a fine `capped_slope` is precise."""
SIGMOID_BITS = 28
_TERMS = 13
_PERIOD_LOG2 = 6
_TERM_BITS = 14
_ANGLE_BITS = 24
_AT_ONCE = 1 << 12
"""So many values at a time stay in the cache."""
_FINE_TERMS = 52
_FINE_BITS = 30
_FINE_COEFFICIENT_BITS = 32
_FINE_PERIOD_LOG2 = 7
_FINE_AT_ONCE = 1 << 17
"""So many values are evaluated precisely in one round: the dealer makes 832 bytes for each."""


def sigmoid(party: Party, x: RingArray, bits: int) -> RingArray:
    """Shares of the sigmoid with SIGMOID_BITS; x has `bits`. Two rounds."""
    return sigmoid_and_slope(party, x, bits, sloped=False)[0]


def sigmoid_and_slope(party: Party, x: RingArray, bits: int, *, sloped: bool = True) -> list[RingArray]:
    """The sigmoid and, if it is wanted, its derivative, from the same opened angle. Two rounds."""
    chosen = series("sigmoid", BOUND)
    factors = chosen.coefficients[:_TERMS]
    sums = [[(factors, False)], [(_steeper(factors, 1.0), True)]]
    result = _coarse(party, [x], bits, sums if sloped else sums[:1])
    if party.rank == 0:
        result[0] += 1 << (SIGMOID_BITS - 1)
    return result


def capped_slope(party: Party, logits: RingArray, label: RingArray, bits: int, *, fine: bool) -> RingArray:
    """Shares of the slope of the capped logistic loss in a logit z, SIGMOID_BITS; z has `bits`, the label is 0 or 1.

    With u = CAP_STEEPNESS z, the slope is CAP sigmoid(u + log 2) for the label 0, and -CAP sigmoid(log 2 - u) for
    the label 1. The mean of these two sigmoids is even in u, half their difference is odd. With CAP times these, less
    CAP/2, as `even` and `odd`, the slope is odd(u) + (1 - 2 y) (CAP/2 + even(u)). Half a period turns the sign of all
    terms, which have odd orders: so (1 - 2 y) even(u) is even(u + y P/2), and no product with the label is needed.
    Both angles are opened. Two rounds. fine: as `fine_sigmoid`.
    """
    if not fine:
        return capped_slope_and_bend(party, logits, label, bits, bent=False)[0]
    xs, more = _capped_angles(logits, label, bits, _FINE_PERIOD_LOG2)
    even, odd = _capped_coefficients(fine)
    return _with_cap(party, _precise(party, xs, more, [(odd, False), (even, True)]), label)


def capped_slope_and_bend(
    party: Party, logits: RingArray, label: RingArray, bits: int, *, bent: bool = True
) -> list[RingArray]:
    """The slope of the capped loss and, if it is wanted, its derivative, from the same opened angles. Two rounds."""
    xs, more = _capped_angles(logits, label, bits, _PERIOD_LOG2)
    even, odd = _capped_coefficients(False)
    sums = [[(odd, False), (even, True)]]
    if bent:
        sums += [[(_steeper(odd, CAP_STEEPNESS), True), (_steeper(even, -CAP_STEEPNESS), False)]]
    slope, *bend = _coarse(party, xs, more, sums)
    return [_with_cap(party, slope, label), *bend]


def _capped_angles(logits: RingArray, label: RingArray, bits: int, period_log2: int) -> tuple[list[RingArray], int]:
    """CAP_STEEPNESS z, and the same with half a period added where the label is 1; and their fraction."""
    steep = logits * np.int64(3)
    return [steep, steep + (label << (bits + period_log2))], bits + 1


def _with_cap(party: Party, found: RingArray, label: RingArray) -> RingArray:
    """CAP/2 added where the label is 0, and subtracted where it is 1."""
    cap = np.int64(round(CAP * 2**SIGMOID_BITS))
    return found - cap * label + ((cap >> 1) if party.rank == 0 else np.int64(0))


Terms = tuple[tuple[int, ...], bool]
"""Coefficients of odd orders, and whether they are of cosines."""


def _steeper(coefficients: Sequence[int], steepness: float) -> tuple[int, ...]:
    """Coefficients of the derivative of a sum of Fourier terms of `steepness` times a value, in that value."""
    turn_of_one = 2 * pi * steepness / (1 << _PERIOD_LOG2)
    return tuple(round(factor * turn_of_one * (2 * at + 1)) for at, factor in enumerate(coefficients))


def _coarse(party: Party, xs: Sequence[RingArray], bits: int, sums: Sequence[Sequence[Terms]]) -> list[RingArray]:
    """Shares of several Fourier sums, SIGMOID_BITS, each between -1 and 7; one kind for each of xs. Two rounds."""
    flat, cut = np.concatenate([x.reshape(-1) for x in xs]), bits + _PERIOD_LOG2 - _ANGLE_BITS
    if not 0 <= cut <= 62 - _ANGLE_BITS:
        raise RangeError(f"a sigmoid cannot take {bits} fractional bits")
    fields = party.take("trig", flat.size, _ANGLE_BITS, _TERMS, _TERM_BITS, "<u4")
    modulus = np.uint32((1 << _ANGLE_BITS) - 1)
    (angle,) = party.open_masked("sigmoid", [((flat >> cut).astype(np.uint32) + fields["t"]) & modulus])
    angles = np.split(angle & modulus, len(xs))
    cosines, sines = (np.split(fields[name], len(xs), axis=1) for name in ("cos", "sin"))
    result = np.zeros((len(sums), xs[0].size), np.uint32)
    for one, factors in zip(result, sums, strict=True):
        for at, (coefficients, even) in enumerate(factors):
            one += _summed(angles[at], cosines[at], sines[at], coefficients, even)
    if party.rank == 0:
        result += np.uint32(1 << SIGMOID_BITS)
    lifted = _extended(party, result.reshape(-1)).reshape(len(sums), *xs[0].shape)
    if party.rank == 0:
        lifted -= 1 << SIGMOID_BITS
    return list(lifted)


def _summed(angle: Array, cosines: Array, sines: Array, coefficients: tuple[int, ...], even: bool) -> Array:
    """Shares of the sum of b_k sin(k w x), or of b_k cos(k w x), modulo 2^32, SIGMOID_BITS."""
    total = np.empty(angle.size, np.uint32)
    odd = np.arange(1, 2 * len(coefficients), 2)[:, None]
    for start in range(0, angle.size, _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        cosine, sine = turn(odd * angle[here].astype(np.int64) & ((1 << _ANGLE_BITS) - 1), _ANGLE_BITS)
        first, second = (cosine, -sine) if even else (sine, cosine)
        of_cosine = weighted_terms(coefficients, first, SIGMOID_BITS - _TERM_BITS).astype(np.uint32)
        of_sine = weighted_terms(coefficients, second, SIGMOID_BITS - _TERM_BITS).astype(np.uint32)
        total[here] = (of_cosine * cosines[:, here] - of_sine * sines[:, here]).sum(axis=0, dtype=np.uint32)
    return total


def _extended(party: Party, y: Array) -> RingArray:
    """Shares modulo 2^64 of a value between 0 and 2^31 that is shared modulo 2^32; one round."""
    fields = party.take("lifting", y.size)
    (opened,) = party.open_masked("lift", [y + fields["b"]])
    wraps = (fields["top"].astype(np.int64) << 32) * (opened < 1 << 31)
    result: RingArray = wraps - fields["whole"]
    if party.rank == 0:
        result += opened
    return result


@cache
def _fine_coefficients() -> tuple[int, ...]:
    with decimal.localcontext(prec=50):
        factors = fourier_coefficients(1 << _FINE_PERIOD_LOG2, _FINE_TERMS)
        return tuple(int((factor * (1 << _FINE_COEFFICIENT_BITS)).to_integral_value()) for factor in factors)


@cache
def _capped_coefficients(fine: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CAP b_k sin(k w log 2) of the even part, CAP b_k cos(k w log 2) of the odd one."""
    terms, bits = (_FINE_TERMS, _FINE_COEFFICIENT_BITS) if fine else (_TERMS, COEFFICIENT_BITS)
    period = 1 << (_FINE_PERIOD_LOG2 if fine else _PERIOD_LOG2)
    with decimal.localcontext(prec=50):
        factors = [float(factor) for factor in fourier_coefficients(period, terms)]
    angles = [2 * pi * k / period * CAP_SHIFT for k in range(1, 2 * terms, 2)]
    even = tuple(round(CAP * factor * sin(angle) * 2**bits) for factor, angle in zip(factors, angles, strict=True))
    odd = tuple(round(CAP * factor * cos(angle) * 2**bits) for factor, angle in zip(factors, angles, strict=True))
    return even, odd


def fine_sigmoid(party: Party, x: RingArray, bits: int) -> RingArray:
    """Shares of the sigmoid with SIGMOID_BITS, precise for |x| <= FINE_BOUND; x has `bits`. Two rounds."""
    odd = _precise(party, [x], bits, [(_fine_coefficients(), False)])
    return odd + (1 << (SIGMOID_BITS - 1)) if party.rank == 0 else odd


def _precise(party: Party, xs: Sequence[RingArray], bits: int, series_of: Sequence[Terms]) -> RingArray:
    """Shares of a Fourier sum, SIGMOID_BITS; one kind for each of xs. Two rounds for each _FINE_AT_ONCE values."""
    flat = np.stack([x.reshape(-1) for x in xs])
    each = _FINE_AT_ONCE // len(xs)
    starts = range(0, max(1, flat.shape[1]), each)
    parts = [_precise_part(party, flat[:, at : at + each], bits, series_of) for at in starts]
    return np.concatenate(parts).reshape(xs[0].shape)


def _precise_part(party: Party, xs: RingArray, bits: int, series_of: Sequence[Terms]) -> RingArray:
    period_bits = _FINE_PERIOD_LOG2 + bits
    if not 24 <= period_bits <= 54:
        raise RangeError(f"a precise sigmoid cannot take {bits} fractional bits")
    fields = party.take("trig", xs.size, period_bits, _FINE_TERMS, _FINE_BITS)
    modulus = (1 << period_bits) - 1
    (opened,) = party.open_masked("sigmoid", [(xs.reshape(-1) + fields["t"]) & modulus])
    angles = (opened & modulus).reshape(xs.shape)
    cosines, sines = (np.split(fields[name], len(xs), axis=1) for name in ("cos", "sin"))
    sums: RingArray = np.zeros(xs.shape[1], np.int64)
    orders = np.arange(1, 2 * _FINE_TERMS, 2)[:, None]
    for at, (coefficients, even) in enumerate(series_of):
        factor = np.array(coefficients, np.int64)[:, None]
        for start in range(0, len(sums), _AT_ONCE // 4):
            here = slice(start, start + _AT_ONCE // 4)
            cosine, sine = fine_turn(orders * angles[at, here] & modulus, period_bits)
            first, second = (cosine, -sine) if even else (sine, cosine)
            sums[here] += (_fine(factor * first) * cosines[at][:, here]).sum(axis=0)
            sums[here] -= (_fine(factor * second) * sines[at][:, here]).sum(axis=0)
    return truncate(party, sums, 2 * _FINE_BITS - SIGMOID_BITS)


def _fine(words: RingArray) -> RingArray:
    return (words + (1 << (_FINE_COEFFICIENT_BITS - 1))) >> _FINE_COEFFICIENT_BITS
