"""Processes that are forked from one that has imported everything share nothing that must differ."""

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_sccvfl.protocols.dealing.gaussian import discrete_gaussian
from secure_sccvfl.protocols.dealing.randomness import fresh_key
from secure_sccvfl.runs.local.processes import ForkedProcess, context, prepare
from secure_sccvfl.runs.process import DealerProcess, PartyProcess
from tests.multiprocess.programs import ROOT
from tests.support.sessions import CERTIFICATES, LONG, local_config

STARTER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from secure_sccvfl.runs.local.processes import ForkedProcess
from secure_sccvfl.runs.process import PartyProcess
if __name__ == "__main__":
    party = ForkedProcess(PartyProcess(0, Path("absent.toml"), Path("out")), Path("log"), {{}})
    party.wait({long})
    sys.exit(party.returncode)
"""


def until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONG
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    """A program that starts a party which lacks its session file: exit code 2."""
    path = tmp_path / "starter.py"
    path.write_text(STARTER.format(root=str(ROOT), long=LONG))
    return path


def draw(there: Connection) -> None:
    """What a forked process draws from every generator that protocols use; and whether torch came along."""
    there.send(
        {
            "key": fresh_key(),
            "noise": discrete_gaussian(1e6, (8,)).tobytes(),
            "tls": ssl.RAND_bytes(16),
            "agreement": X25519PrivateKey.generate().private_bytes_raw(),
            "preloaded": "torch" in sys.modules,
        }
    )


def test_forked_processes_draw_different_randomness() -> None:
    prepare({})
    ends = [context.Pipe() for _ in range(3)]
    processes = [context.Process(target=draw, args=(there,)) for _, there in ends]
    for process in processes:
        process.start()
    seen = [here.recv() for here, _ in ends]
    for process in processes:
        process.join(LONG)
        assert process.exitcode == 0
    assert all(drawn.pop("preloaded") for drawn in seen)
    for name in seen[0]:
        assert len({drawn[name] for drawn in seen}) == len(seen), name


def test_a_process_that_fails_says_so_in_its_log(tmp_path: Path) -> None:
    party = ForkedProcess(PartyProcess(0, tmp_path / "absent.toml", tmp_path / "out"), tmp_path / "log", {})
    party.wait(LONG)
    assert party.returncode == 2
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("party 0: cannot read the session file")


def test_nothing_is_imported_from_the_working_folder(tmp_path: Path, starter: Path) -> None:
    """A folder with data, where someone left a module with the name of one that parties import.

    Without PYTHONPATH of whoever runs the tests: an empty or relative entry in it asks for the working folder.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = tmp_path / "data"
    for name in ("launch", "protocols", "secure_sccvfl", "torch"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("open('was imported', 'w')")
    ended = subprocess.run([sys.executable, str(starter)], cwd=folder, timeout=LONG, env=environment)
    assert ended.returncode == 2 and (folder / "log").exists()
    assert not (folder / "was imported").exists()


def test_ctrl_c_while_the_fork_server_imports_gives_no_traceback(tmp_path: Path, starter: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(starter)], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def importing() -> list[int]:
        pids = children.read_text().split()
        return [int(pid) for pid in pids if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]

    until(lambda: bool(importing()), "no fork server imports torch")
    for pid in importing():
        os.kill(pid, signal.SIGINT)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 2 and errors == ""


def test_no_process_outlives_the_fork_server(tmp_path: Path) -> None:
    """Nobody would be told when it ends: the launcher takes it for gone at once."""
    config, listeners = local_config(2)
    (tmp_path / "session.toml").write_text(config.to_toml())
    dealer = ForkedProcess(DealerProcess(tmp_path / "session.toml", CERTIFICATES), tmp_path / "log", {})
    try:
        listeners[0].settimeout(LONG)
        with listeners[0].accept()[0]:  # it calls, and waits for an answer
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            until(lambda: dealer.poll() is not None, "the launcher was not told")
            assert dealer.returncode != 0
            until(lambda: not is_there(dealer.pid), "it lives on")
    finally:
        for listener in listeners:
            listener.close()


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
