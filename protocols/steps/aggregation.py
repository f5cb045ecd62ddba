"""Secure aggregation: it opens only the sum over parties of what each holds, to declared receivers.

Before: every party has a vector of the same public length. After: the receivers of the release know the sum; nobody
else learns anything. A party's share of the sum is its own vector plus a share of zero (one key per pair of
parties). So any m-1 parties see uniform words besides the sum. One round: the opening itself.

What a sum tells: a receiver that is a party can subtract its own summand. So with two parties the sum tells each
the other's vector. With m parties any m-1 of them together learn the last one's. Noise is the only remedy against
that. Aggregate only what may be known to that extent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocols import ring
from protocols.errors import RangeError
from protocols.records.releases import Release
from protocols.ring import FRACTION_BITS
from protocols.session.runtime import Session


def sum_over_parties(
    session: Session, values: npt.ArrayLike, bound: float, release: Release
) -> npt.NDArray[np.float64] | None:
    """The sum at the receivers, None elsewhere. Every |value| must be at most the public `bound`."""
    vector = np.asarray(values, np.float64)
    if not 0 < bound * session.parties <= ring.INPUT_LIMIT:
        raise RangeError(f"the bound of a summand must be between 0 and 2^30 over the parties, not {bound:g}")
    words = ring.encode(vector, limit=bound)
    opened = session.open(session.wrap(words + session.party.zero_share(words.shape), FRACTION_BITS), release)
    return None if opened is None else opened.numpy()
