"""Starts the workers of row shards (`protocols.session.shards`): this party's, and the dealer's for each shard.

Kind `local`: processes on this host, each at one end of a private socket pair. Kind `ray`: actors in this node's own
Ray cluster (`RAY_ADDRESS`, or a new one on this host), in one placement group, so that all start or none. Each runs
on the host of its address. Rows and shares travel inside the cluster, so a cluster of several hosts needs Ray's TLS.
No key travels: every host of the cluster has the folder of certificates at the same path. No two nodes of a session
may share a cluster. A worker needs no ledger. Its head process sends it rows or, to a local worker, the numbers of
its rows in a CSV file, which it reads itself (`data.table_rows`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.config import ConfigError, SessionConfig, node_folder, split_address
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.runs.process import THREAD_VARIABLES, end_with_parent, return_freed_memory, same_imports

SHARDED_JOBS = ("train", "evaluate", "discovery", "predict", "bench-shards")
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
        return_freed_memory()
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
    with (_ray if config.shards.get("kind") == "ray" else _local)(tasks) as channels:
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


class _Actor:
    """A worker in a Ray cluster. Messages are pickled here: arrays that Ray itself passes cannot be written to."""

    def __init__(self) -> None:
        self._orders, self._answers = queue.SimpleQueue[bytes](), queue.SimpleQueue[bytes]()

    def run(self, task: Task) -> None:
        with contextlib.suppress(ProtocolError, EOFError):
            task.run(self)

    def put(self, message: bytes) -> None:
        self._orders.put(message)

    def get(self) -> bytes:
        return self._answers.get()

    def recv(self) -> Any:
        if not (message := self._orders.get()):
            raise EOFError("its head process has gone")
        return pickle.loads(message)

    def send(self, message: Any) -> None:
        self._answers.put(pickle.dumps(message))


class _RayChannel:
    """The head's end. Each message is acknowledged, since methods of an actor with threads run in any order."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def _call(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError:
            raise EOFError("the worker has gone") from None

    def send(self, message: Any) -> None:
        self._call(self._actor.put.remote(pickle.dumps(message)))

    def recv(self) -> Any:
        return pickle.loads(self._call(self._actor.get.remote()))

    def close(self) -> None:
        self._actor.put.remote(b"")


@contextmanager
def _ray(tasks: list[Task]) -> Iterator[list[Any]]:
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError("[shards] kind = ray needs the extra ray: pip install secure-sccvfl[ray]") from None
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would call home
    new = {"num_cpus": len(tasks), "object_store_memory": 128 << 20} if "RAY_ADDRESS" not in os.environ else {}
    given = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False} if new else {}
    ray.init(address=os.environ.get("RAY_ADDRESS", "local"), **new, **given)
    try:
        addresses = ["" if one.node == one.config.dealer else one.config.parties[one.node] for one in tasks]
        hosts = [split_address(address)[0] if address else "" for address in addresses]
        known = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        if len(known) > 1 and os.environ.get("RAY_USE_TLS") != "1":
            raise ConfigError("[shards]: this Ray cluster has several hosts: set RAY_USE_TLS=1 on all of them")
        group = ray.util.placement_group(
            [{"CPU": 1, **({f"node:{host}": 0.001} if host in known else {})} for host in hosts], strategy="SPREAD"
        )
        if not group.wait(_GRACE):
            raise ConfigError(f"[shards]: the Ray cluster has no room for {len(tasks)} workers of one CPU each")
        placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        channels = []
        for number, task in enumerate(tasks):
            options = {"num_cpus": 1, "max_concurrency": 4, "scheduling_strategy": placed(group, number)}
            actor = ray.remote(_Actor).options(**options).remote()
            actor.run.remote(task)
            channels.append(_RayChannel(ray, actor))
        yield channels
    finally:
        ray.shutdown()


def worker(descriptor: int) -> None:
    """The whole life of a local worker."""
    end_with_parent("shard worker")
    with Connection(descriptor) as channel, contextlib.suppress(ProtocolError, EOFError, KeyboardInterrupt):
        channel.recv().run(channel)  # it has told its head process of an error
