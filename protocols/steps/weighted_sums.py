"""Batch gradients of local encoders: sums of owned rows under a secret weight, over a secret Poisson sample.

Before: party p holds a matrix G_p (rows x parameters, the clipped gradient of its own score for each record). The
weight r (one residual for each record) is shared. After: shares of G_p^T r for every p, as exact integers. Noise is
added before they are opened. Nobody learns anything.

*Sum.* One round: the owner opens G_p - A_p, all open r - b. Then G^T r = G^T (r - b) + (G - A)^T b + A^T b, where the
owner knows the first term and the dealer provides the last. Ring elements to each peer: rows x parameters of the
owner, and rows. Each opened value is a secret minus a uniform tuple value that is used once.

*Sensitivity.* A weight is sigmoid minus label. The series of protocols/operations/sigmoid.py stays within [0, 1] to
2^-10 for every input, in its range or not. Gradients are rounded towards zero after clipping. So a record adds at
most clip * (1 + 2^-10) in l2 norm to one party's sum, and sqrt(parties) times that to all. Replacing a record moves
them by at most twice that.

*Fine grid.* Sums are integers at 2^44 to one. Discrete Gaussian noise of 2^40 units or more gives every integer
within 2^10 deviations the probability of the continuous noise rounded to it, up to a factor 1 +- 2^-61 (the mean of
exp(-(2 k u + u^2) / (2 sigma^2)) over |u| <= 1/2), and less than exp(-2^18) beyond. So the privacy cost of sampled
releases, which is known for continuous noise, holds up to parameters * 2^-59 in epsilon.

*Sample.* Each record takes part with probability k / 2^16, independently, drawn again in every call.

| who | holds | learns |
|---|---|---|
| any m-1 parties | their 16-bit summands of u; shares of b = [u < k] and of a b; the opened w - a | nothing |
| the dealer | u, hence the batch, and the mask a | k and the number of records; nothing about w or what is opened |

u is uniform on 16 bits, as the sum of one draw from each party's stream with the dealer, so the probability is exact.
The parties open w - a. Then b w = b (w - a) + a b is linear in shares, and b is an integer, so nothing is truncated.
One round, one ring element a record to each peer, two a record from the dealer to one party. Any m-1 parties lack at
least one summand of u, so given their views u is uniform. A release with noise on top is a Poisson-sampled Gaussian
for everyone who does not know the batch: the sampled privacy cost holds against all parties' openings together and
against any m-1 parties. The dealer knows the batch, but sees nothing that is opened. If it ever does, only the noise
that others added remains against it: full scale with `dealer+holder` and `all-parties`, nothing with `dealer`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.ring import FRACTION_BITS
from secure_sccvfl.protocols.session import products
from secure_sccvfl.protocols.session.products import sampled_rows

WEIGHT_BITS = 28
SUM_BITS = FRACTION_BITS + WEIGHT_BITS
LARGEST_WEIGHT = 1 + 2.0**-10
FINEST_NOISE = 2.0 ** (40 - SUM_BITS)
"""The least deviation of noise on a sampled sum; with less the grid would not count as fine."""
MOST_ROWS = 1 << 17
"""Sums of this many weighted rows of norm 1 stay below 2^62."""


def clipped(rows: Array, clip: float) -> Array:
    """Party step, local: rows scaled down to norm `clip` where they are longer, multiples of 2^-FRACTION_BITS."""
    if not np.isfinite(rows).all():  # clipping does not bound these
        raise RangeError("a gradient is NaN or infinite: lower the rate")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    short = rows * np.minimum(1.0, clip / np.maximum(norms, 1e-12))
    result: Array = np.trunc(short * (1 - 2.0**-40) * 2**FRACTION_BITS).astype(np.int64) / 2**FRACTION_BITS
    return result


def sensitivity(clip: float, parties: int) -> float:
    """Joint l2 sensitivity of the sums of all parties to adding or removing one record."""
    return clip * LARGEST_WEIGHT * math.sqrt(parties)


def weighted_sums(gradients: Any, weight: Any) -> Any:
    """G_p^T r for every party p, one after the other, SUM_BITS.

    gradients: the blocks G_p side by side, each known to its owner (`clipped`). weight: r (rows x 1), WEIGHT_BITS.
    """
    rows = weight.size(0)
    if rows > MOST_ROWS:
        raise RangeError(f"a weighted sum takes at most {MOST_ROWS} rows, not {rows}")
    return products.weighted_sums(gradients, weight)


SAMPLING_BITS = 16


def nearest_sampling(chance: float) -> float:
    """The nearest probability that can be drawn exactly: a multiple of 2^-16, at least 2^-16."""
    if not 0 < chance <= 1:
        raise ValueError(f"the chance of a record to take part must lie in (0, 1], got {chance}")
    return max(1, round(chance * (1 << SAMPLING_BITS))) / (1 << SAMPLING_BITS)


def threshold(sampling: float) -> int:
    """k of a probability k / 2^16. Raises if the probability drawn would differ from the probability charged."""
    scaled = sampling * (1 << SAMPLING_BITS)
    if not (0 < sampling <= 1 and scaled == int(scaled)):
        raise ValueError(f"a chance must be a multiple of 2^-{SAMPLING_BITS} in (0, 1], not {sampling}")
    return int(scaled)


def secret_batch(weight: Any, sampling: float) -> Any:
    """`weight` (rows x 1) where a row is in the secret sample, else zero; at probability 1 all are in."""
    chance = threshold(sampling)
    return weight if chance == 1 << SAMPLING_BITS else sampled_rows(weight, chance)
