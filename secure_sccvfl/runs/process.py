"""One process of a session: a party or the dealer, from its settings to its exit code.

The programs parse their arguments into one of these. The launcher of a session on this machine hands one to a new
process. They hold places and numbers only, no key and no data, so they can be pickled. Imports happen when a
process runs: the dealer needs no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.protocols.config import DEALER, ConfigError, SessionConfig, node_folder
from secure_sccvfl.protocols.errors import ProtocolError, reason_for_peers
from secure_sccvfl.runs.console import CHECK_FAILED, OK, guarded, outcome_of, start_logging
from secure_sccvfl.runs.status import Status, Watching

if TYPE_CHECKING:
    from secure_sccvfl.protocols.net.certificates import Credentials
    from secure_sccvfl.protocols.session.runtime import Session

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Libraries read their number of threads from these when they are imported."""


class SessionProcess:
    """A process that a launcher starts: its work, with a log, one-line errors and a status page."""

    debug: bool
    watching: Watching

    @property
    def name(self) -> str:
        raise NotImplementedError

    def run(self, listener: socket.socket | None = None) -> int:
        """Runs in the process itself, to its end; returns the exit code, which may be PEER_STOPPED.

        listener: this party's socket, if it already listens. The dealer dials the parties and needs none.
        """
        start_logging(self.debug)
        keep_freed_memory()

        def watched() -> int:
            with self.watching.of(self.name) as status:
                return self.work(listener, status)

        return guarded(self.name, watched, debug=self.debug)

    def work(self, listener: socket.socket | None, status: Status) -> int:
        raise NotImplementedError


RESUME = "resume"
"""The session in which the parties of an interrupted sequence of jobs tell each other where they stand."""


def planned_sessions(config: SessionConfig, resume: bool = False) -> list[SessionConfig]:
    """The sessions that a session file describes, in order: the same list at every party and at the dealer.

    Who resumes says so in each, so nobody resumes alone.
    """
    if not config.jobs:
        return [config]
    if resume:
        config = replace(config, options={**config.options, "resume": True})
    return [config.for_job(job) for job in (*([RESUME] if resume else []), *config.jobs)]


@dataclass(frozen=True)
class DealerProcess(SessionProcess):
    """The dealer of the sessions that the file `config` describes, one after the other.

    `job`: the one session of this job instead. `resume`: as for the parties.
    """

    config: Path
    certs: Path | None = None
    transcript: Path | None = None
    debug: bool = False
    job: str = ""
    resume: bool = False
    watching: Watching = field(default_factory=Watching)

    @property
    def name(self) -> str:
        return DEALER

    def work(self, listener: socket.socket | None, status: Status) -> int:
        from secure_sccvfl.protocols.net.certificates import Credentials
        from secure_sccvfl.protocols.session.node import serve_as_dealer
        from secure_sccvfl.runs.shards import dealt, workers

        config = load_session(self.config)
        if self.transcript is not None:
            check_transcript(config.options)
        credentials = Credentials.of(self.certs, DEALER) if self.certs is not None else None
        sessions = [config.for_job(self.job)] if self.job else planned_sessions(config, self.resume)
        for session in sessions:
            transcript = self.transcript
            if transcript is not None and len(sessions) > 1:
                transcript = transcript / session.job
            status.describe(DEALER, session.name, session.job, session.jobs)
            status.phase("serving")
            with workers(session, session.dealer, self.certs) as shards:
                tuples = serve_as_dealer(session, credentials, transcript, status.activity)
                dealt(shards)
            logging.getLogger(DEALER).info("done with %s, %d tuples made", session.job, tuples)
        return OK


@dataclass(frozen=True)
class PartyProcess(SessionProcess):
    """The party at `rank` of the session that the file `config` describes; `out` gets its releases and result.

    `listen`: an address instead of the one in the file. `progress`: report on standard output, in lines of JSON,
    when all are connected and which step begins.
    """

    rank: int
    config: Path
    out: Path
    certs: Path | None = None
    listen: str | None = None
    threads: int = 1
    transcript: Path | None = None
    progress: bool = False
    debug: bool = False
    watching: Watching = field(default_factory=Watching)

    @property
    def name(self) -> str:
        return f"party {self.rank}"

    def work(self, listener: socket.socket | None, status: Status) -> int:
        return self.one_session(load_session(self.config), status, listener)

    def credentials(self, config: SessionConfig) -> Credentials | None:
        from secure_sccvfl.protocols.net.certificates import Credentials

        return None if self.certs is None else Credentials.of(self.certs, node_folder(self.rank, config.dealer))

    def one_session(
        self,
        config: SessionConfig,
        status: Status,
        listener: socket.socket | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        closing: Callable[[Session], None] | None = None,
    ) -> int:
        """Take part in one session, in which the job of `config` runs; returns the exit code.

        options: what the job is made with, where paths of this host differ from what all compare. closing: called
        with the open session when the job has ended and its result is on disk.
        """
        import torch

        from secure_sccvfl.protocols.net.rendezvous import listen
        from secure_sccvfl.protocols.records.chain import unused_name
        from secure_sccvfl.protocols.session.node import open_session
        from secure_sccvfl.protocols.session.shards import RowShards
        from secure_sccvfl.runs.jobs import agreed_plan, check_job, make_job
        from secure_sccvfl.runs.shards import workers

        log = logging.getLogger("party")
        if self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, not {self.threads}")
        torch.set_num_threads(self.threads)
        job_options = config.options if options is None else options
        if self.transcript is not None:
            check_transcript(job_options)
        check_job(config.job)  # the same at all hosts, so there is nobody to tell
        self._tell({"job": config.job, "state": "begins"})
        credentials = self.credentials(config)
        if listener is None and self.listen is not None:
            listener = listen(self.listen)
        status.describe(config.node_name(self.rank), config.name, config.job, config.jobs)
        status.phase("reading its data")
        with telling_others(config, self.rank, credentials, listener, status):
            job = make_job(replace(config, options=dict(job_options)), self.rank)
            plan = agreed_plan(config, job)
        releases = self.out / "releases.jsonl"
        if job_options.get("resume"):
            releases = unused_name(releases)
        if self.transcript is not None and config.shards:
            raise ConfigError("[shards] does not cover transcripts: leave one of them out")

        def begins(step: str, number: int, total: int) -> None:
            status.begins(step, number, total)
            logging.getLogger("progress").info("%s (%d of %d)", step, number + 1, total)
            self._tell({"step": step, "number": number, "total": total})

        with (
            workers(config, self.rank, self.certs, self.threads) as channels,
            open_session(
                *(config, self.rank, credentials, plan, releases, listener, self.transcript, status.activity),
                mac_key=getattr(job, "mac_key", None),
            ) as session,
        ):
            if channels:
                session.shards = RowShards(session, channels)
                session.shards.used()  # they have all connected
            self._tell({"connected": True})
            log.info("connected; running %s", config.job)
            status.phase("running")
            result = job.run(session, begins)
            if closing is not None:
                self._keep(result)
                status.phase("signing what is on record")
                closing(session)
        if closing is None:
            self._keep(result)
        log.info("done, %s", "all well" if result["ok"] else "a check failed")
        self._tell({"job": config.job, "state": "ends", "ok": bool(result["ok"])})
        return OK if result["ok"] else CHECK_FAILED

    def _keep(self, result: Mapping[str, Any]) -> None:
        from secure_sccvfl.protocols.records.private import naming, private

        file = self.out / "result.json"
        with naming(file), open(file, "w", opener=private) as written:  # tables that went to this party alone
            written.write(json.dumps(result, indent=1) + "\n")

    def _tell(self, event: Mapping[str, Any]) -> None:
        """Every event passes here: a job begins or ends, all are connected, a step begins."""
        if self.progress:
            print(json.dumps(event), flush=True)


def same_imports() -> dict[str, str]:
    """What makes a new Python import from the same places as this process, and not from the working folder."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": paths}


@contextmanager
def telling_others(
    config: SessionConfig, rank: int, credentials: Credentials | None, listener: socket.socket | None, status: Status
) -> Iterator[None]:
    """If what is inside fails, meet the other processes all the same and tell them why this one does not take part.

    They hear the kind of the error, without anything about the data. Otherwise they would wait until the time to
    connect is over, and learn nothing.
    """
    from secure_sccvfl.protocols.session.node import refuse

    try:
        yield
    except Exception as error:
        status.stops(error)
        reason = reason_for_peers(error)
        logging.getLogger("party").error(
            "cannot take part: %s; telling the others, for %.0f s at most", outcome_of(error)[1], config.connect
        )
        with contextlib.suppress(ProtocolError):
            refuse(config, rank, credentials, reason, listener, status.activity)
        raise


def check_transcript(settings: Mapping[str, Any]) -> None:
    """Refuse a transcript unless the data may be pooled: all parties' shares side by side give every secret away."""
    from secure_sccvfl.data.catalogue import is_benchmark

    if not settings.get("pooled", is_benchmark(str(settings.get("dataset", "german")))):
        raise ConfigError("--transcript writes shares to disk: for benchmark or --pooled data only")


_DEATH_SIGNAL, _SET_NAME = 1, 15
"""Constants of Linux's prctl."""


def end_with_parent(name: str) -> None:
    """On Linux: this process is killed when the one that started it ends, and `top` shows this name."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.prctl(_SET_NAME, name.encode(), 0, 0, 0)
        library.prctl(_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def keep_freed_memory() -> None:
    """Ask glibc to reuse large blocks instead of returning them: arrays come and go in every round."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def return_freed_memory() -> None:
    """Ask glibc to return large blocks at once, and to keep one heap: what many rows leave behind counts."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-8, 1)  # M_ARENA_MAX
        libc.mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 22)  # M_TRIM_THRESHOLD
