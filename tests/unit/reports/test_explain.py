"""What one party is shown of a person: what it was sent, and nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from secure_sccvfl.reports.explain import walk
from secure_sccvfl.reports.results import encode
from tests.unit.reports import literal

PERSON = {"values": {}, "edits": [], "knows_group": True, "draws": 1}
HERE = {"party": "bank", "holders": [], "columns": [], "proxies": "guard", "record": "7", "run": "0" * 64}


@pytest.mark.parametrize("what_if", [False, True])
def test_a_party_reads_the_decisions_in_other_groups_and_the_reasons_that_it_received(what_if: bool) -> None:
    decision: dict[str, Any] = {"id": "7", "decision": "1", "card": "none"}
    if what_if:
        decision |= {"decision in the other group": "0", "weighs most for it": "edu", "weighs most against it": ""}
    text = walk({**HERE, "data": encode(literal.report().data), "decision": decision, "person": PERSON})
    if not what_if:
        assert "After a counterfactual: not known here." in text and "released to nobody" in text
        return
    assert "- decision in the other group: “low”" in text and "not known here" not in text.lower()
    assert "- weighs most for it: edu" in text and "- weighs most against it: no column" in text
