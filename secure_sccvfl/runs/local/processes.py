"""Starts and watches the processes of one session on this machine.

They are forked from one process that has imported everything: importing torch and CrypTen takes two seconds of CPU,
and a whole run starts twelve processes. A party is still its own process, with its own memory, keys and sockets: the
process it is forked from holds no key and no data and has drawn no random number. Processes that are started by hand
(run_party.py, run_dealer.py) do their own imports.

The first process that fails gives the exit code. The others notice that a peer is gone, get a few seconds to stop
by themselves, and are then ended. Nothing is left behind: no process, no port (listening sockets are made here and
handed down), no throw-away key.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from secure_sccvfl.protocols.config import MOST_SHARDS, SessionConfig
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.certificates import make_certificates
from secure_sccvfl.protocols.net.rendezvous import listen_anywhere
from secure_sccvfl.runs.console import OK, PEER_STOPPED, STOPPED, WRONG_USE, documented
from secure_sccvfl.runs.local.relay import Relay
from secure_sccvfl.runs.process import (
    THREAD_VARIABLES,
    DealerProcess,
    PartyProcess,
    SessionProcess,
    end_with_parent,
    same_imports,
)

Event = Callable[[dict[str, Any]], None]

_GRACE = 5.0
_SLOW_GRACE = 20.0  # while all that have ended only heard of a failure, and none knows the cause
_LAST_GRACE = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Child:
    name: str
    process: ForkedProcess
    log: Path

    def last_line(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "(no message)"

    @property
    def only_heard(self) -> bool:
        """Whether it stopped only because a peer said that it stops: that peer knows why."""
        return self.process.returncode == PEER_STOPPED

    @property
    def failure(self) -> str:
        code = self.process.returncode
        if code is not None and code < 0:
            return f"{self.name}: ended by {signal.Signals(-code).name}"
        line = self.last_line()
        return line if line.startswith(self.name) else f"{self.name}: exit code {self.exit_code}: {line}"

    @property
    def exit_code(self) -> int:
        """The exit code as a shell would show it."""
        code = self.process.returncode
        return STOPPED if code is None else documented(code) if code >= 0 else 128 - code


@dataclass(frozen=True)
class Ending:
    """How a session ended.

    It has the exit code to pass on and one line for each process that failed. It also has the line of the process
    that is to blame: wrong input if there was any, otherwise the first that failed.
    """

    code: int
    cause: str
    failures: list[str]
    exit_codes: dict[str, int]

    def check(self, folder: Path | None = None) -> None:
        """Raise if it did not end well. Without a folder, whose logs tell more, the message lists all failures."""
        if self.code != OK:
            logs = "; ".join(self.failures) if folder is None else f"{self.cause} (logs are in {folder / 'logs'})"
            raise ProtocolError(logs)


class LocalSession:
    """Dealer and parties of one session, as a context manager."""

    def __init__(
        self,
        config: SessionConfig,
        folder: Path,
        certs: Path | None = None,
        on_event: Event = lambda event: None,
        debug: bool = False,
        transcript: bool = False,
        delay: float = 0.0,
    ) -> None:
        """`transcript`: every process writes down what it sees, and a wire-tap what the network sees.

        `delay`: seconds that a byte travels between processes, for benchmarks.
        """
        self.folder, self._transcript, self._delay = folder, transcript, delay
        self._relay: Relay | None = None
        self.children: list[Child] = []
        self._debug, self._on_event = debug, on_event
        self._keys: Path | None = None
        self._listeners: list[socket.socket] = []
        self._held: list[socket.socket] = []
        self._config, self._certs = config, certs
        self._threads = max(1, (os.cpu_count() or 1) // (len(config.parties) + 1))

    @staticmethod
    def addresses(parties: int) -> tuple[list[socket.socket], tuple[str, ...]]:
        """Free local ports, held open so that nobody else takes them."""
        listeners = [listen_anywhere() for _ in range(parties)]
        return [listener for listener, _ in listeners], tuple(address for _, address in listeners)

    def _reserved(self, parties: int) -> list[list[str]]:
        """Free ports for the workers of shards. They are bound here, not listened on, until the session has ended."""
        addresses = []
        for _ in range(self._config.shards["count"]):
            row = [socket.socket() for _ in range(parties)]
            for one in row:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("127.0.0.1", 0))
            self._held += row
            addresses.append([f"127.0.0.1:{one.getsockname()[1]}" for one in row])
        return addresses

    def __enter__(self) -> LocalSession:
        self._previous = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
        try:
            self._start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up()

    def _start(self) -> None:
        parties = len(self._config.parties)
        self._listeners, addresses = self.addresses(parties)
        if self._transcript or self._delay:
            self._relay = Relay(addresses, self._delay, self.folder / "network" if self._transcript else None)
            addresses = self._relay.addresses
        config = replace(self._config, parties=addresses)
        if config.shards:
            shards = {**config.shards, "addresses": self._reserved(parties)}
            config = replace(config, shards=shards)
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)  # a resumed run already has one
        session_file = (self.folder / "session.toml").resolve()
        session_file.write_text(config.to_toml())
        certs = self._certs
        if certs is None:
            self._keys = Path(tempfile.mkdtemp(prefix="sccvfl-"))
            certs = self._keys / "certs"
            make_certificates(certs, parties, days=1)
        self._launch(DealerProcess(session_file, certs, self._transcript_of("dealer"), self._debug))
        for rank in range(parties):
            name = f"party-{rank}"
            party = PartyProcess(
                rank=rank,
                config=session_file,
                out=self.folder / name,
                certs=certs,
                threads=self._threads,
                transcript=self._transcript_of(name),
                progress=rank == 0,
                debug=self._debug,
            )
            self._launch(party, self._listeners[rank] if self._listeners else None, follow=party.progress)
        self._close_listeners()
        threading.Thread(target=self._follow, args=(self.children[1].process.output,), daemon=True).start()

    def _transcript_of(self, name: str) -> Path | None:
        return self.folder / name / "transcript" if self._transcript else None

    def _launch(self, work: SessionProcess, listener: socket.socket | None = None, *, follow: bool = False) -> None:
        log = self.folder / "logs" / f"{work.name.replace(' ', '-')}.log"
        log.touch()
        threads = dict.fromkeys(THREAD_VARIABLES, str(self._threads))
        process = ForkedProcess(work, log, threads, listener, follow=follow)
        self.children.append(Child(work.name, process, log))

    def _follow(self, stream: IO[str] | None) -> None:
        with contextlib.suppress(ValueError):  # it was closed here because a session ended in the middle
            for line in stream or ():
                self._tell(line)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("connected"):
                self._remove_keys()
            self._on_event(event)

    def wait(self) -> Ending:
        """Wait until all have ended; after the first failure at most a few seconds."""
        first: Child | None = None
        limit, cause_known = float("inf"), False
        while any(child.process.poll() is None for child in self.children):
            failed = [child for child in self.children if child.process.poll() not in (None, OK)]
            if failed and first is None:
                first, limit = failed[0], time.monotonic() + _SLOW_GRACE
            if not cause_known and any(not child.only_heard for child in failed):
                cause_known, limit = True, time.monotonic() + _GRACE
            if time.monotonic() > limit:
                break
            time.sleep(0.02)
        self._end_all()
        failed = [child for child in self.children if child.process.returncode != OK]
        first = _to_blame(failed, first) if failed else None
        return Ending(
            code=first.exit_code if first else OK,
            cause=first.failure if first else "",
            failures=[child.failure for child in failed],
            exit_codes={child.name: child.exit_code for child in self.children},
        )

    def _end_all(self) -> None:
        alive = [child.process for child in self.children if child.process.poll() is None]
        for process in alive:
            process.terminate()
        end = time.monotonic() + _LAST_GRACE
        for process in alive:
            process.wait(max(0.05, end - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()

    def _clean_up(self) -> None:
        self._end_all()
        for child in self.children:
            if child.process.output is not None:
                child.process.output.close()
        self._close_listeners()
        for one in self._held:
            one.close()
        if self._relay is not None:
            self._relay.close()
        self._remove_keys()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def _remove_keys(self) -> None:
        if self._keys is not None:
            shutil.rmtree(self._keys, ignore_errors=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _to_blame(failed: list[Child], first: Child | None) -> Child:
    """Wrong input first; otherwise the first that failed, unless it only heard that a peer stops."""
    wrong = [child for child in failed if child.process.returncode == WRONG_USE]
    if first is None or first.only_heard:
        with_cause = [child for child in failed if (child.process.returncode or 0) > 0 and not child.only_heard]
        first = with_cause[0] if with_cause else first or failed[0]
    return wrong[0] if wrong else first


def new_folder() -> Path:
    """A folder of `runs` that is not there yet: time, this process, and a number if that is not enough."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    names = (f"{now}-{os.getpid()}{f'-{number}' if number else ''}" for number in itertools.count())
    return next(folder for name in names if not (folder := Path("runs") / name).exists())


def session_config(folder: Path, job: str, parties: int, options: dict[str, Any], **settings: Any) -> SessionConfig:
    """A session on this machine; real addresses are chosen when the processes start."""
    placeholder = tuple(f"127.0.0.1:{1 + rank * (MOST_SHARDS + 1)}" for rank in range(parties))
    return SessionConfig(parties=placeholder, name=folder.name, job=job, options=options, **settings)


def run_job(
    config: SessionConfig,
    folder: Path,
    certs: Path | None = None,
    on_event: Event = lambda event: None,
    debug: bool = False,
    transcript: bool = False,
) -> Ending:
    with LocalSession(config, folder, certs, on_event, debug, transcript) as session:
        return session.wait()


context = multiprocessing.get_context("forkserver")

_LONGEST_TEMPORARY = 70
"""The longest folder name, in bytes, in which Python's fork server can name its socket: Linux allows 107 in all."""


class ForkedProcess:
    """A party or the dealer in its own process; `poll` and `returncode` work as in `subprocess.Popen`."""

    def __init__(
        self,
        work: SessionProcess,
        log: Path,
        threads: dict[str, str],
        listener: socket.socket | None = None,
        *,
        follow: bool = False,
    ) -> None:
        """Standard error goes to `log`, and with `follow` standard output to `output`."""
        prepare(threads)
        reader, writer = socket.socketpair() if follow else (None, None)
        self.output: IO[str] | None = reader.makefile() if reader is not None else None
        given = (work, log.resolve(), os.getcwd(), {**os.environ, **threads}, listener, writer)
        self._process = context.Process(target=_run, args=given)
        with without_the_script():
            self._process.start()
        for end in (reader, writer):
            if end is not None:
                end.close()  # `output` keeps the reader
        self.pid = int(self._process.pid or 0)
        self.terminate, self.kill, self.wait = self._process.terminate, self._process.kill, self._process.join

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode


def prepare(threads: dict[str, str]) -> None:
    """Start the fork server, once; libraries read their number of threads when they are imported.

    The server imports from the same places as this process. By default Python would look in the working folder
    first, so a file there would run in every party.
    """
    wanted = {**threads, **same_imports()}
    before = {name: os.environ.pop(name, None) for name in wanted}
    os.environ.update(wanted)
    try:
        context.set_forkserver_preload(["secure_sccvfl.runs.local.preloaded"])
        with _short_temporary_folder():
            forkserver.ensure_running()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def without_the_script() -> Iterator[None]:
    """Keep processes that start here from running our start script again, which would start another session."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextlib.contextmanager
def _short_temporary_folder() -> Iterator[None]:
    """Use the system's own folder for the fork server's socket where TMPDIR is too long a name for it."""
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_TEMPORARY:
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = before


def _run(
    work: SessionProcess,
    log: Path,
    folder: str,
    environment: dict[str, str],
    listener: socket.socket | None,
    output: socket.socket | None,
) -> None:
    end_with_parent(work.name)  # without the fork server the launcher treats this process as gone
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with log.open("a") as errors, open(os.devnull, "w") as nowhere:
        os.dup2(errors.fileno(), 2)
        os.dup2((nowhere if output is None else output).fileno(), 1)
    if output is not None:
        output.close()
    sys.exit(work.run(listener))
