"""align = revealed: a party that puts its elements into its list twice would learn who else holds each of them.

Party 0 counts in how many lists an element is. Of three parties, an element twice in one list and once in another has
the count of one that all hold. Its bit then says "exactly one other holds it", which nobody may know.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import protocols.alignment.psi as ring
from protocols.alignment.interface import SIZES, releases
from protocols.alignment.psi import PrivateSetIntersection
from protocols.dealing.matching import Aligned
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from tests.support.harness import run_session
from tests.support.two_parties import told

RNG = np.random.default_rng(1)
EVERYBODY = [f"person {number}" for number in range(120)]
LISTS = [sorted(RNG.choice(EVERYBODY, 70, replace=False).tolist()) for _ in range(2)]
ASKED = EVERYBODY[:60]


class Twice(PrivateSetIntersection):
    """The attacker: every element twice, and the bits that come back for the first of them."""

    def align(self, ids: Any) -> Aligned:
        names, session = list(ids), self._session
        count = {f"party {session.rank}": 2 * len(names)}
        sizes = session.announce(count, session.declared(SIZES))
        lengths = [int(sizes[f"party {rank}"]) for rank in range(session.parties)]
        elements, orders = self._around(names + names, lengths)
        bits = self._back(self._compared(elements, lengths), orders, lengths)
        return Aligned(len(names), np.where(bits[: len(names)], np.arange(len(names)), -1))


def attack() -> np.ndarray:
    """The attacker's bits of the ids that it asked about."""

    def job(session: Session) -> Any:
        kind = Twice if session.rank == 2 else PrivateSetIntersection
        return kind(session).align(LISTS[session.rank] if session.rank < 2 else ASKED)

    found = run_session(job, 3, ReleasePlan(releases(3, revealed=True)))[2]
    return np.asarray(found.rows >= 0)


def test_a_list_with_repeats_is_refused_by_party_0() -> None:
    with pytest.raises(ExceptionGroup) as stopped:
        attack()
    assert "party 2: its list has an element twice" in told(stopped.value)


def test_without_the_check_every_bit_tells_who_else_holds_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "check_repeats", lambda lists: None)
    one_other = [(name in LISTS[0]) != (name in LISTS[1]) for name in ASKED]
    assert attack().tolist() == one_other and 10 < sum(one_other) < 50
