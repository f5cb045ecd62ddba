"""The programs as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.net.rendezvous import dial
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.runs.local.processes import LocalSession, session_config
from tests.multiprocess.byhand import ByHand
from tests.multiprocess.programs import ROOT, run_here
from tests.support.sessions import LONG


def program(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Started anew, as from a shell."""
    return subprocess.run(
        [sys.executable, str(ROOT / "launch" / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=LONG,
        cwd=cwd,
    )


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_the_self_test(tmp_path: Path, parties: int) -> None:
    arguments = ("--parties", str(parties), "--selftest", "--json", "--out", "run")
    ran = run_here("run_mpc", *arguments, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert set(report["exit_codes"].values()) == {0} and report["failures"] == []
    rows = {row["name"]: row for row in report["result"]["rows"]}
    assert all(row["ok"] for row in rows.values()) and len(rows) == 18
    assert rows["sigmoid, bounded"]["rounds"] == 1 and rows["sigmoid, bounded"]["max_error"] <= 5e-4
    logs = [read_chain(tmp_path / "run" / f"party-{rank}" / "releases.jsonl") for rank in range(parties)]
    assert len(logs[0]) == len(rows) and all(log == logs[0] for log in logs)
    assert {path.name for path in (tmp_path / "run").rglob("*.pem")} == set()


def test_the_table_for_people(tmp_path: Path) -> None:
    ran = program("run_mpc", "selftest", "--parties", "2", "--size", "20", cwd=tmp_path)
    assert ran.returncode == 0
    assert "sigmoid, bounded" in ran.stdout and "all well" in ran.stdout and "WRONG" not in ran.stdout
    assert len(list((tmp_path / "runs").glob("*/logs/dealer.log"))) == 1


def test_a_session_over_a_slow_network(tmp_path: Path) -> None:
    config = session_config(tmp_path / "run", "selftest", 2, {"size": 20})
    with LocalSession(config, tmp_path / "run", delay=0.001) as session:
        dialled = SessionConfig.load(tmp_path / "run" / "session.toml").parties
        ending = session.wait()
    assert ending.code == 0, ending.failures
    for address in dialled:  # the relays end with the session
        with pytest.raises(ConnectionRefusedError):
            dial(address, 1.0)


def test_processes_started_by_hand(tmp_path: Path) -> None:
    session = ByHand(tmp_path, repeat=1)
    try:
        for name in ("party 2", "dealer", "party 0", "party 1"):
            session.start(name)
        endings = session.endings()
    finally:
        session.close()
    assert {name: code for name, (code, _) in endings.items()} == dict.fromkeys(endings, 0), endings
    assert json.loads((tmp_path / "party-1" / "result.json").read_text())["ok"]


@pytest.mark.slow
def test_hosts_with_other_processors_and_threads(tmp_path: Path) -> None:
    """Floating point differs between them; what multiplies a share must not."""
    session = ByHand(tmp_path, repeat=1, size=4000)
    other = {"OPENBLAS_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "Prescott", "OMP_NUM_THREADS": "2"}
    try:
        for name in ("dealer", "party 0", "party 2"):
            session.start(name)
        session.start("party 1", environment=other)
        endings = session.endings()
    finally:
        session.close()
    assert {name: code for name, (code, _) in endings.items()} == dict.fromkeys(endings, 0), endings


def test_certificates(tmp_path: Path) -> None:
    first = run_here("certs", "certs", "--parties", "3", cwd=tmp_path)
    assert first.returncode == 0
    folder = tmp_path / "certs"
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "dealer", "party-0", "party-1", "party-2"]
    for key in folder.rglob("key.pem"):
        assert os.stat(key).st_mode & 0o077 == 0
    assert "PRIVATE" not in (folder / "ca.pem").read_text()
    again = run_here("certs", "certs", cwd=tmp_path)
    assert again.returncode == 2 and "already holds" in again.stderr and "Traceback" not in again.stderr


def test_the_console_program() -> None:
    sccvfl = Path(sys.executable).with_name("sccvfl")
    shown = subprocess.run([sccvfl, "--help"], capture_output=True, text=True, timeout=LONG, check=True)
    assert all(name in shown.stdout for name in ("run", "selftest", "certs", "party", "dealer", "bench"))
    wrong = subprocess.run([sccvfl, "dance"], capture_output=True, text=True, timeout=LONG)
    assert wrong.returncode == 2 and "no command 'dance'" in wrong.stderr
    inner = subprocess.run([sccvfl, "certs", "--help"], capture_output=True, text=True, timeout=LONG, check=True)
    assert "--parties" in inner.stdout and "python launch/" in inner.stdout and "exit codes" in inner.stdout
    cut = subprocess.run(["bash", "-c", f"{sccvfl} options | head -1"], capture_output=True, text=True, timeout=LONG)
    assert cut.stdout == "[data]\n" and cut.stderr == "", "a reader that closes the pipe is no error"
