"""What others see of a vector in a sum is uniform, with all and with one party sitting out; a reused mask shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.dealing.randomness import Draw
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.aggregation import aggregate
from tests.support.sessions import run_session
from tests.support.views import Spy, distinguishable

LENGTH = 4000
TOTAL = Release("total", (0, 1, 2), (ANY,), "test", times=2)


def views(value: float, absent: int | None = None, times: int = 1) -> list[np.ndarray]:
    """What party 0 receives from party 1, whose vector is `value` throughout; another party adds to the sum."""

    def job(session: Session) -> None:
        for _ in range(times):
            aggregate(session, np.full(LENGTH, value), 1000.0, TOTAL, present=session.rank != absent)

    spy = Spy()
    run_session(job, 3, ReleasePlan([TOTAL]), wrap=spy.wrap)
    return [
        array
        for (*peers, step), arrays in spy.by_peer.items()
        if peers == [0, 1] and step.startswith("release total")
        for array in arrays
    ]


def tells(absent: int | None) -> bool:
    """Whether the views of two vectors can be told apart, or from noise."""
    first, second = (views(value, absent)[0].view(np.uint8) for value in (0.0, 999.0))
    return distinguishable(first, second)


@pytest.mark.chance(1e-9)  # three checks
@pytest.mark.parametrize("absent", [None, 2])
def test_a_masked_vector_reveals_nothing(absent: int | None) -> None:
    """With party 2 absent the sum tells party 0 the vector, as it says; the ring elements that it receives still do
    not.
    """
    assert not tells(absent)


def test_missing_masks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draw, "elements", lambda self, shape, dtype=np.int64: np.zeros(shape, dtype))
    assert tells(None)


def difference_of_two_openings() -> np.ndarray:
    first, second = views(5.0, times=2)
    return second - first


def test_a_mask_serves_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same vector twice: all ring elements differ. With a mask that is used again they are equal, and this sees
    it.
    """
    assert difference_of_two_openings().all()
    honest = Party.zero_share
    masks: dict[Any, Any] = {}

    def again(self: Party, *arguments: Any) -> Any:
        return masks.setdefault((self.rank, arguments[0]), honest(self, *arguments))

    monkeypatch.setattr(Party, "zero_share", again)
    assert not difference_of_two_openings().any()
