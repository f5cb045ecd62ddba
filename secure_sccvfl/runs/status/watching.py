"""How a process is watched: its settings, the page, and warnings that the page repeats."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protocols.config import ConfigError
from secure_sccvfl.runs.status.server import LOOPBACK, StatusServer
from secure_sccvfl.runs.status.snapshot import Status

log = logging.getLogger(__name__)
_SHOWN = ("protocols.net", "secure_sccvfl.runs.status")
"""Whose warnings are about links and the page. A party's own log may speak of its data."""


@dataclass(frozen=True)
class Watching:
    """`port`: of the status page, none if None. `host`: the address that it answers on."""

    port: int | None = None
    host: str = LOOPBACK

    def __post_init__(self) -> None:
        if self.port is not None and not 0 < self.port < 65_536:
            raise ConfigError(f"--status must be a port from 1 to 65535, not {self.port}")
        if self.port is None and self.host != LOOPBACK:
            raise ConfigError("--status-host needs --status PORT")

    @contextmanager
    def of(self, place: str) -> Iterator[Status]:
        """Show the status of the process at `place` for as long as it runs; an error inside is shown as well."""
        status = Status(place)
        server = StatusServer(status, self.port, self.host) if self.port is not None else None
        if server is not None:
            log.info("status page: http://%s/", server.address)
            if not server.only_here:
                log.warning("the status page answers everybody who can reach %s, without a password", server.host)
        problems = _Problems(status)
        logging.getLogger().addHandler(problems)
        try:
            yield status
        except BaseException as error:
            status.stops(error)
            raise
        finally:
            logging.getLogger().removeHandler(problems)
            if server is not None:
                server.close()


class _Problems(logging.Handler):
    """Warnings about links are shown on the page. All others stay in the log: they may quote a cell or an id."""

    def __init__(self, status: Status) -> None:
        super().__init__(logging.WARNING)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_SHOWN):
            self._status.problem(record.getMessage())
