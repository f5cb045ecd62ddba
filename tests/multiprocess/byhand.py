"""Starting the real programs one by one, as on different hosts, so that any of them can be faulty."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from secure_sccvfl.protocols.config import DEALER, SessionConfig
from tests.multiprocess.programs import ROOT, Program, script_of
from tests.support.sessions import CERTIFICATES, CONNECT, DEADLINE, local_config


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
        self.processes: dict[str, Program] = {}

    def start(
        self,
        name: str,
        *,
        instead: Sequence[str] = (),
        config: SessionConfig | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start 'dealer' or 'party 0'...; `instead` names another script here and its first arguments."""
        file = self.folder / f"{name}.toml"
        file.write_text((config or self.config).to_toml())
        arguments, listener = ["--config", str(file), "--certs", str(CERTIFICATES)], None
        if name != DEALER:
            rank = int(name.split()[1])
            listener = self._listeners[rank]
            arguments = ["--rank", str(rank), "--out", str(self.folder / f"party-{rank}"), *arguments]
        script, log = script_of(name, arguments, instead), self.folder / f"{name}.log"
        self.processes[name] = Program(script, log, ROOT, listener, environment=environment)
        if listener is not None:
            listener.close()

    def free_port(self, rank: int) -> None:
        """Nobody listens for this party."""
        self._listeners[rank].close()

    def endings(self) -> dict[str, tuple[int, str]]:
        """Wait as long as the deadlines allow; a process still there then is a failure."""
        end = time.monotonic() + self.config.connect + 4 * self.config.deadline
        endings = {}
        for name, process in self.processes.items():
            code = process.wait(max(1.0, end - time.monotonic()))
            endings[name] = (code, process.last_line())
        return endings

    def close(self) -> None:
        for process in self.processes.values():
            process.end()
        for listener in self._listeners:
            listener.close()

    def ports_are_free(self) -> bool:
        for address in self.config.parties:
            host, port = address.rsplit(":", 1)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, int(port)))
        return True
