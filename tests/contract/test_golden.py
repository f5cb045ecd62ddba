"""Shares, rounds and bytes of whole runs are those of golden.json; see tests/support/golden.py for how it is made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.operations import noise
from tests.support import golden, openings

KNOWN = json.loads(golden.FILE.read_text())


def test_the_file_has_every_case() -> None:
    assert KNOWN.keys() == golden.CASES.keys()
    assert {name for case in KNOWN.values() for name in case["shares"]} == {
        *("tables", "scores", "opened", "gram", "inverses", "heads")
    }


@pytest.mark.parametrize("name", golden.CASES)
def test_shares_rounds_and_bytes_are_as_they_were(name: str, tmp_path: Path) -> None:
    """And every opening, exchange and request for tuples comes from a CrypTen operator."""
    with openings.watched() as seen:
        computed = golden.computed(name, tmp_path)
    called = Counter(function for function, _ in seen.elements())
    assert openings.outside(seen) == [] and called["take"] > 10 and called["exchange"] >= 20
    assert name != "heart, hidden alignment" or (called["match"] >= 3 and called["veil"] == 1)
    assert computed == KNOWN[name], "see tests/support/golden.py"


def test_one_share_that_differs_by_one_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party adds 1 to one share of the noise: tables and scores change, rounds and bytes do not."""
    name, honest, turns = "statistics, 2 parties", noise.noise_share, []

    def shifted(party: Party, *given: Any) -> Any:
        share = honest(party, *given)
        if party.rank == 1 and not turns:
            turns.append(1)
            share[0, 0] += 1
        return share

    monkeypatch.setattr(noise, "noise_share", shifted)
    result = golden.computed(name, tmp_path)
    assert result["bytes"] == KNOWN[name]["bytes"] and result["rounds"] == KNOWN[name]["rounds"]
    assert {k for k, v in result["shares"].items() if v != KNOWN[name]["shares"][k]} == {"tables", "scores"}
