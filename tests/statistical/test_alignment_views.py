"""What a party sees of an alignment is the same whatever records the others hold, as long as sizes are the same.

Hidden, three parties: what comes to party 0 in two worlds. In one both others hold the first half of its records, in
the other only one of them holds any, the second half. The union has the same size. Its places must be a random
choice: as often rising as falling along its tags, and no higher or lower for the records that others hold. Its shares
of membership must be uniform ring elements. The same of parties 0 and 1 together, whatever party 2 holds.

Revealed: what party 0 compares, next to the order in which it sent its list, reveals nothing about which of its
records single others hold. The bits that pass through party 1 reveal nothing about where common records are in a
list. Elements are uniform bytes.

Each check has a control in which the protection is taken away, and fires.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from secure_sccvfl.protocols.alignment.hidden_intersection import HiddenIntersection, SessionPseudonyms
from secure_sccvfl.protocols.alignment.interface import UNION, releases
from secure_sccvfl.protocols.alignment.psi import PrivateSetIntersection, in_all
from secure_sccvfl.protocols.dealing import matching
from secure_sccvfl.protocols.dealing.matching import Aligned
from secure_sccvfl.protocols.dealing.randomness import Draw, Stream
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.chance import LEVEL, alike, uniform
from tests.support.sessions import run_session

OWN = 3000


class Spy:
    """Keeps what comes to one party, by step."""

    def __init__(self, node: int) -> None:
        self.node, self.kept, self.shapes, self._lock = node, defaultdict(list), [], threading.Lock()
        self.sent_by: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)

    def wrap(self, transport: Transport) -> Transport:
        honest = transport.exchange

        def exchange(step: str, send: Any, receive: Any) -> Any:
            came = honest(step, send, receive)
            if transport.node == self.node:
                with self._lock:
                    for peer, arrays in came.items():
                        self.kept[step] += [array.copy() for array in arrays]
                        self.sent_by[step, peer] += [array.copy() for array in arrays]
                        self.shapes += [(step, peer, array.dtype.str, array.shape) for array in arrays]
            return came

        transport.exchange = exchange  # type: ignore[method-assign]
        return transport


def normal(deviation: float) -> bool:
    """Whether a standard normal value may be this far off; False for such: LEVEL."""
    return bool(2 * stats.norm.sf(abs(deviation)) > LEVEL)


def unordered(values: np.ndarray) -> bool:
    """Whether as many neighbours rise as expected by chance: n/2, deviation sqrt(n/12)."""
    rising = int((np.diff(values) > 0).sum())
    return normal((rising - (len(values) - 1) / 2) / np.sqrt((len(values) + 1) / 12))


def unrelated(values: np.ndarray, marked: np.ndarray) -> bool:
    """Whether marked values are as high as the others, by their sum of ranks."""
    ranks = np.argsort(np.argsort(values)) + 1.0
    some, rest = int(marked.sum()), int((~marked).sum())
    deviation = np.sqrt(some * rest * (len(values) + 1) / 12)
    return normal((ranks[marked].sum() - some * (len(values) + 1) / 2) / deviation)


# hidden

IDS = [f"{number:06d}" for number in range(OWN)]
OTHERS = [f"other {number}" for number in range(OWN)]
WORLDS = (
    [IDS, IDS[: OWN // 2] + OTHERS, IDS[: OWN // 2]],
    [IDS, OTHERS[: OWN // 2], OTHERS[OWN // 2 :] + IDS[OWN // 2 :]],
)
"""The union has 2 OWN records in both."""


def hidden_view(world: int) -> tuple[Spy, Aligned, np.ndarray]:
    """What comes to party 0, what it gets, and its rows in the order of its tags."""
    spy = Spy(0)
    order: list[np.ndarray] = []

    def tagging(self: SessionPseudonyms, ids: Any) -> Any:
        pseudonyms = make(self, ids)
        if list(ids) == IDS:
            order.append(matching.sorted_rows(pseudonyms))
        return pseudonyms

    make = SessionPseudonyms.of

    def job(session: Session) -> Aligned:
        return HiddenIntersection(session).align(WORLDS[world][session.rank])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionPseudonyms, "of", tagging)
        aligned = run_session(job, 3, ReleasePlan(releases(3, revealed=False)), wrap=spy.wrap)
    return spy, aligned[0], order[0]


def shares(spy: Spy) -> np.ndarray:
    """A party's shares of presence as they came."""
    return np.concatenate(spy.kept["shares of presence"])


def in_bytes(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words).view(np.uint8)


def hidden_tells() -> dict[str, bool]:
    """Which checks find something."""
    views = [hidden_view(world) for world in (0, 1)]
    held = np.arange(OWN) < OWN // 2
    shapes = [[shape for shape in spy.shapes if not shape[0].startswith("tuple")] for spy, _, _ in views]
    announced = [[a.tobytes() for a in spy.kept[UNION] if a.dtype == np.float64] for spy, _, _ in views]
    dealt = [in_bytes(shares(spy)) for spy, _, _ in views]
    assert len(announced[0]) == 2 and {aligned.size for _, aligned, _ in views} == {2 * OWN}
    assert {len(words) for words in dealt} == {8 * 2 * OWN}
    return {
        "shapes": shapes[0] != shapes[1] or announced[0] != announced[1],
        "order": not all(unordered(aligned.rows[order]) for _, aligned, order in views),
        "who is held": not all(unrelated(aligned.rows, held) for _, aligned, _ in views),
        "membership": not (alike(*dealt) and uniform(dealt[0]) and uniform(dealt[1])),
    }


@pytest.mark.chance(1e-11)  # seven checks
def test_what_a_party_sees_of_hidden_is_the_same_whatever_others_hold() -> None:
    assert not any(hidden_tells().values())


def test_an_order_that_is_not_random_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places in the order of tags: a party that knows the key would see between which tags others' lie."""
    monkeypatch.setattr(Draw, "order", lambda self, count: np.arange(count))
    assert hidden_tells()["order"]


def test_an_order_that_depends_on_who_holds_what_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random, but with the records of several parties first."""
    honest = matching.matched

    def matched(lists: Any, bounds: Any, draw: Draw) -> Any:
        aligned = honest(lists, bounds, draw)
        several = np.bincount(np.concatenate([table.rows for table in aligned]), minlength=aligned[0].size) > 1
        first = np.argsort(np.argsort(~several, kind="stable"))
        return [replace(table, rows=first[table.rows]) for table in aligned]

    monkeypatch.setattr(matching, "matched", matched)
    failed = hidden_tells()
    assert failed["who is held"] and not failed["order"]


def deal_without(lacking: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dealer that gives these parties zeros as their shares, and party 0 what they should have had."""
    honest = matching.matched

    def matched(lists: Any, bounds: Any, draw: Draw) -> Any:
        aligned = honest(lists, bounds, draw)
        first = aligned[0].shares + sum(aligned[rank].shares for rank in lacking)
        empty = {rank: np.zeros_like(first) for rank in lacking}
        return [
            replace(table, shares={0: first, **empty}.get(rank, table.shares)) for rank, table in enumerate(aligned)
        ]

    monkeypatch.setattr(matching, "matched", matched)


def test_presence_that_is_dealt_in_the_clear_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    deal_without((1, 2), monkeypatch)
    assert hidden_tells()["membership"]


PAIR = (IDS, [*IDS[OWN // 4 : OWN // 2], *OTHERS])
THIRD = (IDS[: OWN // 2], IDS[OWN // 2 :])
"""Parties 0 and 1 hold the same in both worlds, and party 2 one or the other half of what party 0 has."""


def pair_tells() -> dict[str, bool]:
    """Which checks find something in all that comes to parties 0 and 1 together."""
    views = []
    for third in THIRD:
        spies = [Spy(0), Spy(1)]
        lists = [*PAIR, third]

        def job(session: Session, lists: Any = lists) -> Aligned:
            return HiddenIntersection(session).align(lists[session.rank])

        def wrap(transport: Transport, spies: Any = spies) -> Transport:
            return spies[1].wrap(spies[0].wrap(transport))

        aligned = run_session(job, 3, ReleasePlan(releases(3, revealed=False)), wrap=wrap)
        row_of_id = dict(zip((*PAIR[0], *PAIR[1]), (*aligned[0].rows, *aligned[1].rows), strict=True))
        shapes = [shape for spy in spies for shape in spy.shapes if not shape[0].startswith("tuple")]
        together = in_bytes(shares(spies[0]) + shares(spies[1]))
        held = np.array([name in set(third) for name in row_of_id])
        views.append((shapes, together, np.array(list(row_of_id.values())), held))
    assert all(len(words) > 1000 and marked.sum() == OWN // 2 for _, words, _, marked in views)
    return {
        "shapes": views[0][0] != views[1][0],
        "who is held": not all(unrelated(at, held) for _, _, at, held in views),
        "membership": not (alike(views[0][1], views[1][1]) and all(uniform(words) for _, words, _, _ in views)),
    }


@pytest.mark.chance(1e-11)  # five checks
def test_what_two_of_three_see_together_is_the_same_whatever_the_third_holds() -> None:
    assert not any(pair_tells().values())


def test_presence_without_a_share_of_the_third_is_noticed_by_the_two(monkeypatch: pytest.MonkeyPatch) -> None:
    deal_without((2,), monkeypatch)
    assert pair_tells()["membership"]


# revealed

COUNT = 360
ALL, FIRST, SECOND = (range(0, COUNT // 3), range(COUNT // 3, 2 * COUNT // 3), range(2 * COUNT // 3, COUNT))


def revealed_lists() -> list[list[str]]:
    """Party 0 has sorted ids: those of all parties first, then those of party 1 too, then those of party 2 too."""
    ids = [f"{number:06d}" for number in range(COUNT)]
    more = [f"{number:06d}" for number in range(COUNT, COUNT + COUNT // 3)]
    both = ids[: COUNT // 3]
    return [ids, both + [ids[k] for k in FIRST] + more, both + [ids[k] for k in SECOND] + more]


def revealed_tells() -> dict[str, bool]:
    """Which checks find something, at party 0 and party 1."""
    spies = [Spy(node) for node in (0, 1)]

    def wrap(transport: Transport) -> Transport:
        return spies[1].wrap(spies[0].wrap(transport))

    compared: list[Any] = []
    sent: list[np.ndarray] = []

    def around(self: PrivateSetIntersection, names: Any, sizes: Any) -> Any:
        held, orders = honest(self, names, sizes)
        if list(names) == lists[0]:
            sent.append(orders[0])
        return held, orders

    def kept(lists: Any) -> Any:
        compared.append(lists)
        return in_all(lists)

    lists, honest = revealed_lists(), PrivateSetIntersection._around
    job: Callable[[Session], Any] = lambda session: PrivateSetIntersection(session).align(lists[session.rank])  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secure_sccvfl.protocols.alignment.psi.in_all", kept)
        patch.setattr(PrivateSetIntersection, "_around", around)
        run_session(job, 3, ReleasePlan(releases(3, revealed=True)), wrap=wrap)
    first, *others = [[tuple(row) for row in pseudonyms.tolist()] for pseudonyms in compared[0]]
    held = [np.array([row in set(other) for row in first]) for other in others]
    elements = [np.concatenate(spy.kept["pass 1"] + spy.kept["pass 2"]) for spy in spies]
    back = [np.unpackbits(spies[1].kept[step][0], count=COUNT) for step in ("back 1", "back 2")]
    assert all(marked.sum() == 2 * COUNT // 3 for marked in held) and all(b.sum() == COUNT // 3 for b in back)
    return {
        "whose records": not all(unrelated(sent[0], marked) for marked in held),
        "where common records are": not all(unrelated(np.arange(COUNT), b.astype(bool)) for b in back),
        "elements": not all(uniform(part[:, 1:31]) for part in elements),
    }


@pytest.mark.chance(1e-11)  # six checks
def test_what_a_party_sees_of_revealed_has_no_order_and_no_id() -> None:
    assert not any(revealed_tells().values())


def test_lists_that_are_not_shuffled_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draw, "order", lambda self, count: np.arange(count))
    failed = revealed_tells()
    assert failed["whose records"] and failed["where common records are"] and not failed["elements"]


def test_all_orders_are_equally_likely() -> None:
    """Each of 24 orders of four, as often as the others: 24,000 draws of a fixed stream."""
    stream = Stream(bytes(32), "test")
    drawn = [tuple(stream.draw().order(4)) for _ in range(24_000)]
    counts = [drawn.count(order) for order in set(drawn)]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 1e-4
    assert stream.draw().order(0).shape == (0,) and stream.draw().order(1).tolist() == [0]
