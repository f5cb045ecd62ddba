"""Alignment of pre-aligned lists: do all parties hold the same records in the same order?

Before: each party has its ordered record ids. After: all know, for every party but the first, whether its list equals
the first one's: one bit each, a declared release. Nothing else is revealed, so nobody can test lists of ids offline:
to find out whether another party holds a certain list, a party must bring that list to a run.

Each party hashes its list to 128 bits (SHA-256). The exclusive or of two hashes is shared from the start, since each
of the two parties holds one hash as its share. All its bits are zero exactly when the hashes are equal. The products
of their complements are computed under MPC, half as many in each round (protocols/operations/comparison.py). Only the
last bit is opened.

Ten rounds, about 70 bytes for each pair to each peer. Two different lists pass for equal with probability 2^-128.
Lists that only partly overlap stop the run; psi.py and hidden_intersection.py are for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from secure_sccvfl.protocols.alignment.interface import EQUAL, AlignmentError, checked
from secure_sccvfl.protocols.dealing.matching import Aligned
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.session.runtime import Session

_BITS = 128


class PreAligned:
    """`names`: of the parties, for people; by default their ranks."""

    def __init__(self, session: Session, names: Iterable[str] | None = None) -> None:
        self._session = session
        self._names = list(names) if names is not None else [f"party {rank}" for rank in range(session.parties)]

    def align(self, ids: Iterable[str]) -> Aligned:
        """This party's rows in its own order. Raises AlignmentError at every party unless all lists agree."""
        checked_ids = checked(ids)
        _compare(self._session, checked_ids, self._names)
        return Aligned(len(checked_ids), np.arange(len(checked_ids)))


def _compare(session: Session, ids: list[str], called: list[str]) -> None:
    equal = session.all_ones(_equal_bits(session.rank, session.parties, _hashed(ids)))
    opened = session.open(equal, session.declared(EQUAL))
    if opened is None:
        raise ProtocolError("the bits of alignment must go to every party")
    equal = [called[0], *(name for name, bit in zip(called[1:], opened, strict=True) if bit)]
    others = [name for name in called if name not in equal]
    if others:
        raise AlignmentError(
            f"{', '.join(others)} {'holds' if len(others) == 1 else 'hold'} other records, or another order, than "
            f"{', '.join(equal)}: give every party the same ids, each once"
        )


def _equal_bits(rank: int, parties: int, hash_bits: Array) -> Array:
    """Shares of which bits of each other party's hash equal the first one's, one row for each other party."""
    shares = np.zeros((parties - 1, _BITS), np.uint8)
    if rank == 0:
        shares[:] = hash_bits ^ 1
    else:
        shares[rank - 1] = hash_bits
    return shares


def _hashed(ids: Iterable[str]) -> Array:
    """Bits of a hash of the ids with their lengths, so that no two lists have the same encoding."""
    encoded = [str(name).encode() for name in ids]
    lengths = np.array([len(encoded), *map(len, encoded)], ">u8").tobytes()
    digest = hashlib.sha256(lengths + b"".join(encoded)).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8), count=_BITS)
