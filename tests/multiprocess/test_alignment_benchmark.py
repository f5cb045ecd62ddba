"""`bench.py align` on short lists: real sessions whose results are checked."""

from __future__ import annotations

import pytest

from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.research.benchmarks.preparation import ids_of, measure_alignment, parsed


def test_both_modes_are_measured() -> None:
    result = measure_alignment(lambda line: None, ["hidden:200:2", "revealed:100:3"])
    hidden, revealed = result.data["rows"]
    assert [(r["system"], r["ids"], r["parties"]) for r in (hidden, revealed)] == [
        ("hidden", 200, 2),
        ("revealed", 100, 3),
    ]
    assert hidden["dealer"] > 20 * 200 and revealed["dealer"] < 200, "no dealer takes part in revealed"
    assert revealed["sent"] > 2 * 32 * 100 and min(hidden["party_mb"], revealed["party_mb"]) > 0


def test_lists_overlap_as_they_are_said_to() -> None:
    lists = [set(ids_of(rank, 100)) for rank in range(3)]
    assert all(len(ids) == 100 for ids in lists)
    assert len(set.intersection(*lists)) == len(lists[0] & lists[2]) == 60


@pytest.mark.parametrize("text", ["hidden", "other:100", "hidden:9", "hidden:x", "hidden:100:1", "hidden:100:2:3"])
def test_a_list_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--lists"):
        parsed(text)
