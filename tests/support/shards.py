"""Sessions with row shards in tests: workers are threads; their sockets, TLS and dealers are the real ones."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.net.rendezvous import listen_anywhere
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.node import connect, open_session, serve_as_dealer
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.shards import RowShards, shard_config, work
from tests.support.sessions import credentials, in_threads, local_config, results


def run_sharded(
    job: Callable[[Session], Any],
    count: int,
    parties: int = 3,
    plan: ReleasePlan | None = None,
    folder: Path | None = None,
    wrap: Callable[[Transport], Transport] = lambda transport: transport,
    worker_plan: Callable[[int], ReleasePlan] = lambda rank: ReleasePlan(),
    **settings: Any,
) -> list[Any]:
    """Run `job` at every party of a head group with so many shards; returns what each party got.

    wrap, worker_plan: of the workers, for tests in which one of them misbehaves.
    """
    sockets = [[listen_anywhere() for _ in range(parties)] for _ in range(count)]
    addresses = [[address for _, address in row] for row in sockets]
    config, listeners = local_config(parties, **settings)
    config = replace(config, shards={"count": count, "addresses": addresses})
    pipes = [[Pipe() for _ in range(count)] for _ in range(parties)]

    def party(rank: int) -> Any:
        given = config, rank, credentials(rank, parties), plan or ReleasePlan(results(parties).values())
        log = folder / f"party-{rank}" / "releases.jsonl" if folder else None
        with contextlib.ExitStack() as ended:  # as a process that ends closes them: one may fail before it has shards
            ours = [ended.enter_context(channel) for channel, _ in pipes[rank]]
            with open_session(*given, log, listeners[rank]) as session:
                session.shards = RowShards(session, ours)
                return job(session)

    def worker(rank: int, shard: int) -> None:
        own = shard_config(config, shard)

        def opened() -> Session:
            transport = wrap(connect(own, rank, credentials(rank, parties), sockets[shard][rank][0]))
            return Session(transport, own, worker_plan(rank))

        work(opened, pipes[rank][shard][1])

    dealers = [config, *(shard_config(config, shard) for shard in range(count))]
    works = [functools.partial(party, rank) for rank in range(parties)]
    works += [functools.partial(serve_as_dealer, one, credentials(parties, parties)) for one in dealers]
    works += [functools.partial(worker, rank, shard) for rank in range(parties) for shard in range(count)]
    return in_threads(works)[:parties]
