"""A secret Poisson sample: shared weights times shared random bits. All parties run it together.

Before: shares of one weight for each record. After: shares of the weight where the record takes part, and of zero
where it does not. Each record takes part with chance k / 2^16, independently, afresh in every call.

| who | holds | learns |
|---|---|---|
| any m-1 parties | their 16-bit summands of u; shares of b = [u < k] and of a b; the opened w - a | nothing |
| the dealer | u, hence the batch, and the mask a | k and the number of records; nothing about w or what is opened |

The tuple holds u, a uniform mask a, and shares of b and a b. u is uniform on 16 bits, as the sum of one word from
each party's stream with the dealer, so the chance is exact. The parties open w - a. Then b w = b (w - a) + a b is
linear in shares. b is an integer, so nothing is truncated. One round; one word a record to each peer; two words a
record from the dealer, to one party.

Why it is secure: w - a is uniform whatever w is, and the mask is used once. Any m-1 parties lack at least one
summand of u, so given all that they hold u is uniform. Shares of b and a b are masked by a stream that they do not
know. So the parties know as little as before about who is in the batch. Whatever is computed from b later stays in
shares. A release with noise on top is a Poisson-sampled Gaussian for everyone who does not know the batch.

Against whom that counts: the sampled price holds against all parties' openings together and against any m-1
parties. The dealer knows the batch, but it sees nothing that is opened. If it ever does, only the noise that others
added remains against it: full scale with `dealer+holder` and `all-parties`, so the price without sampling holds,
and nothing with `dealer`.
"""

from __future__ import annotations

from typing import Any

from protocols.session.products import sampled_rows

SAMPLING_BITS = 16


def nearest_sampling(chance: float) -> float:
    """The nearest chance that can be drawn exactly: a multiple of 2^-16, at least 2^-16."""
    if not 0 < chance <= 1:
        raise ValueError(f"the chance of a record to take part must lie in (0, 1], got {chance}")
    return max(1, round(chance * (1 << SAMPLING_BITS))) / (1 << SAMPLING_BITS)


def threshold(sampling: float) -> int:
    """k of a chance k / 2^16. Raises if the chance drawn would differ from the chance charged."""
    scaled = sampling * (1 << SAMPLING_BITS)
    if not (0 < sampling <= 1 and scaled == int(scaled)):
        raise ValueError(f"a chance must be a multiple of 2^-{SAMPLING_BITS} in (0, 1], not {sampling}")
    return int(scaled)


def secret_batch(weight: Any, sampling: float) -> Any:
    """`weight` (rows x 1) where a row is in the secret sample, else zero; at chance 1 all are in."""
    chance = threshold(sampling)
    return weight if chance == 1 << SAMPLING_BITS else sampled_rows(weight, chance)
