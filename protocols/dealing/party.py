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

Active security. Parties that deviate can also change their shares. So with `active` every share of a tuple has a MAC
tag (protocols/authentication/shares.py), each party chooses a part of the MAC key and sends it to the dealer alone,
and everything that is opened is checked before and after each release (`verify`, verification.py). An owner puts
what it knows under a mask that only it and the dealer know, and broadcasts the difference (`inputs`). A release that
is not for all parties is opened under masks that only its receivers know. A share without a tag cannot be opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.poly1305 import Poly1305

from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.authentication.wide import Wide, concatenate
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.dealing import verification
from secure_sccvfl.protocols.dealing.dealer import TupleSource
from secure_sccvfl.protocols.dealing.randomness import KEY_BYTES, KeyAgreement, Stream, fresh_key
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import PeerError, ProtocolError
from secure_sccvfl.protocols.net.link import as_bytes
from secure_sccvfl.protocols.net.transport import Array, Spec, Transport
from secure_sccvfl.protocols.records.key_mark import KeyMark
from secure_sccvfl.protocols.records.releases import Admission
from secure_sccvfl.protocols.ring import RingArray, Share

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
        try:
            keys[peer] = agreement.agree(received[peer][0].tobytes(), f" {low} {high} ".encode() + config.digest())
        except ValueError:  # a point of small order
            raise PeerError(config.node_name(peer), "key agreement", "sent a public key that gives no key") from None
    return keys


class Party:
    """One party's keys, transport and tuples, on which the protocols of this package run."""

    def __init__(
        self,
        transport: Transport,
        keys: dict[int, bytes],
        active: bool = False,
        mac_key: MacKey | None = None,
        mark: KeyMark | None = None,
    ) -> None:
        """mac_key: this party's part of the MAC key, if it uses a model that was trained under one.

        mark: next to what is saved under the key.
        """
        self.transport, self.active = transport, active
        self.rank, self.parties = transport.node, transport.parties
        self.tuples = TupleSource(transport, keys[transport.parties], active)
        self.others = [rank for rank in range(self.parties) if rank != self.rank]
        self._zeros = {rank: Stream(keys[rank], "zero shares") for rank in self.others}
        self.local = Stream(fresh_key(), "local")
        self._broadcasts = BroadcastTags({rank: Stream(keys[rank], "heard") for rank in self.others})
        self.pending = verification.Pending()
        """What was opened since the last check, in a session with active security."""
        self.proofs = verification.Proofs()
        self._mark = KeyMark() if mark is None else mark
        if active:
            fresh = int(self.local.draw().elements((1,), np.uint64)[0]) & verification.KEY_MASK
            key = MacKey(fresh) if mac_key is None else mac_key
            transport.exchange("mac key", {transport.parties: [key.words()]}, {})
            self._begin_chains()
            if mac_key is None:
                pair = self.take("uniform", (1,), None)["a"].pair
                key = MacKey.of([key.part, pair.lo[0, 0], pair.lo[1, 0], pair.hi[1, 0]])
            self.mac_key = key

    @property
    def adds_public(self) -> bool:
        """Whether this party adds a public constant to its share: party 0, and all to authenticated shares."""
        return self.active or self.rank == 0

    def nothing(self, shape: tuple[int, ...]) -> Any:
        """A share of zeros that is not masked, to add shares to."""
        zeros = np.zeros(shape, np.int64)
        return Authenticated.public(zeros) if self.active else zeros

    @staticmethod
    def known(mask: Any) -> Share:
        """The elements of a mask that this party owns."""
        return mask.pair.lo[0].view(np.int64) if isinstance(mask, Authenticated) else mask

    def zero_share(self, shape: tuple[int, ...], among: Collection[int] | None = None) -> Any:
        """A share of zero: uniform, and all shares together cancel. `among`: the parties that have one, else all.

        A party that is not among them gets zeros. With active security the dealer deals it, to all parties.
        """
        if self.active:
            return self.take("zeros", shape)["a"]
        share = np.zeros(shape, np.int64)
        for rank, stream in self._zeros.items():
            if among is not None and not {rank, self.rank} <= set(among):
                continue
            elements = stream.draw().elements(shape)
            share += elements if rank > self.rank else -elements
        return share

    def take(self, kind: str, *arguments: Any) -> dict[str, Any]:
        """This party's share of every field of a tuple: `Authenticated` with active security."""
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

    def confirm(self, step: str, *more: Array) -> dict[int, list[Array]]:
        """Raise unless all received the same and sent the dealer the same requests. One round, 32 bytes to each.

        more: arrays that go to all in the same round; returns those of the others.
        """
        elements = self.take("confirmation", self.parties)
        shares, own = elements["c"], elements[f"t{self.rank}"]
        if self.active:
            shares, own = [self.known(share) for share in shares], self.known(own)
        specs = [Spec.of(shares[self.rank]), *map(Spec.of, more)]
        received = self.compared(
            step, {peer: [shares[peer], *more] for peer in self.others}, {peer: specs for peer in self.others}
        )
        back = shares[self.rank] + sum(arrays.pop(0) for arrays in received.values())
        if not np.array_equal(back, own):
            raise PeerError("a party", step, "cannot show that all sent the dealer the same requests")
        return received

    def open_masked(self, step: str, shares: Sequence[Array], how: How = "add") -> list[Array]:
        """The values behind masked shares, at every party, in one round."""
        if self.active:
            return self._open_authenticated(step, shares, how)
        specs = [Spec.of(share) for share in shares]
        received = self.broadcast(step, shares, {peer: specs for peer in self.others})
        join = np.add if how == "add" else np.bitwise_xor
        totals = received[self.others[0]]
        for arrays in (shares, *(received[peer] for peer in self.others[1:])):
            for total, array in zip(totals, arrays, strict=True):
                join(total, array, out=total)
        return totals

    def _open_authenticated(self, step: str, shares: Sequence[Any], how: How) -> list[Array]:
        """Open shares with tags; what was opened waits for a check."""
        if how != "add" or not all(isinstance(share, Authenticated) for share in shares):
            raise ProtocolError(f"{step}: active security does not cover this: a share without a tag would be opened")
        words = [share.words(self.rank) for share in shares]
        specs = [Spec.of(array) for array in words]
        received = self.broadcast(step, words, {peer: specs for peer in self.others})
        for arrays in received.values():
            for total, array in zip(words, arrays, strict=True):
                total += array
        for share, total in zip(shares, words, strict=True):
            self.pending.add(share, total)
        if self.pending.size > verification.MOST_PENDING:
            self.verify(f"check of {step}")
        return words

    def _begin_chains(self) -> None:
        chain = verification.Chain(fresh_key())
        anchor = np.frombuffer(chain.next(), np.uint8)
        received = self.broadcast("check anchors", [anchor], {peer: [Spec.of(anchor)] for peer in self.others})
        self._chain = chain
        self._links = {peer: arrays[0].tobytes() for peer, arrays in received.items()}

    def _coin(self, step: str) -> bytes:
        """Random bytes that nobody could know before all had sent what precedes this. The round of `confirm`."""
        link = np.frombuffer(self._chain.next(), np.uint8)
        for peer, (array,) in self.confirm(step, link).items():
            if not verification.follows(array.tobytes(), self._links[peer]):
                raise PeerError(f"party {peer}", step, "sent another coin than it had committed to")
            self._links[peer] = array.tobytes()
        links = {self.rank: link.tobytes()} | self._links
        return hashlib.sha256(b"coin" + b"".join(links[rank] for rank in sorted(links))).digest()

    def verify(self, step: str) -> None:
        """`confirm`, and raise unless everything opened since the last check is what was shared. Four rounds.

        See protocols/dealing/verification.py. Only `confirm` if nothing was opened.
        """
        claims = dict(sorted(self.proofs.pending.items()))
        opened = [self.pending] if self.pending.size else []
        if not opened and not claims:
            self.confirm(step)
            return
        self.proofs.pending = {}
        fits = self._agree(step, [*opened, *claims.values()])
        if opened and not fits.pop(0):
            raise verification.failed(step)
        for owner, fit in zip(claims, fits, strict=True):
            if not fit:
                raise PeerError(
                    f"party {owner}", step, "gave an input that is not in the form that the step requires"
                )

    def _agree(self, step: str, parts: Sequence[verification.Pending]) -> list[bool]:
        """Check the MACs; returns whether the words of each part fit. Raises if MACs do not verify. Four rounds."""
        rows = sum(part.rows for part in parts)
        rho, coin = self.take("uniform", (rows,), None)["a"], self._coin(step)
        done = [part.sums(hashlib.sha256(b"part %d " % at + coin).digest()) for at, part in enumerate(parts)]
        expected = np.concatenate([words for words, _ in done])
        sums = concatenate([wide for _, wide in done], 1)
        sums += rho.pair.shift_left(64)
        mine = Wide(sums.lo[0].copy(), sums.hi[0].copy())
        spec = [Spec.of(mine.lo), Spec.of(mine.hi)]
        specs = {peer: spec for peer in self.others}
        total = mine
        for low, high in self.broadcast(f"{step}: sums", [mine.lo, mine.hi], specs).values():
            total = total + Wide(low, high)
        difference = Wide(sums.lo[1], sums.hi[1]) - total.scaled(self.mac_key.part) + self._wide_zero(rows)
        difference = verification.without_top(difference)
        salt = self.local.draw().elements((32,), np.uint8)
        committed = np.frombuffer(verification.commitment(self.rank, salt.tobytes(), difference), np.uint8)
        promised = self.broadcast(
            f"{step}: commitment", [committed], {peer: [Spec.of(committed)] for peer in self.others}
        )
        self._mark.set()
        received = self.broadcast(
            f"{step}: sums of tags",
            [difference.lo, difference.hi, salt],
            {peer: [*spec, Spec.of(salt)] for peer in self.others},
        )
        for peer, (low, high, their_salt) in received.items():
            theirs = Wide(low, high)
            if verification.commitment(peer, their_salt.tobytes(), theirs) != promised[peer][0].tobytes():
                raise PeerError(f"party {peer}", step, "sent another sum of tags than it had committed to")
            difference = difference + theirs
        difference = verification.without_top(difference)
        if difference.lo.any() or difference.hi.any():
            raise verification.failed(step)
        self._mark.clear()
        fits = total.lo == expected
        edges = np.cumsum([part.rows for part in parts])[:-1]
        return [bool(part.all()) for part in np.split(fits, edges)]

    def _wide_zero(self, count: int) -> Wide:
        """A share of zeros modulo 2^128."""
        share = Wide.zeros((count,))
        for rank in self.others:
            low, high = self._zeros[rank].draw().elements((2, count), np.uint64)
            share = share + Wide(low, high) if rank > self.rank else share - Wide(low, high)
        return share

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

    def inputs(self, step: str, blocks: Sequence[tuple[int, RingArray | None, tuple[int, ...]]]) -> list[Any]:
        """Authenticated shares of what owners know: (owner, elements or None, shape) of each block. One round.

        An owner broadcasts its elements minus a mask that only it and the dealer know.
        """
        masks = [self.take("uniform", shape, owner)["a"] for owner, _, shape in blocks]
        sent = [
            np.ascontiguousarray(values - self.known(mask))
            for (owner, values, _), mask in zip(blocks, masks, strict=True)
            if owner == self.rank and values is not None
        ]
        specs = {rank: [Spec("<i8", shape) for owner, _, shape in blocks if owner == rank] for rank in self.others}
        received = self.broadcast(step, sent or None, {rank: spec for rank, spec in specs.items() if spec})
        arrays = {rank: iter(some) for rank, some in (received | {self.rank: sent}).items()}
        return [mask + next(arrays[owner]) for (owner, _, _), mask in zip(blocks, masks, strict=True)]

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
        if self.active:
            return self._collect_authenticated(step, admitted)
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

    def _collect_authenticated(self, step: str, admitted: Sequence[tuple[Admission, Any]]) -> list[RingArray | None]:
        """`collect_all` with checks before and after. What is not for all is opened under masks of its receivers."""
        everyone, shares, masks = range(self.parties), [], []
        for admission, share in admitted:
            receivers = sorted(set(admission.release.receivers))
            for receiver in [None] if len(receivers) == len(everyone) else receivers:
                mask = None if receiver is None else self.take("uniform", share.shape, receiver)["a"]
                shares.append(share if mask is None else share + mask)
                masks.append(self.known(mask) if mask is not None and receiver == self.rank else None)
        self.verify(f"before {step}")
        opened = iter(zip(self.open_masked(step, shares), masks, strict=True))
        self.verify(f"after {step}")
        results: list[RingArray | None] = []
        for admission, _ in admitted:
            receivers = sorted(set(admission.release.receivers))
            result = None
            for receiver in [None] if len(receivers) == len(everyone) else receivers:
                words, mask = next(opened)
                if receiver is None:
                    result = words
                elif mask is not None:
                    result = words - mask
            results.append(result)
        return results


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
