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

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.authentication.wide import Wide
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.operations import arithmetic
from secure_sccvfl.protocols.ring import RingArray, decode
from secure_sccvfl.protocols.session.binding_tensors import share_in
from secure_sccvfl.protocols.session.runtime import Session, bits_of, share_of, tensor_of
from secure_sccvfl.protocols.session.tensors import current

Saved = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
_PLANES = 9


def save_share(tensor: Any) -> Saved:
    """This party's share, in separate memory; a value that waits for a round is sent first.

    With active security an unsigned array: the share and its tag (low and high words of each), the public part, and
    this party's `MacKey`, along the first axis.
    """
    share = share_of(tensor)
    if not isinstance(share, Authenticated):
        plain: Saved = share.copy()
        return plain
    key = [np.full(share.shape, word, np.uint64) for word in current().party.mac_key.words()]
    (value, tag), (value_high, tag_high) = share.pair.lo, share.pair.hi
    return np.stack([value, value_high, tag, tag_high, share.offset, *key])


def restore_share(share: Saved, bits: int) -> Any:
    """The tensor of a share that `save_share` gave, with the fraction that it had; for any session of the parties.

    A share with a tag is for sessions under its own MAC key (`saved_mac_key`): in others checks fail.
    """
    if isinstance(share, np.ndarray) and share.dtype == np.uint64 and share.ndim and len(share) == _PLANES:
        value, value_high, tag, tag_high, offset = share[:-4]
        pair = Wide(np.stack([value, tag]), np.stack([value_high, tag_high]))
        return tensor_of(Authenticated(pair, offset.copy()), bits)
    if not isinstance(share, np.ndarray) or share.dtype != np.int64:
        raise ProtocolError("a saved share is an array of 64-bit ring elements")
    return tensor_of(share.copy(), bits)


def saved_mac_key(shares: Iterable[Saved]) -> MacKey | None:
    """This party's MAC key of saved shares; None if they have no tags."""
    tagged = [share[-4:].reshape(4, -1) for share in shares if share.dtype == np.uint64]
    keys = {MacKey.of(words) for planes in tagged for words in np.unique(planes, axis=1).T}
    if len(keys) > 1:
        raise ProtocolError("saved shares of one model have tags under several MAC keys")
    return keys.pop() if keys else None


def combined(tensors: Sequence[Any]) -> npt.NDArray[np.float64]:
    """The value of a saved tensor, from the shares of all parties, by rank.

    For whoever has the files of all parties: benchmarks and attacks on runs of one machine. No party of a session can
    call it: it has one share.
    """
    shares = [_words(tensor, rank) for rank, tensor in enumerate(tensors)]
    fractions = {bits_of(tensor) for tensor in tensors}
    if len(fractions) != 1 or len({share.shape for share in shares}) != 1:
        raise ProtocolError("shares of one value have one shape and one fraction")
    total: RingArray = np.sum(shares, axis=0, dtype=np.int64)
    return decode(total, fractions.pop())


def _words(tensor: Any, rank: int) -> RingArray:
    share = share_of(tensor)
    return share.words(rank) if isinstance(share, Authenticated) else share


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
