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
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from protocols.config import DEALER, ConfigError, SessionConfig, node_folder
from protocols.errors import ProtocolError, reason_for_peers
from secure_sccvfl.run.console import CHECK_FAILED, OK, guarded, start_logging, told
from secure_sccvfl.status.snapshot import Status
from secure_sccvfl.status.steps import stages_of
from secure_sccvfl.status.watching import Watched, Watching

if TYPE_CHECKING:
    from protocols.net.certificates import Credentials

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Libraries read their number of threads from these when they are imported."""


class SessionProcess(Protocol):
    """What a launcher needs of a process that it starts."""

    @property
    def name(self) -> str: ...

    def run(self, listener: socket.socket | None = None) -> int:
        """Runs in the process itself, to its end; returns the exit code, which may be PEER_STOPPED."""
        ...


@dataclass(frozen=True)
class DealerProcess:
    """The dealer of the session that the file `config` describes."""

    config: Path
    certs: Path | None = None
    transcript: Path | None = None
    debug: bool = False
    watching: Watching = field(default_factory=Watching)

    @property
    def name(self) -> str:
        return DEALER

    def run(self, listener: socket.socket | None = None) -> int:
        """Serve the session to its end. The dealer dials the parties, so it needs no listener."""
        start_logging(self.debug)
        keep_freed_memory()
        return guarded(self.name, self._watched, debug=self.debug)

    def _watched(self) -> int:
        with self.watching.of(self.name) as watched:
            return self._serve(watched.status)

    def _serve(self, status: Status) -> int:
        from protocols.net.certificates import Credentials
        from protocols.session.node import serve_as_dealer

        config = SessionConfig.load(self.config)
        if self.transcript is not None:
            check_transcript(config.options)
        credentials = Credentials.of(self.certs, DEALER) if self.certs is not None else None
        status.describe(DEALER, config.name, config.job, config.jobs)
        status.phase("serving")
        made = serve_as_dealer(config, credentials, self.transcript, status.activity)
        logging.getLogger(DEALER).info("done, %d tuples made", made)
        return OK


@dataclass(frozen=True)
class PartyProcess:
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

    def run(self, listener: socket.socket | None = None) -> int:
        """Take part in the session to its end. `listener`: this party's socket, if it already listens."""
        start_logging(self.debug)
        keep_freed_memory()
        return guarded(self.name, lambda: self._watched(listener), debug=self.debug)

    def _watched(self, listener: socket.socket | None) -> int:
        with self.watching.of(self.name) as watched:
            return self._take_part(listener, watched)

    def _take_part(self, listener: socket.socket | None, watched: Watched) -> int:
        import torch

        from protocols.net.certificates import Credentials
        from protocols.net.rendezvous import listen
        from protocols.records.chain import unused_name
        from protocols.records.private import naming, private
        from protocols.session.node import open_session
        from secure_sccvfl.run.jobs import agreed_plan, make_job

        log = logging.getLogger("party")
        if self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, not {self.threads}")
        torch.set_num_threads(self.threads)
        config = SessionConfig.load(self.config)
        if self.transcript is not None:
            check_transcript(config.options)
        credentials = None
        if self.certs is not None:
            credentials = Credentials.of(self.certs, node_folder(self.rank, config.dealer))
        if listener is None and self.listen is not None:
            listener = listen(self.listen)
        status = watched.status
        stages = stages_of(config.job, config.options)
        status.describe(config.node_name(self.rank), config.name, config.job, config.jobs, stages)
        status.phase("reading its data")
        with telling_others(config, self.rank, credentials, listener, status):
            job = make_job(config, self.rank)
            plan = agreed_plan(config, job)
        releases = self.out / "releases.jsonl"
        if config.options.get("resume"):
            releases = unused_name(releases)
        session = open_session(
            config, self.rank, credentials, plan, releases, listener, self.transcript, status.activity
        )

        def begins(step: str, number: int, total: int) -> None:
            watched.begins(step, number, total)
            self._tell({"step": step, "number": number, "total": total})

        with session:
            self._tell({"connected": True})
            log.info("connected; running %s", config.job)
            status.phase("running")
            result = job.run(session, begins)
        status.phase("writing its result")
        file = self.out / "result.json"
        with naming(file), open(file, "w", opener=private) as written:  # tables that went to this party alone
            written.write(json.dumps(result, indent=1) + "\n")
        log.info("done, %s", "all well" if result["ok"] else "a check failed")
        return OK if result["ok"] else CHECK_FAILED

    def _tell(self, event: Mapping[str, Any]) -> None:
        if self.progress:
            print(json.dumps(event), flush=True)


@contextmanager
def telling_others(
    config: SessionConfig,
    rank: int,
    credentials: Credentials | None,
    listener: socket.socket | None,
    status: Status,
) -> Iterator[None]:
    """If what is inside fails, meet the other processes all the same and tell them why this one does not take part.

    They hear the kind of the error, without anything about the data. Otherwise they would wait until the time to
    connect is over, and learn nothing.
    """
    from protocols.session.node import refuse

    try:
        yield
    except Exception as error:
        status.stops(error)
        reason = reason_for_peers(error)
        logging.getLogger("party").error(
            "cannot take part: %s; telling the others, for %.0f s at most", told(error)[1], config.connect
        )
        with contextlib.suppress(ProtocolError):
            refuse(config, rank, credentials, reason, listener, status.activity)
        raise


def check_transcript(settings: Mapping[str, Any]) -> None:
    """Refuse a transcript unless the data may be pooled: all parties' shares side by side give every secret away."""
    from secure_sccvfl.data.catalogue import is_benchmark

    if not settings.get("pooled", is_benchmark(str(settings.get("dataset", "german")))):
        raise ConfigError("--transcript writes shares to disk: for benchmark or --pooled data only")


def keep_freed_memory() -> None:
    """Ask glibc to reuse large blocks instead of returning them: arrays come and go in every round."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
