"""The check for a shift that a party makes alone: it sees a shift, and raises false alarms as rarely as it says."""

from __future__ import annotations

import numpy as np
import pytest

from secure_sccvfl.data.dataset import PartyTable
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.policy.shift import LEVEL, column_shifts, new_records

FEATURES = (
    Feature("kind", "category", categories=("a", "b", "c")),
    Feature("size", "number", low=0, high=1, missing=True),
    Feature("flag", "category", categories=("no", "yes")),
)


def records(rng: np.random.Generator, rows: int, more: float = 0.0) -> np.ndarray:
    """Three columns; `more` moves the last one."""
    size = rng.random(rows)
    size[rng.random(rows) < 0.1] = np.nan
    return np.column_stack([rng.integers(0, 3, rows), size, rng.random(rows) < 0.5 + more]).astype(float)


def test_a_shift_is_found_and_named() -> None:
    rng = np.random.default_rng(1)
    first, *others = column_shifts(FEATURES, records(rng, 2000), records(rng, 1000, 0.2), rng)
    assert first.column == "flag" and first.alarm and first.distance > first.by_chance
    assert 0.12 < first.distance < 0.28 and not any(s.alarm for s in others)


def test_false_alarms_are_as_rare_as_stated() -> None:
    """300 parties without a shift. Seeded; more than 26 alarms have chance below .005 if the rate is LEVEL."""
    rng = np.random.default_rng(2)
    alarms = [
        any(s.alarm for s in column_shifts(FEATURES, records(rng, 300), records(rng, 150), rng)) for _ in range(300)
    ]
    assert sum(alarms) <= 26 and LEVEL == 0.05
    assert sum(alarms) >= 1, "a check that never fires would pass the line above"


def test_only_new_records_of_the_same_columns_are_compared() -> None:
    rng = np.random.default_rng(3)
    old, ids = PartyTable("bank", FEATURES, records(rng, 20)), np.arange(20).astype(str)
    turned = PartyTable("bank", FEATURES[::-1], records(rng, 30)[:, ::-1])
    fresh = new_records(old, turned, ids, np.arange(10, 40).astype(str))
    assert fresh.shape == (20, 3) and np.array_equal(fresh, turned.values[10:, ::-1], equal_nan=True)
    with pytest.raises(DataError, match="no record that the old one does not have"):
        new_records(old, old, ids, ids)
    with pytest.raises(DataError, match="changed schema"):
        new_records(old, PartyTable("bank", FEATURES[:2], records(rng, 30)[:, :2]), ids, ids)
