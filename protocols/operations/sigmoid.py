"""Sigmoid, tanh and log-cosh of a bounded shared value by a Fourier series. No party learns anything.

| | rounds | bytes a value to each peer | from the dealer, to one party | bound, error |
|---|---|---|---|---|
| `evaluate`: sigmoid, tanh, log-cosh | 1 | 4, or 8 for long fractions | 256 (16 terms) | 22: 1e-4; 54 with 32 terms |
| `sigmoid`, on 32-bit shares | 2 | 4 for the angle, 4 for the ring extension | 26 x 4, and 12 | 22: 3e-4 |
| `fine_sigmoid` | 2 for each 2^17 values | 8 for the angle, 8 to truncate | 52 x 16 | 46: 1e-7 |

Before: shares of x within the bound, which the caller ensures. After: shares of f(x) with the requested fraction. x
may have more than 16 fractional bits, as a product before truncation has, which saves the round to truncate it.

*Series.* Take the sum of sigmoids that alternate in sign at every half period P/2. It is
    1/2 + sum over odd k of b_k sin(2 pi k x / P),    b_k = (4 pi / P) / sinh(2 pi^2 k / P),
and differs from one sigmoid by exp(|x| - P/2) at most. With P = 64 and 16 terms the error is below 1e-4 for |x| <=
22. The integral of its terms is
    c - sum of b_k / (2 pi k / P) cos(2 pi k x / P) = log(2 cosh(x / 2)) = log(1 + exp(x)) - x / 2,
the even part of the logistic loss, with c such that it is log 2 at 0. The dealer shares, for t uniform over one
period, the sines and cosines of k w t. The parties open c = x + t modulo the period. Then
    sin(k w x) = sin(k w c) cos(k w t) - cos(k w c) sin(k w t)
is linear in the shared sines and cosines, and so is the cosine of k w x (as in SHAFT, NDSS 2025). The ring forgets
multiples of the period, so a value beyond half the period would return another value's result. That is why the caller
ensures the bound; otherwise protocols/session/runtime.py clamps first, at the price of a comparison.

*On 32-bit shares*, for training steps, which dominate the dealer's traffic (13 terms; the omitted ones add up to less
than 2.2e-4: b_k falls by exp(-.617) from one odd k to the next, and b_27 is 9.5e-5):

1. Open the angle x + t, 24 bits of it. Each party cuts its share of x below 2^-18 locally. So the sum of the cut
   shares is short of x by less than one unit for each party, and no wrap is lost: the period is a power of two.
2. Add up the Fourier terms in 32-bit shares. The sum y is the sigmoid modulo 2^32, moved to (0, 2) at 28 bits.
3. Extend y to 64 bits. Open c = y + b modulo 2^32 for a uniform b. As 0 < y < 2^31, the sum wrapped exactly if the
   top bit of b is 1 and that of c is 0. So y = c - b + 2^32 top(b) [c < 2^31] is linear in the shares of b and
   top(b).

`fine_sigmoid` opens the whole angle; sines and cosines have 30 fractional bits, the period is 128. `capped_slope` is
the slope of the loss of a private head, by either of the two (protocols/steps/second_order.py). It opens two angles
for each value and extends once. The derivative of the coarse one is another sum of the same terms; what the series
omits of it adds up to less than 7e-4.

Why it is secure: t and b are uniform over what they mask, and are used once.

Every party multiplies its share by sin(k w c) and cos(k w c), so these must be equal at all parties to the last bit.
They are computed with integers only, from tables made with integers only: floating point differs between machines.
Coefficients of a private head come from floating point, rounded to 28 or 32 bits, which every IEEE machine rounds in
the same way.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, log, pi, sin
from typing import Any, Literal

import numpy as np

from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.operations.arithmetic import Halves, truncate
from secure_sccvfl.protocols.ring import FRACTION_BITS, WIDE_BITS, RingArray, Share

Name = Literal["sigmoid", "tanh", "log_cosh"]

_TERM_BITS = 14
"""Fraction of the dealer's sines and cosines."""
_TABLE_BITS = 30
"""Fraction of the tables."""
COEFFICIENT_BITS = 28
"""Fraction of the coefficients, which are below 16."""
_ANGLE_BITS = 24
"""An opened angle with a longer fraction is looked up by this many of its highest bits."""
_HIGH_BITS = 11
"""An angle is looked up as its highest bits plus the rest."""
_AT_ONCE = 2048
"""So many values are turned at once: their terms stay in the cache, which is more than twice as fast."""

_SERIES = ((22.0, 64, 16), (54.0, 128, 32))
"""Bound, period and number of terms for a sigmoid."""

_PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
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
_FINE_TERMS = 52
_FINE_BITS = 30
_FINE_COEFFICIENT_BITS = 32
_FINE_PERIOD_LOG2 = 7
_FINE_AT_ONCE = 1 << 17
"""So many values are evaluated precisely in one round: the dealer makes 832 bytes for each."""


@dataclass(frozen=True)
class Series:
    """The period as a power of two, coefficients of sines or cosines, and f = constant + the series."""

    period_log2: int
    coefficients: tuple[int, ...]
    even: bool
    constant: decimal.Decimal


def fourier_coefficients(period: int, terms: int) -> list[decimal.Decimal]:
    """b_k of the first odd k, in the precision of the current decimal context."""
    powers = [(2 * _PI * _PI * k / period).exp() for k in range(1, 2 * terms, 2)]
    return [8 * _PI / period / (power - 1 / power) for power in powers]


@cache
def series(name: Name, bound: float) -> Series:
    """The shortest series for a bound. tanh(x) = 2 sigmoid(2 x) - 1."""
    steepness = 2 if name == "tanh" else 1
    for largest, period, terms in _SERIES:
        if 0 < bound * steepness <= largest:
            with decimal.localcontext(prec=50):
                odd = range(1, 2 * terms, 2)
                factors = [steepness * factor for factor in fourier_coefficients(period, terms)]
                constant = decimal.Decimal(1) - decimal.Decimal(steepness) / 2
                if name == "log_cosh":
                    factors = [-factor * period / (2 * _PI * k) for factor, k in zip(factors, odd, strict=True)]
                    constant = decimal.Decimal(2).ln() - sum(factors)
                scale = 1 << COEFFICIENT_BITS
                coefficients = tuple(int((scale * factor).to_integral_value()) for factor in factors)
            log2 = (period // steepness).bit_length() - 1
            return Series(log2, coefficients, name == "log_cosh", constant)
    raise RangeError(f"a bound of {name} must be positive and at most {_SERIES[-1][0] / steepness:g}, not {bound:g}")


def evaluate(
    party: Party, name: Name, x: RingArray, bound: float, bits: int = FRACTION_BITS, wanted: int = WIDE_BITS
) -> RingArray:
    """Shares of f(x) with `wanted` fractional bits; x has `bits`."""
    masked, finish = evaluation(party, name, x, bound, bits, wanted)
    return finish(party.open_masked(name, masked))


def evaluation(
    party: Party, name: Name, x: RingArray, bound: float, bits: int = FRACTION_BITS, wanted: int = WIDE_BITS
) -> Halves:
    """`evaluate` in two halves, for a round that opens other values too: what to open, and the step that follows."""
    chosen = series(name, float(bound))
    period_bits, public_bits = chosen.period_log2 + bits, wanted - _TERM_BITS
    if period_bits > 62 or not 0 < public_bits <= 18:
        raise RangeError(f"{name} cannot take {bits} fractional bits and give {wanted}")
    flat, whole = x.reshape(-1), 64 if party.active else period_bits
    fields = party.take("trig", flat.size, whole, len(chosen.coefficients), _TERM_BITS)
    modulus = (1 << period_bits) - 1
    masked: Any
    if party.active:
        masked = _whole_turn(flat, period_bits) + fields["t"]
    else:
        masked = ((flat + fields["t"]) & modulus).astype(np.uint32 if period_bits <= 32 else np.int64)

    def finish(opened: Sequence[Array]) -> Share:
        angle_bits = min(period_bits, _ANGLE_BITS)
        if party.active:
            angle = _angle(opened[0], angle_bits)
        else:
            angle = (opened[0].astype(np.int64) & modulus) >> (period_bits - angle_bits)
        odd = np.arange(1, 2 * len(chosen.coefficients), 2)[:, None]
        factor = np.array(chosen.coefficients, np.int64)[:, None]
        drop = COEFFICIENT_BITS + _TABLE_BITS - public_bits
        result: Any = party.nothing((angle.size,)) if party.active else np.empty(angle.size, np.int64)
        for start in range(0, angle.size, _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            cosine, sine = turn(odd * angle[here] & ((1 << angle_bits) - 1), angle_bits)
            first, second = (cosine, sine) if chosen.even else (sine, -cosine)
            result[here] = np.einsum("tn,tn->n", _shift(factor * first, drop), fields["cos"][:, here])
            result[here] += np.einsum("tn,tn->n", _shift(factor * second, drop), fields["sin"][:, here])
        if party.adds_public:
            result += np.int64(int((chosen.constant * (1 << wanted)).to_integral_value()))
        return result.reshape(x.shape)

    return [masked], finish


def _whole_turn(x: Any, period_bits: int) -> Any:
    """Shares of the angle of x as a part of 2^64, so that a mask modulo 2^64 hides it and its tag is linear."""
    return x << (64 - period_bits)


def _angle(opened: RingArray, bits: int) -> RingArray:
    """The highest bits of an opened angle modulo 2^64."""
    return (opened.view(np.uint64) >> np.uint64(64 - bits)).astype(np.int64)


def weighted_terms(coefficients: Sequence[int], terms: RingArray, bits: int) -> RingArray:
    """Coefficients times sines or cosines of the tables, rounded to so many fractional bits."""
    factor = np.array(coefficients, np.int64)[:, None]
    return _shift(factor * terms, COEFFICIENT_BITS + _TABLE_BITS - bits)


def turn(angle: RingArray, period_bits: int) -> tuple[RingArray, RingArray]:
    """cos and sin of angle / 2^period_bits of a full turn, times 2^30; the same on every machine."""
    high, low = _tables(period_bits)
    rest = period_bits - _HIGH_BITS
    left, right = angle >> rest, angle & ((1 << rest) - 1)
    return _rotate(high[0][left], high[1][left], low[0][right], low[1][right])


def fine_turn(angle: RingArray, period_bits: int) -> tuple[RingArray, RingArray]:
    """cos and sin of a long angle, times 2^30: looked up by its 24 highest bits, and turned by the rest.

    The rest is below 2 pi 2^-24, so its cosine is 1 to 7e-14 and its sine the angle itself.
    """
    rest = period_bits - _ANGLE_BITS
    cosine, sine = turn(angle >> rest, _ANGLE_BITS)
    low = (angle & ((1 << rest) - 1)) >> max(0, rest - 24)
    bits = min(rest, 24)
    full_turn = int((2 * _PI * (1 << 20)).to_integral_value())
    by_cosine, by_sine = (((part * low) >> bits) * full_turn >> (_ANGLE_BITS + 20) for part in (cosine, sine))
    return cosine - by_sine, sine + by_cosine


def _rotate(cos_a: RingArray, sin_a: RingArray, cos_b: RingArray, sin_b: RingArray) -> tuple[RingArray, RingArray]:
    """cos and sin of a sum of two angles."""
    return (
        _shift(cos_a * cos_b - sin_a * sin_b, _TABLE_BITS),
        _shift(sin_a * cos_b + cos_a * sin_b, _TABLE_BITS),
    )


def _shift(elements: RingArray, bits: int) -> RingArray:
    """Drop fractional bits, rounding to nearest."""
    return (elements + (1 << (bits - 1))) >> bits


@cache
def _tables(period_bits: int) -> tuple[tuple[RingArray, RingArray], tuple[RingArray, RingArray]]:
    """Multiples of the 2^11th part of a turn, and of the 2^period_bits-th part."""
    return _powers(_HIGH_BITS, 1 << _HIGH_BITS), _powers(period_bits, 1 << (period_bits - _HIGH_BITS))


def _powers(part_bits: int, count: int) -> tuple[RingArray, RingArray]:
    """cos and sin of 0 .. count-1 times a 2^part_bits-th of a turn, by exact integer rotation."""
    precision = 100
    one = 1 << precision
    angle = int(_PI.scaleb(60)) * 2 * one // 10**60 >> part_bits
    step_cos, step_sin, term, order = 0, 0, one, 0
    while term:  # the power series of the exponential function
        signed = -term if order % 4 > 1 else term
        step_cos, step_sin = (step_cos + signed, step_sin) if order % 2 == 0 else (step_cos, step_sin + signed)
        order += 1
        term = (term * angle >> precision) // order
    cosine, sine, cosines, sines = one, 0, [], []
    for _ in range(count):
        cosines.append((cosine + (1 << (precision - _TABLE_BITS - 1))) >> (precision - _TABLE_BITS))
        sines.append((sine + (1 << (precision - _TABLE_BITS - 1))) >> (precision - _TABLE_BITS))
        cosine, sine = (
            (cosine * step_cos - sine * step_sin) >> precision,
            (sine * step_cos + cosine * step_sin) >> precision,
        )
    return np.array(cosines, np.int64), np.array(sines, np.int64)


# on 32-bit shares, precise, and of capped losses


def sigmoid(party: Party, x: RingArray, bits: int) -> RingArray:
    """Shares of the sigmoid with SIGMOID_BITS; x has `bits`. Two rounds."""
    return sigmoid_and_slope(party, x, bits, sloped=False)[0]


def sigmoid_and_slope(party: Party, x: RingArray, bits: int, *, sloped: bool = True) -> list[RingArray]:
    """The sigmoid and, if it is wanted, its derivative, from the same opened angle. Two rounds."""
    chosen = series("sigmoid", BOUND)
    factors = chosen.coefficients[:_TERMS]
    sums = [[(factors, False)], [(_steeper(factors, 1.0), True)]]
    result = _coarse(party, [x], bits, sums if sloped else sums[:1])
    if party.adds_public:
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


def _with_cap(party: Party, slope: RingArray, label: RingArray) -> RingArray:
    """CAP/2 added where the label is 0, and subtracted where it is 1."""
    cap = np.int64(round(CAP * 2**SIGMOID_BITS))
    return slope - cap * label + ((cap >> 1) if party.adds_public else np.int64(0))


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
    if party.active:
        return _coarse_by_addition(party, flat, len(xs), bits, sums, xs[0].shape)
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


def _coarse_by_addition(
    party: Party, flat: Any, kinds: int, bits: int, sums: Sequence[Sequence[Terms]], shape: tuple[int, ...]
) -> list[Any]:
    """`_coarse` with 64-bit shares, which have tags: one round, and the whole angle is opened."""
    fields = party.take("trig", flat.size, 64, _TERMS, _TERM_BITS)
    (opened,) = party.open_masked("sigmoid", [_whole_turn(flat, bits + _PERIOD_LOG2) + fields["t"]])
    angles = np.split(_angle(opened, _ANGLE_BITS), kinds)
    cosines, sines = (np.split(fields[name], kinds, axis=1) for name in ("cos", "sin"))
    odd, results = np.arange(1, 2 * _TERMS, 2)[:, None], []
    turned = [turn(odd * angle & ((1 << _ANGLE_BITS) - 1), _ANGLE_BITS) for angle in angles]
    for parts in sums:
        total = party.nothing((len(angles[0]),))
        for at, (coefficients, even) in enumerate(parts):
            cosine, sine = turned[at]
            first, second = (cosine, -sine) if even else (sine, cosine)
            by_cosine, by_sine = (
                weighted_terms(coefficients, term, SIGMOID_BITS - _TERM_BITS) for term in (first, second)
            )
            total += (cosines[at] * by_cosine - sines[at] * by_sine).sum(0)
        results.append(total.reshape(shape))
    return results


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
    return odd + (1 << (SIGMOID_BITS - 1)) if party.adds_public else odd


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
    fields = party.take("trig", xs.size, 64 if party.active else period_bits, _FINE_TERMS, _FINE_BITS)
    modulus = (1 << period_bits) - 1
    if party.active:
        (opened,) = party.open_masked("sigmoid", [_whole_turn(xs.reshape(-1), period_bits) + fields["t"]])
        angles = _angle(opened, period_bits).reshape(xs.shape)
    else:
        (opened,) = party.open_masked("sigmoid", [(xs.reshape(-1) + fields["t"]) & modulus])
        angles = (opened & modulus).reshape(xs.shape)
    cosines, sines = (np.split(fields[name], len(xs), axis=1) for name in ("cos", "sin"))
    sums = party.nothing((xs.shape[1],))
    orders = np.arange(1, 2 * _FINE_TERMS, 2)[:, None]
    for at, (coefficients, even) in enumerate(series_of):
        factor = np.array(coefficients, np.int64)[:, None]
        for start in range(0, len(sums), _AT_ONCE // 2):
            here = slice(start, start + _AT_ONCE // 2)
            cosine, sine = fine_turn(orders * angles[at, here] & modulus, period_bits)
            first, second = (cosine, -sine) if even else (sine, cosine)
            sums[here] += (_shift(factor * first, _FINE_COEFFICIENT_BITS) * cosines[at][:, here]).sum(axis=0)
            sums[here] -= (_shift(factor * second, _FINE_COEFFICIENT_BITS) * sines[at][:, here]).sum(axis=0)
    return truncate(party, sums, 2 * _FINE_BITS - SIGMOID_BITS)
