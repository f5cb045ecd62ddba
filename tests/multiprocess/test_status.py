"""The status of a real run on a consortium's own data: it tells people what goes on, and nothing of the data."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.multiprocess.hosts import PLACES, Hosts
from tests.multiprocess.test_secrets import noted_leaks
from tests.support.own_data import COLUMNS, heart_rows, write_own
from tests.unit.runs.status.test_page import free_port

pytest.importorskip("prometheus_client")
PATHS = ("/", "/status.json", "/metrics")


@dataclass
class Looked:
    """Everything that was fetched from the places of a session while it ran."""

    texts: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    notes: str = ""
    rows: list[dict[str, str]] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)

    def snapshots(self, node: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts[node, "/status.json"]]

    @property
    def everything(self) -> str:
        return "\n".join(text for texts in self.texts.values() for text in set(texts))


def watch(node: str, port: int, looked: Looked, over: threading.Event) -> None:
    while not over.wait(0.1):
        for path in PATHS:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                if answer.status == 200:
                    looked.texts.setdefault((node, path), []).append(answer.read().decode())
            except (OSError, http.client.HTTPException):
                pass  # it has not started, or has ended
            finally:
                connection.close()


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Looked:
    folder, observed, over = tmp_path_factory.mktemp("status"), Looked(), threading.Event()
    observed.rows = [
        {**row, "id": f"-person-{7919 * k}", "chol": f"{float(row['chol']):.0f}.{(73687871234567 * k) % 10**14:014d}"}
        for k, row in enumerate(heart_rows(), start=1)
    ]
    write_own(folder / "data", observed.rows)
    options = {"dataset": "own.toml", "refreshes": 0, "warmup": 20, "steps": 30}
    hosts, notes = Hosts(folder / "hosts", "train", options), folder / "notes"
    threads = []
    try:
        for rank, party in enumerate(COLUMNS):
            for name in (f"{party}.csv", "own.toml"):
                shutil.copy(folder / "data" / name, hosts.home(f"party {rank}"))
        for node in PLACES:
            port = free_port()
            spying = () if node == "dealer" else ("spy.py", str(notes))
            hosts.start(node, extra=("--status", str(port)), instead=spying)
            threads.append(threading.Thread(target=watch, args=(node, port, observed, over)))
            threads[-1].start()
        observed.codes = {node: code for node, (code, _) in hosts.endings().items()}
    finally:
        over.set()
        for thread in threads:
            thread.join()
        hosts.close()
    observed.notes = notes.read_text()
    return observed


def test_a_run_that_is_watched_ends_well(looked: Looked) -> None:
    assert looked.codes == dict.fromkeys(PLACES, 0)
    assert set(looked.texts) == {(node, path) for node in PLACES for path in PATHS}


def test_people_see_phase_steps_peers_budget_bytes_and_memory(looked: Looked) -> None:
    for node in PLACES:
        snapshots = looked.snapshots(node)
        assert ("serving" if node == "dealer" else "running") in {one["phase"] for one in snapshots}
        last = snapshots[-1]
        assert len(last["peers"]) == 3 and all(peer["connected"] for peer in last["peers"])
        assert last["memory"]["most"] > 1e7 and last["bytes_dealer"] > 1e4 and last["problems"] == []
    last = looked.snapshots("party 1")[-1]
    assert last["place"] == "party 1 (employer)" and last["job"] == "train"
    assert 0 < last["budget"]["epsilon"] <= last["budget"]["cap"] and last["rounds"] > 50


@pytest.mark.chance(1e-11)  # 303 cells of 14 decimals among a few thousand rates of bytes above 100 per second
def test_no_key_share_id_or_cell_is_shown(looked: Looked) -> None:
    assert looked.notes.count("key ") >= 12 and looked.notes.count("share ") > 100
    shown = looked.everything
    assert noted_leaks(shown, looked.notes) == []
    for row in looked.rows:
        assert row["id"] not in shown and row["chol"] not in shown
    assert "BEGIN" not in shown and "ventricular" not in shown and "own.toml" not in shown
    assert noted_leaks(f"{shown} {looked.notes.split()[1]}", looked.notes) != [], "the search finds what is there"
