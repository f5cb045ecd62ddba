"""The sigmoid of a bounded shared value by small words: for steps of training, where most of the dealer's words go.

Before: shares of x with |x| <= 22; the caller has made sure of the bound. After: shares of sigmoid(x) with 28
fractional bits. Nobody learns anything. The series is that of protocols/operations/series.py, with 13 waves. What it
leaves out adds up to less than 2.2e-4: b_k falls by exp(-.617) from one odd k to the next, and b_27 is 9.5e-5.

1. Open the angle x + t, 24 bits of it. A share of x is cut below 2^-18 by its party alone. So the sum of the cut
   shares is short of x by less than one unit for each party, and no wrap is lost: the period is a power of two.
2. Add up the waves in words of 32 bits. The sum y is the sigmoid modulo 2^32, moved to (0, 2) at 28 bits. So the
   dealer gives words of 4 bytes for waves, not of 8.
3. Lift y to 64 bits. Open c = y + b modulo 2^32 for a uniform b. As 0 < y < 2^31, the sum wrapped exactly if the top
   bit of b is 1 and that of c is 0. So y = c - b + 2^32 top(b) [c < 2^31] is linear in the shares of b and top(b).

| | rounds | words |
|---|---|---|
| to each peer | 2 | 4 bytes for the angle, 4 to lift |
| from the dealer, to one party | | 26 x 4 bytes of waves, 12 to lift (by 16 waves of 8 bytes: 256) |

Why it is secure: t and b are uniform over what they mask, and are used once.
"""

from __future__ import annotations

import numpy as np

from protocols.dealing.party import Party
from protocols.errors import RangeError
from protocols.net.transport import Array
from protocols.operations.series import series, turn, waves_of
from protocols.ring import Words

BOUND = 22.0
"""Beyond this the answer is wrong."""
SIGMOID_BITS = 28
_TERMS = 13
_WAVE_BITS = 14
_ANGLE_BITS = 24
_AT_ONCE = 1 << 12
"""So many values at a time stay in the cache."""


def sigmoid(party: Party, x: Words, bits: int) -> Words:
    """Shares of the sigmoid with SIGMOID_BITS; x has `bits`. Two rounds."""
    chosen, flat = series("sigmoid", BOUND), x.reshape(-1)
    cut = bits + chosen.period_log2 - _ANGLE_BITS
    if not 0 <= cut <= 62 - _ANGLE_BITS:
        raise RangeError(f"a sigmoid cannot take {bits} fractional bits")
    fields = party.take("trig", flat.size, _ANGLE_BITS, _TERMS, _WAVE_BITS, "<u4")
    modulus = np.uint32((1 << _ANGLE_BITS) - 1)
    masked = ((flat >> cut).astype(np.uint32) + fields["t"]) & modulus
    (angle,) = party.open_masked("sigmoid", [masked])
    y = _summed(angle & modulus, fields["cos"], fields["sin"], chosen.coefficients[:_TERMS])
    if party.rank == 0:
        y += np.uint32(1 << SIGMOID_BITS)  # 1/2 of the series, and 1/2 to stay above 0
    lifted = _lifted(party, y)
    if party.rank == 0:
        lifted -= 1 << (SIGMOID_BITS - 1)
    return lifted.reshape(x.shape)


def _summed(angle: Array, cosines: Array, sines: Array, coefficients: tuple[int, ...]) -> Array:
    """Shares of the sum of b_k sin(k w x) modulo 2^32, SIGMOID_BITS."""
    total = np.empty(angle.size, np.uint32)
    odd = np.arange(1, 2 * len(coefficients), 2)[:, None]
    for start in range(0, angle.size, _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        cosine, sine = turn(odd * angle[here].astype(np.int64) & ((1 << _ANGLE_BITS) - 1), _ANGLE_BITS)
        of_cosine = waves_of(coefficients, sine, SIGMOID_BITS - _WAVE_BITS).astype(np.uint32)
        of_sine = waves_of(coefficients, cosine, SIGMOID_BITS - _WAVE_BITS).astype(np.uint32)
        total[here] = (of_cosine * cosines[:, here] - of_sine * sines[:, here]).sum(axis=0, dtype=np.uint32)
    return total


def _lifted(party: Party, y: Array) -> Words:
    """Shares modulo 2^64 of a value between 0 and 2^31 that is shared modulo 2^32; one round."""
    fields = party.take("lifting", y.size)
    (opened,) = party.open_masked("lift", [y + fields["b"]])
    wraps = (fields["top"].astype(np.int64) << 32) * (opened < 1 << 31)
    result: Words = wraps - fields["whole"]
    if party.rank == 0:
        result += opened
    return result
