"""What others see of a what-if answer is the same whatever s and the columns of other parties are.

In one world the records are of one group and another party's columns have one value, in the other world of the other
group with other columns. All that reaches the parties without s, which own other columns or none, is kept. Without
masks the check fires.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.what_if import DRAWS, majorities, strongest
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.training.secure import SecureEngine
from tests.contract import engines
from tests.statistical.test_head_views import uniform_bytes
from tests.support.views import Spy, distinguishable

HOLDER, OTHERS, ROWS, WIDTHS = 2, (0, 1), 120, (3, 2, 4)
STEPS = ("selection", "truncate", "compare", "mul")


def asking(world: int) -> Spy:
    """What is seen of the decisions of records in another group, and of reasons; party 2 alone has other values."""

    def job(session: Session) -> None:
        engine, rank = SecureEngine(session, 0, [HOLDER]), session.rank
        value = world * 0.7 if rank == HOLDER else 0.2
        shape = (ROWS, WIDTHS[rank])
        weight = session.wrap(session.party.zero_share((sum(WIDTHS), 1)), HEAD_BITS)
        bias = session.wrap(session.party.zero_share((1,)), HEAD_BITS)
        head = engine.restored(weight, bias, "binary", WIDTHS)
        logits = engine.shared_logits(head, {rank: np.full(shape, value)})
        edits = [{rank: np.full((DRAWS * ROWS, WIDTHS[rank]), sign * value)} for sign in (-1, 1)]
        codes = np.full(DRAWS * ROWS, world) if rank == HOLDER else None
        shift = engine.shared_shift(engine.selected([edits], codes), {}, head)
        evaluation = SecureEvaluation(session, "binary", 0, HOLDER)
        copies = logits[np.tile(np.arange(ROWS), DRAWS)] + shift
        majorities(evaluation, evaluation.decisions(copies), ROWS)
        strongest(session, crypten.cat([logits, 2 * logits, -logits, logits - 1], dim=1))

    return Spy().run(job, ReleasePlan(engines.releases(3).values()))


def tells() -> dict[str, bool]:
    """Of each kind of round, whether the world can be told from what others see, or this from noise."""
    seen = [asking(world) for world in (0, 1)]
    assert set(STEPS) <= {step for _, step in seen[0].kept}
    pairs: dict[str, Any] = {}
    for step in STEPS:
        at = [rank for rank in OTHERS if (rank, step) in seen[0].kept]
        words = [sum(array.size for array in spy.kept[rank, step]) for spy in seen for rank in at]
        assert words and min(words) > 320, f"too little was seen of {step}"
        pairs[step] = [[uniform_bytes(spy.kept[rank, step]) for spy in seen] for rank in at]
    return {name: any(distinguishable(*two) for two in of) for name, of in pairs.items()}


@pytest.mark.chance(1e-10)  # four kinds, two parties, three checks
def test_nobody_sees_s_or_columns_of_others_in_a_what_if_answer() -> None:
    assert not any(tells().values())


def test_values_that_are_not_masked_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples.Field, "expand", lambda self, draw, rank: np.zeros(self.shape, self.dtype))
    assert any(tells().values())
