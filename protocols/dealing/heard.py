"""Did all parties hear the same? For every pair of parties, a tag of what the others said to both.

Many rounds send the same arrays to all. A party that sent different arrays to two honest parties would make them
compute with different numbers, and could read secrets off the result. So each pair (i, j) keeps a running Poly1305
tag of everything that any third party k said to all, under a one-time key that only i and j know. Before anything
is opened they show each other their tags (protocols/dealing/party.py).

Why it is enough: k does not know the key. So different words to i and j have the same tag only with a chance of
2^-103 times the number of 16-byte blocks (2^-77 for a gigabyte). The two compare over their own link, which k
cannot touch. Every comparison ends a tag and begins another under a fresh key. With two parties there is no third,
and the tags cover nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.poly1305 import Poly1305

from protocols.dealing.randomness import KEY_BYTES, Stream
from protocols.net.link import as_bytes
from protocols.net.transport import Array, Spec

TAG = Spec("|u1", (16,))


class Heard:
    """What one party heard, by the peer with which it will compare."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        self._running = {peer: _fresh(stream) for peer, stream in streams.items()}

    def add(self, said: Mapping[int, Sequence[Array]]) -> None:
        """Add what others said to all in one round; the others compare this party's own words."""
        for rank in sorted(said):
            for view in map(as_bytes, said[rank]):
                for peer, running in self._running.items():
                    if peer != rank:
                        running.update(view)

    def tags(self) -> dict[int, npt.NDArray[np.uint8]]:
        """For each peer, the tag of what it should have heard too; later words are tagged under a new key."""
        tags = {peer: np.frombuffer(running.finalize(), np.uint8) for peer, running in self._running.items()}
        self._running = {peer: _fresh(stream) for peer, stream in self._streams.items()}
        return tags


def _fresh(stream: Stream) -> Poly1305:
    return Poly1305(stream.draw().words((KEY_BYTES,), np.uint8).tobytes())
