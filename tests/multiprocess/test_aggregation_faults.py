"""Secure aggregation in real processes: a party that vanishes after the roster stops all."""

from __future__ import annotations

from pathlib import Path

from secure_sccvfl.protocols.records.chain import read_chain
from tests.multiprocess.byhand import ByHand


def test_a_party_that_drops_out_after_the_roster_stops_all_and_nothing_is_opened(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    try:
        by_hand.start("dealer")
        for rank in range(3):
            by_hand.start(f"party {rank}", instead=("aggregating.py", "die" if rank == 2 else "stay"))
        endings = by_hand.endings()
    finally:
        by_hand.close()
    codes = {name: code for name, (code, _) in endings.items()}
    assert codes == {"party 0": 1, "party 1": 1, "dealer": 1, "party 2": -9}, endings
    assert any("party 2: closed the connection" in line for _, line in endings.values()), endings
    assert not list(tmp_path.glob("party-*/result.json"))
    # The line is written before shares are sent, so that a release is never unknown; no sum followed it.
    assert all(len(read_chain(tmp_path / f"party-{rank}" / "releases.jsonl")) <= 1 for rank in (0, 1))
