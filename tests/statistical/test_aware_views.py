"""What others see of a decision that uses s is the same whatever s is.

Two worlds have the same columns and differ in s alone: all records of one group, or all of the other. All words that
reach the parties without s in a decision are kept, with every masked value that is opened, and the shares that they
hold when they put them together. Without the holder's mask the check fires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, share_of
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.training.secure import SecureEngine
from tests.contract import engines
from tests.statistical.test_head_views import uniform_bytes
from tests.support.views import Spy, distinguishable

HOLDER, OTHERS, ROWS, WIDTHS = 2, (0, 1), 600, (3, 2, 4)
STEPS = ("selection", "masked matrix", "truncate", "compare")
Expand = Callable[[tuples.Field, Any, int], Any]


def deciding(world: int) -> tuple[Spy, np.ndarray]:
    """What is seen of decisions in one world, and the sum of the shares of parties 0 and 1 in the selected rows."""
    shares = {}

    def job(session: Session) -> None:
        engine, rank = SecureEngine(session, 0, [HOLDER]), session.rank
        choices = [{rank: np.full((ROWS, WIDTHS[rank]), value)} for value in (-1.5, 1.5)]
        rows = engine.select(choices, np.full(ROWS, world) if rank == HOLDER else None)
        shares[rank] = share_of(rows.tensor)
        weight = session.wrap(session.party.zero_share((sum(WIDTHS), 1)), HEAD_BITS)
        bias = session.wrap(session.party.zero_share((1,)), HEAD_BITS)
        logits = engine.shared_logits(engine.restored(weight, bias, "binary", WIDTHS), rows)
        SecureEvaluation(session, "binary", 0, HOLDER).decisions(logits)

    return Spy().run(job, ReleasePlan(engines.releases(3).values())), shares[0] + shares[1]


def tells() -> dict[str, bool]:
    """Of each kind of round, and of the joint shares, whether s can be told from it, or it from noise."""
    seen = [deciding(world) for world in (0, 1)]
    pairs: dict[str, list[list[np.ndarray]]] = {"shares": [[words.view(np.uint8) for _, words in seen]]}
    for step in STEPS:
        at = [rank for rank in OTHERS if (rank, step) in seen[0][0].kept]
        words = [sum(array.size for array in spy.kept[rank, step]) for spy, _ in seen for rank in at]
        assert words and min(words) > 320, f"too little was seen of {step}"
        pairs[step] = [[uniform_bytes(spy.kept[rank, step]) for spy, _ in seen] for rank in at]
    return {name: any(distinguishable(*two) for two in of) for name, of in pairs.items()}


@pytest.mark.chance(1e-10)  # five kinds, two parties, three checks
def test_nobody_without_s_sees_it_at_a_decision() -> None:
    assert not any(tells().values())


def unmasked(monkeypatch: pytest.MonkeyPatch, which: Callable[[tuples.Field], bool]) -> None:
    """Zeros instead of the random words of these fields, at every party and at the dealer."""
    honest: Expand = tuples.Field.expand
    monkeypatch.setattr(
        tuples.Field,
        "expand",
        lambda self, draw, rank: np.zeros(self.shape, self.dtype) if which(self) else honest(self, draw, rank),
    )


def test_a_one_hot_that_is_not_masked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's own mask is all that hides s from the owner of columns."""
    unmasked(monkeypatch, lambda field: field.owner == HOLDER)
    failed = tells()
    assert failed["selection"] and not failed["shares"]


def test_rows_that_are_not_masked_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    unmasked(monkeypatch, lambda field: True)
    assert all(tells().values())
