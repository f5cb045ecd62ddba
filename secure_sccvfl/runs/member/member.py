"""One party on its own host: all jobs of its session file in order, its result, and later predictions.

Each job is a session of its own, in a folder of its own (OUT/JOB). At the end of each, all parties sign what they
have on record (`reports.signed`). After the last one this party makes its report from its own folder alone.

To resume, the parties first meet in a short session and tell each other which jobs each has ended, and which
statement was signed at the end. They are public. Jobs that all have ended are passed over: each is an empty session,
so that the dealer, which is told nothing, keeps step. The first job that somebody has not ended is run by all:
training goes on from the last common checkpoint if all have one; everything else starts again, and what was there
before is set aside, with its releases on record. One round; 33 bytes for each job to each peer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.rendezvous import listen
from secure_sccvfl.protocols.records.chain import unused_name
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.node import open_session
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.reports.collect import APPROVALS, make_host_results, seal_results
from secure_sccvfl.reports.folders import EVALUATE, HEADS, PREDICT, TRAIN, attempts, set_aside
from secure_sccvfl.reports.run_log import LOG, STOPPED, contents, read_log, record, recorded
from secure_sccvfl.reports.signed import sign_job, statement_digest
from secure_sccvfl.runs.console import OK, close_log, log_kept, say
from secure_sccvfl.runs.jobs import JOBS, job_config
from secure_sccvfl.runs.process import PartyProcess, SessionProcess, planned_sessions
from secure_sccvfl.runs.status import Status
from secure_sccvfl.training.modes.options import RunOptions, prediction_options

CAN_GO_ON, ENDED = 1, 2
"""Where a party stands with a job: it has checkpoints; the job has ended and all have signed."""
DIGEST = 32
_BEFORE_MEETING = rf"session\.toml|{re.escape(APPROVALS)}|[a-z]+/party\.log"


@dataclass
class Member(SessionProcess):
    """A party that runs all jobs of its session file. `party.out` is its folder.

    approvals: who approved the plan, for the report. predict: instead of the jobs, one prediction with these options
    of this host alone (model, records, scores, receiver, card). job: predict, or serve.
    """

    party: PartyProcess
    resume: bool = False
    approvals: Sequence[Mapping[str, Any]] = ()
    predict: Mapping[str, Any] | None = None
    job: str = PREDICT

    def __post_init__(self) -> None:
        self.debug, self.watching = self.party.debug, self.party.watching

    @property
    def name(self) -> str:
        return self.party.name

    def work(self, listener: socket.socket | None, status: Status) -> int:
        if self.predict is not None:
            return self._predict(listener, status)
        try:
            with contextlib.ExitStack() as held:
                return self._jobs(listener, status, held)
        except BaseException:
            if not self.resume and unused(self.party.out):
                clear(self.party.out)
            raise

    def _jobs(self, listener: socket.socket | None, status: Status, held: contextlib.ExitStack) -> int:
        config = load_session(self.party.config)
        check_jobs(config)
        out = self.party.out
        self._open_folder(config, held)
        sessions, ended, goes_on = planned_sessions(config, self.resume), 0, False
        if self.resume:
            meeting, *sessions = sessions
            with self._meet(meeting, listener, status) as session:
                ended, goes_on = where_all_stand(session, out, config.jobs)
            listener = None
        for number, session_config in enumerate(sessions):
            if number < ended:
                with self._meet(session_config, listener, status):
                    pass
            else:
                again = goes_on and number == ended
                if again:
                    (out / session_config.job / HEADS).unlink(missing_ok=True)
                else:
                    set_aside(out, session_config.job)
                folder, options = out / session_config.job, job_options(config, out, again)
                code = self._job(session_config, folder, listener, status, options)
                if code != OK:
                    return code
            listener = None
        return finish(out) if TRAIN in config.jobs else OK

    def _predict(self, listener: socket.socket | None, status: Status) -> int:
        config, out = load_session(self.party.config).for_job(self.job), self.party.out
        finished = (out / LOG).exists()
        if finished:
            keep_stopped(out)
        folder = unused_name(out / PREDICT)
        options = {**prediction_options(config.options), "model": str(out.resolve()), **(self.predict or {})}
        if config.needs_approval:  # the number in the plan that all parties have approved
            options["predictions"] = RunOptions.of(config.options).privacy.predictions
        code = self._job(config, folder, listener, status, options)
        if code == OK and (folder / "predictions.csv").exists():
            say(f"the predictions: {folder / 'predictions.csv'}")
        if code == OK and finished:
            written = [path for path in contents(out) if path.is_relative_to(folder)]
            say(f"seal, to be kept by every party: {record(out, PREDICT, {}, written)}")
        return code

    def _open_folder(self, config: SessionConfig, held: contextlib.ExitStack) -> None:
        """A new folder with the session file in it, or that of the run that is resumed; ours while it is held."""
        out, text = self.party.out, config.to_toml()
        session_file = out / "session.toml"
        if in_use(session_file):
            raise ConfigError(f"{out} is in use by a party that runs: wait for its end, or choose another folder")
        if not self.resume and unused(out):
            clear(out)
        if not self.resume and out.exists() and any(out.iterdir()):
            raise ConfigError(f"{out} is not empty; choose a new folder for the run, or go on with --resume")
        if self.resume and session_file.exists() and session_file.read_text(encoding="utf-8") != text:
            raise ConfigError(f"{out} began with another session file: go on with that one ({session_file})")
        out.mkdir(parents=True, exist_ok=True)
        session_file.write_text(text, encoding="utf-8")
        ours = held.enter_context(session_file.open())
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (out / APPROVALS).write_text(json.dumps(list(self.approvals), indent=1) + "\n", encoding="utf-8")

    def _meet(self, config: SessionConfig, listener: socket.socket | None, status: Status) -> Session:
        """A session without a job; nothing can be opened in it."""
        if listener is None and self.party.listen is not None:
            listener = listen(self.party.listen)
        credentials, activity = self.party.credentials(config), status.activity
        return open_session(config, self.party.rank, credentials, ReleasePlan(), None, listener, activity=activity)

    def _job(
        self,
        config: SessionConfig,
        folder: Path,
        listener: socket.socket | None,
        status: Status,
        options: Mapping[str, Any],
    ) -> int:
        transcript = self.party.transcript
        party = replace(self.party, out=folder, transcript=None if transcript is None else transcript / folder.name)
        options = job_config(replace(config, options=dict(options)), config.job).options
        with log_kept(unused_name(folder / "party.log")) as log:

            def closing(session: Session) -> None:
                close_log(log)  # what all sign is final
                if config.jobs:
                    credentials = party.credentials(config)
                    sign_job(session, config, self.party.out, folder, credentials)

            return party.one_session(config, status, listener, options=options, closing=closing)


def unused(out: Path) -> bool:
    """Whether a start ended before this party met the others: the folder has no more than is written until then."""
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    begun = "session.toml" in files and all(re.fullmatch(_BEFORE_MEETING, name) for name in files)
    return begun and not in_use(out / "session.toml")


def in_use(session_file: Path) -> bool:
    """Whether a process that runs holds this folder."""
    if not session_file.exists():
        return False
    with open(session_file) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def clear(out: Path) -> None:
    """Remove what a start writes before this party meets the others, so that it can be started again."""
    for path in sorted(out.rglob("*"), reverse=True):  # what is in a folder before the folder
        path.rmdir() if path.is_dir() else path.unlink()
    with contextlib.suppress(OSError):  # not ours to remove: a mounted folder
        out.rmdir()


def check_jobs(config: SessionConfig) -> None:
    """Refuse jobs that cannot follow each other, before anything starts."""
    if not config.jobs:
        raise ConfigError(
            "--resume goes on with `jobs`; a session file with one `job` has the option `resume = true`"
        )
    for job in config.jobs:
        if job not in JOBS:
            raise ConfigError(f"no such job: {job!r}; available: {', '.join(JOBS)}")
    if len(set(config.jobs)) < len(config.jobs):
        raise ConfigError(f"jobs must differ, not {', '.join(config.jobs)}")
    if PREDICT in config.jobs:
        raise ConfigError("predict is no job of a session file: its records are named at each host (--records)")
    if EVALUATE in config.jobs and TRAIN not in config.jobs[: config.jobs.index(EVALUATE)]:
        raise ConfigError("evaluate needs the model of a train before it in jobs")


def job_options(config: SessionConfig, out: Path, goes_on: bool) -> dict[str, Any]:
    """What a job is made with: the session's options, and the place of the model on this host."""
    model = {"model": str((out / TRAIN).resolve())} if (out / TRAIN / HEADS).exists() else {}
    return {**config.options, **model, **({"resume": True} if goes_on else {})}


def where_all_stand(session: Session, out: Path, jobs: Sequence[str]) -> tuple[int, bool]:
    """Run by all parties together: how many jobs all have ended, and whether all can go on with the next one."""
    states_here = b"".join(bytes([_state(out / job)]) + statement_digest(out / job) for job in jobs)
    states_of_all = session.swap_bytes("where each stands", states_here)
    for number, job in enumerate(jobs):
        at = number * (1 + DIGEST)
        states = [text[at] for text in states_of_all]
        if not all(state & ENDED for state in states):
            return number, all(state & CAN_GO_ON for state in states)
        if len({text[at + 1 : at + 1 + DIGEST] for text in states_of_all}) > 1:
            raise ProtocolError(f"the parties' folders are of different runs: their ends of {job} differ")
    return len(jobs), False


def _state(folder: Path) -> int:
    ended = ENDED if (folder / HEADS).exists() else 0
    return ended | (CAN_GO_ON if any(folder.glob("checkpoints/*.npz")) else 0)


def finish(out: Path) -> int:
    report = make_host_results(out)
    seal = seal_results(out, report)
    say(f"the page: {out / 'report.html'}; everything else is next to it")
    say(f"seal, to be kept by every party: {seal}")
    return OK


def keep_stopped(out: Path) -> None:
    """Put predictions that were stopped on record in the run's log."""
    on_record = recorded(read_log(out))
    folders = attempts(out, PREDICT)
    left = [p for p in contents(out) if any(p.is_relative_to(folder) for folder in folders)]
    if new := [p for p in left if p.relative_to(out).as_posix() not in on_record]:
        record(out, STOPPED, {}, new)
