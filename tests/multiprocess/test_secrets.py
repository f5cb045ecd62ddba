"""No key, share or input in anything that a run writes, whether it ends well or not."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.runs.selftest import SelfTest
from tests.multiprocess.byhand import ByHand
from tests.support.sessions import LONG

MEASURED = re.compile(r'"(seconds|max_error)": [^,}\s]+')
"""Figures that differ from run to run: one of them may have the first eight decimals of an input by chance."""


def everything_written(session: ByHand) -> str:
    """Logs, results, release logs and session files of all processes, without what was measured."""
    for process in session.processes.values():
        process.wait(LONG)
    texts = [path.read_text() for path in session.folder.rglob("*") if path.is_file() and "notes" not in path.name]
    return MEASURED.sub("", "\n".join(texts))


def noted_leaks(written: str, notes: str) -> list[str]:
    """Keys in hex, base64 or as text, shares in decimal or hex."""
    leaked = []
    for kind, value in re.findall(r"^(key|share) (\S+)$", notes, re.MULTILINE):
        if kind == "key":
            raw = bytes.fromhex(value)
            forms = [value, value.upper(), base64.b64encode(raw).decode(), repr(raw)[2:-1], str(int(value, 16))]
        else:
            forms = [value, hex(int(value) % 2**64)[2:]] if abs(int(value)) > 10**9 else []
        leaked += [f"{kind} {value[:6]}..." for form in forms if form in written]
    return leaked


def leaks(written: str, notes: str, config: SessionConfig) -> list[str]:
    """Keys and shares that were noted, and inputs to eight decimals."""
    leaked = noted_leaks(written, notes)
    inputs = SelfTest(config, 0).values
    for name, array in inputs.items():
        leaked += [name for item in array.reshape(-1) if abs(item) % 1 and f"{abs(item):.9f}"[:-1] in written]
    return leaked


@pytest.fixture
def session(tmp_path: Path) -> ByHand:
    return ByHand(tmp_path, repeat=1)


@pytest.mark.chance(1e-10)  # 2,400 words of 64 bits, most of 16 hex digits, in 43,000 characters of hashes
@pytest.mark.parametrize("crash", [False, True], ids=["well", "badly"])
def test_a_run_that_ends(session: ByHand, tmp_path: Path, crash: bool) -> None:
    notes = tmp_path / "notes"
    try:
        session.start("dealer")
        session.start("party 0", instead=("spy.py", str(notes), *(["crash"] if crash else [])))
        session.start("party 1", instead=("spy.py", str(notes)))
        session.start("party 2", instead=("spy.py", str(notes)))
        written = everything_written(session)
        codes = {name: process.poll() for name, process in session.processes.items()}
    finally:
        session.close()
    assert set(codes.values()) == ({1} if crash else {0}), written[-2000:]
    noted = notes.read_text()
    assert noted.count("key ") >= 12 and noted.count("share ") > 100
    assert leaks(written, noted, session.config) == []
    if crash:
        assert "party 0: unexpected ValueError in spy.py:" in written
        assert "party 0: stopped: ValueError" in written


def test_the_search_would_find_them(session: ByHand) -> None:
    session.close()
    key, share = "ab" * 32, "-5581113548439786623"
    value = float(SelfTest(session.config, 0).values["x"][3])
    notes = f"key {key}\nshare {share}\n"
    for line in (f"key={key}", f"word {share}", f"{value:.12f}", repr(bytes.fromhex(key))):
        assert leaks(f"INFO {line}", notes, session.config), line
    assert leaks("INFO all well", notes, session.config) == []
