"""Private set intersection without a dealer: Diffie-Hellman in a ring; all parties learn the common records.

| | before | after |
|---|---|---|
| each party | its ids | which of its records all parties hold; how many records each party has |
| party 0 | | how many records are common to which parties, without knowing which records |
| dealer | nothing | nothing |

Party i draws a secret scalar k_i. H hashes ids to ristretto255 (SHA-512 with a label, mapped as in RFC 9496;
libsodium by the package rbcl), so nobody knows how elements of two ids relate. The group has prime order, so a
non-zero scalar maps elements one to one, and scalars commute.

1. The parties announce how many records they have: a declared release.
2. Each party computes k_i H(x) of its ids, shuffles them and passes them to the next party. That one multiplies by
   its own scalar, shuffles and passes on, until every list has been at every party: K H(x), K = k_0 k_1 ... k_(m-1).
3. The last party of each list sends 128 bits of each element to party 0, which compares the lists.
4. Party 0 announces how many elements are in all lists, a declared release, and sends one bit for each element of
   each list the same way back. Each party undoes its shuffle, so the bits arrive in the order of the owner's records.
5. The common table has the common records, sorted by id.

Why it is secure, for parties that follow the protocol. H is a random oracle. Under the decisional Diffie-Hellman
assumption, the elements k H(x) for one unknown k and different x look like independent uniform elements. Any m-1
parties see the list of the last one, and their own lists after it, under its scalar: equal where ids are equal,
otherwise uniform, and shuffled by orders that they do not know. So they learn how many of its records are in each
part of the Venn diagram of their lists and which records are common to all, but not which of their other records it
holds. A single party other than party 0 learns sizes and the common records.

Why shuffling: without it, party 0 would see its own list in its own order at the end, and so which of its records
each single party holds. An owner shuffles too, since the order of its file would reveal where the common records are.

What sizes reveal: a party with one record learns whether all others hold it, and so do parties that bring a made-up
list. Nothing here prevents this; sizes are announced so that it is seen.

An invalid or neutral element stops the session. So does an element that is in a list twice: party 0 counts in how
many lists an element is, and two copies would count as two lists. A deviating party 0 can send back bits of its
choice. Nobody can test ids offline: that takes the scalars of all others.

Rounds: 4 for two releases; one per chunk of 8192 elements in each of m - 1 passes and on the way to party 0; m on the
way back. Bytes: 32 (m - 1) + 16 for each record, 1/8 in each step back. A party multiplies m times for each record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.alignment.interface import COMMON, SIZES, AlignmentError, Progress, checked, rows_of
from secure_sccvfl.protocols.dealing.matching import ABSENT, PSEUDONYM_BYTES, Aligned, Pseudonyms, numbered
from secure_sccvfl.protocols.dealing.randomness import Draw, Unshown
from secure_sccvfl.protocols.errors import PeerError, ProtocolError
from secure_sccvfl.protocols.net.transport import Array, Spec
from secure_sccvfl.protocols.session.runtime import Session

Bits = npt.NDArray[np.uint8]
CHUNK = 1 << 13
_COMPARER = 0
_SECONDS_A_RECORD = 1e-3
"""How much longer to wait for each record of the others: ten times what one multiplication takes."""


class PrivateSetIntersection:
    """`progress` is called with the number of finished elements; `threads` share the multiplications."""

    def __init__(
        self, session: Session, progress: Progress = lambda step, done, total: None, threads: int = 1
    ) -> None:
        self._session, self._progress, self._threads = session, progress, threads
        self._party = session.party
        self._next = (session.rank + 1) % session.parties
        self._before = (session.rank - 1) % session.parties

    def align(self, ids: Iterable[str]) -> Aligned:
        names, session = checked(ids), self._session
        with session.measure("alignment"):
            announced = session.announce({f"party {session.rank}": len(names)}, session.declared(SIZES))
            sizes = [int(announced[f"party {rank}"]) for rank in range(session.parties)]
            if min(sizes) == 0:
                raise AlignmentError(f"party {sizes.index(0)} has no record, so no record is common to all")
            with session.deadline(self._party.transport.deadline + _SECONDS_A_RECORD * sum(sizes)):
                elements, orders = self._around(names, sizes)
                bits = self._compared(elements, sizes)
                mine = self._back(bits, orders, sizes)
        common = sorted(name for name, bit in zip(names, mine, strict=True) if bit)
        row = {name: at for at, name in enumerate(common)}
        return Aligned(len(common), np.array([row.get(name, ABSENT) for name in names], np.int64))

    def _holder(self, owner: int) -> int:
        return (owner - 1) % self._session.parties

    def _around(self, names: Sequence[str], sizes: Sequence[int]) -> tuple[Elements, list[npt.NDArray[np.int64]]]:
        """Every list to every party: the one that ends here, and the order that was used in each pass."""
        blinding = Blinding(self._party.local.draw(), self._threads)
        parties, rank = self._session.parties, self._session.rank
        total, done = sum(sizes), 0
        output = []
        for rows in rows_of(len(names), CHUNK):
            output.append(blinding.hashed(names[rows]))
            done += len(output[-1])
            self._progress("own records", done, total)
        orders = [self._party.local.draw().order(len(names))]
        held = np.concatenate(output)[orders[0]]
        for number in range(1, parties):
            output = [np.zeros((0, ELEMENT_BYTES), np.uint8)]
            for received in self._passed(f"pass {number}", held, sizes[(rank - number) % parties]):
                try:
                    output.append(blinding.blinded(received))
                except NoElement:
                    name = f"party {self._before}"
                    raise PeerError(name, f"pass {number}", "sent an invalid group element") from None
                done += len(received)
                self._progress(f"records of party {(rank - number) % parties}", done, total)
            passed = np.concatenate(output)
            orders.append(self._party.local.draw().order(len(passed)))
            held = passed[orders[-1]]
        return held, orders

    def _passed(self, step: str, held: Elements, expected: int) -> Iterable[Elements]:
        """Send a list to the next party in pieces, and receive the list of the one before."""
        sent, wanted = rows_of(len(held), CHUNK), rows_of(expected, CHUNK)
        for number in range(max(len(sent), len(wanted))):
            send = {self._next: [held[sent[number]]]} if number < len(sent) else {}
            receive = {}
            if number < len(wanted):
                rows = wanted[number]
                receive = {self._before: [Spec("|u1", (rows.stop - rows.start, ELEMENT_BYTES))]}
            received = self._party.transport.exchange(step, send, receive)
            if received:
                yield received[self._before][0]

    def _compared(self, held: Elements, sizes: Sequence[int]) -> Bits:
        """One bit for each element of the list that ended here: is it in all lists?"""
        session, step = self._session, "lists to compare"
        list_owner = (session.rank + 1) % session.parties
        short = np.ascontiguousarray(held[:, :PSEUDONYM_BYTES]).view("<u8")
        if session.rank == _COMPARER:
            lists = [self._list_of(step, owner, sizes[owner], short) for owner in range(session.parties)]
            check_repeats(lists)
            common = in_all(lists)
            self._open(len(common[0].nonzero()[0]))
            for owner in range(session.parties):
                if self._holder(owner) != _COMPARER:
                    send: dict[int, list[Array]] = {self._holder(owner): [np.packbits(common[owner])]}
                    self._party.transport.exchange("bits of common records", send, {})
            return common[list_owner]
        for rows in rows_of(len(short), CHUNK):
            self._party.transport.exchange(step, {_COMPARER: [short[rows]]}, {})
        self._open(None)
        return self._bits("bits of common records", _COMPARER, len(short))

    def _list_of(self, step: str, owner: int, size: int, held_here: Pseudonyms) -> Pseudonyms:
        """A list as party 0 has it: from its holder, or its own."""
        holder = self._holder(owner)
        if holder == _COMPARER:
            return held_here
        pieces = []
        for rows in rows_of(size, CHUNK):
            spec = Spec("<u8", (rows.stop - rows.start, PSEUDONYM_BYTES // 8))
            pieces += self._party.transport.exchange(step, {}, {holder: [spec]})[holder]
        return np.concatenate(pieces)

    def _open(self, count: int | None) -> None:
        """Party 0 announces the number of common records; all stop if there are none."""
        announced = self._session.announce(
            {} if count is None else {"records": count}, self._session.declared(COMMON)
        )
        if not announced.get("records"):
            raise AlignmentError("no record is common to all parties: do all parties use the same id rule?")

    def _back(self, bits: Bits, orders: Sequence[npt.NDArray[np.int64]], sizes: Sequence[int]) -> Bits:
        """The bits of each list to its owner, in the order of its records."""
        rank, parties = self._session.rank, self._session.parties
        for number in range(parties - 1, 0, -1):
            send: dict[int, list[Array]] = {self._before: [np.packbits(_undone(bits, orders[number]))]}
            bits = self._bits(f"back {number}", self._next, sizes[(rank + 1 - number) % parties], send)
        return _undone(bits, orders[0])

    def _bits(self, step: str, peer: int, count: int, send: dict[int, list[Array]] | None = None) -> Bits:
        received = self._party.transport.exchange(step, send or {}, {peer: [Spec("|u1", ((count + 7) // 8,))]})
        return np.unpackbits(received[peer][0], count=count)


def _undone(bits: Bits, order: npt.NDArray[np.int64]) -> Bits:
    """Bits of a shuffled list, in the order before the shuffle."""
    undone = np.empty_like(bits)
    undone[order] = bits
    return undone


def check_repeats(lists: Sequence[Pseudonyms]) -> None:
    """Raise if a list has an element twice: its owner's bits would reveal which records some of the others hold."""
    for owner, elements in enumerate(lists):
        if numbered([elements])[0] < len(elements):
            raise PeerError(f"party {owner}", "lists to compare", "its list has an element twice")


def in_all(lists: Sequence[Pseudonyms]) -> list[Bits]:
    """For each list, which of its elements are in all lists. No list has an element twice."""
    different, numbers = numbered(lists)
    counts = np.bincount(np.concatenate(numbers), minlength=different)
    return [(counts[list_numbers] == len(lists)).astype(np.uint8) for list_numbers in numbers]


Elements = npt.NDArray[np.uint8]
"""One row of 32 bytes for each element."""
ELEMENT_BYTES = 32
_LABEL = b"sccvfl alignment ristretto255 "
_UNREDUCED_BYTES = 64


class NoElement(Exception):
    """Bytes that stand for no element of the group, or for its neutral one."""


class Blinding(Unshown):
    """A secret scalar, which is never shown. `threads` share the work: libsodium releases the GIL."""

    __slots__ = ("_scalar", "_threads")

    def __init__(self, draw: Draw, threads: int = 1) -> None:
        group, scalar = _group(), bytes(ELEMENT_BYTES)
        while not any(scalar):
            scalar = group.crypto_core_ristretto255_scalar_reduce(
                draw.elements((_UNREDUCED_BYTES,), np.uint8).tobytes()
            )
        self._scalar, self._threads = scalar, threads

    def hashed(self, ids: Sequence[str]) -> Elements:
        to_group = _group().crypto_core_ristretto255_from_hash

        def element(name: str) -> bytes:
            return self._multiplied(to_group(hashlib.sha512(_LABEL + name.encode()).digest()))

        return self._each(element, ids)

    def blinded(self, elements: Elements) -> Elements:
        """Elements under this scalar too, in the same order; raises NoElement for what is none."""
        flat = elements.tobytes()
        return self._each(
            self._multiplied, [flat[at : at + ELEMENT_BYTES] for at in range(0, len(flat), ELEMENT_BYTES)]
        )

    def _multiplied(self, element: bytes) -> bytes:
        try:
            output: bytes = _group().crypto_scalarmult_ristretto255(self._scalar, element)
        except RuntimeError:
            raise NoElement from None
        return output

    def _each(self, make: Callable[[Any], bytes], items: Sequence[Any]) -> Elements:
        def some(first: int) -> bytes:
            return b"".join(map(make, items[first :: self._threads]))

        output = np.empty((len(items), ELEMENT_BYTES), np.uint8)
        with ThreadPoolExecutor(self._threads) if self._threads > 1 else contextlib.nullcontext() as pool:
            parts = (pool.map if pool is not None else map)(some, range(self._threads))
            for first, part in enumerate(parts):
                output[first :: self._threads] = np.frombuffer(part, np.uint8).reshape(-1, ELEMENT_BYTES)
        return output


@cache
def _group() -> Any:
    try:
        import rbcl
    except ModuleNotFoundError as error:
        raise ProtocolError(f"{error.name} is not installed; run `make env`") from None
    # rbcl writes libsodium to a temporary file, loads it, and leaves it there.
    with contextlib.suppress(KeyError, AttributeError, OSError):
        os.unlink(sys.modules["rbcl._sodium"].lib_path)
    return rbcl
