"""Kernels of protocols/steps/weighted_sums.py: owned rows times a shared column, and a secret sample."""

from __future__ import annotations

from collections.abc import Sequence

from protocols import ring
from protocols.dealing.party import Party
from protocols.errors import ProtocolError
from protocols.net.transport import Spec
from protocols.operations.arithmetic import Finish
from protocols.ring import Words


def weighted_sums(party: Party, own: Words, widths: Sequence[int], weight: Words) -> list[Words]:
    """Shares of G_p^T r for every party p, one column each; `weight` is r, of shape (rows, 1). One round."""
    rows, rank = len(weight), party.rank
    if own.shape != (rows, widths[rank]):
        raise ProtocolError(f"the owner must give rows of shape {(rows, widths[rank])}, not {own.shape}")
    fields = party.take("weighted_sums", rows, tuple(widths))
    hidden, shift = own - fields[f"a{rank}"], weight - fields["b"]
    specs = {peer: [Spec("<i8", (rows, widths[peer])), Spec.of(shift)] for peer in party.others}
    received = party.broadcast("weighted sums", [hidden, shift], specs)
    known = {rank: hidden} | {peer: arrays[0] for peer, arrays in received.items()}
    for arrays in received.values():
        shift = shift + arrays[1]
    sums = []
    for owner in range(party.parties):
        share = fields[f"c{owner}"]
        share += ring.matmul(known[owner].T, fields["b"])
        if owner == rank:
            share += ring.matmul(own.T, shift)
        sums.append(share)
    return sums


def sample(party: Party, weight: Words, threshold: int) -> tuple[list[Words], Finish]:
    """Shares of `weight` (rows x 1) in the rows of a secret sample, else of zero: what to open, and what follows."""
    fields = party.take("sampled", len(weight), threshold)

    def finish(opened: Sequence[Words]) -> Words:
        kept: Words = fields["b"] * opened[0] + fields["ab"]
        return kept

    return [weight - fields["a"]], finish
