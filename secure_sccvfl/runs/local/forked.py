"""Forks the processes of a session on this machine from one process that has imported everything.

Importing torch and CrypTen takes two seconds of CPU in every process, and a whole run starts twelve. Python's own
fork server imports once and forks. A party is still its own process, with its own memory, keys and sockets: the
process it is forked from holds no key and no data and has drawn no random number. Processes that are started by
hand (run_party.py, run_dealer.py) do their own imports.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import IO

from secure_sccvfl.runs.process import SessionProcess

context = multiprocessing.get_context("forkserver")

_DEATH_SIGNAL, _SET_NAME = 1, 15
"""Constants of Linux's prctl."""
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
        with _without_the_script():
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


def same_imports() -> dict[str, str]:
    """What makes a new Python import from the same places as this process, and not from the working folder."""
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": places}


@contextlib.contextmanager
def _without_the_script() -> Iterator[None]:
    """Keep Python from running our start script again in the new process, which would start another session."""
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
    """Runs in the new process."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        # The name that `top` shows: the command line is the same for all of them.
        library.prctl(_SET_NAME, work.name.encode(), 0, 0, 0)
        # Without the fork server nobody learns how this process ends, and the launcher treats it as gone.
        library.prctl(_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with log.open("a") as errors, open(os.devnull, "w") as nowhere:
        os.dup2(errors.fileno(), 2)
        os.dup2((nowhere if output is None else output).fileno(), 1)
    if output is not None:
        output.close()
    sys.exit(work.run(listener))
