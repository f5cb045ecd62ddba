"""Progress on a terminal is a bar; elsewhere it is a plain line for each phase."""

from __future__ import annotations

from typing import Any

import pytest

from secure_sccvfl.runs.local.screens import Progress

EVENTS: tuple[dict[str, Any], ...] = (
    {"connected": True},
    {"step": "training", "number": 1, "total": 2},
    {"step": "training", "number": 2, "total": 2},
    {"step": "scor\x1b[2Jing", "number": 1, "total": 1},
)


@pytest.mark.parametrize("quiet", [False, True])
def test_redirected_progress_is_a_line_for_each_phase(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(quiet) as progress:
        for event in EVENTS:
            progress.event(event)
    shown = capsys.readouterr()
    first = ["all processes connected", "training"]
    assert shown.out == "" and shown.err.splitlines()[:2] == ([] if quiet else first)
    assert len(shown.err.splitlines()) == (0 if quiet else 3)
    assert all(letter.isprintable() or letter == "\n" for letter in shown.err)
