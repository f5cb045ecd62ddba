"""The only ways in which a share leaves a session: files of its owner, and the share-distinguishing game.

A saved share is as secret as the share itself. It is uniform, so it reveals nothing without those of all other
parties; whoever has the files of all parties has the value. Files are written with owner-only permissions
(protocols/records/private.py). CrypTen's own `save`, pickling and printing of tensors raise. The number of fractional
bits is not part of the array: the caller that restores it names the same number. Nothing is sent.

`views_of_a_square` serves only the security evaluation (secure_sccvfl/audit/share_probe.py), whose secrets are
constants that everybody knows, so the views reveal nothing about any other secret. The secrets of the game are
shared, masked, opened and squared by the kernels that serve every secret, so the game tests the protocol that runs
use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.operations import arithmetic
from secure_sccvfl.protocols.ring import RingArray, decode
from secure_sccvfl.protocols.session.binding_tensors import share_in
from secure_sccvfl.protocols.session.runtime import Session, bits_of, share_of, tensor_of


def save_share(tensor: Any) -> RingArray:
    """This party's share, in separate memory; a value that waits for a round is sent first."""
    return share_of(tensor).copy()


def restore_share(share: RingArray, bits: int) -> Any:
    """The tensor of a share that `save_share` gave, with the fraction that it had; for any session of the parties."""
    if not isinstance(share, np.ndarray) or share.dtype != np.int64:
        raise ProtocolError("a saved share is an array of 64-bit ring elements")
    return tensor_of(share.copy(), bits)


def combined(tensors: Sequence[Any]) -> npt.NDArray[np.float64]:
    """The value of a saved tensor, from the shares of all parties, by rank.

    For whoever has the files of all parties: benchmarks and attacks on runs of one machine. No party of a session can
    call it: it has one share.
    """
    shares = [save_share(tensor) for tensor in tensors]
    fractions = {bits_of(tensor) for tensor in tensors}
    if len(fractions) != 1 or len({share.shape for share in shares}) != 1:
        raise ProtocolError("shares of one value have one shape and one fraction")
    total: RingArray = np.sum(shares, axis=0, dtype=np.int64)
    return decode(total, fractions.pop())


def views_of_a_square(session: Session, values: Any, owner: int, count: int) -> dict[str, RingArray]:
    """A party's shares of `count` secrets of the owner and of their squares. One round.

    values: at the owner, else None. The kernel is that of every square: it opens the secret under a mask, for which
    the dealer has shared its square.
    """
    party = session.party
    share = share_in(session.share(values, owner=owner, shape=(count,)))
    masked, finish = arithmetic.squaring(party, share)
    mask = share - masked[0]
    (opened,) = party.open_masked("share probe", masked)
    result = finish([opened])
    square = result - 2 * opened * mask - (opened * opened if session.rank == 0 else 0)
    return {"share": share, "mask": mask, "square of the mask": square, "opened": opened, "result": result}
