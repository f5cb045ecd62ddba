"""Secure aggregation in real processes: to sit out is no fault, to vanish after the roster is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocols.records.chain import read_chain
from tests.multiprocess.byhand import ByHand


@pytest.mark.parametrize("dying", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_party_that_vanishes_after_the_roster_stops_all_and_nothing_is_opened(tmp_path: Path, dying: bool) -> None:
    """Party 1 sits out in both. Without a fault the sum of the other two comes out."""
    by_hand = ByHand(tmp_path)
    try:
        by_hand.start("dealer")
        for rank in range(3):
            by_hand.start(f"party {rank}", instead=("aggregating.py", "die" if dying and rank == 2 else "stay"))
        endings = by_hand.endings()
    finally:
        by_hand.close()
    results = [tmp_path / f"party-{rank}" / "result.json" for rank in range(3)]
    if not dying:
        assert [code for code, _ in endings.values()] == [0] * 4, endings
        assert [json.loads(path.read_text())["total"] for path in results] == [[2.0, 4.0]] * 3
        return
    codes = {name: code for name, (code, _) in endings.items()}
    assert codes == {"party 0": 1, "party 1": 1, "dealer": 1, "party 2": -9}, endings
    assert any("party 2: closed the connection" in line for _, line in endings.values()), endings
    assert not any(path.exists() for path in results)
    # The line is written before shares are sent, so that a release is never unknown; no sum followed it.
    assert all(len(read_chain(tmp_path / f"party-{rank}" / "releases.jsonl")) <= 1 for rank in (0, 1))
