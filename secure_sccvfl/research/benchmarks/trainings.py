"""`bench.py run, rounds, width, wan, classes, heads, security`: whole secure trainings next to the plaintext engine.

Each benchmark is a list of points: a data set, a number of parties, a round trip and options of the run. A secure
training runs without evaluation (parties as processes, dealer, mutual TLS). The plaintext engine then trains in this
process, with one thread, on the tables that the secure run released, so that both take the same steps. A whole
training of stock CrypTen takes too long, and SPU has none: `step` compares one step.

`costs` runs `train` and `evaluate` with default options on synthetic records in a file for each party, as a
consortium has them. `runs.member.outlook` estimates a plan from its rows; rounds and bytes are counted at party 0.
"""

from __future__ import annotations

import csv
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.accounting.tables import Column, Table
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.party_data import own_schema, pooled
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.cached_releases import cached_files, load_releases
from secure_sccvfl.discovery.statistics import PlainStatistics, ReleasedTables
from secure_sccvfl.evaluation.scoring import one_thread
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.config import SECURITY
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.research.benchmarks.measuring import PARTIES, Result, Row, Tell, filled, run_session
from secure_sccvfl.runs.model_files import PartyModel, load_model
from secure_sccvfl.training.config import head_plan
from secure_sccvfl.training.model import Model, probabilities
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import ModuleHead, PlainEngine
from secure_sccvfl.training.trainer import train

SECURE_PHASES = ("inputs", "discovery and warm-up", "counterfactuals", "late refreshes", "training")
NOT_PRIVATE: dict[str, Any] = {"private_model": False, "consistency_from": "records"}
"""Nine lambdas without noise, with counterfactuals of every record selected by s."""
PATIENCE = 900.0
"""Seconds that a process waits for another: a million rows take long to read, and between two messages."""
DELTA = 1e-5
"""That of a default run; with more than its inverse of records, a run refuses it."""
ROUND_TRIPS_MS = (0, 20, 100)


@dataclass(frozen=True)
class Point:
    """One training to measure. facts: what its row says besides. checked: compare its logits with plaintext."""

    dataset: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    parties: int = PARTIES
    round_trip_ms: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    checked: bool = False

    def __str__(self) -> str:
        more = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.dataset}, {self.parties} parties, {self.round_trip_ms} ms round trip{', ' * bool(more)}{more}"


def measured(point: Point, blocks: int, tell: Tell) -> Row:
    """The row of a point: of several trainings the one in the middle by seconds."""
    rows = []
    for block in range(blocks):
        tell(f"{point}, {block + 1} of {blocks}")
        with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
            folder = Path(place) / "run"
            row = secure(point, folder)
            reference = plain(point.dataset, point.parties, folder, **point.options)
        row |= {"plain_seconds": reference.seconds, "columns": reference.columns}
        rows.append(row | (reference.differences() if point.checked else {}))
    chosen = sorted(rows, key=lambda row: float(row["seconds"]))[blocks // 2]
    where = {"dataset": point.dataset, "parties": point.parties, "round_trip_ms": point.round_trip_ms}
    return {**where, **point.facts, **chosen}


def secure(point: Point, folder: Path) -> Row:
    """One secure training and its cost: seconds and rounds at party 0, bytes of the mean party.

    Processor seconds are those of all processes, with their start.
    """
    options, delay = {"dataset": point.dataset, **point.options}, point.round_trip_ms / 2000
    wait, start = {"connect": PATIENCE, "deadline": PATIENCE}, time.perf_counter()
    results, usage = run_session(folder, "train", options, point.parties, delay, **wait)
    costs = [[result["cost"][name] for name in SECURE_PHASES] for result in results]

    def mean(name: str) -> int:
        return round(statistics.mean(sum(phase[name] for phase in phases) for phases in costs))

    return {
        "seconds": sum(phase["seconds"] for phase in costs[0]),
        "wall_seconds": time.perf_counter() - start,
        "processor": round(sum(usage.processor.values()), 2),
        "rounds": sum(phase["rounds"] for phase in costs[0]),
        "bytes": mean("bytes"),
        "dealer_bytes": mean("dealer_bytes"),
        "steps": results[0]["steps"],
        "phases": {name: round(phase["seconds"], 3) for name, phase in zip(SECURE_PHASES, costs[0], strict=True)},
        **usage.megabytes,
    }


@dataclass(frozen=True)
class PlainTraining:
    """A training in plaintext on what a secure one released, next to the parts of the secure model."""

    model: Model
    parties: tuple[Party, ...]
    shares: tuple[PartyModel, ...]
    seconds: float

    @property
    def columns(self) -> int:
        """Columns of the encodings of all parties."""
        return sum(own.encoder.columns for own in self.shares)

    def logits(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits of all records by the secure model, whose shares are added up, and by this one.

        Both are calibrated with the temperature of the secure one: of two that fit nearly equally, the engines may
        choose different ones.
        """
        rows = np.hstack([own.encoder(p.inputs) for own, p in zip(self.shares, self.parties, strict=True)])
        same = self.shares[0].temperature
        return self._combined(rows) / same, self.model.logits(self.parties) * self.model.temperature / same

    def _combined(self, rows: np.ndarray) -> np.ndarray:
        """Logits of the secure model."""
        first = self.shares[0]
        if isinstance(self.model.head, ModuleHead):
            weights = {name: combined([own.layers[name] for own in self.shares]) for name in first.layers}
            return replace(self.model.head, weights=weights)(rows)
        weight, bias = (combined([getattr(own, name) for own in self.shares]) for name in ("weight", "bias"))
        return np.asarray(rows @ weight + bias)

    def differences(self) -> Row:
        """Largest difference over all records of a logit and of a probability from the plaintext engine."""
        logits = self.logits()
        of_logits, of_chances = (
            float(np.abs(a - b).max()) for a, b in (logits, [probabilities(v, self.model.task) for v in logits])
        )
        return {"max_logit_error": of_logits, "max_error": of_chances, "lambda": self.shares[0].lam}


def plain(dataset: str, parties: int, folder: Path, **options: Any) -> PlainTraining:
    """The plaintext engine on what the secure run in `folder` released. options: those of the run.

    Where a module as the head ends depends on its path: then releases and roles follow each other as in the run.
    """
    data = pooled(dataset, parties)
    seed = options.get("seed", 0)
    split, own = make_split(data, "iid", seed), make_parties(data)
    models = tuple(load_model(folder / f"party-{p.rank}" / "model", p.layout) for p in own)
    tables = ReleasedTables.of([m.noisy_tables for m in models])
    config = RunOptions.of({"dataset": dataset, **options}).train_config()
    roles: Roles | None = Roles(dict(models[0].roles))
    if config.module is not None:
        tables = tables.one_by_one([load_releases(*cached_files(folder / f"party-{p.rank}")) for p in own])
        roles = None
    released = PlainStatistics(tables)
    plan = head_plan(config, [p.layout for p in own], data.task, data.outputs)
    privacy = GaussianNoise(SpendingPlan(releases=config.charged, parties=parties, head=plan), seed)
    with one_thread():
        start = time.perf_counter()
        model = train(PlainEngine(), released, data, split, config, seed, roles=roles, parties=own, privacy=privacy)
        seconds = time.perf_counter() - start
    if model.roles.of != models[0].roles:
        raise ValueError("the plaintext engine proposes other roles from the same tables")
    return PlainTraining(model, tuple(own), models, seconds)


COLUMNS = (
    *(Column("data", "dataset"), Column("what"), Column("classes"), Column("head"), Column("parties")),
    *(Column("round trip ms", "round_trip_ms"), Column("columns"), Column("steps")),
    *(Column("s", "seconds", ".2f"), Column("plain s", "plain_seconds", ".2f"), Column("rounds")),
    *(Column("MB to peers", "bytes", ".1f", 1e6), Column("MB dealer", "dealer_bytes", ".1f", 1e6)),
    *(Column("CPU s", "processor", ".1f"), Column("party MB", "party_mb"), Column("dealer MB", "dealer_mb")),
    Column("s of counterfactuals", lambda row: f"{row['phases']['counterfactuals']:.1f}"),
    Column("s of training", lambda row: f"{row['phases']['training']:.1f}"),
    *(Column("error of a logit", "max_logit_error", ".4f"), Column("error of a probability", "max_error", ".5f")),
)
ABOUT = (
    "Whole secure trainings: inputs, discovery with refreshes, counterfactuals, training, without the start of\n"
    "processes. `plain s`: the plaintext engine on the same releases. MB: of the mean party, to its peers, and to\n"
    "and from the dealer. CPU: of all processes, with their start. MB of memory: the peak of the largest party and\n"
    "of the dealer. Errors: largest difference over all records from the plaintext engine."
)


def measure(points: Sequence[Point], blocks: int, tell: Tell) -> Result:
    """The trainings of these points as a table without empty columns."""
    rows = [measured(point, blocks, tell) for point in points]
    return Result({"trainings": rows}, [ABOUT, filled(rows, COLUMNS)])


def sizes(dataset: str | None) -> list[Point]:
    """`run`: one data set; or German and synthetic records of growing size, and other numbers of parties."""
    names = [dataset] if dataset else ["german", "synthetic:1000", "synthetic:10000", "synthetic:100000"]
    return [Point(name) for name in names] + [Point("german", parties=parties) for parties in (2, 5) if not dataset]


def rounds(dataset: str) -> list[Point]:
    """One private model, and nine lambdas without noise from records, both at two round trips."""
    ways = {"one private model": {}, "nine lambdas, not private, from records": NOT_PRIVATE}
    return [
        Point(dataset, {"what": what}, round_trip_ms=delay, options=options)
        for delay, (what, options) in product(ROUND_TRIPS_MS[:2], ways.items())
    ]


def wan(dataset: str) -> list[Point]:
    """One data set where a relay delays every byte; bandwidth is not limited."""
    return [Point(dataset, round_trip_ms=delay) for delay in ROUND_TRIPS_MS]


def classes(rows: int, columns: int) -> list[Point]:
    """Three classes next to two on the same columns, without noise, so that both engines can be compared."""
    return [
        Point(f"synthetic:{rows}x{columns}x{k}", {"classes": k}, options={"private_model": False}, checked=True)
        for k in (2, 3)
    ]


def heads() -> list[Point]:
    """A network as the head next to the linear one, on German, both without noise."""
    heads: dict[str, dict[str, Any]] = {"linear": {"lambdas": (3.0,)}, "mlp": {"head": "mlp"}}
    return [
        Point("german", {"head": head}, options={"private_model": False, "seed": 600, **options}, checked=True)
        for head, options in heads.items()
    ]


def width(rows: Sequence[int], columns: Sequence[int]) -> list[Point]:
    """All rows with the fewest columns, then all columns with the most rows; the last also without noise."""
    rows, columns = sorted(rows), sorted(columns)
    grid = [*((r, columns[0]) for r in rows), *((rows[-1], c) for c in columns[1:])]
    points = [
        Point(f"synthetic:{r}x{c}", {"rows": r, "features": c, "before": False}, options={"delta": min(DELTA, 1 / r)})
        for r, c in grid
    ]
    last = points[-1]
    before = replace(last, facts={**last.facts, "before": True}, options={**last.options, **NOT_PRIVATE})
    return [*points, before] if len(points) > 1 else points


def security(rows: int, columns: int) -> list[Point]:
    """Both levels of security on German and on synthetic records."""
    return [
        Point(dataset, {"what": level}, options={"security": level, "delta": min(DELTA, 1 / rows)})
        for dataset, level in product(("german", f"synthetic:{rows}x{columns}"), SECURITY)
    ]


SHAPES = (
    *((400, 6, 3), (400, 24, 3), (1600, 12, 3), (1600, 36, 3)),
    *((6400, 12, 3), (6400, 24, 3), (1600, 12, 2), (1600, 12, 5)),
)
"""Records, features of all parties together, parties."""


LETTERS = ("a", "b", "c", "d")
BINARY, PROTECTED = ("0", "1"), ("no", "yes")


def write_files(folder: Path, rows: int, features: int, parties: int) -> Path:
    """Synthetic records of one consortium: numbers and categories in turn, some of which depend on s."""
    rng = stream(rows, "survey", str(features), str(parties))
    s = rng.random(rows) < 0.4
    values = np.clip(
        rng.beta(2, 2, (rows, features)) + 0.3 * (np.arange(features) % 3 == 0) * (s[:, None] - 0.5), 0, 1
    )
    y = rng.random(rows) < 1 / (1 + np.exp(-4 * (values - 0.5).sum(axis=1) / np.sqrt(features)))
    names = [f"x{k:02d}" for k in range(features)]
    lines = [
        *('name = "survey"', 'task = "binary"', 'id = "id"'),
        f'label = {{ party = "p0", column = "y", classes = {json.dumps(BINARY)} }}',
        f'protected = [ {{ party = "p1", column = "s", groups = {json.dumps(PROTECTED)} }} ]',
    ]
    folder.mkdir(parents=True)
    for rank in range(parties):
        own = range(rank, features, parties)
        described = [
            f'{{ name = "{names[k]}", kind = "category", categories = {json.dumps(LETTERS)} }}'
            if k % 2
            else f'{{ name = "{names[k]}", kind = "number", low = 0, high = 1 }}'
            for k in own
        ]
        lines += [f"[parties.p{rank}]", f'file = "p{rank}.csv"', f"features = [ {', '.join(described)} ]"]
        columns = [
            np.array(LETTERS)[(values[:, k] * 3.999).astype(int)] if k % 2 else values[:, k].round(4) for k in own
        ]
        head = ["id", *(names[k] for k in own)]
        if rank < 2:
            held = np.array(PROTECTED)[s.astype(int)] if rank else y.astype(int)
            head, columns = [*head, "s" if rank else "y"], [*columns, held]
        with open(folder / f"p{rank}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            writer.writerows(zip((f"r{k:06d}" for k in range(rows)), *columns, strict=True))
    (folder / "survey.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "survey.toml"


def measure_costs(tell: Tell) -> Result:
    """One row for each shape and job: what the estimate knows beforehand, and the cost of each phase."""
    rows: list[dict[str, Any]] = []
    for records, features, parties in SHAPES:
        tell(f"{records} records, {features} features, {parties} parties")
        with tempfile.TemporaryDirectory(prefix="sccvfl-survey-") as place:
            path = write_files(Path(place) / "data", records, features, parties)
            schema = own_schema(path)
            bins = sum(sum(own.values()) for own in schema.bins.values())
            shape = {"rows": records, "features": features, "bins": bins, "groups": sum(schema.group_counts)}
            options = {"dataset": str(path)}
            for job in ("train", "evaluate"):
                results, _ = run_session(Path(place) / job, job, dict(options), parties, deadline=120.0)
                rows.append({"job": job, "parties": parties, **shape, "phases": results[0]["cost"]})
                options["model"] = str(Path(place) / "train")
    phases = [{**row, "phase": phase, **cost} for row in rows for phase, cost in row["phases"].items()]
    note = "Rounds and bytes are those of party 0. `sccvfl plan` estimates from these rows."
    return Result({"rows": rows}, [note, Table.of(phases, COST_COLUMNS)])


COST_COLUMNS = (
    *(Column("job"), Column("records", "rows"), Column("features"), Column("parties"), Column("phase")),
    Column("rounds", form=".0f"),
    Column("MB to peers", "bytes", ".2f", 1e6),
    Column("MB dealer", "dealer_bytes", ".2f", 1e6),
    Column("s", "seconds", ".2f"),
)
