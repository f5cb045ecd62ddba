"""Three hosts and a dealer: each a folder with its own files and key alone, each at its own address."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from protocols.config import SessionConfig
from protocols.net.certificates import make_certificates
from protocols.net.signatures import fingerprint
from secure_sccvfl.run.process import THREAD_VARIABLES
from tests.multiprocess.byhand import ROOT
from tests.support.harness import CONNECT, DEADLINE, LONG
from tests.support.own_data import COLUMNS, heart_rows, write_own

PLACES = ("party-0", "party-1", "party-2", "dealer")
CHEAP = {"dataset": "own.toml", "refreshes": 1, "lambdas": [1.0, 3.0]}


def free_addresses() -> tuple[str, ...]:
    """A port on each of three addresses of this machine, as three hosts would have them."""
    found = []
    for number in (2, 3, 4):
        with socket.socket() as probe:
            probe.bind((f"127.0.0.{number}", 0))
            found.append(f"127.0.0.{number}:{probe.getsockname()[1]}")
    return tuple(found)


@dataclass
class Ended:
    """How a program ended at each place."""

    codes: dict[str, int] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        return set(self.codes.values()) == {0}


class Hosts:
    """A consortium with the Heart records as its own: 240 to train with, the rest to decide about later."""

    def __init__(self, folder: Path, jobs: tuple[str, ...], rows: int = 240) -> None:
        self.folder, records = folder, heart_rows()
        made = folder / "made"
        write_own(made / "old", records[:rows])
        write_own(made / "new", records[rows:])
        make_certificates(made / "certs", len(COLUMNS))
        pins = {place: fingerprint((made / "certs" / place / "cert.pem").read_bytes()) for place in PLACES}
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
        for place, party in zip(PLACES, (*COLUMNS, None), strict=True):
            home = self.home(place)
            (home / "certs").mkdir(parents=True)
            shutil.copy(made / "certs" / "ca.pem", home / "certs")
            shutil.copytree(made / "certs" / place, home / "certs" / place)
            (home / "session.toml").write_text(self.config.to_toml())
            if party is not None:
                shutil.copy(made / "old" / "own.toml", home)
                shutil.copy(made / "old" / f"{party}.csv", home)
                shutil.copy(made / "new" / f"{party}.csv", home / "new.csv")

    def home(self, place: str) -> Path:
        return self.folder / place

    def out(self, rank: int) -> Path:
        return self.home(f"party-{rank}") / "out"

    def start(self, place: str, *arguments: str) -> subprocess.Popen[str]:
        """The program of a place in its own folder; a job comes first among the arguments."""
        own = ("--config", "session.toml", "--certs", "certs")
        job, more = (arguments[:1], arguments[1:]) if arguments and arguments[0] == "predict" else ((), arguments)
        if place == "dealer":
            command = ["run_dealer.py", *job, *own, *(a for a in more if a == "--resume")]
        else:
            command = ["run_party.py", *job, "--rank", place[-1], *own, "--out", "out", *more]
        return subprocess.Popen(
            [sys.executable, str(ROOT / "launch" / command[0]), *command[1:]],
            cwd=self.home(place),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONPATH": str(ROOT)},
        )

    def run(self, *arguments: str, without: tuple[str, ...] = ()) -> Ended:
        """The same command at every place, to its end."""
        running = {place: self.start(place, *arguments) for place in PLACES if place not in without}
        ended = Ended()
        try:
            for place, process in running.items():
                ended.shown[place], _ = process.communicate(timeout=LONG)
                ended.codes[place] = process.returncode
        finally:
            for process in running.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return ended
