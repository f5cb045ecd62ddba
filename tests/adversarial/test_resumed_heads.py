"""Two sessions of one run: one charge is for one head, of the noise that was paid for, with one log of predictions.

The parties of a run that was interrupted train its head again, with fresh noise and without another charge, since
nothing followed from the first one. An attacker uses that: it asks for much noise in the session that is charged,
interrupts it, and for little in the next. Or it resumes a run that had ended, so that the same head is saved under
another name, and asks about everybody again. Or it goes on with a copy of the run's folder as well.
"""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.chain import unused_name
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases import charging
from secure_sccvfl.runs import train
from secure_sccvfl.runs.model_files import PartyModel
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training import secure
from secure_sccvfl.training.secure import SecureEngine
from tests.support.sessions import stopping
from tests.support.two_parties import OPTIONS, ledger_lines, people, run_two, write, write_data

ATTACKER = 0
Consortium = tuple[Path, dict[str, Any]]


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    data = write_data(tmp_path, people(400, seed=5))
    return tmp_path, {"dataset": str(data), "card": str(tmp_path / "card.toml"), **OPTIONS}


def tells(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """The attacker says that it needs this many times the noise that it needs."""
    honest = Session.swap_bytes

    def swap_bytes(self: Session, step: str, sent: bytes) -> list[bytes]:
        if self.rank == ATTACKER and step == "planned noise":
            sent = struct.pack("<d", times * struct.unpack("<d", sent)[0])
        return honest(self, step, sent)

    monkeypatch.setattr(Session, "swap_bytes", swap_bytes)


def interrupted(folder: Path, options: dict[str, Any]) -> None:
    """A session that ends once the head is charged, before anything follows from it."""
    with pytest.MonkeyPatch.context() as patch:

        def finish(self: SecureEngine, *given: Any) -> None:
            raise ProtocolError("interrupted")

        patch.setattr(SecureEngine, "finish", finish)
        with stopping("interrupted"):
            run_two(TrainJob, folder, options)


def resumed(folder: Path, options: dict[str, Any]) -> list[Any]:
    """The next session of a run."""
    for log in folder.glob("party-*/releases.jsonl"):  # of an earlier session
        log.rename(unused_name(log))
    return run_two(TrainJob, folder, {**options, "resume": True})


def heads_charged(home: Path, rank: int) -> list[float]:
    return [one["event"]["sigma"] for one in ledger_lines(home, rank) if one.get("event", {}).get("name") == "head"]


def test_a_run_that_resumes_pays_for_one_head(consortium: Consortium) -> None:
    home, options = consortium
    interrupted(home / "run", options)
    before = [ledger_lines(home, rank) for rank in range(2)]
    assert len(heads_charged(home, 1)) == 1
    results = resumed(home / "run", options)
    assert results[1]["ok"] and [ledger_lines(home, rank) for rank in range(2)] == before


def test_noise_that_was_paid_for_cannot_become_less(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    home, options = consortium
    with pytest.MonkeyPatch.context() as patch:
        tells(patch, 3.0)
        interrupted(home / "run", options)
    before = [ledger_lines(home, rank) for rank in range(2)]
    with stopping("has this charge of this run for other noise; nothing was charged"):
        resumed(home / "run", options)
    assert [ledger_lines(home, rank) for rank in range(2)] == before
    assert not list(home.rglob("model.json"))

    # The control: a ledger that looks at the key alone lets a head of a third of the noise pass.
    drawn = []
    honest = charging.price_head

    def priced(*given: Any) -> Any:
        drawn.append(honest(*given))
        return drawn[-1]

    monkeypatch.setattr(charging, "price_head", priced)
    monkeypatch.setattr(charging.Charger, "_all_paid", lambda self, event, key: self.budget.paid(key))
    resumed(home / "run", options)
    assert 2.9 < heads_charged(home, 1)[0] / drawn[0].noise.sigma < 3.1
    assert [ledger_lines(home, rank) for rank in range(2)] == before


def decisions(home: Path, name: str, options: dict[str, Any], amount: np.ndarray) -> set[str]:
    """Ids that the bank gets a decision for, if it says this of their amounts."""
    new = people(40, seed=77)
    new = {**new, "id": np.array([f"n{number}" for number in range(40)]), "amount": amount}
    write(home / "bank-new.csv", new, ["amount", "age"])
    write(home / "clinic-new.csv", new, ["s", "hours", "edu"])
    files = [{"records": str(home / f"{party}-new.csv")} for party in ("bank", "clinic")]
    given = {"dataset": options["dataset"], "align": "exact", "model": str(home / "run")}
    run_two(PredictJob, home / name, given, files)
    (path,) = (home / name / "party-0").glob("predictions.csv")
    return {line.split(",")[0] for line in path.read_text().splitlines()[1:]}


def test_a_head_that_is_saved_again_has_answered_for_the_same_people(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, options = consortium
    first = run_two(TrainJob, home / "run", options)
    assert len(decisions(home, "ask", options, np.full(40, 0.2))) == 40
    again = resumed(home / "run", options)
    assert again[1]["run"] != first[1]["run"], "a session that resumes has a name of its own"
    assert not decisions(home, "ask again", options, np.full(40, 0.8))
    monkeypatch.setattr(PartyModel, "released_in", property(lambda self: self.run))
    assert len(decisions(home, "control", options, np.full(40, 0.8))) == 40, (
        "a log for each name of it would not help"
    )


def test_a_second_head_under_one_charge_is_refused(consortium: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker says that it lost its last checkpoint, which has the head: all would train another one."""
    home, options = consortium
    run_two(TrainJob, home / "run", options)
    first = (home / "run/party-1/model/model.json").read_text()
    kept = sorted((home / f"run/party-{ATTACKER}/checkpoints").glob("*.npz"), key=lambda path: int(path.stem))
    assert len(kept) == 2
    kept[-1].unlink()
    with stopping("a party has a model of this run already"):
        resumed(home / "run", options)
    assert (home / "run/party-1/model/model.json").read_text() == first
    before = ledger_lines(home, 1)
    plain = Session.tell_all
    monkeypatch.setattr(
        Session, "tell_all", lambda self, step, value: plain(self, step, 0 if step == "finished model" else value)
    )
    monkeypatch.setattr(train, "claim_private_head", lambda folder, run, session: None)
    resumed(home / "run", options)
    assert ledger_lines(home, 1) == before, "the control: another head, and nothing charged"
    assert (home / "run/party-1/model/model.json").read_text() != first


def test_a_head_that_was_checked_is_not_tried_again_with_other_noise(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that the check stops would otherwise be resumed until its noise passes, with a bit of each head."""
    home, options = consortium
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure, "LARGEST_LOGIT", {"binary": 1e-3})  # no head is that short
        with stopping("training has not settled"):
            run_two(TrainJob, home / "run", options)
    before = [ledger_lines(home, rank) for rank in range(2)]
    with stopping("or the check of its head was opened: train a new run, which is charged"):
        resumed(home / "run", options)
    assert not list(home.rglob("model.json"))
    monkeypatch.setattr(TrainJob, "_followed", lambda self, folder: False)
    monkeypatch.setattr(train, "session_that_finished_head", lambda folder, run: "")
    monkeypatch.setattr(train, "claim_private_head", lambda folder, run, session: None)
    assert resumed(home / "run", options)[1]["ok"], "the control: another noise, and nothing charged"
    assert [ledger_lines(home, rank) for rank in range(2)] == before


def test_a_copy_of_an_interrupted_run_is_not_a_second_head(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is copied, or restored from a backup, and both copies go on: neither has the other's logs."""
    home, options = consortium
    interrupted(home / "run", options)
    shutil.copytree(home / "run", home / "copy")
    assert resumed(home / "run", options)[1]["ok"]
    before = [ledger_lines(home, rank) for rank in range(2)]
    with stopping("has finished the head of this run, and its folder does not know of it"):
        resumed(home / "copy", options)
    assert not list((home / "copy").rglob("model.json"))
    assert [ledger_lines(home, rank) for rank in range(2)] == before
    assert resumed(home / "run", options)[1]["ok"], "the folder that went on still can"
    monkeypatch.setattr(train, "session_that_finished_head", lambda folder, run: "")
    with stopping("another session has finished the head of this charge"):
        resumed(home / "copy", options)
    assert not list((home / "copy").rglob("model.json"))
    monkeypatch.setattr(train, "claim_private_head", lambda folder, run, session: None)
    assert resumed(home / "copy", options)[1]["ok"], "the control: another head, and nothing charged"
    assert [ledger_lines(home, rank) for rank in range(2)] == before


def test_a_backup_of_a_running_session_is_not_a_second_head(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made after the charge and before the check; that session then went on. The backup knows all sessions."""
    home, options = consortium
    finish, copied = SecureEngine.finish, threading.Lock()

    def backed_up(self: SecureEngine, *given: Any) -> Any:
        with copied:
            if not (home / "backup").exists():
                shutil.copytree(home / "run", home / "backup")
        return finish(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureEngine, "finish", backed_up)
        assert run_two(TrainJob, home / "run", options)[1]["ok"]
    before = [ledger_lines(home, rank) for rank in range(2)]
    with stopping("has finished the head of this run, and its folder does not know of it"):
        resumed(home / "backup", options)
    assert not list((home / "backup").rglob("model.json"))
    monkeypatch.setattr(train, "session_that_finished_head", lambda folder, run: "")
    monkeypatch.setattr(train, "claim_private_head", lambda folder, run, session: None)
    assert resumed(home / "backup", options)[1]["ok"], "the control: another head, and nothing charged"
    assert [ledger_lines(home, rank) for rank in range(2)] == before
