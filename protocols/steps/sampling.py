"""A secret Poisson sample: shared weights times shared random bits. Run by all parties together.

Before: shares of one weight for each record. After: shares of the weight where the record takes part, and of
zero where it does not. Each record takes part with chance k / 2^16, on its own, afresh in every call.

| who | holds | learns |
|---|---|---|
| any m-1 parties | their 16-bit summands of u; shares of b = [u < k] and of a b; the opened w - a | nothing |
| the dealer | u, hence the batch, and the mask a | k and the number of records; nothing about w or what is opened |

The tuple holds u, uniform on 16 bits as the sum of one word from each party's stream with the dealer, so the
chance is exact; a uniform mask a; and shares of b and a b. The parties open w - a; then b w = b (w - a) + a b is
linear in shares, and since b is an integer nothing is truncated. One round; one word a record to each peer; two
words a record from the dealer, to one party.

Why: w - a is uniform whatever w is, and the mask is used once. Of u at least one summand is unknown to any m-1
parties, so given all that they hold u is uniform; shares of b and a b are masked by a stream that they do not
know. So who is in the batch is as unknown to them as before, whatever is computed from b later stays in
shares, and a release with noise on top is a Poisson-sampled Gaussian for everyone who does not know the batch.

Against whom that counts. All parties' openings together, and any m-1 parties: the sampled price holds. The dealer
knows the batch. It sees nothing that is opened; should it ever do so, then what remains against it is the
noise that others added: full scale with `dealer+holder` and `all-parties`, so the price without sampling holds,
and nothing with `dealer`.
"""

from __future__ import annotations

from protocols.dealing.party import Party
from protocols.ring import Words

SAMPLING_BITS = 16


def nearest_sampling(chance: float) -> float:
    """The nearest chance that can be drawn exactly: a multiple of 2^-16, at least one of them."""
    if not 0 < chance <= 1:
        raise ValueError(f"the chance of a record to take part must lie in (0, 1], got {chance}")
    return max(1, round(chance * (1 << SAMPLING_BITS))) / (1 << SAMPLING_BITS)


def threshold(sampling: float) -> int:
    """k of a chance k / 2^16; a chance that would be drawn as another one than is charged raises."""
    scaled = sampling * (1 << SAMPLING_BITS)
    if not (0 < sampling <= 1 and scaled == int(scaled)):
        raise ValueError(f"a chance must be a multiple of 2^-{SAMPLING_BITS} in (0, 1], not {sampling}")
    return int(scaled)


def secret_batch(party: Party, weight: Words, sampling: float) -> Words:
    """Shares of `weight` (rows x 1) where a row is in the secret sample, else of zero; at chance 1 all are in."""
    chance = threshold(sampling)
    if chance == 1 << SAMPLING_BITS:
        return weight
    fields = party.take("sampled", len(weight), chance)
    (shift,) = party.open_masked("secret batch", [weight - fields["a"]])
    kept: Words = fields["b"] * shift + fields["ab"]
    return kept
