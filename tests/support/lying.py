"""Parties that lie in sessions with active security: a transport in memory, lies, and what became of each.

Processes are threads with queues between them. A message carries its step, types and shapes as frames of the real
links do, and a receiver refuses what it does not expect. Everything else is the code that runs use. A party that
stops tells the others. An attempt has the randomness of the honest run, so both can be compared to the last bit.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secure_sccvfl.protocols.config import ACTIVE, SessionConfig
from secure_sccvfl.protocols.dealing.dealer import Dealer
from secure_sccvfl.protocols.dealing.party import TAG, agree_on_keys
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import PeerError, PeerLate, PeerStopped, reason_for_peers
from secure_sccvfl.protocols.net.transport import Array, Meter, Spec, describe
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.randomness import drawn_from
from tests.support.sessions import in_threads

Job = Callable[[Session], Any]
PATIENCE = 300.0
"""Seconds that a message may take: reached only if something hangs."""
_HELD = 256
"""So many messages wait on a link: the dealer does not work further ahead."""
_DATA, _TEXT, _GOODBYE, _ABORT, _LOST = range(5)


class Network:
    """A queue for every ordered pair of processes."""

    def __init__(self, parties: int) -> None:
        nodes = range(parties + 1)
        self.links = {(a, b): queue.Queue[Any]() for a in nodes for b in nodes if a != b}
        self.stopped = threading.Event()


class InMemory:
    """A transport of one process."""

    def __init__(self, network: Network, node: int, parties: int) -> None:
        self.node, self.parties, self.meter, self.deadline = node, parties, Meter(), PATIENCE
        self._network, self._peers = network, [peer for peer in range(parties + 1) if peer != node]

    def _put(self, peer: int, message: Any) -> None:
        link = self._network.links[self.node, peer]
        while link.qsize() > _HELD and not self._network.stopped.wait(0.001):
            pass
        link.put(message)

    def _get(self, peer: int, step: str, kind: int, wait: bool = True) -> Any:
        try:
            came, content = self._network.links[peer, self.node].get(wait, PATIENCE)
        except queue.Empty:
            if not wait:
                return None
            raise PeerLate(f"party {peer}", step, "did not answer") from None
        if came == _ABORT:
            raise PeerStopped(f"party {peer}", step, content)
        if came == _LOST:
            raise PeerLate(f"party {peer}", step, "did not answer")
        if came != kind:
            raise PeerError(f"party {peer}", step, "sent another kind of message")
        return content

    def exchange(
        self, step: str, send: Mapping[int, Sequence[Array] | None], receive: Mapping[int, Sequence[Spec]]
    ) -> dict[int, list[Array]]:
        for peer, arrays in send.items():
            if arrays is None:
                self._put(peer, (_LOST, None))
                continue
            described = describe(step, [Spec.of(array) for array in arrays])
            self._put(peer, (_DATA, (described, [np.array(array) for array in arrays])))
        received: dict[int, list[Array]] = {}
        for peer, specs in receive.items():
            described, received[peer] = self._get(peer, step, _DATA)
            if described != describe(step, specs):
                raise PeerError(
                    f"party {peer}", step, f"sent {described[:60]!r} instead of {describe(step, specs)!r}"
                )
        self.meter.add(rounds=int(any(peer < self.parties for peer in (*send, *receive))))
        return received

    def send_message(self, peer: int, step: str, message: bytes | None) -> None:
        self._put(peer, (_LOST, None) if message is None else (_TEXT, message))

    def receive_message(self, peer: int, step: str, *, wait: float | None = None) -> bytes | None:
        content: bytes | None = self._get(peer, step, _TEXT, wait != 0)
        return content

    def skip_to(self, peer: int, step: str) -> None:
        while self._get(peer, step, _DATA)[0] != describe(step, []):
            pass

    def finish(self) -> None:
        for peer in self._peers:
            self._put(peer, (_GOODBYE, None))
        for peer in self._peers:
            self._get(peer, "goodbye", _GOODBYE)

    def abort(self, reason: str, waited_for: str = "") -> None:
        self._network.stopped.set()
        for peer in self._peers:
            self._network.links[self.node, peer].put((_ABORT, reason))


def general(step: str) -> str:
    """A step without what differs from run to run: numbers, digests, and how many releases are opened together."""
    named = re.fullmatch(r"((?:before |after )?release )(.+) [0-9a-f]{16}(:.*)?", step)
    if named is not None:
        releases = dict.fromkeys(re.sub(r"\d+", "#", name) for name in named[2].split(", "))
        return f"{named[1]}{', '.join(releases)}{named[3] or ''}"
    return re.sub(r"\d+", "#", step)


def is_release(step: str) -> bool:
    """Whether shares of a release are sent in this (general) step."""
    return step.startswith("release ") and step != "release plan"


@dataclass(frozen=True)
class Lie:
    """What party `rank` changes: its message number `at` in a step, at these peers; drawn: of words and positions."""

    rank: int
    step: str
    at: int
    kind: str
    drawn: int
    alone: bool = False
    """Only one peer gets it."""


KINDS = (
    *("low bit", "middle bit", "top bit", "a word", "longer", "other array", "swapped", "zeros", "replayed"),
    *("to each another", "dropped"),
)


BY_ITSELF = "the liar stops by itself"


class Liar:
    """A party's transport that notes what is sent; `lie` changes one message."""

    def __init__(self, inner: InMemory, trace: Trace, lie: Lie | None = None) -> None:
        self._inner, self._trace, self._lie = inner, trace, lie
        self._last: dict[str, Any] = {}

    def abort(self, reason: str, waited_for: str = "") -> None:
        self._inner.abort(reason if self._lie is None else BY_ITSELF)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, step: str, send: Mapping[int, Sequence[Array]], receive: Any) -> Any:
        name = general(step)
        sends: dict[int, Any] = {peer: arrays for peer, arrays in send.items() if arrays}
        if sends:
            number = self._trace.note(name, [len(one.tobytes()) for one in next(iter(sends.values()))])
            if self._lie is not None and (self._lie.step, self._lie.at) == (name, number):
                self._trace.releases_before = sum(map(is_release, self._trace.sent))
                send = {**send, **changed(self._lie, sends, self._last.get(name))}
                self._trace.lied = any(not _same(send[peer], sends[peer]) for peer in sends)
            self._last[name] = sends
        for peer, arrays in send.items():
            if peer < self._inner.parties and arrays is not None:
                self._trace.to_parties += b"".join(one.tobytes() for one in arrays)
        received = self._inner.exchange(step, send, receive)
        _, check, last = step.partition(": ")
        if check:
            kept = self._trace.received.setdefault(last, [])
            kept.extend(one.copy() for arrays in received.values() for one in arrays)
        return received

    def send_message(self, peer: int, step: str, message: bytes) -> None:
        name = f"{general(step)} (dealer)"
        number = self._trace.note(name, [len(message)])
        if self._lie is not None and (self._lie.step, self._lie.at) == (name, number):
            self._trace.releases_before = sum(map(is_release, self._trace.sent))
            words = changed(self._lie, {peer: [np.frombuffer(message, np.uint8)]}, self._last.get(name))[peer]
            other = None if words is None else b"".join(part.tobytes() for part in words)
            self._trace.lied = other != message
            self._inner.send_message(peer, step, other)
            return
        self._last[name] = {peer: [np.frombuffer(message, np.uint8)]}
        self._inner.send_message(peer, step, message)


def _same(one: Sequence[Array] | None, other: Sequence[Array]) -> bool:
    return one is not None and len(one) == len(other) and all(map(np.array_equal, one, other))


def changed(lie: Lie, sends: Mapping[int, Sequence[Array]], before: Mapping[int, Any] | None) -> dict[int, Any]:
    """What the peers get instead. A kind that has nothing to change here flips a low bit."""
    rng = np.random.default_rng(lie.drawn)
    peers = list(sends)
    victims = [peers[lie.drawn % len(peers)]] if lie.alone else peers
    if lie.kind == "dropped":
        return dict.fromkeys(victims)
    if lie.kind == "to each another":
        return {peer: _flipped(sends[peer], rng, 1 + number) for number, peer in enumerate(peers)}
    state = rng.bit_generator.state
    result = {}
    for peer in victims:
        rng.bit_generator.state = state  # the same change at all
        arrays, old = [np.array(one) for one in sends[peer]], (before or {}).get(peer)
        full = [at for at, one in enumerate(arrays) if one.size]
        if lie.kind == "longer":
            arrays[-1] = np.append(arrays[-1].reshape(-1), arrays[-1].dtype.type(1))
        elif lie.kind == "zeros" and any(one.any() for one in arrays):
            arrays = [np.zeros_like(one) for one in arrays]
        elif lie.kind == "replayed" and old is not None and _specs(old) == _specs(arrays):
            arrays = [np.array(one) for one in old]
        elif lie.kind == "other array" and full:
            at = int(rng.choice(full))
            drawn = np.frombuffer(rng.bytes(arrays[at].nbytes), arrays[at].dtype)
            arrays[at] = drawn.reshape(arrays[at].shape).copy()
        elif lie.kind == "swapped":
            arrays = _swapped(arrays)
        elif lie.kind in ("top bit", "middle bit"):
            arrays = _flipped(arrays, rng, 0, lie.kind)
        elif lie.kind == "a word":
            arrays = _flipped(arrays, rng, int(rng.integers(1, 1 << 62)))
        else:
            arrays = _flipped(arrays, rng, 0)
        result[peer] = arrays if not _same(arrays, sends[peer]) else _flipped(sends[peer], rng, 0)
    return result


def _specs(arrays: Sequence[Array]) -> list[Spec]:
    return [Spec.of(one) for one in arrays]


def _swapped(arrays: list[Array]) -> list[Array]:
    """Two arrays, or else two rows."""
    for at, one in enumerate(arrays):
        for other in range(at):
            if Spec.of(one) == Spec.of(arrays[other]) and one.size:
                arrays[at], arrays[other] = arrays[other], one
                return arrays
    for one in arrays:
        if one.ndim and len(one) > 1:
            one[[0, -1]] = one[[-1, 0]]
            return arrays
    return arrays


def _flipped(arrays: Sequence[Array], rng: np.random.Generator, added: int, which: str = "low bit") -> list[Array]:
    """One element with a bit flipped, or with a number added to its bits."""
    result = [np.array(one) for one in arrays]
    full = [at for at, one in enumerate(result) if one.size]
    if not full:
        return [*result, np.ones(1, np.int64)]
    chosen = result[int(rng.choice(full))]
    words: Any = chosen.reshape(-1).view(f"<u{chosen.dtype.itemsize}")
    bits = 8 * chosen.dtype.itemsize
    at, shift = int(rng.integers(words.size)), {"low bit": 0, "middle bit": bits // 2, "top bit": bits - 1}[which]
    if added:
        words[at] = (int(words[at]) + (added % (1 << bits) or 1)) % (1 << bits)
    else:
        words[at] = int(words[at]) ^ (1 << shift)
    return result


@dataclass
class Trace:
    """What one party did: the steps in which it sent, and what it was given of what was opened."""

    sent: list[str] = field(default_factory=list)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    given: list[Any] = field(default_factory=list)
    received: dict[str, list[Array]] = field(default_factory=dict)
    """In checks, by the last words of the step."""
    to_parties: bytearray = field(default_factory=bytearray)
    result: Any = None
    error: BaseException | None = None
    lied: bool = False
    releases_before: int = 0

    def note(self, step: str, sizes: list[int]) -> int:
        """The number of this message among those of its step."""
        self.sent.append(step)
        self.sizes[step] = sizes
        return self.sent.count(step) - 1


def attempt(
    job: Job,
    plan: ReleasePlan,
    parties: int,
    lie: Lie | None = None,
    name: str | None = "lying parties",
    mac_keys: Sequence[MacKey] | None = None,
) -> list[Trace]:
    """A session with active security in which one party lies, or none; what each process did, the dealer last.

    Its randomness depends on the name alone; without one it is fresh. mac_keys: of the model that is used.
    """
    addresses = tuple(f"127.0.0.1:{7000 + rank}" for rank in range(parties))
    config = SessionConfig(parties=addresses, options={"security": ACTIVE})
    network, traces = Network(parties), [Trace() for _ in range(parties + 1)]

    def party(rank: int) -> None:
        trace = traces[rank]
        transport: Any = Liar(
            InMemory(network, rank, parties), trace, lie if lie is not None and lie.rank == rank else None
        )
        try:
            session = Session(transport, config, plan, mac_key=None if mac_keys is None else mac_keys[rank])
            with session:
                _watch(session, trace)
                if lie is not None and lie.rank == rank:
                    _look_away(session)
                trace.result = job(session)
        except Exception as error:
            trace.error = error

    def dealer() -> None:
        transport = InMemory(network, parties, parties)
        try:
            Dealer(transport, agree_on_keys(transport, config), PATIENCE, True).serve()
            transport.finish()
        except Exception as error:
            traces[parties].error = error
            transport.abort(reason_for_peers(error))

    with drawn_from(name):
        in_threads([*(lambda rank=rank: party(rank) for rank in range(parties)), dealer])
    return traces


def _watch(session: Session, trace: Trace) -> None:
    """Keep what this party is given of releases and announcements."""
    collect, announce = session.party.collect_all, session.announce

    def collecting(*given: Any) -> Any:
        totals = collect(*given)
        trace.given.extend(None if total is None else np.array(total) for total in totals)
        return totals

    def announcing(*given: Any) -> Any:
        announced = announce(*given)
        trace.given.append(np.array([announced[key] for key in sorted(announced)]))
        return announced

    vars(session.party)["collect_all"], vars(session)["announce"] = collecting, announcing


def _look_away(session: Session) -> None:
    """The liar goes on where its own checks fail: it is for the others to stop."""

    def careless(check: Callable[..., Any]) -> Callable[..., Any]:
        def checking(*given: Any) -> Any:
            try:
                return check(*given)
            except PeerError as error:
                if isinstance(error, (PeerStopped, PeerLate)):
                    raise
                return None

        return checking

    party = session.party

    def compared(step: str, send: Any, receive: Any) -> Any:
        tags = party._broadcasts.mac_tags()
        received = party.transport.exchange(
            step,
            {peer: [*send.get(peer, ()), tags[peer]] for peer in party.others},
            {peer: [*receive.get(peer, ()), TAG] for peer in party.others},
        )
        return {peer: arrays[:-1] for peer, arrays in received.items()}

    def confirm(step: str, *more: Array) -> Any:
        shares = [party.known(share) for share in party.take("confirmation", party.parties)["c"]]
        specs = [Spec.of(shares[party.rank]), *map(Spec.of, more)]
        received = compared(
            step, {peer: [shares[peer], *more] for peer in party.others}, dict.fromkeys(party.others, specs)
        )
        return {peer: arrays[1:] for peer, arrays in received.items()}

    vars(party).update(verify=careless(party.verify), confirm=confirm, compared=compared)


def verdict(honest: Sequence[Trace], tried: Sequence[Trace], lie: Lie, own_words: bool, late: bool = False) -> str:
    """'detected', 'no effect', 'other input', 'nothing changed' or 'FINDING: ...' of an attempt.

    own_words: the step carries what the party itself may choose, so that other words, the same to all, may lead to
    other results, the same at all. late: the shares of the next release may be sent before an honest party stops,
    since they are right, but nobody is given it.
    """
    liar = tried[lie.rank]
    if not liar.lied:
        return "nothing changed"
    others = [rank for rank in range(len(tried) - 1) if rank != lie.rank]
    chosen = own_words and (len(others) == 1 or not (lie.alone or lie.kind == "to each another"))
    stopped = [error for rank in others if (error := tried[rank].error) is not None]
    if stopped:
        for rank in others:
            given, expected = tried[rank].given, honest[rank].given
            if not own_words and not (len(given) <= len(expected) and all(map(_equal, given, expected))):
                return f"FINDING: party {rank} was given {given[-1:]} before a party stopped"
        # A share alone is uniform: a release is open once all honest parties have sent theirs.
        opened = min(sum(map(is_release, tried[rank].sent)) for rank in others)
        if opened > liar.releases_before and not (own_words or late):
            return f"FINDING: {opened - liar.releases_before} releases were opened after the lie"
        if all(BY_ITSELF in str(error) for error in (*stopped, tried[-1].error or BY_ITSELF)):
            return "FINDING: only the liar noticed"
        strange = [error for error in stopped if not type(error).__module__.startswith("secure_sccvfl")]
        return f"FINDING: stopped by {strange[0]!r}" if strange else "detected"
    if all(_given(tried[rank]) == _given(honest[rank]) for rank in others):
        return "no effect"
    if not chosen:
        return "FINDING: other values were opened"
    same = [rank for rank in others if _given(honest[rank]) == _given(honest[others[0]])]
    agree = all(_given(tried[rank]) == _given(tried[same[0]]) for rank in same)
    return "other input" if agree else "FINDING: honest parties were given different values"


def _given(trace: Trace) -> list[bytes | None]:
    return [None if value is None else value.tobytes() for value in trace.given]


def _equal(one: Any, other: Any) -> bool:
    return (one is None and other is None) or (
        one is not None and other is not None and np.array_equal(np.asarray(one), np.asarray(other))
    )
