"""Do all parties hold the same records in the same order? Asked before anything else is computed.

Before: each party has its ordered record ids. After: all know whether the lists are equal and, if
not, between whom they differ; nothing else. Two rounds: every party contributes to a fresh key that
only the parties know, then shows the keyed digest of its list. The key keeps whoever records the
(encrypted) traffic from trying lists of ids; a party that knows another's possible lists could try
them, as with any comparison of equality. Finding the common records of unequal lists (private set
intersection) is not done here.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

import numpy as np

from protocols.errors import ProtocolError
from protocols.randomness import fresh_key
from protocols.runtime import Session


class AlignmentError(ProtocolError):
    """The parties do not hold the same records in the same order."""


def check_alignment(session: Session, ids: Iterable[str], names: Iterable[str] | None = None) -> None:
    """Raise AlignmentError at every party unless all ids agree; `names` are what the parties are called."""
    called = list(names) if names is not None else [f"party {rank}" for rank in range(session.parties)]
    key = b"".join(session.swap_bytes("alignment key", fresh_key()))
    digests = session.swap_bytes("alignment", hmac.digest(key, _listed(ids), "sha256"))
    for rank in range(session.parties):
        for other in range(rank):
            if digests[rank] != digests[other]:
                alike = [called[r] for r in range(session.parties) if digests[r] == digests[other]]
                raise AlignmentError(
                    f"{called[rank]} holds other records, or another order, than {', '.join(alike)}: "
                    "give every party the same ids, each once"
                )


def _listed(ids: Iterable[str]) -> bytes:
    """Ids with their lengths, so that no two lists look alike."""
    encoded = [str(name).encode() for name in ids]
    lengths = np.array([len(encoded), *map(len, encoded)], ">u8").tobytes()
    return lengths + b"".join(encoded)
