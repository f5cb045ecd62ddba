"""Starts the workers of row shards (`protocols.session.shards`): this party's, and the dealer's for each shard.

Kind `local`: processes on this host, each at one end of a private socket pair. Kind `ray`: actors in this party's own
Ray cluster, in one placement group, so that all start or none; certificates and session settings travel to them. A
worker needs no data and no ledger: its head process sends it rows. It holds this party's key.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.config import ConfigError, SessionConfig, node_folder
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.runs.process import THREAD_VARIABLES, end_with_parent, same_imports

SHARDED_JOBS = ("train", "evaluate", "bench-shards")
"""Other jobs run in the head group alone."""
_GRACE = 10.0


@dataclass(frozen=True)
class Task:
    """What a worker does: its node in a shard session."""

    config: SessionConfig
    node: int
    certs: Path
    threads: int = 1

    def run(self, channel: Any) -> None:
        from secure_sccvfl.protocols.net.certificates import Credentials
        from secure_sccvfl.protocols.session.node import open_session, serve_as_dealer

        credentials = Credentials.of(self.certs, node_folder(self.node, self.config.dealer))
        if self.node == self.config.dealer:
            try:
                serve_as_dealer(self.config, credentials)
            except ProtocolError as error:
                channel.send(error)
                raise
            return channel.send(None)
        import torch

        from secure_sccvfl.protocols.records.releases import ReleasePlan
        from secure_sccvfl.protocols.session.shards import work

        torch.set_num_threads(self.threads)
        work(lambda: open_session(self.config, self.node, credentials, ReleasePlan()), channel)


@contextmanager
def workers(config: SessionConfig, node: int, certs: Path | None, threads: int = 1) -> Iterator[list[Any]]:
    """The channels of this node's workers, one for each shard; none where the job is not sharded.

    At the end they must have ended too; after an error they are stopped.
    """
    if not config.shards or config.job not in SHARDED_JOBS:
        yield []
        return
    if certs is None:
        raise ConfigError("[shards] needs certificates")
    from secure_sccvfl.protocols.session.shards import shard_config

    count = config.shards["count"]
    tasks = [Task(shard_config(config, shard), node, certs.resolve(), threads) for shard in range(count)]
    if config.shards.get("kind", "local") != "local":
        raise ConfigError("[shards] does not cover kind = ray yet: use local")
    with _local(tasks) as channels:
        yield channels


def dealt(channels: list[Any]) -> None:
    """At the dealer: wait until every shard's dealer has served its session; raises what stopped one."""
    for shard, channel in enumerate(channels, start=1):
        try:
            answer = channel.recv()
        except EOFError:
            raise ProtocolError(f"the dealer of shard {shard} is gone") from None
        if answer is not None:
            raise answer


@contextmanager
def _local(tasks: list[Task]) -> Iterator[list[Any]]:
    with contextlib.ExitStack() as held:
        channels, processes = [], []
        for task in tasks:
            ours, theirs = socket.socketpair()
            with theirs:
                code = f"from secure_sccvfl.runs.shards import worker; worker({theirs.fileno()})"
                environment = {**os.environ, **same_imports(), **dict.fromkeys(THREAD_VARIABLES, str(task.threads))}
                command = [sys.executable, "-c", code]
                processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment))
            held.callback(_ended, processes[-1])
            channels.append(held.enter_context(Connection(ours.detach())))
            channels[-1].send(task)
        yield channels
        for process in processes:
            process.wait()


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Its channel is closed: it stops, or is stopped."""
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def worker(descriptor: int) -> None:
    """The whole life of a local worker."""
    end_with_parent("shard worker")
    with Connection(descriptor) as channel, contextlib.suppress(ProtocolError, EOFError, KeyboardInterrupt):
        channel.recv().run(channel)  # it has told its head process of an error
