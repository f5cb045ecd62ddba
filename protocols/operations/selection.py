"""Selection: of values that one party knows for every group, those of the group that another party knows.

Before: `owner` holds a[i, g, :] for every record i and group g; `holder` holds the one-hot s[i, :]. After: shares of
a[i, s_i, :], and nothing else. The two exchange one message for each 2^21 ring elements: a minus a mask that the
owner knows, and s minus a mask that the holder knows. Both masks are uniform and used once. The dealer gives shares
of the product of the masks. A party that is owner and holder computes alone.
"""

from __future__ import annotations

import numpy as np

from protocols.dealing.party import Party
from protocols.errors import ProtocolError
from protocols.net.transport import Spec
from protocols.operations.banded import rows_at_once
from protocols.ring import RingArray


def select(
    party: Party,
    owner: int,
    holder: int,
    choices: RingArray | None,
    one_hot: RingArray | None,
    shape: tuple[int, int, int],
) -> RingArray:
    """Shares of choices[i, s_i, :] (rows x columns), from choices at `owner` and the one-hot of s at `holder`.

    Each of the two sends one message to the other, for each 2^21 ring elements. A party that is both computes alone.
    """
    rows, groups, columns = shape
    out = np.zeros((rows, columns), np.int64)
    each = rows_at_once(groups * columns)
    for start in range(0, rows, each):
        here = slice(start, min(start + each, rows))
        out[here] = _select(
            party,
            owner,
            holder,
            None if choices is None else choices[here],
            None if one_hot is None else one_hot[here],
            (here.stop - here.start, groups, columns),
        )
    return out


def _select(
    party: Party,
    owner: int,
    holder: int,
    choices: RingArray | None,
    one_hot: RingArray | None,
    shape: tuple[int, int, int],
) -> RingArray:
    rows, groups, columns = shape
    if party.rank == owner and (choices is None or choices.shape != shape):
        raise ProtocolError(f"the owner must give choices of shape {shape}")
    if party.rank == holder and (one_hot is None or one_hot.shape != shape[:2]):
        raise ProtocolError(f"the holder must give one-hot rows of shape {shape[:2]}")
    if owner == holder:
        zero = party.zero_share((rows * columns,)).reshape(rows, columns)
        if choices is None or one_hot is None:
            return zero
        chosen: RingArray = np.einsum("ng,ngc->nc", one_hot, choices)
        return zero + chosen
    fields = party.take("selection", rows, groups, columns, owner, holder)
    share: RingArray = fields["c"]
    if party.rank == owner and choices is not None:
        # s a = (s - b) a + b (a - m) + b m, where the last is c
        received = party.transport.exchange(
            "selection", {holder: [choices - fields["a"]]}, {holder: [Spec("<i8", (rows, groups))]}
        )
        share += np.einsum("ng,ngc->nc", received[holder][0], choices)
    elif party.rank == holder and one_hot is not None:
        received = party.transport.exchange(
            "selection", {owner: [one_hot - fields["b"]]}, {owner: [Spec("<i8", shape)]}
        )
        share += np.einsum("ng,ngc->nc", fields["b"], received[owner][0])
    return share
