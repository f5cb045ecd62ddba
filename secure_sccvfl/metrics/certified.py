"""The certificate of `models.certificate` under MPC: which decisions no values of the mediators can change.

Before: logits of records with their mediators at their first levels (`base`), and of one record per level of every
mediator with all else at first levels (`levels`), are shared. They are rows of the scoring that the caller makes
anyway: each party encodes them locally, and only the weights are secret. How many levels a mediator has is public.
After: for each record a shared bit. No party learns a contribution, an end, a logit or a bit; what is opened of the
bits is the caller's release.

One form serves two and more classes. Of classes c < d the difference z_c - z_d decides, and c wins a tie; two classes
have the logits (0, z). In each difference a mediator contributes f at its levels. L and U are the sums over mediators
of its minimum and maximum. c stays ahead of d if base + L >= 0, and d ahead of c if base + U < 0. A record is
certified if one class stays ahead of all others. Of two classes these events exclude each other, so their bits are
added.

| step | rounds |
|---|---|
| compare all pairs of levels of each mediator; together for all mediators | 6 |
| product tree: a level that wins (loses) all its pairs, times its contribution | log2 of levels, rounded up |
| compare records at both ends | 0: in the comparison of the caller, which decides records; 6 for more classes |
| product tree over the classes that a class stays ahead of, for more than two | log2 of classes - 1, rounded up |

Both ends take the first 10 rounds for up to 16 levels and 12 for up to 64, once per model; a record takes two values
of a comparison, and one more row of encodings. Of two equal levels the first is the maximum and the last the minimum,
so exactly one level is selected. Products are of whole numbers, so nothing is rounded after the logits. Every value
that is opened on the way is under a uniform mask that is used once, inside CrypTen's operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from secure_sccvfl.protocols.session.runtime import Session, crypten

Shared = Any
"""A CrypTen tensor."""


@dataclass(frozen=True, repr=False, eq=False)
class AtEnds:
    """Differences of logits with the mediators at their ends, shared (records x pairs of classes).

    low: where they sum to least. high: to most.
    """

    low: Shared
    high: Shared

    @classmethod
    def of(cls, base: Shared, low: Shared, high: Shared) -> AtEnds:
        """base: records x outputs. low, high: of `ends`, the same for all records."""
        differing = differences(base)
        return cls(differing + low, differing + high)


def differences(logits: Shared) -> Shared:
    """z_c - z_d of all classes c < d; of a single logit, which is that of the second class, its negative."""
    classes = logits.size(1)
    if classes == 1:
        return -logits
    first, second = np.array(list(combinations(range(classes), 2))).T
    return logits[:, first] - logits[:, second]


def ends(session: Session, levels: Shared, counts: Sequence[int]) -> tuple[Shared, Shared]:
    """The smallest and the largest sum of the mediators' contributions, counted from their first levels (1 x pairs).

    levels: logits of the levels of each mediator below each other, in any common offset. counts: how many it has.
    """
    with session.measure("ends of the mediators"):
        return _ends(session, differences(levels), counts)


def _ends(session: Session, levels: Shared, counts: Sequence[int]) -> tuple[Shared, Shared]:
    starts = np.cumsum([0, *counts])[:-1].astype(int)
    mediators = [range(at, at + count) for at, count in zip(starts, counts, strict=True)]
    duels = [pair for rows in mediators for pair in combinations(rows, 2)]
    if not duels:
        zero = session.public(np.zeros((1, levels.size(1))), session.fraction(levels))
        return zero, zero
    levels = levels - levels[np.repeat(starts, counts)]
    first, second = np.array(duels).T
    below = levels[first] - levels[second] < 0
    bits = crypten.cat([below, 1 - below, 1 - 0 * below[:1]])
    wins = _winning(duels, len(below), max(counts), len(levels))
    loses = np.where(wins < len(below), wins + len(below), np.where(wins < 2 * len(below), wins - len(below), wins))
    value = session.with_fraction(levels, 0)[:, None]
    factors = [
        crypten.cat([bits[rows.reshape(-1)].reshape(*rows.shape, levels.size(1)), value], dim=1)
        for rows in (loses, wins)
    ]
    selected = session.with_fraction(_product(crypten.cat(factors)), session.fraction(levels))
    return selected[: len(levels)].sum(0).reshape(1, -1), selected[len(levels) :].sum(0).reshape(1, -1)


def _winning(duels: Sequence[tuple[int, int]], count: int, most: int, levels: int) -> np.ndarray:
    """For each level the rows of its bits, which are 1 where it is the larger: [below, 1 - below, 1] of all duels."""
    rows = np.full((levels, most - 1), 2 * count)
    used = np.zeros(levels, int)
    for number, (one, other) in enumerate(duels):
        rows[one, used[one]], rows[other, used[other]] = number + count, number
        used[[one, other]] += 1
    return rows


def certified(below_low: Shared, below_high: Shared) -> Shared:
    """One bit for each record, from the signs of `AtEnds` (records x pairs): a whole number."""
    ahead, behind, pairs = 1 - below_low, below_high, below_low.size(1)
    if pairs == 1:
        return (ahead + behind)[:, 0]
    classes = round((1 + (1 + 8 * pairs) ** 0.5) / 2)
    number = {pair: at for at, pair in enumerate(combinations(range(classes), 2))}
    wins = np.array(
        [[number[c, d] if c < d else pairs + number[d, c] for d in range(classes) if d != c] for c in range(classes)]
    )
    bits = crypten.cat([ahead, behind], dim=1)[:, wins.reshape(-1)]
    rows = bits.size(0)
    return _product(bits.reshape(rows * classes, classes - 1)).reshape(rows, classes).sum(1)


def _product(factors: Shared) -> Shared:
    """The product along the second axis, of whole numbers. Each halving takes a round."""
    while factors.size(1) > 1:
        half = factors.size(1) // 2
        one, other, rest = factors[:, :half], factors[:, half : 2 * half], factors[:, 2 * half :]
        factors = crypten.cat([one * other, rest], dim=1)
    return factors[:, 0]
