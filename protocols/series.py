"""Sigmoid and tanh of a bounded shared value in one round, by a Fourier series.

Before: shares of x with |x| <= bound, which the caller has made sure of. After: shares of
f(x) with 32 fractional bits. Nobody learns anything.

An odd function that is flat near the bound is sum_k b_k sin(k w x) on [-bound, bound] to
within 1e-4, with period 2 pi / w at least 2.5 bounds, a power of two. The dealer shares, for t
uniform over one period, sin(k w t) and cos(k w t). The parties open c = x + t modulo the period
(1 round, 4 bytes a value: c is uniform), and
    sin(k w x) = sin(k w c) cos(k w t) - cos(k w c) sin(k w t)
is linear in the shared sines and cosines. (The trick is the one of SHAFT, NDSS 2025.)

The ring forgets multiples of the period, so a value beyond half the period would come back
as another value's result: that is why the bound is the caller's promise, and why
protocols/runtime.py clamps, at the price of a range check, when there is no promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from protocols.errors import RangeError
from protocols.party import Party
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words

_WAVE_BITS = 14
_COEFFICIENT_BITS = WIDE_BITS - _WAVE_BITS
_SHARPNESS = 14 / 32  # terms per unit of period, for a sigmoid
_LARGEST_BOUND = 48.0

Name = Literal["sigmoid", "tanh"]


@dataclass(frozen=True)
class Series:
    """Coefficients of the odd part, and the constant."""

    period_bits: int
    coefficients: npt.NDArray[np.floating]
    constant: float


@cache
def fit(name: Name, bound: float) -> Series:
    """Least squares on [0, bound], sharpened towards the smallest maximal error."""
    if not 0 < bound <= _LARGEST_BOUND:
        raise RangeError(f"a bound must be positive and at most {_LARGEST_BOUND:g}, not {bound:g}")
    steepness = 1.0 if name == "sigmoid" else 2.0
    bound = max(bound, 12.0 / steepness)  # where the function is flat; a smaller range saves nothing
    period = 2.0 ** math.ceil(math.log2(2.5 * bound))
    terms = math.ceil(_SHARPNESS * period * steepness)
    x = np.linspace(0.0, bound, 4000)
    waves = np.sin(np.outer(x, 2 * np.pi / period * np.arange(1, terms + 1)))
    target = 0.5 * np.tanh(x / 2) if name == "sigmoid" else np.tanh(x)
    weight = np.ones_like(x)
    ridge = 1e-9 * len(x) * np.eye(terms)
    for _ in range(20):  # Lawson's iteration: weight follows the error
        weighted = waves * weight[:, None]
        coefficients = np.linalg.solve(waves.T @ weighted + ridge, weighted.T @ target)
        error = np.abs(waves @ coefficients - target)
        weight *= 0.5 + error / error.max()
        weight /= weight.mean()
    return Series(FRACTION_BITS + int(math.log2(period)), coefficients, 0.5 if name == "sigmoid" else 0.0)


def evaluate(party: Party, name: Name, x: Words, bound: float) -> Words:
    """Shares of f(x) with WIDE_BITS fractional bits; x has FRACTION_BITS."""
    series = fit(name, float(bound))
    flat = x.reshape(-1)
    terms = len(series.coefficients)
    waves = party.take("trig", flat.size, series.period_bits, terms, _WAVE_BITS)
    modulus = (1 << series.period_bits) - 1
    masked = ((flat + waves["t"]) & modulus).astype(np.uint32)
    (opened,) = party.open_masked(name, [masked])
    angle = 2j * np.pi / (1 << series.period_bits) * (opened & np.uint32(modulus)).astype(np.float64)
    powers = np.cumprod(np.broadcast_to(np.exp(angle), (terms, flat.size)), axis=0)
    scaled = powers * (series.coefficients * 2.0**_COEFFICIENT_BITS)[:, None]
    sines, cosines = np.rint(scaled.imag).astype(np.int64), np.rint(scaled.real).astype(np.int64)
    result: Words = (sines * waves["cos"] - cosines * waves["sin"]).sum(axis=0)
    if party.rank == 0:
        result += np.int64(round(series.constant * 2**WIDE_BITS))
    return result.reshape(x.shape)
