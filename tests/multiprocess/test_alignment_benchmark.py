"""`bench.py align` on short lists: real sessions whose results are checked, and a line for what is not installed."""

from __future__ import annotations

import pytest

from protocols.config import ConfigError
from secure_sccvfl.research.benchmarks.preparation import PEER, ids_of, measure_alignment, parsed


def test_both_modes_are_measured_and_a_peer_that_is_not_installed_is_named() -> None:
    told: list[str] = []
    result = measure_alignment(told.append, ["hidden:200:2", "revealed:100:3"])
    rows = result.data["rows"]
    assert [(row["system"], row["ids"], row["parties"]) for row in rows] == [
        ("hidden", 200, 2),
        ("revealed", 100, 3),
        (PEER, 100, 2),
    ]
    hidden, revealed, peer = rows
    assert hidden["dealer"] > 20 * 200 and revealed["dealer"] < 200, "no dealer takes part in revealed"
    assert revealed["sent"] > 2 * 32 * 100 and min(hidden["party_mb"], revealed["party_mb"]) > 0
    assert "cpu_seconds" in peer or "private_set_intersection" in peer["skipped"]
    assert str(result.parts[1]).count(PEER) == 1


def test_lists_overlap_as_they_are_said_to() -> None:
    lists = [set(ids_of(rank, 100)) for rank in range(3)]
    assert all(len(own) == 100 for own in lists)
    assert len(set.intersection(*lists)) == len(lists[0] & lists[2]) == 60


@pytest.mark.parametrize("text", ["hidden", "other:100", "hidden:9", "hidden:x", "hidden:100:1", "hidden:100:2:3"])
def test_a_list_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--lists"):
        parsed(text)
