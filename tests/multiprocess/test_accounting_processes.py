"""Processes that spend one budget at once and are killed at any step: real ones, real SIGKILL, real files."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.runs.process import THREAD_VARIABLES
from tests.multiprocess.ledger_worker import CAP, DELTA
from tests.support.sessions import LONG

KILLED = -signal.SIGKILL
WORKER = Path(__file__).with_name("ledger_worker.py")
FIVE_FIT = noise_multiplier(CAP, DELTA, 5)


class Workers:
    """Rounds of spenders on the files of one folder."""

    def __init__(self):
        threads = {name: "1" for name in THREAD_VARIABLES}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads},
        )

    def round(self, folder, *spenders):
        """Exit codes, negative for a signal."""
        self.process.stdin.write(json.dumps({"folder": str(folder), "spenders": spenders}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=LONG) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def workers():
    started = Workers()
    yield started
    started.close()


def released(folder):
    file = folder / "released"
    return file.read_text().splitlines() if file.exists() else []


def unpaid(folder):
    """Releases that the ledger does not know; opening it must work after any crash."""
    budget = Budget.open(folder / "ledger.jsonl", CAP, DELTA)
    assert epsilon_of(budget.events, DELTA) <= CAP
    return set(released(folder)) - {charge.key for charge in budget.charges}


def test_a_process_killed_before_any_of_its_steps_loses_no_charge(workers, tmp_path):
    first, second = ({"name": n, "multipliers": [FIVE_FIT] * count} for n, count in (("a", 2), ("b", 4)))
    for step in range(1000):
        folder = tmp_path / str(step)
        folder.mkdir()
        (code,) = workers.round(folder, {**first, "kill_at": step})
        assert code in (KILLED, 0) and not unpaid(folder)
        assert workers.round(folder, second) == [0], "what a crash leaves can be gone on with"
        assert not unpaid(folder)
        if code == 0:
            break
    assert step > 40 and len(released(folder)) == 5, "every step was tried, and the last run was whole"


def test_the_kill_test_sees_a_release_made_before_its_charge(workers, tmp_path):
    seen = set()
    for step in range(0, 60, 3):
        folder = tmp_path / str(step)
        folder.mkdir()
        workers.round(folder, {"name": "a", "multipliers": [FIVE_FIT], "kill_at": step, "release_first": True})
        seen |= unpaid(folder)
    assert seen == {"a/0"}


def test_processes_cannot_spend_the_same_budget(workers, tmp_path):
    spenders = [{"name": str(n), "multipliers": [FIVE_FIT] * 3} for n in range(4)]
    assert workers.round(tmp_path, *spenders) == [0] * 4
    assert len(released(tmp_path)) == 5 and not unpaid(tmp_path)


def test_without_the_lock_they_can_and_it_is_seen(workers, tmp_path):
    spenders = [{"name": str(n), "multipliers": [FIVE_FIT] * 3, "unlocked": True} for n in range(4)]
    codes = workers.round(tmp_path, *spenders)
    assert len(released(tmp_path)) > 5 or any(codes), "overspent, or stopped by a ledger that no longer fits"


SPENDER = st.fixed_dictionaries(
    {
        "multipliers": st.lists(st.sampled_from([0.4, FIVE_FIT, 3.0, 8.0]), min_size=1, max_size=4),
        "kill_at": st.none() | st.integers(0, 90),
        "kill_after": st.none() | st.integers(0, 30),
    }
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(SPENDER, min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_sequence_of_processes_and_kills_spends_more_than_the_cap(workers, rounds):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number, spenders in enumerate(rounds):
            named = [{**spender, "name": f"{number}.{k}"} for k, spender in enumerate(spenders)]
            codes = workers.round(folder, *named)
            assert set(codes) <= {0, KILLED}
            assert not unpaid(folder)
