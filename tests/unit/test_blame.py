"""Which of several failed processes a run's one line is about."""

import subprocess
import sys
from pathlib import Path

import pytest

from protocols.config import SessionConfig
from secure_sccvfl.local import processes
from secure_sccvfl.local.processes import Child, LocalSession


def child(folder: Path, name: str, seconds: float, line: str, code: int) -> Child:
    """A process that ends after a while with a line in its log."""
    log = folder / f"{name}.log"
    program = f"import sys, time; time.sleep({seconds}); print({line!r}, file=sys.stderr); sys.exit({code})"
    with log.open("w") as output:
        return Child(name, subprocess.Popen([sys.executable, "-c", program], stderr=output, text=True), log)


def test_one_that_is_slow_to_stop_still_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dealer hears first that a party stops; the party, on a busy machine, needs a while to end."""
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    session = LocalSession(SessionConfig(parties=("a:1", "b:2")), tmp_path)
    session.children = [
        child(tmp_path, "dealer", 0.0, "dealer: party 0: stopped: LocalError", 1),
        child(tmp_path, "party 0", 1.5, "party 0: refused by the ledger", 1),
    ]
    ending = session.wait()
    assert ending.cause == "party 0: refused by the ledger" and ending.code == 1
