"""Running sessions in tests: parties as threads (quick, same code) or as the real processes.

Threads work because a session keeps its state in its own context; the sockets, TLS and the
dealer are the real ones. Tests about processes themselves use `secure_sccvfl.runs.local.processes`.
"""

from __future__ import annotations

import atexit
import contextvars
import functools
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import Shape
from secure_sccvfl.protocols.config import SessionConfig, node_folder
from secure_sccvfl.protocols.net.certificates import Credentials, make_certificates
from secure_sccvfl.protocols.net.rendezvous import listen_anywhere
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.records.key_mark import KeyMark
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.records.transcript import Recording, Transcript
from secure_sccvfl.protocols.session.node import connect, serve_as_dealer
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.randomness import DRAWER

LONG = 600.0
"""For what ends by itself, on however busy a machine: reached only when something hangs."""
DEADLINE = CONNECT = 120.0
"""So too in sessions; tests about who is missing or silent set less."""
MOST_PARTIES = 5


_KEEPER = tempfile.TemporaryDirectory(prefix="sccvfl-test-")
atexit.register(_KEEPER.cleanup)
CERTIFICATES = Path(_KEEPER.name) / "certs"
"""One set for all tests; a set for five parties serves two and three as well."""
make_certificates(CERTIFICATES, MOST_PARTIES)


def credentials(node: int, parties: int) -> Credentials:
    return Credentials.of(CERTIFICATES, node_folder(node, parties))


def node_names(parties: int) -> list[str]:
    return [node_folder(node, parties) for node in range(parties + 1)]


def results(parties: int, dimensions: Sequence[int] = (0, 1, 2, 3), times: int = 1000) -> dict[int, Release]:
    """A release for everyone, for each number of dimensions."""
    everyone = tuple(range(parties))
    return {d: Release(f"result {d}", everyone, (ANY,) * d, "test", times=times) for d in dimensions}


def in_threads(works: Sequence[Callable[[], Any]], timeout: float = LONG) -> list[Any]:
    """Run each in its own thread and context; raises the first error after all have ended."""
    outcome: list[Any] = [None] * len(works)
    errors: list[BaseException | None] = [None] * len(works)
    drawer = DRAWER.get()

    def run(index: int) -> None:
        try:
            context = contextvars.Context()
            context.run(DRAWER.set, f"{drawer}/{index}")
            outcome[index] = context.run(works[index])
        except BaseException as error:
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    assert not any(thread.is_alive() for thread in threads), "a party did not end"
    if any(errors):
        raise ExceptionGroup("parties failed", [error for error in errors if isinstance(error, Exception)])
    return outcome


@contextmanager
def stopping(*texts: str) -> Iterator[None]:
    """The session inside stops, and each text is in the message of a process."""
    with pytest.raises(ExceptionGroup) as stopped:
        yield
    said = [str(error) for error in stopped.value.exceptions]
    assert all(any(text in line for line in said) for text in texts), said


def local_config(parties: int, **settings: Any) -> tuple[SessionConfig, list[Any]]:
    """A configuration on free local ports, and the listening sockets that hold them."""
    sockets = [listen_anywhere() for _ in range(parties)]
    settings = {"connect": CONNECT, "deadline": DEADLINE, "idle": 3 * DEADLINE, **settings}
    config = SessionConfig(parties=tuple(address for _, address in sockets), **settings)
    return config, [listener for listener, _ in sockets]


def run_session(
    job: Callable[[Session], Any],
    parties: int = 3,
    plan: ReleasePlan | None = None,
    wrap: Callable[[Transport], Transport] = lambda transport: transport,
    folder: Path | None = None,
    transcripts: bool = False,
    mac_keys: Sequence[tuple[int | None, Path | None]] = (),
    **settings: Any,
) -> list[Any]:
    """Run `job` at every party, with a dealer; returns what each party got. Transcripts go into the folder too.

    mac_keys: with active security, by rank, the part of the MAC key of a saved model, and where its mark goes.
    """
    config, listeners = local_config(parties, **settings)
    plan = plan or ReleasePlan(results(parties).values())
    assert folder is not None or not transcripts, "transcripts need a folder"
    transcript_folders = (
        [folder / name / "transcript" for name in node_names(parties)] if folder and transcripts else None
    )

    def party(rank: int) -> Any:
        transport = wrap(connect(config, rank, credentials(rank, parties), listeners[rank]))
        log = folder / f"party-{rank}" / "releases.jsonl" if folder else None
        kept = Transcript(transcript_folders[rank]) if transcript_folders else None
        key, saved = mac_keys[rank] if mac_keys else (None, None)
        seen = Recording(transport, kept) if kept else transport
        with Session(seen, config, plan, log, kept, key, KeyMark(saved)) as session:
            return job(session)

    seen = transcript_folders[-1] if transcript_folders else None
    dealer = functools.partial(serve_as_dealer, config, credentials(config.dealer, parties), seen)
    works = [functools.partial(party, rank) for rank in range(parties)]
    return in_threads([*works, dealer])[:parties]


class Recorded:
    """Noise that gives back what a secure run released, by name; `watch` it during that run."""

    def __init__(self, tables: dict[str, Any] | None = None, constant: float | None = None) -> None:
        self.tables: dict[str, Any] = {} if tables is None else tables
        self.constant, self.scales = constant, set[float]()

    @classmethod
    def watch(cls, patch: pytest.MonkeyPatch) -> Recorded:
        """Collects all releases of secure statistics from now on."""
        recorded, honest = cls(), SecureStatistics.release

        def watched(self: SecureStatistics, statistic: Any, columns: Any, groups: Any, counts: Any) -> Any:
            released = honest(self, statistic, columns, groups, counts)
            joined = {k: np.hstack([part[k] for part in released.tables]) for k in released.tables[0]}
            recorded.tables.setdefault(statistic.name, {}).update(joined)
            widths = [width for block in statistic.layout(self._columns).values() for width in block.values()]
            moved = statistic.sensitivity(Shape(self._rows, widths, counts))
            recorded.scales.add(round(self.deviation(moved) / moved.added, 12))
            return released

        patch.setattr(SecureStatistics, "release", watched)
        return recorded

    def check(self, rows: int) -> None:
        pass

    def deviation(self, sensitivity: Sensitivity) -> float:
        if self.constant is not None:
            return self.constant
        (scale,) = self.scales
        return scale * sensitivity.added

    def release(
        self, sums: dict[str, Any], name: str, sensitivity: Sensitivity, mechanism: str = "gaussian"
    ) -> dict[str, Any]:
        return {key: self.tables[name][key] for key in sums}
