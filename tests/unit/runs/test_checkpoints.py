"""Resuming: shares of one execution go together, and never with those of another."""

import numpy as np
import pytest

from secure_sccvfl.config.sections import ANSWERS, BY_WIRE
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.session.saving import restore_share, save_share
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.runs.checkpoints import Checkpoints
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.shared import SharedHead, Weights
from secure_sccvfl.training.trainer import State
from tests.support.sessions import run_session, stopping

FIRST, SECOND, THIRD = ("11" * 32, "22" * 32, "33" * 32)


def state(share):
    weight, bias = (restore_share(np.full(shape, share, np.int64), HEAD_BITS) for shape in ((2, 1), (1,)))
    return State(SharedHead(Weights(weight, bias, weight, bias), np.ones(1), "regression"))


def resumed(folder, name):
    """What every party goes on from in a new session: number, and the head that the shares add up to."""

    def job(session):
        kept = Checkpoints(folder / str(session.rank), name)
        restored = kept.resume(session, "regression")
        return kept.number, kept.run, save_share(restored.head.weights.weight)

    results = run_session(job, 2)
    return [(number, run) for number, run, _ in results], sum(weight for *_, weight in results)


@pytest.fixture
def a_step_apart(tmp_path):
    """The first session ends when party 0 has written its second checkpoint, and party 1 has not."""
    ahead, behind = (Checkpoints(tmp_path / str(rank), FIRST) for rank in range(2))
    ahead.keep(state(-(10**17)))
    behind.keep(state(10**17 + 5))
    ahead.keep(state(-(10**18)))
    return tmp_path


def test_the_last_common_checkpoint_is_taken(a_step_apart):
    assert np.array_equal(resumed(a_step_apart, SECOND)[1], np.full((2, 1), 5))


def test_shares_of_two_executions_of_one_step_are_not_put_together(a_step_apart):
    """The second session ends as soon as party 1 has written the checkpoint that party 0 has from the first."""

    def job(session):
        kept = Checkpoints(a_step_apart / str(session.rank), SECOND)
        kept.resume(session, "regression")
        if session.rank == 1:
            kept.keep(state(7 * 10**18))

    run_session(job, 2)
    went_on, head = resumed(a_step_apart, THIRD)
    assert went_on == [(1, FIRST)] * 2
    assert np.array_equal(head, np.full((2, 1), 5))


def test_checkpoints_of_different_runs_or_none_at_all_are_refused(tmp_path):
    Checkpoints(tmp_path / "0", FIRST).keep(state(1))
    with stopping("no checkpoint in common"):
        resumed(tmp_path, THIRD)
    Checkpoints(tmp_path / "1", SECOND).keep(state(1))
    with stopping("of different runs"):
        resumed(tmp_path, THIRD)


BEGAN = {"dataset": "loans.toml", "seed": 3, "epsilon": 4.0, "lambdas": [1.0, 8.0], "pooled": False}
IDS, DESCRIPTION = "a" * 64, "d" * 64


@pytest.mark.parametrize(
    ("changes", "ids", "reason"),
    [
        ({"seed": 4}, IDS, "seed 3, not 4"),
        ({"split": "shift"}, IDS, "split iid, not shift"),
        ({"mode": "dp"}, IDS, "mode sealed, not dp"),
        ({"epsilon": 8.0}, IDS, "epsilon 4.0, not 8.0"),
        ({"lambdas": [1.0]}, IDS, r"lambdas \(1.0, 8.0\), not \(1.0,\)"),
        ({"ledger": "another"}, IDS, "ledger , not another"),
        ({"noise": "dealer"}, IDS, "noise dealer.holder, not dealer"),
        ({"pooled": True, "evaluation": "noisy"}, IDS, "pooled False, not True"),
        ({"evaluation": "exact"}, IDS, "evaluation noisy, not exact"),
        ({"dataset": "german", "card": "shipped"}, IDS, "other card"),
        ({}, "b" * 64, "other records"),
    ],
)
def test_a_run_continues_with_its_own_settings_only(changes, ids, reason, tmp_path):
    """Each party finds out alone, in one line, before it says a word to the others."""
    kept = Checkpoints(tmp_path, FIRST, RunOptions.of(BEGAN).settings(DESCRIPTION, IDS))
    kept.keep(state(1))
    same = Checkpoints(tmp_path, SECOND, RunOptions.of({**BEGAN, "resume": True}).settings(DESCRIPTION, IDS))
    same.check()
    other = Checkpoints(tmp_path, SECOND, RunOptions.of({**BEGAN, **changes}).settings(DESCRIPTION, ids))
    with pytest.raises(ConfigError, match=f"cannot resume: the run began with {reason}; go on as it began"):
        other.check()
    with pytest.raises(ConfigError):
        other.resume(None, "regression")  # no session is asked


def test_a_run_of_an_earlier_version_continues_without_a_certificate(tmp_path):
    earlier = RunOptions.of(BEGAN).settings(DESCRIPTION, IDS)
    del earlier["certificate"]
    Checkpoints(tmp_path, FIRST, earlier).keep(state(1))
    without = RunOptions.of({**BEGAN, "certificate": False}).settings(DESCRIPTION, IDS)
    Checkpoints(tmp_path, SECOND, without).check()
    with pytest.raises(ConfigError, match="began with certificate False, not True"):
        Checkpoints(tmp_path, SECOND, RunOptions.of(BEGAN).settings(DESCRIPTION, IDS)).check()


def test_every_option_that_a_state_follows_from_is_compared():
    """A new option is compared unless it is said here that it changes nothing."""
    changes_nothing = {"dataset", "checkpoints", "resume", "model", "port", *ANSWERS, "cap"}
    compared = set(RunOptions().settings(DESCRIPTION, IDS))
    assert compared == set(BY_WIRE) - changes_nothing | {"description"}
