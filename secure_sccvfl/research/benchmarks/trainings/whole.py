"""`bench.py run`: whole secure trainings beside the plaintext engine on the same releases.

The secure run is the default one (three parties as processes, dealer, mutual TLS) without judges and baselines. The
plaintext engine then trains on the very tables that the secure run released, so that both take the same steps. It
runs in this process with one thread. Memory is that of the largest process.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from accounting.tables import Column, Table, page
from protocols.session.saving import combined
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.kept_tables import known_tables, load_tables
from secure_sccvfl.discovery.plain_statistics import PlainStatistics, ReleasedTables
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.reports.results import result_of
from secure_sccvfl.research.benchmarks.systems import PARTIES, Tell
from secure_sccvfl.research.benchmarks.usage import Usage
from secure_sccvfl.runs.local.processes import LocalSession, session_config
from secure_sccvfl.runs.model_files import PartyModel, load_model
from secure_sccvfl.training.heads import head_plan
from secure_sccvfl.training.model import Model
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.plain_modules import ModuleHead
from secure_sccvfl.training.trainer import train

SIZES = ("german", "synthetic:1000", "synthetic:10000", "synthetic:100000")
CONSORTIA = (2, 3, 5)
ROUND_TRIP_MS = 20
SECURE_PHASES = ("inputs", "discovery and warm-up", "counterfactuals", "late refreshes", "training")


BEFORE: dict[str, Any] = {"private_model": False, "consistency_from": "records"}
"""Options of training as it was before heads were private: nine lambdas, edits of every record selected by s."""


def secure(
    dataset: str,
    parties: int,
    folder: Path,
    delay: float = 0.0,
    patience: float = 120.0,
    **options: Any,
) -> dict[str, Any]:
    """One secure training and what it took: seconds and rounds at party 0, bytes of the mean party.

    `delay`: seconds one way on every link.
    `patience`: how many seconds a process waits for another. `options`: of the run, else its defaults. Processor
    seconds are those of all processes, with their start.
    """
    wait = {"connect": patience, "deadline": patience}
    config = session_config(folder, "train", parties, {"dataset": dataset, **options}, **wait)
    start = time.perf_counter()
    with LocalSession(config, folder, delay=delay) as session:
        usage = Usage({child.name: child.process.pid for child in session.children})
        ending = session.wait()
    ending.check()
    results = [result_of(folder, rank) for rank in range(parties)]
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
        "party_mb": round(max((v for k, v in usage.peaks.items() if k != "dealer"), default=0) / 1e3),
        "dealer_mb": round(usage.peaks.get("dealer", 0) / 1e3),
    }


def middle(dataset: str, blocks: int, delay_ms: int, tell: Tell, **options: Any) -> dict[str, Any]:
    """Of several secure trainings the one in the middle by seconds; `plain_seconds`: the plaintext engine after each.

    `delay_ms`: of a round trip.
    """
    turns = []
    for block in range(blocks):
        tell(f"{dataset}, {delay_ms} ms round trip, {block + 1} of {blocks}")
        with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
            folder = Path(place) / "run"
            turns.append(secure(dataset, PARTIES, folder, delay_ms / 2000, **options))
            turns[-1]["plain_seconds"] = plain(dataset, PARTIES, folder, **options).seconds
    return sorted(turns, key=lambda row: float(row["seconds"]))[blocks // 2]


@dataclass(frozen=True)
class PlainTraining:
    """A training in plaintext on what a secure one released, beside the parts of the secure model."""

    model: Model
    parties: tuple[Party, ...]
    shares: tuple[PartyModel, ...]
    seconds: float

    @property
    def columns(self) -> int:
        """Columns of the encodings of all parties."""
        return len(self.shares[0].weight)

    def logits(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits of all records by the secure model, whose shares are added up, and by this one.

        Both are calibrated with the temperature of the secure one: two that fit nearly alike may be chosen otherwise.
        """
        rows = np.hstack([own.encoder(p.inputs) for own, p in zip(self.shares, self.parties, strict=True)])
        same = self.shares[0].temperature
        return self._combined(rows) / same, self.model.logits(self.parties) * self.model.temperature / same

    def _combined(self, rows: np.ndarray) -> np.ndarray:
        """Logits of the secure model."""
        first = self.shares[0]
        if isinstance(self.model.head, ModuleHead):
            known = {name: combined([own.layers[name] for own in self.shares]) for name in first.layers}
            return replace(self.model.head, weights=known)(rows)
        weight, bias = (combined([getattr(own, name) for own in self.shares]) for name in ("weight", "bias"))
        return np.asarray(rows @ weight + bias)


def plain(dataset: str, parties: int, folder: Path, **options: Any) -> PlainTraining:
    """The plaintext engine on what the secure run in `folder` released. options: those of the run.

    Where a head ends depends on its path if it is a module: then releases and roles follow each other as in the run.
    """
    data = pooled(dataset, parties)
    seed = options.get("seed", 0)
    split, own = make_split(data, "iid", seed), make_parties(data)
    models = tuple(load_model(folder / f"party-{p.rank}" / "model", p.layout) for p in own)
    tables = ReleasedTables.of([m.sketches for m in models])
    config = RunOptions.of({"dataset": dataset, **options}).train_config()
    roles: Roles | None = Roles(dict(models[0].roles))
    if config.module is not None:
        tables = tables.one_by_one([load_tables(*known_tables(folder / f"party-{p.rank}")) for p in own])
        roles = None
    released = PlainStatistics(tables)
    plan = head_plan(config, [p.layout for p in own], data.task, data.outputs)
    privacy = GaussianNoise(SpendingPlan(releases=config.charged, parties=parties, head=plan), seed)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        start = time.perf_counter()
        model = train(PlainEngine(), released, data, split, config, seed, roles=roles, parties=own, privacy=privacy)
        seconds = time.perf_counter() - start
    if model.roles.of != models[0].roles:
        raise ValueError("the plaintext engine found other roles in the same tables")
    return PlainTraining(model, tuple(own), models, seconds)


def pair(dataset: str, parties: int, tell: Tell) -> list[dict[str, Any]]:
    """Ours and plain on one job."""
    tell(f"{dataset}, {parties} parties")
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        ours = secure(dataset, parties, folder)
        reference = plain(dataset, parties, folder).seconds
    job = {"dataset": dataset, "parties": parties}
    ratio = round(ours["seconds"] / reference, 1)
    told = {"seconds": reference, "steps": ours["steps"]}
    return [{**job, "system": "ours-sealed", **ours, "times_plain": ratio}, {**job, "system": "plain", **told}]


def delayed(tell: Tell, dataset: str = "german", parties: int = PARTIES) -> dict[str, Any]:
    """One secure training between distant hosts (`secure_sccvfl/runs/local/relay.py`)."""
    tell(f"{dataset}, {parties} parties, {ROUND_TRIP_MS} ms round trip")
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        ours = secure(dataset, parties, Path(place) / "run", ROUND_TRIP_MS / 2000)
    return {
        "dataset": dataset,
        "parties": parties,
        "system": "ours-sealed",
        "round_trip_ms": ROUND_TRIP_MS,
        **ours,
    }


def measure(tell: Tell, dataset: str | None = None) -> list[dict[str, Any]]:
    """All sizes and numbers of parties, and a slow network; or one data set with three parties."""
    if dataset is not None:
        return pair(dataset, PARTIES, tell)
    rows = [row for size in SIZES for row in pair(size, PARTIES, tell)]
    for parties in CONSORTIA:
        if parties != PARTIES:
            rows += pair("german", parties, tell)
    return [*rows, delayed(tell)]


MEMORY = (Column("party MB", "party_mb"), Column("dealer MB", "dealer_mb"))


def sent(form: str = ".1f") -> tuple[Column, Column]:
    """Columns of bytes: of the mean party, to its peers, and to and from the dealer."""
    return Column("MB to peers", "bytes", form, 1e6), Column("MB dealer", "dealer_bytes", form, 1e6)


def took(form: str = ".2f") -> tuple[Column, Column]:
    """Columns of seconds: of a secure training, and of the plaintext engine."""
    return Column("s", "seconds", form), Column("plain s", "plain_seconds", form)


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    """One table."""
    plain = {(row["dataset"], row["parties"]): row["seconds"] for row in rows if row["system"] == "plain"}

    def reference(row: Mapping[str, Any]) -> str | None:
        return f"{plain[row['dataset'], row['parties']]:.2f}" if "times_plain" in row else None

    def name(row: Mapping[str, Any]) -> str:
        return row["dataset"] + (f", {row['round_trip_ms']} ms round trip" if "round_trip_ms" in row else "")

    columns = (
        *(Column("data", name), Column("parties"), Column("steps"), Column("ours s", "seconds", ".2f")),
        *(Column("plain s", reference), Column("times plain", "times_plain"), Column("rounds")),
        *(*sent(), Column("CPU s", "processor"), *MEMORY),
    )
    return page(
        f"Made by `{command}` on {os.cpu_count() or 1} cores. Seconds of training in secret (inputs, discovery with "
        "refreshes,\n"
        "counterfactuals, training), without the start of processes; plain: the plaintext engine, same releases.\n"
        "MB: of the mean party, to its peers, and to and from the dealer. CPU: of all processes, with their start.",
        Table.of([row for row in rows if row["system"] == "ours-sealed"], columns),
    )
