"""Checks that all parties followed the protocol: batched verification of the MACs of everything that was opened.

Before: each party i holds, for every opened element, the opened word D, its share v_i, its tag t_i and the public K
(protocols/authentication/shares.py); D should be K + sum v_i modulo 2^64. alpha_i is party i's part of the MAC key.
Claims about inputs are elements too, whose word is a public 0 that nobody sends (`Proofs`). After: all parties
continue, or an honest party stops. Nobody learns anything but whether the check passed.

| round | sent to all | bytes to each peer |
|---|---|---|
| 1, coin | with `Party.confirm`: the next link of a hash chain whose last one all sent when the session began | 32 |
| 2, sums | P_i = T_i + 2^64 rho_i: T_i are ROWS random subset sums of v_i; rho is uniform, with tags | 16 ROWS |
| 3, commitment | SHA-256 of z_i and a random salt | 32 |
| 4, sums of tags | z_i = Z_i + 2^64 tag_i(rho) - alpha_i P + a zero share modulo 2^128; the salt | 16 ROWS + 32 |

Z_i are the same subset sums of t_i, and P = sum P_i. Each party checks that P is the subset sum of D - K modulo 2^64
in every row, the commitments, and that the z_i add up to 0 modulo 2^112.

Why it is secure. *Coin.* A party sends its link only when it has received every message that is checked. Links are
fixed when the session begins, and the coin is a hash of the links of all, so nobody can predict it if one party is
honest. *Errors.* Let e_k be the errors of the opened words that an honest party received, not all 0. In each row
their subset sum is 0 with probability 1/2 at most: among the elements with the lowest nonzero bit of all e_k, one is
in the row with probability 1/2, whatever the others are. So all ROWS sums are 0 with probability 2^-ROWS at most.
Otherwise P, which must fit D, differs from the true sum by some d that is not 0 modulo 2^64. Then the z_i add up to 0
only if those who deviate guess alpha_j d modulo 2^112 for an honest j. As d has a 1 among its low 64 bits, this
determines alpha_j, which is uniform on 48 bits: 2^-48. They cannot wait for z_j, which is committed to. Random
coefficients of 64 bits instead of subset sums would be wrong: an error in the top bit would pass half of the time.
*Privacy.* The low words of P follow from opened words and the coin; its high words are uniform because of rho; z_i is
uniform given that their sum is 0. If a check fails, the sum of the z_i reveals alpha, so the session ends.

Escape probability of a run with n checks: n (2^-48 + 2^-48), and 2^-128 for collisions of SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.authentication.wide import Wide, project, project_words
from secure_sccvfl.protocols.dealing.randomness import Draw
from secure_sccvfl.protocols.errors import PeerError, ProtocolError

Words = npt.NDArray[np.uint64]


class MacKey(NamedTuple):
    """A party's part of the MAC key, and its share of an element that nobody knows, with the tag under that key.

    Models keep both. Before a later session the dealer checks the element (`fits_elements`): a party that told it
    another part of the key would learn sums of the model's weights from the check that fails.
    """

    part: int
    value: int = 0
    tag: int = 0

    def __repr__(self) -> str:
        return "<MacKey: hidden>"

    def words(self) -> Words:
        """As it is sent to the dealer, and kept in files."""
        return np.array([self.part, self.value, self.tag & (1 << 64) - 1, self.tag >> 64], np.uint64)

    @classmethod
    def of(cls, words: Iterable[Any]) -> MacKey:
        part, value, low, high = map(int, words)
        return cls(part, value, low + (high << 64))


def fits_elements(keys: Sequence[MacKey]) -> bool:
    """Whether the parties' parts are those under which their element has its tag; with new ones it is 0, without."""
    value, tag = sum(key.value for key in keys), sum(key.tag for key in keys)
    short = all(key.part <= KEY_MASK for key in keys)
    return short and (tag - sum(key.part for key in keys) * value) % (1 << TAG_BITS) == 0


ROWS = 48
KEY_MASK, TAG_BITS = (1 << 48) - 1, 112
"""Parts of the MAC key have 48 bits, and tags count modulo 2^112: the dealer sends 14 bytes for each."""
LINKS = 1 << 13
"""Checks of a session at most."""
MOST_PENDING = 1 << 21
"""So many opened elements are checked at once; each is kept with 56 bytes until then."""


class Chain:
    """Links of a hash chain, the last one first: each is a preimage of the one before."""

    def __init__(self, seed: bytes, links: int = LINKS) -> None:
        self._links = [seed]
        for _ in range(links):
            self._links.append(hashlib.sha256(self._links[-1]).digest())

    def next(self) -> bytes:
        if not self._links:
            raise ProtocolError(f"a session has at most {LINKS} checks")
        return self._links.pop()


def follows(link: bytes, before: bytes) -> bool:
    return hashlib.sha256(link).digest() == before


class Pending:
    """Opened elements that wait for a check: shares of what was opened, and the words."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows
        self._parts: list[tuple[Authenticated, Words]] = []
        self.size = 0

    def add(self, share: Authenticated, opened: npt.NDArray[np.int64]) -> None:
        """`opened` is what the parties should hold shares of; later changes of either array do not matter."""
        difference = opened.reshape(-1).view(np.uint64) - share.offset.reshape(-1)
        self._parts.append((Authenticated(share.pair.reshape(2, -1), np.zeros(share.size, np.uint64)), difference))
        self.size += share.size

    def sums(self, coin: bytes) -> tuple[Words, Wide]:
        """For each row the subset sums of the opened words, and of v_i and t_i (2 x rows). Empties the list."""
        draw, expected, total = Draw(coin, 0), np.zeros(self.rows, np.uint64), Wide.zeros((2, self.rows))
        for share, difference in self._parts:
            choice = draw.elements((share.size, self.rows // 8), np.uint8)
            expected += project_words(choice, difference[None])[0]
            total += project(choice, share.pair)
        self._parts, self.size = [], 0
        return expected, total


class Proofs:
    """Elements that are 0 if the inputs of their owner are well-formed, by owner; they wait for the next check."""

    def __init__(self) -> None:
        self.pending: dict[int, Pending] = {}

    @property
    def size(self) -> int:
        return sum(pending.size for pending in self.pending.values())

    def claim_zero(self, owner: int, elements: Authenticated) -> None:
        """The next check stops and names the owner unless all of these are 0."""
        self.pending.setdefault(owner, Pending()).add(elements, np.zeros(elements.size, np.int64))


def commitment(rank: int, salt: bytes, sums: Wide) -> bytes:
    return hashlib.sha256(b"sums of tags %d " % rank + salt + sums.lo.tobytes() + sums.hi.tobytes()).digest()


def without_top(sums: Wide) -> Wide:
    """Modulo 2^112: the bits above are not those of a tag, and nobody may see them."""
    return Wide(sums.lo, sums.hi & np.uint64(KEY_MASK))


def failed(step: str) -> PeerError:
    return PeerError("a party", step, "did not follow the protocol: the MACs of opened values do not verify")
