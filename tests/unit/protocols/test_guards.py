"""Small guards, each with the test that notices when it is gone."""

from __future__ import annotations

import errno
import fcntl
import math
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Quote
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.ledger import FileLedger
from secure_sccvfl.protocols.dealing.randomness import fresh_key
from secure_sccvfl.protocols.errors import (
    InputError,
    LocalError,
    PeerError,
    ProtocolError,
    RangeError,
    reason_for_peers,
)
from secure_sccvfl.protocols.net.certificates import make_certificates
from secure_sccvfl.protocols.operations.arithmetic import Masked
from secure_sccvfl.protocols.records.chain import HashChain
from secure_sccvfl.protocols.records.releases import Release, ReleaseDesk, ReleasePlan
from secure_sccvfl.protocols.records.transcript import Frame, Transcript
from secure_sccvfl.protocols.steps.head import Weights
from secure_sccvfl.protocols.steps.split import Inputs, Stepped
from secure_sccvfl.training.modes.dp import DpSeen

SHARE = np.full((1, 1), 123456789, np.int64)


def test_an_open_ledger_is_locked_for_everyone_else(tmp_path: Path) -> None:
    with FileLedger(tmp_path / "ledger.jsonl").locked(), open(tmp_path / "ledger.jsonl.lock") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_cap_is_kept_to_the_last_bit() -> None:
    assert Quote(0.0, 8.0, 8.0).allowed
    assert not Quote(0.0, math.nextafter(8.0, 9.0), 8.0).allowed


def test_four_releases_of_twice_the_noise_cost_what_one_does() -> None:
    """Inverse variances of Gaussian noise add up, whoever adds the prices up."""
    four, one = Event("x", 1.0, 4.0, "records", count=4), Event("x", 1.0, 2.0, "records")
    assert epsilon_of([four], 1e-5) == pytest.approx(epsilon_of([one], 1e-5), rel=1e-12)
    assert epsilon_of([four], 1e-5) > 1.5 * epsilon_of([replace(four, count=1)], 1e-5)


def test_releases_of_one_round_are_counted_one_by_one() -> None:
    twice = Release("twice", (0,), (), "test", times=2)
    desk = ReleaseDesk(ReleasePlan([twice]), parties=2)
    desk.admit_all([(twice, ()), (twice, ())])
    with pytest.raises(ProtocolError, match="already made 2 times"):
        desk.admit(twice, ())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_transcripts_and_logs_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certificates", 2)
    HashChain(tmp_path / "releases.jsonl")
    Transcript(tmp_path / "transcript").close()
    keys = list((tmp_path / "certificates").glob("*/key.pem"))
    assert len(keys) == 3
    for path in (*keys, tmp_path / "releases.jsonl", *(tmp_path / "transcript").iterdir()):
        assert mode(path) == 0o600, path
    for folder in (tmp_path / "transcript", *(path.parent for path in keys)):
        assert mode(folder) == 0o700, folder


@pytest.mark.parametrize(
    "holder",
    [
        Masked(7, (1, 1), SHARE, 0, SHARE, SHARE),
        Inputs(SHARE, SHARE, (SHARE,)),
        Stepped(Weights(SHARE, SHARE, SHARE, SHARE), SHARE, SHARE, (SHARE,)),
        DpSeen(SHARE, SHARE),
        Frame("in", (0,), "data", "step", (SHARE,)),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_what_holds_ring_elements_does_not_show_them(holder: object) -> None:
    assert "123456789" not in repr(holder)


@pytest.mark.parametrize("kind", [LocalError, RangeError, InputError])
def test_peers_hear_nothing_about_own_data(kind: type[LocalError]) -> None:
    assert reason_for_peers(kind("row 17 is 42")) == f"{kind.kind} ({kind.__name__})"
    assert reason_for_peers(OSError("row 17 is 42")) == "OSError"
    assert "out of step" in reason_for_peers(PeerError("party 1", "round", "out of step"))


def test_peers_hear_of_a_full_disk_without_its_file() -> None:
    assert reason_for_peers(OSError(errno.ENOSPC, "No space left", "/srv/example/out")) == "its disk is full"


@pytest.mark.chance(1e-12)
def test_keys_come_from_the_operating_system_and_differ() -> None:
    """Two keys of 256 bits that are equal: 2^-256."""
    assert len(fresh_key()) == 32 and len({fresh_key() for _ in range(10)}) == 10
