"""Walking the commands of docs/operating.md as people at five hosts would.

Each host is a folder with its own files alone. Where it is allowed, each is also a network namespace, joined to the
others by a bridge that stands in a namespace of its own; `bank.example` and the like are names there. Elsewhere the
parties get addresses of the loopback range. `scp` fetches between the folders, and refuses what must stay at home.
Parties and the dealer are real processes. All other commands need no network: their programs run here, one by one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from unittest.mock import patch

from secure_sccvfl.launch.cli import main
from tests.multiprocess.documented import Block, blocks, is_walked
from tests.multiprocess.hosts import free_addresses
from tests.multiprocess.programs import ONE_THREAD, ROOT
from tests.support.sessions import LONG

PARTIES = ("bank", "employer", "bureau")
HOSTS = (*PARTIES, "dealer", "authority")
SUFFIX = ".example"
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

    def inside(self, host: str) -> list[str]:
        """What begins a command that runs at this host."""
        return ["ip", "netns", "exec", self.name(host)]

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

    def inside(self, host: str) -> list[str]:
        return []

    def close(self) -> None:
        pass


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
        self._running: dict[str, tuple[Step, subprocess.Popen[bytes]]] = {}
        for host in HOSTS:
            self.home(host).mkdir(parents=True, exist_ok=True)
        program = folder / "programs" / "sccvfl"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m secure_sccvfl "$@"\n')
        program.chmod(0o755)
        paths = os.pathsep.join([str(program.parent), os.environ["PATH"]])
        ours = {"PATH": paths, "PYTHONPATH": str(ROOT), **ONE_THREAD}
        self._environment = {**os.environ, **ours}

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
            return {step: process.wait(LONG) for step, process in self._running.values()}
        finally:
            for _, process in self._running.values():
                process.kill()
                process.wait()
            self._running.clear()

    def do(self, step: Step) -> int:
        """A command that needs no other host; returns its exit code."""
        text, home = self._here(step), self.home(step.host)
        expanded = subprocess.run(
            ["bash", "-ec", f"printf '%s\\0' {text}"], cwd=home, check=True, capture_output=True, text=True
        )
        program, *words = expanded.stdout.split("\0")[:-1]
        with (self.folder / f"{step.host}.log").open("a") as log, _terminal() as typed:
            print("$", text, file=log, flush=True)
            if program == "scp":
                return self._fetch(words, step.host)
            with (
                contextlib.chdir(home),
                contextlib.redirect_stdout(log),
                contextlib.redirect_stderr(log),
                patch.object(sys, "stdin", typed),
                patch.object(sys, "argv", [program]),
            ):
                assert program == "sccvfl", text
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

    def _start(self, step: Step) -> None:
        assert step.host not in self._running, f"two at once at the {step.host}"
        text = self._here(step)
        with (self.folder / f"{step.host}.log").open("a") as log:
            print("$", text, file=log, flush=True)
            command = [*self.net.inside(step.host), "bash", "-ec", f"exec {text}"]
            home = self.home(step.host)
            process = subprocess.Popen(
                command, cwd=home, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._running[step.host] = (step, process)

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


def count(script: Sequence[Step], host: str) -> int:
    """How many commands are run at a host."""
    return sum(step.host == host for step in script)
