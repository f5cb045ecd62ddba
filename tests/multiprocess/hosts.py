"""Three hosts and a dealer on this machine: an address of the loopback range and a folder for each, and its own key.

Between them may be relays in user space, so that a link can be cut or carry bytes in one direction only.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.config import DEALER, SessionConfig, node_folder, split_address
from tests.multiprocess.programs import Program, script_of
from tests.support.sessions import CERTIFICATES, CONNECT, DEADLINE, LONG

ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
NAMES = ("bank", "employer", "bureau")
PLACES = ("party 0", "party 1", "party 2", DEALER)


def free_address(host: str) -> str:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def free_addresses() -> tuple[str, ...]:
    """A port on each of three addresses of this machine, as three hosts would have them."""
    return tuple(free_address(host) for host in ADDRESSES)


class Relay:
    """Carries bytes to a party. `stop_inward`, `stop_outward`: from then on nothing passes that way, in silence."""

    def __init__(self, target: str) -> None:
        self.target, self.address = target, free_address(split_address(target)[0])
        self.stop_inward, self.stop_outward = threading.Event(), threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(split_address(self.address))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut: both ends see the connection end."""
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            try:
                answerer = socket.create_connection(split_address(self.target), timeout=LONG)
            except OSError:
                caller.close()
                continue
            self._sockets += [caller, answerer]
            ways = ((caller, answerer, self.stop_inward), (answerer, caller, self.stop_outward))
            for source, sink, stopped in ways:
                threading.Thread(target=self._carry, args=(source, sink, stopped), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket, stopped: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while came := source.recv(1 << 16):
                if not stopped.is_set():
                    sink.sendall(came)
            if not stopped.is_set():
                sink.shutdown(socket.SHUT_WR)


class Hosts:
    """Processes of one session as their hosts run them; each has its own certificate and folder."""

    def __init__(
        self,
        folder: Path,
        job: str = "selftest",
        options: Mapping[str, Any] | None = None,
        *,
        connect: float = CONNECT,
        deadline: float = DEADLINE,
        relayed: bool = False,
    ) -> None:
        self.folder = folder
        self.listening = free_addresses()
        self.relays = [Relay(address) for address in self.listening] if relayed else []
        self.config = SessionConfig(
            parties=tuple(relay.address for relay in self.relays) or self.listening,
            names=NAMES,
            connect=connect,
            deadline=deadline,
            idle=3 * deadline,
            job=job,
            options=dict(options if options is not None else {"size": 50, "repeat": 200}),
        )
        self.processes: dict[str, Program] = {}
        for node in range(4):
            node_name = node_folder(node, 3)
            certs = self.home(PLACES[node]) / "certs"
            shutil.copytree(CERTIFICATES / node_name, certs / node_name)
            shutil.copy(CERTIFICATES / "ca.pem", certs)

    def home(self, name: str) -> Path:
        return self.folder / name.replace(" ", "-")

    def log(self, name: str) -> str:
        path = self.home(name) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(
        self,
        *names: str,
        config: SessionConfig | None = None,
        extra: Sequence[str] = (),
        before: Sequence[str] = (),
        instead: Sequence[str] = (),
    ) -> None:
        """Start some of the places.

        `before`: a command that runs the program, such as one that sets a limit. `instead`: another script of this
        folder, with its first arguments.
        """
        for name in names:
            home = self.home(name)
            (home / "session.toml").write_text((config or self.config).to_toml())
            arguments = ["--config", str(home / "session.toml"), "--certs", str(home / "certs"), *extra]
            if name != DEALER:
                rank = int(name.split()[1])
                party_arguments = ["--rank", str(rank), "--out", str(home / "out"), "--listen", self.listening[rank]]
                arguments = [*party_arguments, *arguments]
            self.processes[name] = Program(script_of(name, arguments, instead), home / "log", home, before=before)

    def wait_for(self, name: str, text: str) -> None:
        """Until this is in the log of a place that still runs."""
        end = time.monotonic() + LONG
        while text not in self.log(name):
            assert time.monotonic() < end and self.processes[name].poll() is None, self.log(name)[-2000:]
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        self.processes.pop(name).end()

    def endings(self) -> dict[str, tuple[int, str]]:
        """Wait for all; exit code and last line of each."""
        end, endings = time.monotonic() + LONG, {}
        for name, process in self.processes.items():
            code = process.wait(max(1.0, end - time.monotonic()))
            while code and not (last := process.last_line()).startswith(f"{name}: "):
                assert time.monotonic() < end, last  # a log that goes through a pipe may lag behind
                time.sleep(0.05)
            endings[name] = (code, process.last_line())
        return endings

    def close(self) -> None:
        for process in self.processes.values():
            process.end()
        for relay in self.relays:
            relay.close()
