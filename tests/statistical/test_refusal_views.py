"""What others see of withheld records is the same whether a party withholds none or all.

Every word that reaches parties 0 and 1 while marks are multiplied under MPC is kept. Party 2 can read all records in
one world and none in the other; or has answered for nobody, or for everybody. Without masks the check fires.
"""

from __future__ import annotations

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.choice import withheld
from tests.support.views import Spy, all_bytes, distinguishable

ROWS, OTHERS, STEPS = 8000, (0, 1), ("bit product", "bit to number", "mul")


def refusing(world: int, kind: str) -> Spy:
    def job(session: Session) -> None:
        changed, ones = np.full(ROWS, world if session.rank == 2 else 1, bool), np.ones(ROWS, bool)
        marks = {"readable": ones, "fresh": ones, kind: changed}
        withheld(session, session.share(np.zeros((ROWS, 1)), owner=0, shape=(ROWS, 1)), **marks)

    return Spy().run(job, ReleasePlan([]))


def tells(kind: str) -> dict[str, bool]:
    """Of each kind of round, whether the marks of party 2 can be told from it, or it from noise."""
    seen = [refusing(world, kind) for world in (0, 1)]
    distinguished = {}
    for step in STEPS:
        pairs = [[all_bytes(spy.kept[rank, step]) for spy in seen] for rank in OTHERS]
        assert min(words.size for two in pairs for words in two) > 2560, f"too little was seen of {step}"
        distinguished[step] = any(distinguishable(*two) for two in pairs)
    return distinguished


@pytest.mark.chance(1e-10)  # three kinds of rounds, two parties, three checks
@pytest.mark.parametrize("kind", ["readable", "fresh"])
def test_nobody_sees_who_withheld_a_record(kind: str) -> None:
    assert not any(tells(kind).values())


@pytest.mark.parametrize("kind", ["readable", "fresh"])
def test_marks_that_are_not_masked_are_noticed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(tuples.Field, "expand", lambda self, draw, rank: np.zeros(self.shape, self.dtype))
    assert tells(kind)["bit product"]
