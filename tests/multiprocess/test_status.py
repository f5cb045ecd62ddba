"""The metrics of a real run on a consortium's own data: they tell people what goes on, and nothing of the data."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.multiprocess.hosts import PLACES, Hosts
from tests.multiprocess.test_secrets import noted_leaks
from tests.support.own_data import COLUMNS, heart_rows, write_own
from tests.unit.runs.test_status import samples


@dataclass
class Looked:
    """Everything that was in the files of a session while it ran."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    notes: str = ""
    rows: list[dict[str, str]] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def everything(self) -> str:
        return "\n".join(text for texts in self.texts.values() for text in set(texts))


def watch(node: str, file: Path, looked: Looked, over: threading.Event) -> None:
    last = False
    while not last:
        last = over.wait(0.1)
        if file.exists():
            looked.texts.setdefault(node, []).append(file.read_text())


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
            file = folder / f"{node.replace(' ', '-')}.prom"
            spying = () if node == "dealer" else ("spy.py", str(notes))
            hosts.start(node, extra=("--status", str(file)), instead=spying)
            threads.append(threading.Thread(target=watch, args=(node, file, observed, over)))
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
    assert set(looked.texts) == set(PLACES)


def test_people_see_phase_steps_peers_budget_bytes_and_memory(looked: Looked) -> None:
    for node in PLACES:
        last = samples(looked.texts[node][-1])
        connected = [value for (name, *_), value in last.items() if name == "sccvfl_peer_connected"]
        assert connected == [1, 1, 1] and last["sccvfl_problems",] == 0
        assert last["sccvfl_memory_most_bytes",] > 1e7 and last["sccvfl_dealer_bytes_total",] > 1e4
        phase = "serving" if node == "dealer" else "running"
        assert any(f'phase="{phase}"' in text for text in looked.texts[node])
    last = samples(looked.texts["party 1"][-1])
    assert any(name[:4] == ("sccvfl_info", "party 1 (employer)", "session", "train") for name in last), last
    assert 0 < last["sccvfl_budget_epsilon",] <= last["sccvfl_budget_cap",] and last["sccvfl_rounds_total",] > 50


@pytest.mark.chance(1e-11)  # 303 cells of 14 decimals among a few thousand rates of bytes above 100 per second
def test_no_key_share_id_or_cell_is_shown(looked: Looked) -> None:
    assert looked.notes.count("key ") >= 12 and looked.notes.count("share ") > 100
    shown = looked.everything
    assert noted_leaks(shown, looked.notes) == []
    for row in looked.rows:
        assert row["id"] not in shown and row["chol"] not in shown
    assert "BEGIN" not in shown and "ventricular" not in shown and "own.toml" not in shown
    assert noted_leaks(f"{shown} {looked.notes.split()[1]}", looked.notes) != [], "the search finds what is there"
