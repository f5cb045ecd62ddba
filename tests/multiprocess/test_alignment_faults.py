"""A process is killed in any phase of an alignment: the others stop, nothing is opened, and the run goes on later.

A run is first stopped after a checkpoint. Each session that resumes it is killed in another phase. The last one is
left alone and finds everything as it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from accounting.ledger import read_ledger
from protocols.alignment.interface import COMMON, SIZES, UNION
from protocols.config import SessionConfig
from protocols.records.chain import read_chain
from secure_sccvfl.runs.local.processes import run_job, session_config
from tests.multiprocess.doomed import CHECKPOINT, OneIsKilled
from tests.support.harness import DEADLINE
from tests.support.overlap import write_overlap

PARTIES = 3
OPTIONS = {"epsilon": 60.0, "refreshes": 0, "lambdas": [1.0], "take_lambda": 1.0, "grid_steps": 12}
"""A cap that leaves little noise, so that the run does not stop for too few common records. Then the ridge of the
head is small too, and a head of 112 records takes more steps."""
PHASES: dict[str, Sequence[tuple[str, str, set[str]]]] = {
    "hidden": [
        ("party 1", "parts of the key of tags", set()),
        ("party 0", "tags of records", set()),
        ("dealer", "places of records", set()),
        ("party 2", UNION, set()),
        ("party 1", "shares of presence", {UNION}),
    ],
    "revealed": [
        ("party 0", SIZES, set()),
        ("party 2", "pass 1", {SIZES}),
        ("party 1", "lists to compare", {SIZES}),
        ("party 0", "bits of common records", {SIZES, COMMON}),
        ("party 2", "back 1", {SIZES, COMMON}),
    ],
}
"""For each mode who is killed, before which step, and what may have been opened by then."""


def killed(config: SessionConfig, folder: Path, victim: str, moment: str) -> None:
    """Run until the victim is killed; all others must end by themselves, each with a line that says in which step."""
    with OneIsKilled(config, folder, victim, moment) as session:
        ending = session.wait()
    survivors = [name for name in ending.exit_codes if name != victim]
    assert ending.exit_codes[victim] == 137, (moment, ending)
    assert all(ending.exit_codes[name] == 1 for name in survivors), (moment, ending)
    lines = {line.split(":")[0]: line for line in ending.failures}
    assert all("(step: " in lines[name] for name in survivors), lines
    assert any(f": {victim}: closed the connection" in lines[name] for name in survivors), lines
    assert not list(folder.glob("party-*/result.json"))


def kept(data: Path, folder: Path) -> dict[str, bytes]:
    """Ledgers and checkpoints of all parties: what an interrupted alignment must not touch."""
    paths = [*data.glob("sccvfl-ledgers/*/ledger.jsonl"), *folder.glob("party-*/checkpoints/*")]
    return {str(path): path.read_bytes() for path in paths}


def logs(folder: Path) -> set[Path]:
    return set(folder.glob("party-*/releases*.jsonl"))


@pytest.mark.parametrize("mode", PHASES)
def test_a_kill_in_each_phase_stops_all_and_the_run_goes_on(mode: str, tmp_path: Path) -> None:
    dataset, folder = write_overlap(tmp_path / "data"), tmp_path / "run"

    def config(**more: Any) -> SessionConfig:
        options = {**OPTIONS, "dataset": str(dataset), "align": mode, **more}
        return session_config(folder, "train", PARTIES, options, deadline=DEADLINE)

    killed(config(), folder, "party 1", CHECKPOINT)
    before = kept(dataset.parent, folder)
    assert len(before) > PARTIES
    for victim, moment, allowed in PHASES[mode]:
        old = logs(folder)
        killed(config(resume=True), folder, victim, moment)
        assert kept(dataset.parent, folder) == before, moment
        told = {entry["release"] for log in logs(folder) - old for entry in read_chain(log)}
        assert told <= allowed, moment
    ending = run_job(config(resume=True), folder)
    assert ending.code == 0, ending
    for rank in range(PARTIES):
        assert json.loads((folder / f"party-{rank}" / "result.json").read_text())["ok"]
        lines = read_ledger(dataset.parent / "sccvfl-ledgers" / f"party-{rank}" / "ledger.jsonl")[0]
        charged = [line["event"]["name"] for line in lines if "event" in line]
        first = ["first count"] if mode == "hidden" else []
        assert charged == [*first, "sketch-0", "sketch-1", "head", "head output"], "each once"
