"""An open session of real processes: a party that is killed ends it with its name, and answers stand."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from secure_sccvfl.reports.verify import verify
from secure_sccvfl.research.benchmarks.serving import Client
from secure_sccvfl.runs.console import OK
from secure_sccvfl.runs.local.processes import LocalSession, session_config
from secure_sccvfl.runs.train import TrainJob
from tests.contract.test_prediction_log import ROOMY
from tests.multiprocess.members import PLACES, Hosts
from tests.multiprocess.named_files import help_of, unnamed
from tests.support.sessions import LONG
from tests.support.two_parties import BANK, CLINIC, people, run_two, write, write_two


def test_a_killed_party_ends_the_session_and_no_decision_is_lost_or_given_twice(tmp_path: Path) -> None:
    new, base = people(4, 1, "n"), {**write_two(tmp_path, people(400, 8)), "align": "exact"}
    run_two(TrainJob, tmp_path / "run", {**base, **ROOMY})
    records = write(tmp_path / "new.csv", new, (*BANK, *CLINIC))
    options: dict[str, Any] = {"dataset": base["dataset"], "align": "exact", "port": 0, "predictions": 40}
    options |= {"model": str(tmp_path / "run"), "records": str(records)}

    def session(name: str) -> LocalSession:
        folder = tmp_path / name
        return LocalSession(session_config(folder, "serve", 2, options, deadline=LONG), folder)

    with session("first") as first:
        client = Client(first.folder / "party-0")
        answers = [client.post("/decision", id=f"n{number}")["answer"] for number in range(2)]
        (clinic,) = (child for child in first.children if child.name == "party 1")
        os.kill(clinic.process.pid, signal.SIGKILL)
        try:
            client.post("/decision", id="n2")
            raise AssertionError("a dead party took part")
        except OSError:  # 503, or the endpoint is closed before or while it answers
            pass
        ending = first.wait()
    assert ending.code != OK and not (first.folder / "party-0" / "endpoint.json").exists()
    log = (first.folder / "logs" / "party-0.log").read_text().splitlines()[-1]
    assert log.startswith("party 0: ") and "party 1: closed the connection" in log, "by itself, or as the dealer says"
    with session("second") as second:
        client = Client(second.folder / "party-0")
        assert [client.post("/decision", id=f"n{number}")["answer"] for number in range(2)] == answers
        assert client.post("/decision", id="n3")["answer"]["id"] == "n3"
        client.post("/stop")
        second.wait().check()
    assert (second.folder / "party-0" / "releases.jsonl").read_text().count('"predictions"') == 1, "of n3 alone"


def test_hosts_serve_from_their_own_files_and_their_folders_verify(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, ("train", "evaluate"))
    assert hosts.run() == dict.fromkeys(PLACES, 0), hosts.logs()
    running = {node: hosts.start(node, predict=True, job="serve") for node in PLACES}
    client = Client(hosts.out(0) / "predict")
    held = [set((hosts.home(f"party-{rank}") / "new.csv").read_text().split()[1:]) for rank in range(3)]
    ids = [{line.partition(",")[0] for line in lines} for lines in held]
    for person in sorted(set.intersection(*ids))[:3]:
        assert client.post("/decision", id=person)["answer"]["id"] == person
    with pytest.raises(HTTPError, match="409"):
        client.post("/decision", id=min(ids[0] - ids[1]))
    client.post("/stop")
    assert hosts.end(running) == dict.fromkeys(PLACES, 0), hosts.logs()
    for rank in range(3):
        assert {name: lines for name, lines in verify(hosts.out(rank)).items() if lines} == {}
        assert unnamed(help_of("party"), hosts.out(rank).iterdir()) == []
    made = [path for path in hosts.home("dealer").iterdir() if path.name not in ("certs", "session.toml", "log.txt")]
    assert unnamed(help_of("dealer"), made) == []
