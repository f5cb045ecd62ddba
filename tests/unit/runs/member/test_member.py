"""Jobs in order on a host: what is refused, and where an interrupted sequence goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.reports.signed import committed, settings_digest
from secure_sccvfl.runs.console import WRONG_USE
from secure_sccvfl.runs.member.member import Member, check_jobs, job_options, unused, where_all_stand
from secure_sccvfl.runs.process import RESUME, PartyProcess, planned_sessions
from tests.support.sessions import run_session

PARTIES = tuple(f"127.0.0.1:{rank + 1}" for rank in range(3))
JOBS = ("selftest", "train", "evaluate")


def config(*jobs: str, **options: object) -> SessionConfig:
    return SessionConfig(parties=PARTIES, jobs=jobs, options=options)


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ((), "goes on with `jobs`"),
        (("dance",), "no such job: 'dance'"),
        (("train", "train"), "jobs must differ"),
        (("train", "predict"), "predict is no job of a session file"),
        (("evaluate", "train"), "evaluate needs the model of a train before it"),
        (("selftest", "evaluate"), "evaluate needs the model"),
    ],
)
def test_jobs_that_cannot_follow_each_other(jobs: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_jobs(config(*jobs))
    check_jobs(config(*JOBS))


def test_all_hosts_have_the_same_sessions_and_none_resumes_alone() -> None:
    plain, resumed = (planned_sessions(config(*JOBS, seed=1), resume) for resume in (False, True))
    assert [s.job for s in plain] == list(JOBS) and [s.job for s in resumed] == [RESUME, *JOBS]
    digests = {s.digest() for s in (*plain, *resumed)}
    assert len(digests) == len(plain) + len(resumed), "each session has its own digest, which all compare"
    assert {settings_digest(s) for s in (*plain, *resumed)} == {settings_digest(config(*JOBS, seed=1))}
    assert settings_digest(config(*JOBS, seed=2)) != settings_digest(plain[0])
    alone = SessionConfig(parties=PARTIES, job="train")
    assert planned_sessions(alone) == [alone]


def test_the_path_of_the_model_is_no_part_of_what_hosts_compare(tmp_path: Path) -> None:
    session = config(*JOBS, seed=1)
    assert job_options(session, tmp_path, False) == {"seed": 1}
    ended(tmp_path / "train")
    assert job_options(session, tmp_path, False) == {"seed": 1, "model": str(tmp_path / "train")}
    assert job_options(session, tmp_path, True)["resume"] is True and "model" not in session.options


def ended(folder: Path, name: str = "a") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "heads.json").write_text(json.dumps({"rank": 0, "statement": {"name": name}}))


def begun(folder: Path) -> None:
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / "1.npz").touch()


def stand(folder: Path, *hosts: Callable[[Path], None]) -> list[tuple[int, bool]]:
    """Where the parties of a session stand, each with a folder that was made for it."""
    for rank, make in enumerate(hosts):
        make(folder / str(rank))
    return run_session(lambda s: where_all_stand(s, folder / str(s.rank), JOBS), len(hosts))


def after_selftest(out: Path) -> None:
    ended(out / "selftest")
    begun(out / "train")


def after_train(out: Path) -> None:
    after_selftest(out)
    ended(out / "train")


def test_all_continue_with_the_first_job_that_some_party_has_not_ended(tmp_path: Path) -> None:
    """One host has ended training, one has checkpoints, so training goes on from these, at all."""
    assert stand(tmp_path / "a", after_train, after_selftest, after_train) == [(1, True)] * 3
    assert stand(tmp_path / "b", after_train, after_train) == [(2, False)] * 2
    assert stand(tmp_path / "c", after_train, lambda out: ended(out / "selftest")) == [(1, False)] * 2
    assert stand(tmp_path / "d", after_train, lambda out: None) == [(0, False)] * 2, "a host that lost its folder"


def test_folders_of_different_runs_do_not_continue(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        stand(tmp_path, after_train, lambda out: ended(out / "selftest", "b"))
    assert all("different runs: their ends of selftest differ" in str(e) for e in caught.value.exceptions)


def test_what_others_learn_of_files_reveals_nothing_without_the_salt() -> None:
    """A file with few possible contents could be guessed from its digest, and so from a list without a salt."""
    files = {"predictions.csv": "0"}
    assert committed("a" * 64, files) != committed("b" * 64, files)
    assert committed("a" * 64, files) != committed("a" * 64, {"predictions.csv": "1"})


def test_a_prediction_gets_the_number_that_all_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without approvals the number is that of the model, whatever the session file says."""
    given: list[Mapping[str, Any]] = []
    monkeypatch.setattr(
        Member, "_job", lambda self, config, node, listener, watched, options: given.append(options) or 1
    )
    pins = {node: "0" * 64 for node in ("party-0", "party-1", "party-2", "dealer")}
    for number, more in enumerate(({}, {"certificates": pins}, {"certificates": pins, "approval": "none"})):
        path = tmp_path / f"session-{number}.toml"
        path.write_text(replace(config(*JOBS, dataset="heart", predictions=5), **more).to_toml())
        party = PartyProcess(rank=0, config=path, out=tmp_path / "out")
        Member(party, predict={"records": "new.csv"})._predict(None, None)  # type: ignore[arg-type]
    assert [options.get("predictions") for options in given] == [None, 5, None]


@pytest.mark.parametrize("left", [(), ("session.toml",), ("session.toml", "approvals.json", "train/party.log")])
def test_a_start_that_met_nobody_leaves_nothing_behind(tmp_path: Path, left: tuple[str, ...]) -> None:
    """Neither one that is refused nor, at the next start, one that was killed."""
    out, session = tmp_path / "out", config(*JOBS, seed=1)
    (tmp_path / "session.toml").write_text(session.to_toml())
    for name in left:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).touch()
    assert unused(out) == bool(left)
    member = Member(PartyProcess(rank=0, config=tmp_path / "session.toml", out=out))
    assert member.run() == WRONG_USE, "it has no certificates"
    assert not out.exists()


def test_the_folder_of_a_party_that_runs_is_left_alone(tmp_path: Path) -> None:
    out, session = tmp_path / "out", config(*JOBS, seed=1)
    (tmp_path / "session.toml").write_text(session.to_toml())
    process = PartyProcess(rank=0, config=tmp_path / "session.toml", out=out)
    with contextlib.ExitStack() as held:
        Member(process)._open_folder(session, held)
        for resume in (False, True):
            assert Member(process, resume).run() == WRONG_USE
        assert (out / "session.toml").exists() and not unused(out)
    assert unused(out)


@pytest.mark.parametrize("mine", ["notes.txt", "train/releases.jsonl", "train/model/model.npz", "audit.jsonl"])
def test_a_folder_with_anything_else_is_never_cleared(tmp_path: Path, mine: str) -> None:
    out, session = tmp_path / "out", config(*JOBS, seed=1)
    (tmp_path / "session.toml").write_text(session.to_toml())
    for name in ("session.toml", "approvals.json", mine):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    assert Member(PartyProcess(rank=0, config=tmp_path / "session.toml", out=out)).run() == WRONG_USE
    assert (out / mine).read_text() == (out / "session.toml").read_text() == "mine"
