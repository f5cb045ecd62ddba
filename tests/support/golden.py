"""Digests of shares, with rounds and bytes, of whole runs under fixed randomness: tests/contract/golden.json.

A change of the code that computes the same must leave them as they are: then every share is bit-equal, in the same
rounds with the same bytes. A change that computes something else, or costs less, regenerates them and says why:

    python -m tests.support.golden            # print which digests would change
    python -m tests.support.golden --write    # regenerate the file

| name | shares of |
|---|---|
| tables | noisy tables of s, before they are opened to their owners |
| scores | group sizes and HSIC, before they are opened to all |
| opened | everything else that is opened: counts, checks, figures, decisions |
| gram | Gram matrices, and the factors of the doublings that give inverses |
| inverses | inverses of curvatures and penalties, as they are pinned |
| heads | weights and biases in the model files |

Opened values of mode `split` are not digested: they are gradients for networks that the parties train in float32,
whose last bits differ between processors.

CrypTen draws an empty share of zero whenever it makes an empty tensor. Here such a draw takes nothing from a stream,
so that the number of tensors does not matter.

The digests are of one test's fixed randomness alone: they reveal nothing about a share of a real session. Rounds are
counted by job and phase. Bytes are those of the arrays that a party sends to the others; names of steps, which are
part of a message, are not counted.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.discovery.residuals import ResidualDependence
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import ClippedSums, GroupSums
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.session import runtime, tensors
from secure_sccvfl.protocols.session.runtime import MPCTensor, Session, share_of
from secure_sccvfl.protocols.session.tensors import Late, Parts
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from tests.support import mode_jobs
from tests.support.discovery import WIDTH, Consortium
from tests.support.overlap import holders, write_overlap
from tests.support.own_data import COLUMNS, DESCRIPTION, heart_rows, write_own
from tests.support.randomness import drawn_from
from tests.support.sessions import run_session

FILE = Path(__file__).resolve().parents[1] / "contract" / "golden.json"
ROOMY = {"epsilon": 60.0, "lambdas": [1.0], "take_lambda": 1.0, "evaluation_epsilon": 60.0}
"""Little noise: Heart is small."""
TABLES, SCORES = ("sketch", "moments", "residuals", "risk gains"), ("hsic", "group sizes")


class Recorder:
    """Digests by party and name, and what each party sends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digests: dict[str, dict[int, Any]] = {}
        self.sent: Counter[int] = Counter()
        self.rounds: dict[str, int] = {}

    def add(self, name: str, rank: int, words: Any) -> None:
        array = np.ascontiguousarray(words)
        with self._lock:
            digest = self._digests.setdefault(name, {}).setdefault(rank, hashlib.sha256())
            digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())

    def result(self) -> dict[str, Any]:
        digests = {
            name: hashlib.sha256(b"".join(of.digest() for _, of in sorted(by_rank.items()))).hexdigest()
            for name, by_rank in sorted(self._digests.items())
        }
        return {"bytes": [self.sent[rank] for rank in sorted(self.sent)], "rounds": self.rounds, "shares": digests}

    def counted(self, transport: Transport) -> Transport:
        """The transport, which counts the bytes of arrays for other parties."""
        honest = transport.exchange

        def exchange(step: str, send: Any, receive: Any) -> Any:
            size = sum(a.nbytes for peer, arrays in send.items() if peer < transport.parties for a in arrays)
            with self._lock:
                self.sent[transport.node] += size
            return honest(step, send, receive)

        transport.exchange = exchange  # type: ignore[method-assign]
        return transport

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Digest what is opened, Gram matrices and inverses."""
        runtime._install()
        open_each, gram, doubled, pinned = Session.open_each, MPCTensor.gram, MPCTensor.doubled, MPCTensor.pinned

        def opening(session: Session, pairs: Any, *given: Any, **options: Any) -> Any:
            for value, release in pairs:
                name = "tables" if release.name.startswith(TABLES) else "opened"
                self.add("scores" if release.name in SCORES else name, session.rank, share_of(value))
            return open_each(session, pairs, *given, **options)

        def matrix(tensor: Any, *given: Any, **options: Any) -> Any:
            product = gram(tensor, *given, **options)
            value = runtime.binding_tensors.value_of(product)
            elements = value.divided() if isinstance(value, (Late, Parts)) else value.share()
            self.add("gram", tensors.current().rank, elements)
            return product

        def factors(tensor: Any, *given: Any, **options: Any) -> Any:
            doubled_factors = doubled(tensor, *given, **options)
            for one in doubled_factors:
                self.add("gram", tensors.current().rank, share_of(one))
            return doubled_factors

        def inverses(tensor: Any, *given: Any, **options: Any) -> Any:
            if len(tensor.size()) == 3:
                self.add("inverses", tensors.current().rank, share_of(tensor))
            return pinned(tensor, *given, **options)

        zero_share = Party.zero_share

        def zeros(party: Party, shape: Any, *given: Any) -> Any:
            return zero_share(party, shape, *given) if math.prod(shape) else np.zeros(shape, np.int64)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Party, "zero_share", zeros)
            patch.setattr(Session, "open_each", opening)
            patch.setattr(MPCTensor, "gram", matrix)
            patch.setattr(MPCTensor, "doubled", factors)
            patch.setattr(MPCTensor, "pinned", inverses)
            yield


# cases


def jobs_of(kind: Any, parties: int, options: Any, party_options: Sequence[dict[str, Any]] = ()) -> list[Any]:
    """The job of each party. own: further options of each."""
    addresses = tuple(f"127.0.0.1:{7000 + rank}" for rank in range(parties))
    each = party_options or [{}] * parties
    return [
        kind(SessionConfig(parties=addresses, options={**options, **more}), rank) for rank, more in enumerate(each)
    ]


def run_job(recorder: Recorder, name: str, jobs: Sequence[Any], folder: Path) -> None:
    results = run_session(
        lambda session: jobs[session.rank].run(session, lambda *step: None),
        len(jobs),
        jobs[0].plan(),
        wrap=recorder.counted,
        folder=folder,
    )
    recorder.rounds |= {f"{name}: {phase}": cost["rounds"] for phase, cost in results[0]["cost"].items()}


def trained(recorder: Recorder, parties: int, folder: Path, **options: Any) -> None:
    run_job(recorder, "train", jobs_of(TrainJob, parties, options), folder / "run")
    for rank in range(parties):
        with np.load(folder / "run" / f"party-{rank}" / "model" / "model.npz") as file:
            for name in ("weight", "bias", "control weight", "control bias"):
                if name in file:
                    recorder.add("heads", rank, file[name])


def evaluated(recorder: Recorder, parties: int, folder: Path, **options: Any) -> None:
    jobs = jobs_of(EvaluateJob, parties, {**options, "model": str(folder / "run")})
    run_job(recorder, "evaluate", jobs, folder / "evaluation")


def german(parties: int, **options: Any) -> Callable[[Recorder, Path], None]:
    return lambda recorder, folder: trained(recorder, parties, folder, **options)


def whole(recorder: Recorder, folder: Path) -> None:
    """The default run of three parties, and its evaluation."""
    trained(recorder, 3, folder)
    evaluated(recorder, 3, folder)


def hidden(recorder: Recorder, folder: Path) -> None:
    """Records that only partly overlap: training, evaluation and prediction."""
    dataset = str(write_overlap(folder / "data"))
    trained(recorder, 3, folder, dataset=dataset, **ROOMY)
    evaluated(recorder, 3, folder, dataset=dataset, **ROOMY)
    files = [folder / f"new-{rank}.csv" for rank in range(3)]
    for path, (party, columns) in zip(files, COLUMNS.items(), strict=True):
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *columns])
            people = [row for n, row in enumerate(heart_rows(30)) if party in holders(n)]
            writer.writerows([f"new{row['id']}", *(row[name] for name in columns)] for row in people)
    party_options = [{"records": str(path)} for path in files]
    jobs = jobs_of(PredictJob, 3, {"dataset": dataset, "model": str(folder / "run"), **ROOMY}, party_options)
    run_job(recorder, "predict", jobs, folder / "prediction")


CLASSES = {
    'task = "binary"': 'task = "multiclass"',
    'column = "y", classes = ["0", "1"]': 'column = "y", classes = ["0", "1", "2"]',
}
NUMBER = {
    'task = "binary"': 'task = "regression"',
    'column = "y", classes = ["0", "1"]': 'column = "y", low = 0, high = 7',
}


def other_task(changes: dict[str, str], label: Callable[[dict[str, str]], str]) -> Callable[[Recorder, Path], None]:
    """Heart with another label."""

    def case(recorder: Recorder, folder: Path) -> None:
        dataset = write_own(folder / "data", [{**row, "y": label(row)} for row in heart_rows()])
        text = DESCRIPTION
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        dataset.write_text(text)
        trained(recorder, 3, folder, dataset=str(dataset), **ROOMY)

    return case


def statistics(parties: int, overlap: bool = False) -> Callable[[Recorder, Path], None]:
    """Every statistic of s: counts, their refresh and HSIC, wide sums, scaled tables, residual dependence."""
    columns = {rank: {f"x{rank}{i}": 2 + i for i in range(1 + rank % 2)} for rank in range(parties)}
    group = Consortium(columns=columns, holders=(1, 0), counts=(2, 3))
    widths, large = dict.fromkeys(["x00", "x10"], 3), 1 << (20 if overlap else 25)

    def job(session: Session, statistics: SecureStatistics, budget: Any) -> dict[str, int]:
        rank, rounds = session.rank, {}

        def step(name: str, work: Callable[[], Any]) -> Any:
            before = session.total_cost.rounds
            released = work()
            rounds[name] = session.total_cost.rounds - before
            return released

        first = step("tables", lambda: group.release_counts(session, statistics, 0))
        again = step("refresh", lambda: group.release_counts(session, statistics, 1))
        step("hsic", lambda: statistics.projected(mean(first, again), 2, group.counts))
        step("hsic of owners' tables", lambda: statistics.projected(first, 1, group.counts))
        large_columns = {
            k: np.tile(np.array([[large, 7, 3]]), (group.rows, 1)) for k in widths if k in group.columns[rank]
        }
        bound = float(2 * large * np.sqrt(len(widths) * 2))
        step(
            "wide sums",
            lambda: group.release(session, statistics, GroupSums("moments", bound, widths), large_columns),
        )
        if not overlap:
            step(
                "scaled tables",
                lambda: group.release(session, statistics, ClippedSums("sketch-2", 50.0)),
            )
            step("residuals", lambda: group.release(session, statistics, ResidualDependence("residuals", WIDTH)))
        return rounds

    def case(recorder: Recorder, folder: Path) -> None:
        held = None
        if overlap:
            held = np.random.default_rng(1).random((group.rows, parties)) < 0.9
        rounds = group.run(job, SecureStatistics, cap=1e4, held=held, wrap=recorder.counted)
        recorder.rounds |= rounds[0]

    return case


def mean(first: Any, again: Any) -> Any:
    return tuple({k: (one[k] + two[k]) / 2 for k in one} for one, two in zip(first, again, strict=True))


def mode(name: str) -> Callable[[Recorder, Path], None]:
    """What a gradient mode computes, without discovery."""

    def case(recorder: Recorder, folder: Path) -> None:
        job, plan = mode_jobs.JOBS[name]()

        def counting(session: Session) -> tuple[Any, int]:
            before = session.total_cost.rounds
            return job(session), session.total_cost.rounds - before

        for rank, (head, rounds) in enumerate(run_session(counting, 3, plan, wrap=recorder.counted)):
            recorder.rounds[name] = rounds
            for tensor in head:
                recorder.add("heads", rank, share_of(tensor))

    return case


CASES: dict[str, Callable[[Recorder, Path], None]] = {
    "statistics, 2 parties": statistics(2),
    "statistics, 3 parties": statistics(3),
    "statistics, 5 parties": statistics(5),
    "statistics, hidden alignment": statistics(3, overlap=True),
    "german, 2 parties, not private": german(2, private_model=False, lambdas=[3.0]),
    "german, default": whole,
    "german, 5 parties": german(5),
    "german, mode dp": german(3, mode="dp", dp_steps=3),
    "heart, hidden alignment": hidden,
    "heart, three classes": other_task(CLASSES, lambda row: str(int(row["y"]) + int(row["exang"]))),
    "heart, regression": other_task(NUMBER, lambda row: row["oldpeak"]),
    "mode dp": mode("dp"),
    "mode split": mode("split"),
}


def computed(name: str, folder: Path) -> dict[str, Any]:
    """A case, under its own fixed randomness."""
    recorder = Recorder()
    with drawn_from(f"golden {name}"), recorder.watching():
        CASES[name](recorder, folder)
    result = recorder.result()
    if name == "mode split":
        del result["shares"]["opened"]
    return result


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare shares, rounds and bytes with a file, or write it.")
    parser.add_argument("--write", action="store_true", help="write what is computed now")
    parser.add_argument("--file", type=Path, default=FILE, help="another file, for two versions on one machine")
    asked = parser.parse_args(given)
    stored = json.loads(asked.file.read_text()) if asked.file.exists() else {}
    results: dict[str, Any] = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = computed(name, Path(folder))
        print(f"{name}: {'as it was' if results[name] == stored.get(name) else 'changed'}", flush=True)
    if asked.write:
        asked.file.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(results[name] != stored.get(name) for name in results))


if __name__ == "__main__":
    sys.exit(main())
