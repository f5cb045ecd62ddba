"""Is the review of a run's card due? By its date, an appeal, another schema, or a shift of a party's own columns."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from protocols.config import ConfigError
from secure_sccvfl.data.catalogue import is_benchmark, load
from secure_sccvfl.data.dataset import PartyTable
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.files import Reader
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.shift import LEVEL, Shift, new_records, shifts
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.training.modes.options import RunOptions


def due_by_card(card: PolicyCard, today: datetime.date) -> list[str]:
    """What the card alone tells."""
    dated = [f"regular: the review was due on {card.review_due}"] if card.overdue(today) else []
    return dated + [f"appeal: {e.get('number', '')} about {e['feature']} is open" for e in card.open_appeals]


def changed_schema(run: Path, card: PolicyCard, dataset: str) -> list[str]:
    """How the public description of a data set differs from that of the run. No record is read."""
    folder = RunFolder.of(run)
    known = folder.session()
    options = {k: v for k, v in known.options.items() if k == "pooled"}
    if is_benchmark(dataset):
        schema = RunOptions.of({**options, "dataset": dataset}).schema(len(known.parties))
    else:
        from secure_sccvfl.data.party_data import own_schema

        schema = own_schema(Path(dataset))
    models = [folder.part(rank) / "model" / "model.json" for rank in folder.ranks(len(known.parties))]
    trained = {json.loads(path.read_text(encoding="utf-8")).get("scheme") for path in models if path.exists()}
    if not trained:
        raise ConfigError(f"{run} holds no part of a model, so its description of the data is not known")
    if trained == {schema.digest()}:
        return []
    names = {f.name for own in schema.features for f in own}
    told = [f"new column {name}" for name in sorted(names - set(card.decisions))]
    told += [f"column {name} is gone" for name in sorted(set(card.decisions) - names)]
    return [f"schema: {line}" for line in told or ["same columns, but another description of the data"]]


def own_shift(run: Path, dataset: str, party: int) -> tuple[str, list[Shift]]:
    """A party's own columns in the records of the run and in new ones; it reads that party's files alone."""
    folder = RunFolder.of(run)
    known = folder.session()
    seed, before = int(known.options.get("seed", 0)), str(known.options["dataset"])
    if not 0 <= party < len(known.parties):
        raise ConfigError(f"--party must be from 0 to {len(known.parties) - 1}, not {party}")
    if party not in folder.ranks(len(known.parties)):
        folder.must_hold_all(f"party {party} looks at its own columns itself")
    old, old_ids = _own_table(before, party, len(known.parties))
    new, new_ids = _own_table(dataset, party, len(known.parties))
    fresh = new_records(old, new, old_ids, new_ids)
    return old.name, shifts(old.features, old.values, fresh, stream(seed, "shift", party))


def _own_table(dataset: str, party: int, parties: int) -> tuple[PartyTable, np.ndarray]:
    if is_benchmark(dataset):
        data = pooled(dataset, parties)
        return data.parties[party], load(dataset).ids
    reader = Reader.of(Path(dataset))
    names = list(reader.spec["parties"])
    if party >= len(names):
        raise DataError(f"{dataset} has {len(names)} parties, so there is no party {party}")
    return reader.table(names[party]), reader.id_array


def shift_record(name: str, found: list[Shift]) -> dict[str, Any]:
    """For `--json`: each column's move, and the stated rate of false alarms."""
    columns = {s.column: {"distance": s.distance, "by_chance": s.by_chance, "alarm": s.alarm} for s in found}
    return {"party": name, "false_alarm_rate": LEVEL, "columns": columns}
