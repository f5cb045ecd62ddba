"""Distributed discrete Gaussian noise on a shared statistic. All parties run every function together.

Before: shares of an integer statistic. Each column has a holder: the holder of the protected attribute that the
column is about. After: shares of the same statistic plus independent discrete Gaussian noise. Every contribution has
the same deviation sigma. A differential-privacy event charges the sum of the contributions that stay hidden.

| kind | who adds | hidden from parties without the attribute | hidden from a dealer who reads what was opened |
|---|---|---|---|
| `dealer+holder` | the dealer, the holder | both contributions | the holder's |
| `dealer` | the dealer | its contribution | none |
| `all-parties` | every party | at least one, of the party that is not among them | every contribution |

Parties that hold the attribute know their own contribution: `dealer+holder` leaves one against them, about others'
columns. Nothing is left against the dealer and a holder (or all parties) that collude: the dealer must collude with
nobody, as everywhere in this package. The dealer learns sigma and the shape. Rounds: none. Bytes: one share of the
dealer's contribution, to one party. A party adds its own contribution to its share; shares are re-randomised before
they are opened, which hides it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal, get_args

import numpy as np

from secure_sccvfl.protocols.dealing.gaussian import discrete_gaussian
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.errors import ProtocolError

NoiseKind = Literal["dealer+holder", "dealer", "all-parties"]


def copies(kind: NoiseKind, parties: int, holders: int = 1) -> int:
    """The number of noise contributions of deviation sigma in a released value with this many holders."""
    if kind not in get_args(NoiseKind):
        raise ProtocolError(f"unknown noise {kind!r}; use {', '.join(get_args(NoiseKind))}")
    return {"dealer+holder": 1 + holders, "dealer": 1, "all-parties": parties}[kind]


def hidden_copies(kind: NoiseKind, parties: int) -> int:
    """The number of contributions unknown to every coalition of parties that does not hold the attribute."""
    return 1 if kind == "all-parties" else copies(kind, parties)


def copies_against_dealer(kind: NoiseKind, parties: int) -> int:
    """The number of contributions unknown to a dealer who later reads opened values."""
    return copies(kind, parties) - (kind != "all-parties")


def deviation(kind: NoiseKind, sigma: float, parties: int, holders: int = 1) -> float:
    """Standard deviation of all contributions together: public, for scores and p-values."""
    return sigma * math.sqrt(copies(kind, parties, holders))


def noise_share(party: Party, kind: NoiseKind, sigma: float, rows: int, holders: Sequence[Collection[int]]) -> Any:
    """This party's share of the noise for `rows` x len(holders) values; column j belongs to all of holders[j].

    A column with several holders (of the label and of s, say) carries one copy of each. A party without one of
    their secrets lacks the dealer's copy and at least one more.
    """
    shape = (rows, len(holders))
    copies(kind, party.parties)
    if party.active:
        return _authenticated_noise(party, kind, sigma, shape, holders)
    share = np.zeros(shape, np.int64)
    if kind != "all-parties":
        share += party.take("noise", shape, sigma)["e"]
    if kind == "all-parties":
        share += discrete_gaussian(sigma, shape)
    elif kind == "dealer+holder":
        held_columns = [column for column, ranks in enumerate(holders) if party.rank in ranks]
        share[:, held_columns] += discrete_gaussian(sigma, (rows, len(held_columns)))
    return share


def _authenticated_noise(
    party: Party, kind: NoiseKind, sigma: float, shape: tuple[int, int], holders: Sequence[Collection[int]]
) -> Any:
    """`noise_share` with tags. Parties put their own noise under masks of their own: one round if there is any."""
    share = party.nothing(shape) if kind == "all-parties" else party.take("noise", shape, sigma)["e"]
    owned = {
        rank: [column for column, ranks in enumerate(holders) if kind == "all-parties" or rank in ranks]
        for rank in range(party.parties)
    }
    if kind == "dealer":
        return share
    ranks = [rank for rank, columns in owned.items() if columns]
    drawn = [discrete_gaussian(sigma, (shape[0], len(owned[r]))) if r == party.rank else None for r in ranks]
    shapes = [(shape[0], len(owned[rank])) for rank in ranks]
    for rank, block in zip(
        ranks, party.inputs("own noise", list(zip(ranks, drawn, shapes, strict=True))), strict=True
    ):
        share[:, owned[rank]] += block
    return share
