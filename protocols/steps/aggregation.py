"""Secure aggregation: u_c = g_c + r_c with masks r_c that sum to zero, so that only the sum over parties is opened.

Before: every party c that takes part holds a vector g_c of one public length, each entry within a public bound. A
party may sit out: it announces this in the first round. After: the receivers of the release know the sum over the
participants. All parties know who participates. Nobody learns anything else.

| round | sent | bytes to each peer |
|---|---|---|
| 1, roster | does this party take part? | 1 |
| 2 | what precedes every release: all received the same roster, all sent the dealer the same requests | 32 |
| 3 | u_c = g_c + r_c and a counter, by those on the roster, to the receivers | 8 x (length + 1) |

The sum is that of CrypTen tensors that their owners know: `crypten.stack(...).sum(0)`, which sends nothing.

Masks. Every pair of those on the roster expands the same ring elements from its own key: one adds them, the other
subtracts them. They are used once. A party that sits out has no part in any mask and sends nothing in round 3, so the
masks of the others cancel without it. The last element is 1 at each of them. The receivers compare its sum with the
roster: masks that do not cancel are detected, except with probability 2^-64.

Why it is secure. Any coalition that lacks two of those who took part sees their vectors under masks that only these
two know: uniform except for the sum. Fewer than `minimum` participants are refused before anything is masked. Two
parties that received different rosters stop in round 2, before any u_c is sent. If a party drops out after the
roster, all parties abort and nothing is opened.

What a sum reveals. A participant that is a receiver can subtract its own vector. With two participants, the least
that is allowed, each of these learns the other's. With n of them any n-1 together learn the last one's. Noise is the
only remedy against that. Aggregate only what may be known to that extent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import ProtocolError, RangeError
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.protocols.session.runtime import Session, crypten

FEWEST = 2


class TooFew(ProtocolError):
    """Too few participants in a sum, which was not opened."""


@dataclass(frozen=True)
class Aggregate:
    """The sum at the receivers of its release, None elsewhere; and the ranks of those whose vectors are in it."""

    total: npt.NDArray[np.float64] | None
    participants: tuple[int, ...]


def aggregate(
    session: Session,
    values: npt.ArrayLike,
    bound: float,
    release: Release,
    *,
    present: bool = True,
    minimum: int = FEWEST,
) -> Aggregate:
    """The sum over all parties that are `present`. Every |value| must be at most the public `bound`.

    A party that sits out passes any vector of the public length; its values are not used. The release is declared one
    element longer than the vector. With fewer than `minimum` participants every party raises TooFew, and none opens.
    """
    if not FEWEST <= minimum <= session.parties:
        raise ProtocolError(f"a sum takes {FEWEST} to {session.parties} participants at least, not {minimum}")
    if not 0 < bound * session.parties <= ring.INPUT_LIMIT:
        raise RangeError(f"the bound of a summand must be between 0 and 2^30 over the parties, not {bound:g}")
    vector = np.asarray(values, np.float64).reshape(-1)
    if present:
        ring.encode(vector, limit=bound)  # raises here, before anything is sent
    roster = _roster(session, release, present)
    if len(roster) < minimum:
        raise TooFew(f"{len(roster)} of {session.parties} parties take part in {release.name!r}: {minimum} must")
    summand, shape = np.append(vector, 1.0), (vector.size + 1,)
    total = crypten.stack([session.owned(summand, owner=rank, shape=shape) for rank in roster]).sum(0)
    opened = session.open(total, release, among=roster)
    if opened is None:
        return Aggregate(None, roster)
    *result, count = opened.tolist()
    if count != len(roster):
        raise ProtocolError(
            f"the masks of {release.name!r} did not cancel: a party used another roster or other values"
        )
    return Aggregate(np.array(result), roster)


def _roster(session: Session, release: Release, present: bool) -> tuple[int, ...]:
    """The ranks of the participants, as each party announces."""
    flags = session.tell_all(f"roster of {release.name}", int(present))
    return tuple(rank for rank, flag in enumerate(flags) if flag == 1)
