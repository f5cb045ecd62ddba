"""A process that is killed while records are aligned: all others end with a clear line, and nothing is opened."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from protocols.alignment.seam import COMMON, SIZES
from protocols.records.chain import read_chain
from secure_sccvfl.local.processes import LocalSession, session_config
from tests.support.harness import DEADLINE, LONG


@pytest.mark.parametrize("victim", ["party 0", "party 2", "dealer"])
def test_a_kill_during_alignment_stops_all_and_opens_nothing(tmp_path: Path, victim: str) -> None:
    """Party 0 has just passed the first list of another on, and there is one more to pass."""
    middle = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        if str(event.get("step")).startswith("records of party"):
            middle.set()

    folder = tmp_path / "run"
    config = session_config(folder, "bench-align", 3, {"mode": "revealed", "ids": 4_000}, deadline=DEADLINE)
    with LocalSession(config, folder, on_event=on_event) as session:
        assert middle.wait(LONG), "the alignment did not begin"
        os.kill({child.name: child.process.pid for child in session.children}[victim], signal.SIGKILL)
        ending = session.wait()
    survivors = [name for name in ending.exit_codes if name != victim]
    assert ending.exit_codes[victim] == 137 and all(ending.exit_codes[name] == 1 for name in survivors)
    lines = {line.split(":")[0]: line for line in ending.failures}
    assert all("(step: " in lines[name] for name in survivors), lines
    assert any(f": {victim}: closed the connection" in lines[name] for name in survivors), lines
    for rank in range(3):
        opened = {entry["release"] for entry in read_chain(folder / f"party-{rank}" / "releases.jsonl")}
        assert opened <= {SIZES} and COMMON not in opened
        assert not (folder / f"party-{rank}" / "result.json").exists()
