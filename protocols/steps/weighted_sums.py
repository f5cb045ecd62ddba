"""Sums of owned rows under a secret weight: the parts of batch gradients of local encoders.

Before: party p holds a matrix G_p (rows x parameters, the clipped gradient of its own score for each record). The
weight r (one residual for each record) is shared. After: shares of G_p^T r for every p, as exact integers. Noise is
added to them before they are opened. Nobody learns anything.

One round: the owner opens G_p - A_p, all open r - b. Then G^T r = G^T (r - b) + (G - A)^T b + A^T b, where the
owner knows the first term and the dealer provides the last. Words to each peer: rows x parameters of the owner, and
rows. Each opened value is a secret minus a uniform tuple value used once.

Sensitivity. A weight is sigmoid minus label. The sigmoid comes from the series of protocols/operations/series.py,
which stays within [0, 1] to 2^-10 for every input, in its range or not. Gradients are rounded towards zero after
clipping. So a record adds at most clip * (1 + 2^-10) in l2 norm to one party's sum, and sqrt(parties) times that to
all. Replacing a record moves them by twice that at most.

Fine grid. Sums are integers at 2^44 to one. Discrete Gaussian noise of 2^40 units or more gives every integer
within 2^10 deviations the chance of the continuous noise rounded to it, up to a factor 1 +- 2^-61 (the mean of
exp(-(2 k u + u^2) / (2 sigma^2)) over |u| <= 1/2), and less than exp(-2^18) beyond. Prices of sampled releases are
known for continuous noise. So these prices hold up to parameters * 2^-59 in epsilon.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from protocols.errors import RangeError
from protocols.net.transport import Array
from protocols.ring import FRACTION_BITS
from protocols.session import products

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
    found: Array = np.trunc(short * (1 - 2.0**-40) * 2**FRACTION_BITS).astype(np.int64) / 2**FRACTION_BITS
    return found


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
