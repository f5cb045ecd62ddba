"""Three hosts and a dealer: each a folder with its own files and key alone, each at its own address."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.net.certificates import fingerprint, make_certificates
from secure_sccvfl.runs.local.processes import ForkedProcess
from secure_sccvfl.runs.member.member import Member
from secure_sccvfl.runs.process import DealerProcess, PartyProcess, SessionProcess
from tests.multiprocess.hosts import free_addresses
from tests.multiprocess.programs import ONE_THREAD
from tests.support.own_data import COLUMNS, heart_rows, without, write_own
from tests.support.sessions import CONNECT, DEADLINE, LONG

PLACES = ("party-0", "party-1", "party-2", "dealer")
APPROVED = ({"place": "party-0", "name": "hospital"},)
CHEAP = {"dataset": "own.toml", "refreshes": 0, "lambdas": [1.0, 3.0], "evaluation_epsilon": 16.0}
"""Little noise at the end: it must not make 75 test records look like too few, which ends a run."""


LACKING = {"hospital": (0, 1), "clinic": (2, 3, 4), "payer": (5,)}
"""Records that a party does not have, by their places: old ones, and new ones too."""


class Hosts:
    """A consortium with the Heart records as its own: 240 to train with, the rest to decide about later.

    Each party lacks some of them, and nobody knows which all have.
    """

    def __init__(self, folder: Path, jobs: tuple[str, ...], rows: int = 240) -> None:
        self.folder, records = folder, heart_rows()
        shared = folder / "made"
        write_own(shared / "old", records[:rows])
        write_own(shared / "new", records[rows:])
        make_certificates(shared / "certs", len(COLUMNS))
        pins = {node: fingerprint((shared / "certs" / node / "cert.pem").read_bytes()) for node in PLACES}
        self.config = SessionConfig(
            parties=free_addresses(),
            jobs=jobs,
            names=tuple(COLUMNS),
            options=CHEAP,
            certificates=pins,
            approval="none",
            connect=CONNECT,
            deadline=DEADLINE,
        )
        for node, party in zip(PLACES, (*COLUMNS, None), strict=True):
            home = self.home(node)
            (home / "certs").mkdir(parents=True)
            shutil.copy(shared / "certs" / "ca.pem", home / "certs")
            shutil.copytree(shared / "certs" / node, home / "certs" / node)
            (home / "session.toml").write_text(self.config.to_toml())
            if party is not None:
                shutil.copy(shared / "old" / "own.toml", home)
                (home / f"{party}.csv").write_text(without(shared / "old" / f"{party}.csv", LACKING[party]))
                (home / "new.csv").write_text(without(shared / "new" / f"{party}.csv", LACKING[party]))

    def home(self, node: str) -> Path:
        return self.folder / node

    def out(self, rank: int) -> Path:
        return self.home(f"party-{rank}") / "out"

    def start(self, node: str, *, resume: bool = False, predict: bool = False, job: str = "predict") -> ForkedProcess:
        """The process of a place, in the place's own folder, with paths as its operator gives them.

        job: of predict, or serve.
        """
        files: dict[str, Any] = {"config": Path("session.toml"), "certs": Path("certs")}
        work: SessionProcess
        if node == "dealer":
            work = DealerProcess(**files, job=job if predict else "", resume=resume)
        else:
            party = PartyProcess(rank=int(node[-1]), out=Path("out"), **files)
            work = Member(party, resume, APPROVED, {"records": "new.csv", "port": 0} if predict else None, job)
        with contextlib.chdir(self.home(node)):
            return ForkedProcess(work, Path("log.txt"), ONE_THREAD)

    def run(self, **settings: bool) -> dict[str, int | None]:
        """The same at every place, to its end: exit codes."""
        return self.end({node: self.start(node, **settings) for node in PLACES})

    def end(self, running: dict[str, ForkedProcess]) -> dict[str, int | None]:
        """Wait for all; one that is still there after a long time is ended."""
        for process in running.values():
            process.wait(LONG)
            if process.poll() is None:
                process.kill()
                process.wait()
        return {node: process.returncode for node, process in running.items()}

    def logs(self) -> str:
        """What all places said, for messages."""
        return "\n".join(f"{p}: {(self.home(p) / 'log.txt').read_text()[-1500:]}" for p in PLACES)
