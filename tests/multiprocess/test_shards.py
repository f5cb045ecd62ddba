"""Row shards with the real processes: a training, and a worker that is killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.protocols.operations.banded import BAND_ROWS
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.runs.local.processes import LocalSession, session_config
from tests.support.sessions import LONG
from tests.support.two_parties import people, write_two

RUN = {"align": "exact", "pooled": False, "evaluation": "noisy"}


def runs(pid: int) -> bool:
    """Whether the process is there and has not ended."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def workers_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_worker_stops_all_processes_and_the_training_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        **write_two(tmp_path, people(3 * BAND_ROWS)),
        **RUN,
        "ledger": str(tmp_path / "ledgers"),
    }
    folder, killed, alive = tmp_path / "run", list[int](), list[int]()

    def kill(event: dict[str, Any]) -> None:
        if event.get("step") == "late refresh" and not killed:
            alive.extend(pid for child in session.children for pid in workers_of(child.process.pid))
            killed.append(workers_of(session.children[2].process.pid)[1])
            os.kill(killed[0], signal.SIGKILL)

    with LocalSession(
        session_config(folder, "train", 2, options, shards={"count": 2}), folder, None, kill
    ) as session:
        ending = session.wait()
    assert ending.code == 1 and len(ending.failures) == 3 and len(alive) == 6
    assert any("party 1" in line for line in ending.failures), ending.failures
    until = time.monotonic() + LONG
    while any(map(runs, alive)):
        assert time.monotonic() < until, "a worker is left behind"
        time.sleep(0.1)

    config = session_config(folder, "train", 2, {**options, "resume": True}, shards={"count": 2})
    with LocalSession(config, folder) as session:
        session.wait().check(folder)
    log = [
        entry["release"]
        for name in ("releases.jsonl", "releases-1.jsonl")
        for entry in read_chain(folder / "party-0" / name)
    ]
    assert log.count("sketch-0 for party 1") == log.count("sketch-1 for party 1") == log.count("range check") == 1


@pytest.mark.engines
def test_workers_run_in_a_ray_cluster_of_each_member(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray: pip install secure-sccvfl[ray]")
    options = {**write_two(tmp_path, people(3 * BAND_ROWS)), **RUN, "ledger": str(tmp_path / "ledgers")}
    folder = tmp_path / "run"
    config = session_config(folder, "train", 2, options, shards={"count": 2, "kind": "ray"})
    with LocalSession(config, folder) as session:
        session.wait().check(folder)
    assert (folder / "party-1" / "model" / "model.npz").exists()
