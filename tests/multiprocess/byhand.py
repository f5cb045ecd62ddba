"""Starting the real programs one by one, as on different hosts, so that any of them can be faulty."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from protocols.config import SessionConfig
from secure_sccvfl.run.process import THREAD_VARIABLES
from tests.support.harness import CERTIFICATES, CONNECT, DEADLINE, LONG, local_config

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SHORT = ("--refreshes", "1", "--warmup", "20", "--steps", "30", "--lambdas", "8", "16", "--seeds", "0")


def run_mpc(*arguments: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The program that runs all processes on this machine; it must end with this code."""
    command = [sys.executable, str(ROOT / "launch" / "run_mpc.py"), *map(str, arguments)]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LONG)
    assert ran.returncode == code, ran.stderr[-3000:]
    return ran


class ByHand:
    """Processes of one session; `endings` waits for them and gives exit code and last line of each."""

    def __init__(
        self,
        folder: Path,
        parties: int = 3,
        connect: float = CONNECT,
        deadline: float = DEADLINE,
        repeat: int = 200,
        size: int = 50,
    ) -> None:
        self.folder = folder
        options = {"size": size, "repeat": repeat}
        self.config, self._listeners = local_config(parties, connect=connect, deadline=deadline, options=options)
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(
        self,
        name: str,
        *,
        instead: tuple[str, ...] | None = None,
        config: SessionConfig | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start 'dealer' or 'party 0'...; `instead` names another script here and its first arguments."""
        file = self.folder / f"{name}.toml"
        file.write_text((config or self.config).to_toml())
        arguments = ["--config", str(file), "--certs", str(CERTIFICATES)]
        handles: tuple[int, ...] = ()
        if name == "dealer":
            script = ["run_dealer.py"]
        else:
            rank = int(name.split()[1])
            listener = self._listeners[rank]
            handles = (listener.fileno(),)
            script = ["run_party.py", "--rank", str(rank), "--out", str(self.folder / f"party-{rank}")]
            arguments += ["--listen-fd", str(listener.fileno())]
        program = [str(ROOT / "launch" / script[0])]
        if instead is not None:
            program = [str(HERE / instead[0]), *instead[1:]]
        self.processes[name] = subprocess.Popen(
            [sys.executable, *program, *script[1:], *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=handles,
            cwd=ROOT,
            env={
                **os.environ,
                **dict.fromkeys(THREAD_VARIABLES, "1"),
                "PYTHONPATH": str(ROOT),
                **(environment or {}),
            },
        )
        if name != "dealer":
            listener.close()

    def free_port(self, rank: int) -> None:
        """Nobody listens for this party."""
        self._listeners[rank].close()

    def other_configuration(self) -> SessionConfig:
        return replace(self.config, options={**self.config.options, "seed": 1})

    def endings(self) -> dict[str, tuple[int, str]]:
        """Wait as long as the deadlines allow; a process still there then is a failure."""
        end = time.monotonic() + self.config.connect + 4 * self.config.deadline
        found = {}
        for name, process in self.processes.items():
            _, errors = process.communicate(timeout=max(1.0, end - time.monotonic()))
            lines = [line for line in errors.splitlines() if line.strip()]
            found[name] = (process.returncode, lines[-1] if lines else "")
        return found

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate()
        for listener in self._listeners:
            listener.close()

    def ports_are_free(self) -> bool:
        for address in self.config.parties:
            host, port = address.rsplit(":", 1)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, int(port)))
        return True
