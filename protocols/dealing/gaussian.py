"""Exact discrete Gaussian noise: the only module that samples noise.

It uses OpenDP's sampler (Canonne, Kamath, Steinke 2020) on the operating system's generator. An integer x has
probability proportional to exp(-x^2 / (2 sigma^2)). The arithmetic is exact and rational, so no floating-point
pattern can reveal the noise. For integer statistics of l2 sensitivity D it satisfies the same Rényi bounds as
the continuous Gaussian of the same sigma (theorem 4 there).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.ring import RingArray

LARGEST_SIGMA = 2.0**58
"""Twelve deviations of this size fit the ring easily."""


def discrete_gaussian(sigma: float, shape: tuple[int, ...]) -> RingArray:
    """Independent samples of the discrete Gaussian with parameter `sigma`."""
    if not (math.isfinite(sigma) and 0 < sigma <= LARGEST_SIGMA):
        raise RangeError(f"the deviation of noise must lie between 0 and 2^58, not {sigma}")
    count = math.prod(shape)
    drawn = _sampler(sigma)([0] * count) if count else []
    return np.array(drawn, np.int64).reshape(shape)


@lru_cache(maxsize=16)
def _sampler(sigma: float) -> Any:
    # Import only these parts, and only where noise is drawn: opendp.prelude takes seconds.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=sigma)
