"""Where counts of slices are opened at all: floors can be subtracted away, so on data that may be pooled alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import Attribute
from secure_sccvfl.data.party_data import Schema, benchmark_schema, pooled
from secure_sccvfl.metrics.slices import Crossed, plain_counts

FLOOR = 20


@pytest.fixture(scope="module")
def schema() -> Schema:
    """Two protected attributes: the second is crossed with the first without being asked for."""
    german = benchmark_schema(pooled("german", 3))
    return replace(
        german, protected=(*german.protected, Attribute("region", german.parties[0], ("north", "south"), None))
    )


@pytest.mark.parametrize("name", ["", "region", "housing"])
def test_slices_are_opened_for_exact_figures_of_data_that_may_be_pooled_alone(schema: Schema, name: str) -> None:
    assert Crossed.opened(schema, name, pooled=True, exact=True) == Crossed.of(schema, name)
    assert Crossed.opened(schema, name, pooled=False, exact=True) is None
    assert Crossed.opened(schema, name, pooled=True, exact=False) is None
    assert Crossed.opened(replace(schema, task="regression"), name, pooled=True, exact=True) is None


def test_a_slice_below_the_floor_follows_from_the_whole_and_the_others() -> None:
    """Why: one person is alone in a slice that is held back, and the rates of its group tell the decision."""
    codes, column = np.arange(200) % 2, np.arange(200) // 2 % 3
    alone = np.flatnonzero((codes == 1) & (column == 2))
    column[alone[1:]] = 0
    label = np.zeros(200, int)
    for decision in (0, 1):
        shown = np.ones(200, int)
        shown[alone[0]] = decision
        counts = plain_counts(shown, label, codes, 2, one_hot(column, 3), FLOOR)[0]
        whole = plain_counts(shown, label, codes, 2, np.ones((200, 1)), FLOOR)[0]
        assert counts[:, 5].tolist() == [0, 0], "held back"
        assert (whole[:, 1] - counts[:, 3:5].sum(axis=1)).tolist() == [1, decision], "and found by subtraction"
