"""Two hidden alignments, with one id more in the second: does anybody else hold that id?

Without bounds the number of places answers, for as many ids as there are alignments: SECURITY.md says so. With bounds
all alignments look alike.
"""

from __future__ import annotations

import numpy as np
import pytest

from protocols.alignment.hidden_intersection import HiddenIntersection
from protocols.alignment.interface import releases
from protocols.dealing.matching import Bounds
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from tests.support.harness import run_session

PARTIES = 3
OTHERS = ([f"c{number}" for number in range(4, 24)], [f"c{number}" for number in range(12, 32)])
OWN = ["c1", "c2", "c15"]
ASKED = {"c20": True, "c5": True, "c40": False}
"""Ids that a party would like to know of, and whether another party holds them."""


def places(own: list[str], bounds: Bounds | None) -> int:
    """What the first party learns of an alignment."""

    def job(session: Session) -> int:
        return HiddenIntersection(session, bounds).align([own, *OTHERS][session.rank]).size

    return int(run_session(job, PARTIES, ReleasePlan(releases(PARTIES, revealed=False)))[0])


@pytest.mark.parametrize("bounds", [None, (10, 20, 20)])
def test_one_id_more_tells_whether_another_holds_it_unless_there_are_bounds(bounds: Bounds | None) -> None:
    before = places(OWN, bounds)
    grown = {name: places([*OWN, name], bounds) - before for name in ASKED}
    told = {name: grown[name] == 0 for name in ASKED}
    if bounds is None:
        assert told == ASKED
    else:
        assert set(grown.values()) == {0} and before == sum(bounds), "the same whoever holds it"
        assert np.ptp([places(own, bounds) for own in (OWN, [], [*OWN, *ASKED])]) == 0
