"""Products with the groups that one party holds: contingency tables on shares, and selection by group.

*Tables*. Before: each party p has a block X_p (rows x its columns) of integers. The holder h has the one-hot S (rows
x groups). After: every party has a share of the table X^T S (all columns x groups), nothing else.

For each chunk of rows the dealer sends p a mask A_p and h a mask B, each known to its receiver only, and shares C
of A^T B. p sends E_p = X_p - A_p to h *only*. h sends D = S - B to the parties with columns. Since X^T S = X^T D +
E^T B + A^T B, the shares are X_p^T D + C_p at p, E^T B + C_h at h, C_k elsewhere. The holder multiplies its own
columns in the clear, without a message.

Why it is secure: p sees D, h sees every E_p. Both are a secret minus a uniform mask that serves this secret and this
product only and is unknown to everyone but its owner and the dealer. C is a fresh sharing. So any m-1 parties see
uniform ring elements. The dealer learns the shapes.

Cost per chunk: one round. p sends its block once, and h sends its block once to each party with columns. The chunk
bounds memory, at the dealer too. 32-bit shares suffice for counts (the caller decides), which halves bytes and time;
`lifted` turns them into shares of 64 bits. Everything is exact. The operator is `tensor.group_sums`.

*Selection* (`tensor.selected`). Before: `owner` holds a[i, g, :] for every record i and group g; `holder` holds the
one-hot s[i, :]. After: shares of a[i, s_i, :], and nothing else. The two exchange one message for each 2^21 ring
elements: a minus a mask that the owner knows, and s minus a mask that the holder knows. Both masks are uniform and
used once. The dealer gives shares of the product of the masks. A party that is owner and holder computes locally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.transport import Array, Spec
from secure_sccvfl.protocols.operations import inputs
from secure_sccvfl.protocols.operations.arithmetic import bilinear
from secure_sccvfl.protocols.operations.banded import rows_at_once
from secure_sccvfl.protocols.ring import RingArray, Share

CHUNK_BYTES = 1 << 24
"""About this much of all parties' columns is processed at a time."""

HALF = 32
"""The position of a 32-bit share in a ring element: if v is shared modulo 2^32, v * 2^32 is shared exactly."""

Rows = Callable[[slice], Array]
"""Gives the integers of these rows: a party's block, or the holder's one-hot."""


def group_table(
    party: Party,
    rows: int,
    widths: Sequence[int],
    block: Rows,
    holder: int,
    groups: int,
    one_hot: Rows | None,
    wide: bool,
) -> Share:
    """Shares of X^T S, columns in order of rank; 64-bit ring elements if `wide`, else modulo 2^32."""
    if (one_hot is None) == (party.rank == holder):
        raise ProtocolError("only the holder gives the groups of the records")
    if party.active:
        raise ProtocolError("active security covers sums by group of proven bits only")
    dtype = "<i8" if wide else "<i4"
    sent = tuple(0 if rank == holder else width for rank, width in enumerate(widths))
    per_row = np.dtype(dtype).itemsize * (sum(widths) + groups)
    chunks = math.ceil(rows * per_row / CHUNK_BYTES)
    size = math.ceil(rows / max(chunks, 1))  # chunks of equal size, so that the dealer can work ahead
    bounds = np.cumsum([0, *widths])
    table = np.zeros((sum(widths), groups), dtype)
    request = Request("cross", (size, sent, groups, holder, dtype))
    for number in party.tuples.repeat(max(chunks, 1)):
        part = slice(number * size, min(rows, (number + 1) * size))
        local_block = _padded(block(part), size, widths[party.rank], dtype)
        mine = table[bounds[party.rank] : bounds[party.rank + 1]]
        if one_hot is not None:
            secret = _padded(one_hot(part), size, groups, dtype)
            mine += ring.cross(local_block, secret)
        if not any(sent):
            continue
        fields = party.tuples.take(request)[1]
        if one_hot is not None:
            senders = [rank for rank, width in enumerate(sent) if width]
            received = party.transport.exchange(
                "group table",
                {rank: [secret - fields["b"]] for rank in senders},
                {rank: [Spec(dtype, (size, sent[rank]))] for rank in senders},
            )
            for rank in senders:
                table[bounds[rank] : bounds[rank + 1]] += ring.cross(received[rank][0], fields["b"])
        elif sent[party.rank]:
            masked = local_block - fields[f"a{party.rank}"]
            spec = Spec(dtype, (size, groups))
            received = party.transport.exchange("group table", {holder: [masked]}, {holder: [spec]})
            mine += ring.cross(local_block, received[holder][0])
        others = np.concatenate([np.arange(bounds[r], bounds[r + 1]) for r, width in enumerate(sent) if width])
        table[others] += fields["c"]
    return table


def lifted(table: Array) -> tuple[RingArray, int]:
    """Shares in the ring, and the number of their fractional bits, which are zero."""
    if not isinstance(table, np.ndarray) or table.dtype == np.int64:
        return table, 0
    return np.left_shift(table.astype(np.int64), HALF), HALF


def _padded(values: Array, size: int, width: int, dtype: str) -> Array:
    """The rows as ring elements; rows of zeros fill the last chunk."""
    if values.shape[1:] != (width,) or len(values) > size:
        raise ProtocolError(f"a block of width {width} was declared, not {values.shape[1:]}")
    elements = np.zeros((size, width), dtype)
    elements[: len(values)] = values
    return elements


# selection


def select(
    party: Party,
    owner: int,
    holder: int,
    choices: RingArray | None,
    one_hot: RingArray | None,
    shape: tuple[int, int, int],
) -> Share:
    """Shares of choices[i, s_i, :] (rows x columns), from choices at `owner` and the one-hot of s at `holder`."""
    rows, groups, columns = shape
    if party.rank == owner and (choices is None or choices.shape != shape):
        raise ProtocolError(f"the owner must give choices of shape {shape}")
    if party.rank == holder and (one_hot is None or one_hot.shape != shape[:2]):
        raise ProtocolError(f"the holder must give one-hot rows of shape {shape[:2]}")
    out = party.nothing((rows, columns))
    each = rows_at_once(groups * columns)
    for start in range(0, rows, each):
        here = slice(start, min(start + each, rows))
        of_owner, of_holder = (None if one is None else one[here] for one in (choices, one_hot))
        out[here] = _select(party, owner, holder, of_owner, of_holder, (here.stop - start, groups, columns))
    return out


def _select(
    party: Party,
    owner: int,
    holder: int,
    choices: RingArray | None,
    one_hot: RingArray | None,
    shape: tuple[int, int, int],
) -> Share:
    rows, groups, columns = shape
    if party.active:
        own = np.zeros((rows, 0), np.int64) if one_hot is None or party.rank != holder else one_hot
        widths = [groups if rank == holder else 0 for rank in range(party.parties)]
        member = inputs.proven_bits(party, own, rows, widths, [[(0, width)] if width else [] for width in widths])
        (chosen,) = party.inputs("selection", [(owner, choices if party.rank == owner else None, shape)])
        return bilinear(party, "mul", member[holder][:, :, None], chosen).sum(1)
    if owner == holder:
        zero = party.zero_share((rows * columns,)).reshape(rows, columns)
        return zero if choices is None or one_hot is None else zero + _selected(one_hot, choices)
    fields = party.take("selection", rows, groups, columns, owner, holder)
    share: RingArray = fields["c"]
    # s a = (s - b) a + b (a - m) + b m, where the last is c
    if choices is not None and party.rank == owner:
        sent, wanted = choices - fields["a"], Spec("<i8", (rows, groups))
        received = party.transport.exchange("selection", {holder: [sent]}, {holder: [wanted]})
        share += _selected(received[holder][0], choices)
    elif one_hot is not None and party.rank == holder:
        sent = one_hot - fields["b"]
        received = party.transport.exchange("selection", {owner: [sent]}, {owner: [Spec("<i8", shape)]})
        share += _selected(fields["b"], received[owner][0])
    return share


def _selected(one_hot: Any, choices: Any) -> Any:
    result: Any = np.einsum("ng,ngc->nc", one_hot, choices)
    return result
