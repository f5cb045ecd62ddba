"""The noise that a run plans: the parties agree on the largest figure that one of them needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.training.modes.base import planned_spread
from secure_sccvfl.training.modes.options import RunOptions


class Peers:
    """A session whose other parties tell multiples of this party's figure."""

    def __init__(self, *ratios: float) -> None:
        self.parties, self.rank, self._ratios = len(ratios) + 1, 0, ratios

    def swap_bytes(self, step: str, payload: bytes) -> list[bytes]:
        figures = np.frombuffer(payload, np.float64)
        return [payload, *((ratio * figures).tobytes() for ratio in self._ratios)]


def planned(*ratios: float) -> float:
    session: Any = Peers(*ratios)
    budget = Budget.in_memory(8.0, 1e-5)
    options = RunOptions.of({})
    records = RecordSet(np.arange(9, dtype=np.uint64))
    return planned_spread(session, options, options.schema(3), budget, records, ()).multiplier


@pytest.mark.parametrize("ratios", [(1.25, 0.5), (0.5, 1.25), (1.25, 1.25), (1.0, 1.25)])
def test_the_party_that_needs_most_noise_decides(ratios: tuple[float, ...]) -> None:
    """A party whose ledger has more spent needs more noise: with less, its ledger would be overdrawn."""
    assert planned(*ratios) == pytest.approx(1.25 * planned())


def test_who_asks_for_less_noise_does_not_get_it() -> None:
    assert planned(0.9, 0.01) == planned() > 0
