"""A session in which one real process is killed at a chosen moment, from within: never too early or too late."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocols.config import SessionConfig
from protocols.net.mesh import Mesh
from secure_sccvfl.runs.checkpoints import Checkpoints
from secure_sccvfl.runs.local.processes import LocalSession
from secure_sccvfl.runs.process import SessionProcess

CHECKPOINT = "checkpoint"
"""The moment after the first checkpoint is on disk. Any other moment is a step of the transport, before it sends."""


@dataclass(frozen=True)
class Doomed:
    """Runs `inner` until the moment, and then ends like a process whose host loses power."""

    inner: SessionProcess
    moment: str

    @property
    def name(self) -> str:
        return self.inner.name

    def run(self, listener: socket.socket | None = None) -> int:
        exchange, keep = Mesh.exchange, Checkpoints.keep

        def doomed_exchange(mesh: Mesh, step: str, send: Any, receive: Any) -> Any:
            if step == self.moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return exchange(mesh, step, send, receive)

        def doomed_keep(kept: Checkpoints, state: Any) -> None:
            keep(kept, state)
            if self.moment == CHECKPOINT:
                os.kill(os.getpid(), signal.SIGKILL)

        Mesh.exchange, Checkpoints.keep = doomed_exchange, doomed_keep  # type: ignore[method-assign]
        return self.inner.run(listener)


class OneIsKilled(LocalSession):
    """A session of which the process `victim` is killed at a moment."""

    def __init__(self, config: SessionConfig, folder: Path, victim: str, moment: str) -> None:
        super().__init__(config, folder)
        self._victim, self._moment = victim, moment

    def _launch(self, work: SessionProcess, listener: socket.socket | None = None, *, follow: bool = False) -> None:
        super()._launch(Doomed(work, self._moment) if work.name == self._victim else work, listener, follow=follow)
