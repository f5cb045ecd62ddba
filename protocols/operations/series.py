"""Sigmoid, tanh and log-cosh of a bounded shared value in one round, by a Fourier series.

Before: shares of x with |x| <= bound; the caller ensures the bound. After: shares of f(x) with the requested
fraction. Nobody learns anything. x may have more than 16 fractional bits, as a product before truncation has, which
saves the round that would truncate it.

Take the sum of sigmoids that alternate in sign at every half period P/2. Its series is
    1/2 + sum over odd k of b_k sin(2 pi k x / P),    b_k = (4 pi / P) / sinh(2 pi^2 k / P).
It differs from one sigmoid by exp(|x| - P/2) at most. With P = 64 and 16 terms the error is below 1e-4 for |x| <=
22. The integral of its terms is
    c - sum of b_k / (2 pi k / P) cos(2 pi k x / P) = log(2 cosh(x / 2)) = log(1 + exp(x)) - x / 2,
the even part of the logistic loss, with c such that it is log 2 at 0. The dealer shares, for t uniform over one
period, the sines and cosines of k w t. The parties open c = x + t modulo the period (1 round, 4 bytes a value, or 8
for long fractions: c is uniform). Then
    sin(k w x) = sin(k w c) cos(k w t) - cos(k w c) sin(k w t)
is linear in the shared sines and cosines, and so is the cosine of k w x (as in SHAFT, NDSS 2025).

Every party multiplies its share by sin(k w c) and cos(k w c), so these must be equal at all parties to the last bit.
They are computed with integers alone, from tables made with integers alone: floating point differs between machines.

The ring forgets multiples of the period, so a value beyond half the period would return another value's result. That
is why the caller ensures the bound; otherwise protocols/session/runtime.py clamps first, at the price of a
comparison.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from protocols.dealing.party import Party
from protocols.errors import RangeError
from protocols.net.transport import Array
from protocols.operations.arithmetic import Halves
from protocols.ring import FRACTION_BITS, WIDE_BITS, RingArray

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
    """The shortest series that serves a bound. tanh(x) = 2 sigmoid(2 x) - 1."""
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
    flat = x.reshape(-1)
    fields = party.take("trig", flat.size, period_bits, len(chosen.coefficients), _TERM_BITS)
    modulus = (1 << period_bits) - 1
    masked: Any = ((flat + fields["t"]) & modulus).astype(np.uint32 if period_bits <= 32 else np.int64)

    def finish(opened: Sequence[Array]) -> RingArray:
        angle_bits = min(period_bits, _ANGLE_BITS)
        angle = (opened[0].astype(np.int64) & modulus) >> (period_bits - angle_bits)
        odd = np.arange(1, 2 * len(chosen.coefficients), 2)[:, None]
        factor = np.array(chosen.coefficients, np.int64)[:, None]
        drop = COEFFICIENT_BITS + _TABLE_BITS - public_bits
        result: RingArray = np.empty(angle.size, np.int64)
        for start in range(0, angle.size, _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            cosine, sine = turn(odd * angle[here] & ((1 << angle_bits) - 1), angle_bits)
            first, second = (cosine, sine) if chosen.even else (sine, -cosine)
            result[here] = np.einsum("tn,tn->n", _shift(factor * first, drop), fields["cos"][:, here])
            result[here] += np.einsum("tn,tn->n", _shift(factor * second, drop), fields["sin"][:, here])
        if party.rank == 0:
            result += np.int64(int((chosen.constant * (1 << wanted)).to_integral_value()))
        return result.reshape(x.shape)

    return [masked], finish


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


def _shift(words: RingArray, bits: int) -> RingArray:
    """Drop fractional bits, rounding to nearest."""
    return (words + (1 << (bits - 1))) >> bits


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
