"""Starting the real programs without paying for their imports each time.

Torch and CrypTen take three seconds of CPU to import. A program that runs beside others is forked from the process
that has them, as those of a session on one machine are. It is still a process of its own, with its own command line,
sockets, log and exit code. A program that runs alone is called here. test_launch.py starts some of them anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from secure_sccvfl.runs.local.processes import ForkedProcess
from secure_sccvfl.runs.process import THREAD_VARIABLES

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SHORT = ("--refreshes", "0", "--warmup", "20", "--steps", "30", "--lambdas", "8", "16", "--seeds", "0")
"""A training of seconds."""
ONE_THREAD = dict.fromkeys(THREAD_VARIABLES, "1")


@dataclass(frozen=True)
class Script:
    """A file and its arguments, as the work of a forked process."""

    name: str
    file: Path
    arguments: tuple[str, ...]

    def run(self, listener: socket.socket | None = None) -> int:
        handle = [] if listener is None else ["--listen-fd", str(listener.detach())]
        sys.argv = [str(self.file), *self.arguments, *handle]
        runpy.run_path(str(self.file), run_name="__main__")
        return 0


def script_of(node: str, arguments: Sequence[str], instead: Sequence[str] = ()) -> Script:
    """The program of 'dealer' or 'party 0'...; `instead` names another script here and its first arguments."""
    if instead:
        return Script(node, HERE / instead[0], (*instead[1:], *arguments))
    return Script(node, ROOT / "launch" / f"run_{node.split()[0]}.py", tuple(arguments))


class Program:
    """One running program; its standard error goes to `log`.

    `before`: a command that starts it, such as one that sets a limit. With that, or with an environment that
    libraries read when they are imported, it is started anew.
    """

    def __init__(
        self,
        script: Script,
        log: Path,
        folder: Path,
        listener: socket.socket | None = None,
        *,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._process: ForkedProcess | subprocess.Popen[bytes]
        if not before and environment is None:
            with contextlib.chdir(folder):
                self._process = ForkedProcess(script, log, ONE_THREAD, listener)
            return
        handles = [] if listener is None else [listener.fileno()]
        given = [text for handle in handles for text in ("--listen-fd", str(handle))]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*before, sys.executable, str(script.file), *script.arguments, *given],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=handles,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": paths, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> int:
        """Its exit code; one that is still there then is a failure."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        code = self._process.poll()
        assert code is not None, f"still running after {seconds:.0f} s:\n{self.said()[-2000:]}"
        return code

    def end(self) -> None:
        """Kill it if it is still there."""
        self._process.kill()
        self._process.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def last_line(self) -> str:
        return self.said().strip().rpartition("\n")[2]


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run_here(name: str, *arguments: str | Path, cwd: Path) -> Ran:
    """Call a program of launch/ in this process, with this working folder."""
    said, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(errors),
        patch.object(sys, "argv", [name]),
    ):
        try:
            code = import_module(f"secure_sccvfl.launch.{name}").main([*map(str, arguments)])
        except SystemExit as stop:  # argparse
            code = stop.code or 0
    return Ran(int(code), said.getvalue(), errors.getvalue())


def run_mpc(*arguments: str | Path, cwd: Path, code: int = 0) -> Ran:
    """The program that runs all processes on this machine; it must end with this code."""
    ran = run_here("run_mpc", *arguments, cwd=cwd)
    assert ran.returncode == code, ran.stderr[-3000:]
    return ran
