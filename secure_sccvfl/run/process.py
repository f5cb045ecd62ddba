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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from protocols.config import DEALER, ConfigError, SessionConfig, node_folder
from secure_sccvfl.run.console import CHECK_FAILED, OK, guarded, start_logging

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

    @property
    def name(self) -> str:
        return DEALER

    def run(self, listener: socket.socket | None = None) -> int:
        """Serve the session to its end. The dealer dials the parties, so it needs no listener."""
        start_logging(self.debug)
        keep_freed_memory()
        return guarded(self.name, self._serve, debug=self.debug)

    def _serve(self) -> int:
        from protocols.net.certificates import Credentials
        from protocols.session.node import serve_as_dealer

        config = SessionConfig.load(self.config)
        if self.transcript is not None:
            check_transcript(config.options)
        credentials = Credentials.of(self.certs, DEALER) if self.certs is not None else None
        made = serve_as_dealer(config, credentials, self.transcript)
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

    @property
    def name(self) -> str:
        return f"party {self.rank}"

    def run(self, listener: socket.socket | None = None) -> int:
        """Take part in the session to its end. `listener`: this party's socket, if it already listens."""
        start_logging(self.debug)
        keep_freed_memory()
        return guarded(self.name, lambda: self._take_part(listener), debug=self.debug)

    def _take_part(self, listener: socket.socket | None) -> int:
        import torch

        from protocols.net.certificates import Credentials
        from protocols.net.rendezvous import listen
        from protocols.records.chain import unused_name
        from protocols.records.private import private
        from protocols.session.node import open_session
        from secure_sccvfl.run.jobs import agreed_plan, make_job

        log = logging.getLogger("party")
        if self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, not {self.threads}")
        torch.set_num_threads(self.threads)
        config = SessionConfig.load(self.config)
        if self.transcript is not None:
            check_transcript(config.options)
        job = make_job(config, self.rank)
        credentials = None
        if self.certs is not None:
            credentials = Credentials.of(self.certs, node_folder(self.rank, config.dealer))
        if listener is None and self.listen is not None:
            listener = listen(self.listen)
        releases = self.out / "releases.jsonl"
        if config.options.get("resume"):
            releases = unused_name(releases)
        plan = agreed_plan(config, job)
        session = open_session(config, self.rank, credentials, plan, releases, listener, self.transcript)
        with session:
            self._tell({"connected": True})
            log.info("connected; running %s", config.job)
            result = job.run(session, self._begins)
        with open(self.out / "result.json", "w", opener=private) as file:  # tables that went to this party alone
            file.write(json.dumps(result, indent=1) + "\n")
        log.info("done, %s", "all well" if result["ok"] else "a check failed")
        return OK if result["ok"] else CHECK_FAILED

    def _begins(self, step: str, number: int, total: int) -> None:
        logging.getLogger("party").info("%s (%d of %d)", step, number + 1, total)
        self._tell({"step": step, "number": number, "total": total})

    def _tell(self, event: Mapping[str, Any]) -> None:
        if self.progress:
            print(json.dumps(event), flush=True)


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
