"""Proven inputs of sessions with active security: bits that their owners know, and one-hot rows.

Before: owners know blocks of bits x. After: all parties hold authenticated shares of them. Nobody learns anything.

One round: the dealer deals a tagged random bit a for every x that only its owner knows, and the owner broadcasts
o = x xor a, an eighth of a byte to each peer. Then x = o + (1 - 2 o) a is linear in a. Whatever an owner sends, x is
a bit: this needs no proof. Where rows are meant to be one-hot, the next check (protocols/dealing/verification.py)
stops the session and names the owner unless all of them add up to 1. Nothing is opened for that. The dealer sends 14
bytes of tags for each bit, to one party. o is uniform, since a is, and used once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from secure_sccvfl.protocols.dealing import verification
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.net.transport import Spec
from secure_sccvfl.protocols.ring import RingArray

Groups = Sequence[tuple[int, int]]
"""Ranges of columns that are one-hot rows."""


def proven_bits(
    party: Party, own: RingArray, rows: int, widths: Sequence[int], groups: Sequence[Groups] | None = None
) -> list[Any]:
    """Authenticated shares of the bits of every party (rows x its width), by rank. own: those of this party.

    groups: of each party. A party may have no columns.
    """
    if own.shape != (rows, widths[party.rank]) or not np.isin(own, (0, 1)).all():
        raise RangeError(f"{rows} x {widths[party.rank]} bits are needed, and no other numbers")
    masks = party.take("owned_bits", tuple((rows, width) for width in widths))
    sizes = [(rows * width + 7) // 8 for width in widths]
    hidden = own.astype(np.uint8) ^ party.known(masks[f"a{party.rank}"]).astype(np.uint8)
    sent = {party.rank: np.packbits(hidden)}
    received = party.broadcast(
        "proven bits",
        [sent[party.rank]] if sizes[party.rank] else None,
        {rank: [Spec("|u1", (sizes[rank],))] for rank in party.others if sizes[rank]},
    )
    sent |= {rank: arrays[0] for rank, arrays in received.items()}
    results = []
    for rank, width in enumerate(widths):
        mask = masks[f"a{rank}"]
        if width:
            bits = np.unpackbits(sent[rank], count=rows * width).reshape(rows, width).astype(np.int64)
            mask = mask * (1 - 2 * bits) + bits
            for low, high in groups[rank] if groups is not None else ():
                party.proofs.claim_zero(rank, mask[:, low:high].sum(1) - np.int64(1))
        results.append(mask)
    if party.proofs.size > verification.MOST_PENDING:
        party.verify("check of inputs")
    return results
