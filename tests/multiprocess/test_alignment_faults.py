"""A real process is killed in a phase of an alignment: the others stop, nothing is opened, the run goes on later.

A run is first stopped after a checkpoint. Each session that resumes it is killed in another phase, by the victim
itself, so never too early or too late. The last one is left alone and finds everything as it was.
tests/contract/test_alignments.py has every phase of both modes, between threads.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.ledger import read_ledger
from secure_sccvfl.protocols.alignment.interface import UNION
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.net.mesh import Mesh
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.runs.checkpoints import Checkpoints
from secure_sccvfl.runs.local.processes import LocalSession, run_job, session_config
from secure_sccvfl.runs.process import SessionProcess
from tests.support.overlap import write_overlap
from tests.support.sessions import DEADLINE

PARTIES = 3
OPTIONS = {"epsilon": 60.0, "refreshes": 0, "lambdas": [1.0], "take_lambda": 1.0, "grid_steps": 12}
"""A cap that leaves little noise, so that the run does not stop for too few common records. Then the ridge of the
head is small too, and a head of 112 records takes more steps."""
PHASES = [("dealer", "places of records", set()), ("party 1", "shares of presence", {UNION})]
"""Who is killed, before which step, and what may have been opened by then."""
CHECKPOINT = "checkpoint"
"""The moment after the first checkpoint is on disk. Any other moment is a step of the transport, before it sends."""


@dataclass(frozen=True)
class Doomed:
    """Runs `inner` until the moment, and then ends like a process whose host loses power."""

    inner: SessionProcess
    moment: str

    @property
    def name(self) -> str:
        return self.inner.name

    def run(self, listener: socket.socket | None = None) -> int:
        exchange, keep = Mesh.exchange, Checkpoints.keep

        def doomed_exchange(mesh: Mesh, step: str, send: Any, receive: Any) -> Any:
            if step == self.moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return exchange(mesh, step, send, receive)

        def doomed_keep(kept: Checkpoints, state: Any) -> None:
            keep(kept, state)
            if self.moment == CHECKPOINT:
                os.kill(os.getpid(), signal.SIGKILL)

        Mesh.exchange, Checkpoints.keep = doomed_exchange, doomed_keep  # type: ignore[method-assign]
        return self.inner.run(listener)


class OneIsKilled(LocalSession):
    """A session of which the process `victim` is killed at a moment."""

    def __init__(self, config: SessionConfig, folder: Path, victim: str, moment: str) -> None:
        super().__init__(config, folder)
        self._victim, self._moment = victim, moment

    def _launch(self, work: SessionProcess, listener: socket.socket | None = None, *, follow: bool = False) -> None:
        super()._launch(Doomed(work, self._moment) if work.name == self._victim else work, listener, follow=follow)


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


def test_a_kill_in_a_phase_stops_all_and_the_run_continues(tmp_path: Path) -> None:
    dataset, folder = write_overlap(tmp_path / "data"), tmp_path / "run"

    def config(**more: Any) -> SessionConfig:
        options = {**OPTIONS, "dataset": str(dataset), "align": "hidden", **more}
        return session_config(folder, "train", PARTIES, options, deadline=DEADLINE)

    killed(config(), folder, "party 1", CHECKPOINT)
    before = kept(dataset.parent, folder)
    assert len(before) > PARTIES
    for victim, moment, allowed in PHASES:
        old = logs(folder)
        killed(config(resume=True), folder, victim, moment)
        assert kept(dataset.parent, folder) == before, moment
        released = {entry["release"] for log in logs(folder) - old for entry in read_chain(log)}
        assert released <= allowed, moment
    ending = run_job(config(resume=True), folder)
    assert ending.code == 0, ending
    for rank in range(PARTIES):
        assert json.loads((folder / f"party-{rank}" / "result.json").read_text())["ok"]
        lines = read_ledger(dataset.parent / "sccvfl-ledgers" / f"party-{rank}" / "ledger.jsonl")[0]
        charged = [line["event"]["name"] for line in lines if "event" in line]
        assert charged == ["first count", "sketch-0", "sketch-1", "head", "head output"], "each once"
