"""Proven inputs of sessions with active security: bits that their owners know, and one-hot rows.

Before: owners know blocks of bits. After: all parties hold authenticated shares of them, and the next check
(protocols/dealing/verification.py) stops the session and names the owner unless all are 0 or 1, and all rows that are
meant to be one-hot add up to 1. Nobody learns anything else.

One round: an owner broadcasts O = x - A for a mask A that only it and the dealer know, 8 bytes a bit to each peer.
The dealer deals tags of A, and A^2 with tags: 40 bytes a bit to one party. The proofs are linear in what was dealt,
and nothing is opened for them: x^2 - x = O^2 - O + (2 O - 1) A + A^2, and 0 and 1 are the only solutions of x^2 = x
modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from secure_sccvfl.protocols.dealing import verification
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.ring import RingArray

Groups = Sequence[tuple[int, int]]
"""Ranges of columns that are one-hot rows."""


def proven_bits(
    party: Party, own: RingArray, rows: int, widths: Sequence[int], groups: Sequence[Groups] | None = None
) -> list[Any]:
    """Authenticated shares of the bits of every party (rows x its width), by rank. own: those of this party.

    groups: of each party. A party may have no columns.
    """
    fields = party.take("proven_bits", tuple((rows, width) for width in widths))
    names = {f"a{rank}": (rank, width) for rank, width in enumerate(widths) if width}
    masked = party.masked_blocks("proven bits", names, rows, fields, {f"a{party.rank}": own})
    results = []
    for rank, width in enumerate(widths):
        name = f"a{rank}"
        share = fields[name]
        if width:
            party.prove_bits(rank, masked[name], share, fields[f"{name} squared"])
            share = share + masked[name]
            for low, high in groups[rank] if groups is not None else ():
                party.proofs.claim_zero(rank, share[:, low:high].sum(1) - np.int64(1))
        results.append(share)
    if party.proofs.size > verification.MOST_PENDING:
        party.verify("check of inputs")
    return results
