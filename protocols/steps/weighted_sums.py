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
from collections.abc import Sequence

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.errors import ProtocolError, RangeError
from protocols.net.transport import Spec
from protocols.ring import FRACTION_BITS, Words

WEIGHT_BITS = 28
SUM_BITS = FRACTION_BITS + WEIGHT_BITS
LARGEST_WEIGHT = 1 + 2.0**-10
FINEST_NOISE = 2.0 ** (40 - SUM_BITS)
"""The least deviation of noise on a sampled sum; with less the grid would not count as fine."""
MOST_ROWS = 1 << 17
"""Sums of this many weighted rows of norm 1 stay below 2^62."""


def clipped(rows: np.ndarray, clip: float) -> Words:
    """Party step, local: rows in the ring, scaled down to norm `clip` where they are longer."""
    if not np.isfinite(rows).all():  # clipping does not bound these, and as a word they are 2^63
        raise RangeError("a gradient is NaN or infinite: lower the rate")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    short = rows * np.minimum(1.0, clip / np.maximum(norms, 1e-12))
    words: Words = np.trunc(short * (1 - 2.0**-40) * 2**FRACTION_BITS).astype(np.int64)
    return words


def sensitivity(clip: float, parties: int) -> float:
    """Joint l2 sensitivity of the sums of all parties to adding or removing one record."""
    return clip * LARGEST_WEIGHT * math.sqrt(parties)


def weighted_sums(party: Party, own: Words, widths: Sequence[int], weight: Words) -> list[Words]:
    """Shares of G_p^T r for every party p, SUM_BITS; `weight` has shape (rows, 1) and WEIGHT_BITS."""
    rows, rank = len(weight), party.rank
    if rows > MOST_ROWS:
        raise RangeError(f"a weighted sum takes at most {MOST_ROWS} rows, not {rows}")
    if own.shape != (rows, widths[rank]):
        raise ProtocolError(f"the owner must give rows of shape {(rows, widths[rank])}, not {own.shape}")
    fields = party.take("weighted_sums", rows, tuple(widths))
    hidden, shift = own - fields[f"a{rank}"], weight - fields["b"]
    specs = {peer: [Spec("<i8", (rows, widths[peer])), Spec.of(shift)] for peer in party.others}
    came = party.broadcast("weighted sums", [hidden, shift], specs)
    known = {rank: hidden} | {peer: arrays[0] for peer, arrays in came.items()}
    for arrays in came.values():
        shift = shift + arrays[1]
    sums = []
    for owner in range(party.parties):
        share = fields[f"c{owner}"]
        share += ring.matmul(known[owner].T, fields["b"])
        if owner == rank:
            share += ring.matmul(own.T, shift)
        sums.append(share[:, 0])
    return sums
