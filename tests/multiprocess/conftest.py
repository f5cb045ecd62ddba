"""One short run through the real programs, shared by all tests that read or copy its folder."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from secure_sccvfl.reports.run_log import LOG
from secure_sccvfl.runs.local.processes import prepare
from tests.multiprocess.programs import SHORT, run_mpc


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on German Credit; nobody may change it. The first worker that needs it makes it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "whole"
    folder.mkdir(exist_ok=True)
    run = folder / "run"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (run / LOG).exists():
            shutil.rmtree(run, ignore_errors=True)
            run_mpc("--dataset", "german", "--parties", "3", "--out", run.name, *SHORT, "--seeds", "1", cwd=folder)
    return run


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(whole_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True, scope="session")
def _fork_server() -> None:
    """Started once, before a test looks at what a session leaves in the temporary folder."""
    prepare({})
