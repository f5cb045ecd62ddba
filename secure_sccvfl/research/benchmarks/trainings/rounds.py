"""`bench.py rounds`: training of the whole grid of lambda by steps of second and of first order, in one run.

The problem is that of a run on a benchmark data set with all its roles, encodings and edits; it is public. Both train
nine lambdas, check the range of the logits and open the measures of the validation part. First order: 60 steps of
warm-up, then 60 at each lambda, one after another, as several classes still train. Second order: all lambdas at once
(protocols/steps/second_order.py). The error is the largest distance of a logit from the optimum, which is taken from
many steps in plaintext. The last rows are whole secure trainings, from discovery on: of one private head, and as they
were before heads were private.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accounting.tables import Column, Table, page
from protocols.config import SessionConfig
from protocols.records.releases import ANY, Release, ReleasePlan
from protocols.session.runtime import Session
from protocols.steps.second_order import MATRIX_BITS
from secure_sccvfl.data.party import Blocks
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.plain_statistics import PlainStatistics
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.reports.folders import result_of
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell, in_turn
from secure_sccvfl.research.benchmarks.trainings import whole
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.runs.local.processes import LocalSession, session_config
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.engine import CURVATURE, Engine, Step
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.handles import SharedChoices, SharedPenalty
from secure_sccvfl.training.plain import Penalty, PlainEngine
from secure_sccvfl.training.schedule import second_order_schedule
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import Counterfactuals, Trainer, train

Order = Literal["first", "second"]
ORDERS: tuple[Order, ...] = ("second", "first")
DELAYS_MS = (0, whole.ROUND_TRIP_MS)
MANY_STEPS = 200


@dataclass(frozen=True)
class Posed:
    """What a run trains on: encodings and labels of both parts, penalties in plaintext, and the owners' bounds."""

    encodings: tuple[Blocks, Blocks]
    labels: tuple[np.ndarray, np.ndarray]
    penalties: tuple[Penalty, Penalty]
    guards: Sequence[Blocks]
    flat: Blocks
    energy: Blocks
    bounds: Bounds


WARMUP = 60
"""First-order steps before consistency."""


class _Met(Exception):
    """Ends a training once its problem is known."""


class _Posing(Trainer):
    def fit(self, made: Counterfactuals) -> None:
        self.made = made
        super().fit(made)

    def train_grid(self, penalty: Any, grid: Grid, bounds: Bounds) -> tuple[Any, ...]:
        labels, encodings = (self.batch.label, self.check.label), (self.encodings, self.check_encodings)
        directions = self.proxy_directions(self.made.finding.roles)
        flat = self.curvature_bound()
        penalties = (penalty, self.made.check)
        raise _Met(Posed(encodings, labels, penalties, directions, flat, self.made.energy, bounds))


def posed(dataset: str) -> Posed:
    """The problem of a run; the same in every process."""
    data, config = pooled(dataset, PARTIES), TrainConfig()
    noise = GaussianNoise(SpendingPlan(releases=config.charged), 0)
    try:
        train(PlainEngine(), PlainStatistics(noise), data, make_split(data, "iid", 0), config, 0, driver=_Posing)
    except _Met as met:
        found: Posed = met.args[0]
        return found
    raise RuntimeError("the training ended before it began")


def trained(engine: Engine, order: Order, problem: Posed, batches: Sequence[Any], penalties: Sequence[Any]) -> Any:
    """Heads of the grid, after their range was checked and their measures were opened."""
    config = TrainConfig()
    if order == "second":
        grid = Grid(config.lambdas, (config.guard,) * len(config.lambdas), CURVATURE["binary"], sharpens=True)
        descent = engine.prepare_grid(batches[0], penalties[0], grid, problem.bounds)
        head = engine.head(batches[0], len(grid), "binary")
        for count, sharp, _ in second_order_schedule(config, "binary"):
            descent = engine.sharpen(head, descent) if sharp else descent
            head = engine.steps(head, descent, count)
        heads = engine.apart(head)
        engine.check_range(heads, batches[1])
        engine.measure(heads, batches[1], penalties[1])
        return heads
    head, made = engine.head(batches[0], 1, "binary"), []
    warm = engine.prepare(batches[0], None, Step(), problem.flat)
    head = engine.steps(head, warm, WARMUP)
    for lam in config.lambdas:
        step = Step(lam=lam, guard=config.guard)
        reach = problem.bounds.reach
        bound = {k: v + lam * problem.energy[k] + config.guard * reach[k] for k, v in problem.flat.items()}
        head = engine.steps(head, engine.prepare(batches[0], penalties[0], step, bound), config.steps)
        engine.check_range([head], batches[1])
        engine.measure([head], batches[1], penalties[1])
        made.append(head)
    return made


def _bound(engine: Engine, problem: Posed, ranks: Sequence[int]) -> list[Any]:
    """Both parts as batches of what these parties hold."""
    ridge = TrainConfig().ridge
    return [
        engine.bind(
            {rank: encodings[rank] for rank in ranks},
            label if 0 in ranks else None,
            {rank: np.full(encodings[rank].shape[1], ridge) for rank in ranks},
        )
        for encodings, label in zip(problem.encodings, problem.labels, strict=True)
    ]


def optimum(problem: Posed) -> np.ndarray:
    """Logits of the training part after many steps in plaintext."""
    engine, config = PlainEngine(), TrainConfig()
    batch = _bound(engine, problem, range(PARTIES))[0]
    grid = Grid(config.lambdas, (config.guard,) * len(config.lambdas), CURVATURE["binary"])
    descent = engine.prepare_grid(batch, problem.penalties[0], grid, problem.bounds)
    return engine.logits(
        engine.steps(engine.head(batch, len(grid), "binary"), descent, MANY_STEPS), problem.encodings[0]
    )


class RoundsBenchmark:
    """Options: `order` and `dataset`. The parties share what is public anyway: the Gram matrices come from rank 0."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.order: Order = "first" if config.options.get("order") == "first" else "second"
        self.problem = posed(str(config.options.get("dataset", "german")))
        everyone, heads = tuple(range(len(config.parties))), len(TrainConfig().lambdas)
        shapes: dict[str, tuple[int, ...]] = {"columns": (ANY,), "range check": (1,), "validation summary": (ANY, 4)}
        shapes["predictions"] = (ANY, ANY)
        self._releases = [Release(n, everyone, s, "inputs are public", times=heads) for n, s in shapes.items()]

    def plan(self) -> ReleasePlan:
        return ReleasePlan(self._releases)

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        engine, problem, rank = SecureEngine(session, 0, [0]), self.problem, session.rank
        batches = _bound(engine, problem, [rank])
        penalties = [self._shared(session, penalty) for penalty in problem.penalties]
        session.barrier()
        before, start, busy = vars(session.total_cost).copy(), time.perf_counter(), time.process_time()
        heads = trained(engine, self.order, problem, batches, penalties)
        row: Row = {"seconds": time.perf_counter() - start, "processor": time.process_time() - busy}
        row |= {name: value - before[name] for name, value in vars(session.total_cost).items()}
        logits = np.hstack([engine.logits(head, {rank: problem.encodings[0][rank]}) for head in heads])
        row["max_error"] = float(np.abs(logits - optimum(problem)).max())
        return {"ok": True, "rows": [row]}

    def _shared(self, session: Session, penalty: Penalty) -> SharedPenalty:
        shares = session.public(penalty.gram, MATRIX_BITS)
        nothing = SharedChoices((), np.zeros(0, int))
        return SharedPenalty(nothing, shares, tuple(guard[session.rank] for guard in self.problem.guards))


def _secure(dataset: str, order: Order, delay_ms: int) -> list[Row]:
    """One row: the slowest party's seconds, and the mean of what parties send and get from the dealer."""
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        options = {"order": order, "dataset": dataset}
        config = session_config(folder, "bench-rounds", PARTIES, options, deadline=120.0)
        with LocalSession(config, folder, delay=delay_ms / 2000) as session:
            session.wait().check()
        rows = [result_of(folder, rank)["rows"][0] for rank in range(PARTIES)]
    mean = {name: round(statistics.mean(row[name] for row in rows)) for name in ("sent", "dealer")}
    return [{"job": f"{order} order", **max(rows, key=lambda row: row["seconds"]), **mean}]


def _plain(dataset: str, order: Order) -> Row:
    problem, engine = posed(dataset), PlainEngine()
    batches = _bound(engine, problem, range(PARTIES))
    start = time.perf_counter()
    heads = trained(engine, order, problem, batches, problem.penalties)
    seconds = time.perf_counter() - start
    logits = np.hstack([engine.logits(head, problem.encodings[0]) for head in heads])
    return {"seconds": seconds, "max_error": float(np.abs(logits - optimum(problem)).max())}


def measure(dataset: str, blocks: int, tell: Tell) -> list[Row]:
    """Medians of several turns of each order and delay; then whole trainings."""
    rows = []
    for delay in DELAYS_MS:
        tell(f"{delay} ms round trip")
        systems: dict[str, Callable[[], list[Row]]] = {
            order: partial(_secure, dataset, order, delay) for order in ORDERS
        }
        for (what, _), found in in_turn(systems, blocks, tell).items():
            measured = {name: value for name, value in found[-1].items() if name != "job"}
            measured["seconds"] = statistics.median(row["seconds"] for row in found)
            measured["max_error"] = max(row["max_error"] for row in found)
            rows.append({**measured, "what": what, "delay_ms": delay})
    for order in ORDERS:
        tell(f"{order} order in plaintext")
        rows.append({"what": f"{order} order, plaintext engine", "delay_ms": 0, **_plain(dataset, order)})
    names = {"seconds": "seconds", "rounds": "rounds", "sent": "bytes", "dealer": "dealer_bytes"}
    for delay, before in product(DELAYS_MS, (False, True)):
        what = "whole training" + (", not private, from records" if before else "")
        options: dict[str, Any] = whole.BEFORE if before else {}
        tell(what)
        ran = whole.middle(dataset, blocks, delay, tell, **options)
        rows.append({"what": what, "delay_ms": delay, **{k: ran[v] for k, v in names.items()}})
    return rows


COLUMNS = (
    Column("what"),
    Column("round trip ms", "delay_ms"),
    Column("rounds"),
    Column("s", "seconds", ".2f"),
    Column("MB to peers", "sent", ".1f", 1e6),
    Column("MB dealer", "dealer", ".1f", 1e6),
    Column("largest error of a logit", "max_error", ".4f"),
)


def markdown(dataset: str, rows: Sequence[Row], command: str) -> str:
    """One table."""
    return page(
        f"Made by `{command}` on {os.cpu_count() or 1} cores, {PARTIES} parties. Training of nine lambdas with range "
        "check and\n"
        f"measures on {dataset}: by steps of second order, as a run takes them, and of first order, as it took them "
        "before.\n"
        "Errors are distances from the optimum. Whole trainings include discovery and counterfactuals.",
        Table.of(rows, COLUMNS),
    )
