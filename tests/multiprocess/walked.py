"""Walking the commands of docs/operating.md as people at five hosts would.

Each host is a folder with its own files alone. Where it is allowed, each is also a network namespace, joined to the
others by a bridge that stands in a namespace of its own; `bank.example` and the like are names there. Elsewhere the
parties get addresses of the loopback range. `scp` fetches between the folders, and refuses what must stay at home.
Parties and the dealer are processes of their own, forked with all imports done. All other commands need no network:
their programs run here, one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import TextIO
from unittest.mock import patch

from secure_sccvfl.launch.cli import main
from secure_sccvfl.runs.local.processes import ForkedProcess
from tests.multiprocess.documented import Block, blocks, is_walked
from tests.multiprocess.hosts import free_addresses
from tests.multiprocess.programs import ONE_THREAD, ROOT, Script
from tests.support.sessions import LONG

PARTIES = ("bank", "employer", "bureau")
HOSTS = (*PARTIES, "dealer", "authority")
SUFFIX = ".example"
PROGRAM = ROOT / "secure_sccvfl" / "__main__.py"
LATE = -1
"""The exit code of one that has not ended."""
NODE = re.compile(r"sccvfl (party|dealer) ")
"""Commands that run side by side, at all hosts."""


@dataclass(frozen=True)
class Step:
    """One command and the host that it is for."""

    host: str
    text: str


def walk_of(page: Path) -> list[list[Step]]:
    """The steps of every block of a page that is to be walked."""
    return [steps(block) for block in blocks(page) if is_walked(block)]


def steps(block: Block) -> list[Step]:
    commands, host = [], ""
    for line in block.text.replace("\\\n", " ").splitlines():
        if named := re.match(r"# at the (\w+)", line):
            host = named[1]
        elif line.strip():
            commands.append(Step(host, " ".join(line.split())))
    return commands


class Namespaces:
    """A network namespace for each host, and one with the bridge that joins them. Names are of this process alone."""

    def __init__(self) -> None:
        self._made: list[str] = []
        self._etc = Path("/etc/netns")
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError):
            self.close()
            raise

    def name(self, host: str) -> str:
        return f"scc{os.getpid()}-{host}"

    def _make(self) -> None:
        names = "127.0.0.1 localhost\n"
        names += "".join(f"10.99.0.{n} {host}{SUFFIX}\n" for n, host in enumerate(HOSTS, 1))
        self._add("net")
        _ip("-n", self.name("net"), "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.name("net"), "link", "set", "bridge", "up")
        for number, host in enumerate(HOSTS, 1):
            space = self._add(host)
            etc = self._etc / space
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(names)
            _ip("-n", space, "link", "set", "lo", "up")
            joined = ["peer", "name", host, "netns", self.name("net")]
            _ip("-n", space, "link", "add", "eth0", "type", "veth", *joined)
            _ip("-n", space, "address", "add", f"10.99.0.{number}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", self.name("net"), "link", "set", host, "master", "bridge", "up")

    def _add(self, host: str) -> str:
        _ip("netns", "add", self.name(host))
        self._made.append(self.name(host))
        return self.name(host)

    def close(self) -> None:
        for space in self._made:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)
            shutil.rmtree(self._etc / space, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._etc.rmdir()  # only if nobody else has one


class Loopback:
    """The hosts are addresses of this machine; names of the documentation are replaced by them."""

    def __init__(self) -> None:
        self.addresses = dict(zip(PARTIES, free_addresses(), strict=True))

    def name(self, host: str) -> str:
        return ""

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Node(Script):
    """A command of a party or the dealer, in this network namespace if it has a name."""

    space: str = ""

    def run(self, listener: socket | None = None) -> int:
        os.dup2(2, 1)
        if self.space:
            enter(self.space)
        return super().run(listener)


def enter(space: str) -> None:
    """Move this process into a network namespace with its own names of hosts, as `ip netns exec` does."""
    libc, mounts, network, bind, slaves = ctypes.CDLL(None, use_errno=True), 0x20000, 0x40000000, 0x1000, 0x84000
    with open(f"/run/netns/{space}") as net:
        calls = [lambda: libc.setns(net.fileno(), network), lambda: libc.unshare(mounts)]
        calls.append(lambda: libc.mount(b"none", b"/", None, slaves, None))
        calls.append(lambda: libc.mount(f"/etc/netns/{space}/hosts".encode(), b"/etc/hosts", None, bind, None))
        for call in calls:
            if call() != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {space}")


@contextlib.contextmanager
def network() -> Iterator[Namespaces | Loopback]:
    """Namespaces where this user may make them."""
    net: Namespaces | Loopback
    try:
        net = Namespaces()
    except (OSError, subprocess.CalledProcessError):
        net = Loopback()
    try:
        yield net
    finally:
        net.close()


class Walk:
    """The hosts of a consortium, and what was said at each."""

    def __init__(self, folder: Path, net: Namespaces | Loopback) -> None:
        self.folder, self.net = folder, net
        self._running: dict[Step, ForkedProcess] = {}
        for host in HOSTS:
            self.home(host).mkdir(parents=True, exist_ok=True)

    def home(self, host: str) -> Path:
        return self.folder / host

    def log(self, host: str) -> str:
        path = self.folder / f"{host}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def go(self, script: Iterable[Step]) -> None:
        """Every step in order. Parties and the dealer go on while others start; all must end well."""
        for step, code in self.endings(script).items():
            assert code == 0, self._failure(step, code)

    def endings(self, script: Iterable[Step]) -> dict[Step, int]:
        """The exit codes of parties and the dealer, when all have ended; every other step must end well."""
        try:
            for step in script:
                if NODE.match(step.text):
                    self._start(step)
                else:
                    code = self.do(step)
                    assert code == 0, self._failure(step, code)
            for process in self._running.values():
                process.wait(LONG)
            codes = {step: process.poll() for step, process in self._running.items()}
            return {step: LATE if code is None else code for step, code in codes.items()}
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()
            self._running.clear()

    def do(self, step: Step) -> int:
        """A command that needs no other host; returns its exit code."""
        home, (program, *words) = self.home(step.host), self._begun(step)
        with (self.folder / f"{step.host}.log").open("a") as log, _terminal() as typed:
            if program == "scp":
                return self._fetch(words, step.host)
            with (
                contextlib.chdir(home),
                contextlib.redirect_stdout(log),
                contextlib.redirect_stderr(log),
                patch.object(sys, "stdin", typed),
                patch.object(sys, "argv", [program]),
            ):
                assert program == "sccvfl", step.text
                return main(words)

    def _fetch(self, words: Sequence[str], host: str) -> int:
        """`scp HOST.example:PATH ... DEST` between the hosts' folders. What is not public stays at home."""
        *sources, target = words
        for source in sources:
            other, mark, path = source.partition(f"{SUFFIX}:")
            assert mark and other in HOSTS and other != host, source
            assert "key" not in Path(path).name and Path(path).suffix != ".csv", f"{source} must stay at the {other}"
            shutil.copy(self.home(other) / path, self.home(host) / target)
        return 0

    def _begun(self, step: Step) -> list[str]:
        """The words of a command as a shell makes them, which the host's log has from now on."""
        text = self._here(step)
        expanded = subprocess.run(
            ["bash", "-ec", f"printf '%s\\0' {text}"],
            cwd=self.home(step.host),
            check=True,
            capture_output=True,
            text=True,
        )
        with (self.folder / f"{step.host}.log").open("a") as log:
            print("$", text, file=log)
        return expanded.stdout.split("\0")[:-1]

    def _start(self, step: Step) -> None:
        assert all(step.host != other.host for other in self._running), f"two at once at the {step.host}"
        node = Node(step.host, PROGRAM, tuple(self._begun(step)[1:]), self.net.name(step.host))
        with contextlib.chdir(self.home(step.host)):
            self._running[step] = ForkedProcess(node, self.folder / f"{step.host}.log", ONE_THREAD)

    def _here(self, step: Step) -> str:
        """The command as written, with addresses of this machine where its names cannot be given to hosts."""
        text = step.text
        if isinstance(self.net, Loopback):
            for host, address in self.net.addresses.items():
                text = text.replace(f"{host}{SUFFIX}:7100", address)
        return text

    def _failure(self, step: Step, code: int) -> str:
        return f"at the {step.host}: {step.text}\nended with {code}\n{self.log(step.host)[-3000:]}"


@contextlib.contextmanager
def _terminal() -> Iterator[TextIO]:
    """The terminal of somebody who has typed yes."""
    typed, seen = os.openpty()
    os.write(typed, b"yes\n")
    with open(seen, encoding="utf-8") as terminal:
        yield terminal
    os.close(typed)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
