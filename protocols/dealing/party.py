"""One party's view of a running session, without CrypTen: keys, zero shares, masked openings, consistency checks.

Set-up. Every pair of processes agrees on a fresh key (X25519 inside the authenticated channel). Keys between two
parties give zero shares; keys between a party and the dealer give tuples. A local key serves draws of
one party.

Zero shares: every pair (i, j) expands the same ring elements; i adds them, j subtracts them. With m parties the
shares of any two honest parties still differ by elements that the other m-2 do not know. (CrypTen uses a ring of
neighbours, where the two neighbours of a party would know its zero share, and so could read its summand in an opened
sum.)

Masked opening: each party sends its share of x - a to all others, one round. `a` is uniform and used once, so the
opened value is uniform whatever x is. This is the only opening besides a declared release.

Before a release the parties check two things, in one round and with one small tuple (`confirm`):

1. All received the same broadcasts. A party that sent different arrays to two honest parties would make them compute
   with different numbers, and could read secrets off the result. So each pair (i, j) keeps a running Poly1305 tag of
   everything that any third party k broadcast, under a one-time key that only i and j know, and compares it over its
   own link, which k cannot change. k does not know the key, so different arrays have the same tag only with
   probability 2^-103 times the number of 16-byte blocks (2^-77 for a gigabyte). Every comparison starts a fresh key.
2. All sent the dealer the same requests: the dealer knows two secret elements of each party and shares them out. Each
   party gets its own elements back from the others' shares, which cannot be forged (probability 2^-128).

Only then does a party send its share of what is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.poly1305 import Poly1305

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.dealing.dealer import TupleSource
from secure_sccvfl.protocols.dealing.randomness import KEY_BYTES, KeyAgreement, Stream, fresh_key
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.errors import PeerError
from secure_sccvfl.protocols.net.link import as_bytes
from secure_sccvfl.protocols.net.transport import Array, Spec, Transport
from secure_sccvfl.protocols.records.releases import Admission
from secure_sccvfl.protocols.ring import RingArray

How = Literal["add", "xor"]


def agree_on_keys(transport: Transport, config: SessionConfig) -> dict[int, bytes]:
    """A fresh 256-bit key with every other process of the session."""
    agreement = KeyAgreement()
    peers = [node for node in range(transport.parties + 1) if node != transport.node]
    public = np.frombuffer(agreement.public, dtype=np.uint8)
    received = transport.exchange(
        "key agreement", {peer: [public] for peer in peers}, {peer: [Spec.of(public)] for peer in peers}
    )
    keys = {}
    for peer in peers:
        low, high = sorted((peer, transport.node))
        keys[peer] = agreement.agree(received[peer][0].tobytes(), f" {low} {high} ".encode() + config.digest())
    return keys


class Party:
    """One party's keys, transport and tuples, on which the protocols of this package run."""

    def __init__(self, transport: Transport, keys: dict[int, bytes]) -> None:
        self.transport = transport
        self.rank, self.parties = transport.node, transport.parties
        self.tuples = TupleSource(transport, keys[transport.parties])
        self.others = [rank for rank in range(self.parties) if rank != self.rank]
        self._zeros = {rank: Stream(keys[rank], "zero shares") for rank in self.others}
        self.local = Stream(fresh_key(), "local")
        self._broadcasts = BroadcastTags({rank: Stream(keys[rank], "heard") for rank in self.others})

    def zero_share(self, shape: tuple[int, ...], among: Collection[int] | None = None) -> RingArray:
        """A share of zero: uniform, and all shares together cancel. `among`: the parties that have one, else all.

        A party that is not among them gets zeros.
        """
        share = np.zeros(shape, np.int64)
        for rank, stream in self._zeros.items():
            if among is not None and not {rank, self.rank} <= set(among):
                continue
            elements = stream.draw().elements(shape)
            share += elements if rank > self.rank else -elements
        return share

    def take(self, kind: str, *arguments: Any) -> dict[str, Array]:
        return self.tuples.take(Request(kind, arguments))[1]

    def broadcast(
        self, step: str, arrays: Sequence[Array] | None, theirs: Mapping[int, Sequence[Spec]]
    ) -> dict[int, list[Array]]:
        """One round: send the same arrays to all others, receive some broadcasts; recorded for `confirm`."""
        received = self.transport.exchange(
            step, {peer: arrays for peer in self.others} if arrays is not None else {}, theirs
        )
        self._broadcasts.add(received)
        return received

    def compared(
        self, step: str, send: Mapping[int, Sequence[Array]], receive: Mapping[int, Sequence[Spec]]
    ) -> dict[int, list[Array]]:
        """A round with every other party that also checks that both received the same so far; raises if not."""
        mac_tags = self._broadcasts.mac_tags()
        received = self.transport.exchange(
            step,
            {peer: [*send.get(peer, ()), mac_tags[peer]] for peer in self.others},
            {peer: [*receive.get(peer, ()), TAG] for peer in self.others},
        )
        differing = [
            f"party {peer}" for peer in self.others if not np.array_equal(received[peer].pop(), mac_tags[peer])
        ]
        if differing:
            reason = "received something else: a party sent different data to different parties"
            raise PeerError(", ".join(differing), step, reason)
        return received

    def confirm(self, step: str) -> None:
        """Raise unless all received the same and sent the dealer the same requests. One round, 32 bytes to each."""
        elements = self.take("confirmation", self.parties)
        shares = elements["c"]
        specs = [Spec.of(shares[self.rank])]
        received = self.compared(
            step, {peer: [shares[peer]] for peer in self.others}, {peer: specs for peer in self.others}
        )
        back = shares[self.rank] + sum(arrays[0] for arrays in received.values())
        if not np.array_equal(back, elements[f"t{self.rank}"]):
            raise PeerError("a party", step, "cannot show that all sent the dealer the same requests")

    def open_masked(self, step: str, shares: Sequence[Array], how: How = "add") -> list[Array]:
        """The values behind masked shares, at every party, in one round."""
        specs = [Spec.of(share) for share in shares]
        received = self.broadcast(step, shares, {peer: specs for peer in self.others})
        join = np.add if how == "add" else np.bitwise_xor
        totals = received[self.others[0]]
        for arrays in (shares, *(received[peer] for peer in self.others[1:])):
            for total, array in zip(totals, arrays, strict=True):
                join(total, array, out=total)
        return totals

    def open_slices(self, step: str, masked: RingArray) -> tuple[slice, RingArray, npt.NDArray[np.bool_]]:
        """Open masked values in m slices, slice k to party k only, and all signs at every party: two rounds.

        For large arrays whose value only one party needs: an m-th of the bytes of `open_masked`.
        """
        bounds = [masked.size * k // self.parties for k in range(self.parties + 1)]
        slices = [slice(low, high) for low, high in pairwise(bounds)]
        opened_slice = masked[slices[self.rank]].copy()
        received = self.transport.exchange(
            step, {k: [masked[slices[k]]] for k in self.others}, {k: [Spec.of(opened_slice)] for k in self.others}
        )
        for arrays in received.values():
            opened_slice += arrays[0]
        lengths = [part.stop - part.start for part in slices]
        signs = np.packbits(opened_slice < 0)
        packed = self.broadcast(
            f"{step} signs",
            [signs],
            {k: [Spec("|u1", ((lengths[k] + 7) // 8,))] for k in self.others},
        )
        packed[self.rank] = [signs]
        negative = np.concatenate([np.unpackbits(packed[k][0], count=lengths[k]) for k in range(self.parties)])
        return slices[self.rank], opened_slice, negative.view(np.bool_)

    def publish(self, step: str, owner: int, array: Array | None, spec: Spec) -> Array:
        """Send a masked array that only `owner` holds to all others in one round."""
        if self.rank == owner:
            if array is None or Spec.of(array) != spec:
                raise ValueError("the owner must give an array of the agreed shape")
            self.broadcast(step, [array], {})
            return array
        return self.broadcast(step, None, {owner: [spec]})[owner][0]

    def collect_all(
        self, admitted: Sequence[tuple[Admission, RingArray]], among: Collection[int] | None = None
    ) -> list[RingArray | None]:
        """Sums of the shares of admitted releases, each at its own receivers only; None elsewhere. Two rounds.

        `among`: the parties whose shares are summed, else all; the others send none.
        """
        names = ", ".join(admission.release.name for admission, _ in admitted)
        step = f"release {names} {admitted[-1][0].head[:16]}"
        self.confirm(f"before {step}")

        def shares_for(rank: int) -> list[RingArray]:
            return [share for admission, share in admitted if rank in admission.release.receivers]

        adds = among is None or self.rank in among
        send = {peer: arrays for peer in self.others if adds and (arrays := shares_for(peer))}
        totals = [share.copy() for share in shares_for(self.rank)]
        specs = [Spec.of(total) for total in totals]
        theirs = {peer: specs for peer in self.others if specs and (among is None or peer in among)}
        if all(len(admission.release.receivers) == self.parties for admission, _ in admitted):
            received = self.broadcast(step, shares_for(self.rank) if adds else None, theirs)
        else:
            received = self.transport.exchange(step, send, theirs)
        for arrays in received.values():
            for total, array in zip(totals, arrays, strict=True):
                total += array
        mine = iter(totals)
        return [next(mine) if self.rank in a.release.receivers else None for a, _ in admitted]


TAG = Spec("|u1", (16,))


class BroadcastTags:
    """What one party received, by the peer with which it will compare."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        self._running = {peer: _fresh(stream) for peer, stream in streams.items()}

    def add(self, received: Mapping[int, Sequence[Array]]) -> None:
        """Add the broadcasts of others in one round; the others compare this party's own."""
        for rank in sorted(received):
            for view in map(as_bytes, received[rank]):
                for peer, running in self._running.items():
                    if peer != rank:
                        running.update(view)

    def mac_tags(self) -> dict[int, npt.NDArray[np.uint8]]:
        """For each peer, the tag of what it should have received too; then a new key starts."""
        mac_tags = {peer: np.frombuffer(running.finalize(), np.uint8) for peer, running in self._running.items()}
        self._running = {peer: _fresh(stream) for peer, stream in self._streams.items()}
        return mac_tags


def _fresh(stream: Stream) -> Poly1305:
    return Poly1305(stream.draw().elements((KEY_BYTES,), np.uint8).tobytes())
