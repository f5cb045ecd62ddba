"""This party's share of a tensor as an array for a file, and back: the only way of a share out of a session.

A saved share is as secret as the share itself. It is uniform, so it tells nothing without those of all other parties;
whoever has the files of all parties has the value. Files are written with the owner's permissions alone
(protocols/records/private.py). CrypTen's own `save`, pickling and printing of tensors raise.

The fraction is not part of the array: who restores it names the same number of fractional bits. Nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from protocols.errors import ProtocolError
from protocols.ring import Words, decode
from protocols.session.runtime import bits_of, tensor_of, words_of


def save_share(tensor: Any) -> Words:
    """This party's share, in memory of its own; a value that waits for a round is sent first."""
    return words_of(tensor).copy()


def restore_share(share: Words, bits: int) -> Any:
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
    total: Words = np.sum(shares, axis=0, dtype=np.int64)
    return decode(total, fractions.pop())
