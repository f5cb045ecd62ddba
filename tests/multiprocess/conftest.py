"""One short run through the real programs, shared by all tests that read or copy its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_sccvfl.local.forked import prepare
from tests.multiprocess.byhand import SHORT, run_mpc


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on German Credit; nobody may change it."""
    place = tmp_path_factory.mktemp("whole")
    run_mpc("--dataset", "german", "--parties", "3", "--out", "run", *SHORT, "--seeds", "2", cwd=place)
    return place / "run"


@pytest.fixture(autouse=True, scope="session")
def _fork_server() -> None:
    """Started once, before a test looks at what a session leaves in the temporary folder."""
    prepare({})
