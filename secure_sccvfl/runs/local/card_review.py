"""The review of a run's card: whether one is due, and discovery again on new records.

A review is due by its date, an appeal, another schema, or a shift of a party's own columns. Discovery is the job
`discovery` on this machine, with the settings of the run. What it releases is charged to the ledgers of the run's
consortium, under the same cap. Public benchmark data have nothing to protect: there the ledger is in the session's
folder.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.data.catalogue import is_benchmark, load
from secure_sccvfl.data.dataset import PartyTable
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.files import Reader
from secure_sccvfl.data.party_data import own_schema, pooled
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.reviews import Proposals
from secure_sccvfl.policy.shift import Shift, column_shifts, new_records
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.records.chain import unused_name
from secure_sccvfl.reports.folders import RunFolder, result_of
from secure_sccvfl.runs.local.processes import run_job, session_config
from secure_sccvfl.runs.local.whole_run import natural_parties
from secure_sccvfl.training.modes.options import RunOptions

REVIEWS = "reviews"
NOT_OURS = ("dataset", "card", "resume", "source")
"""Options of a training that a discovery does not take over."""


def discover_again(run: Path, dataset: str, number: str) -> tuple[Proposals, list[Path]]:
    """Run discovery on a data set for review `number` of a run; returns its proposals and its files."""
    folder, beside = run / REVIEWS / number, unused_name(run.parent / f"{run.name}-review")
    parties, settings = _settings(run, dataset)
    # A session that was refused or stopped is no part of the run.
    run_job(session_config(beside, "discovery", parties, settings), beside).check(beside)
    folder.parent.mkdir(exist_ok=True)
    beside.rename(folder)
    proposals = Proposals.of(result_of(folder, 0), f"{REVIEWS}/{number}")
    return proposals, sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def _settings(run: Path, dataset: str) -> tuple[int, dict[str, Any]]:
    """Number of parties and options of the session: those of the run, on another data set, with the same ledgers."""
    folder = RunFolder.of(run)
    folder.must_hold_all("run the job discovery at every host, then review with --discovery")
    session = folder.session()
    settings = {k: v for k, v in session.options.items() if k not in NOT_OURS} | {"dataset": dataset}
    before = str(session.options["dataset"])
    if not is_benchmark(before) and "ledger" not in settings:
        settings["ledger"] = str(Path(before).parent / "sccvfl-ledgers")
    return len(session.parties) if is_benchmark(dataset) else natural_parties(dataset), settings


def discovered(folder: Path) -> Proposals:
    """The proposals of a discovery session in a folder: on this machine, or at this party of a session by hand."""
    for path in (folder / "result.json", folder / "party-0" / "result.json"):
        if path.exists():
            try:
                return Proposals.of(json.loads(path.read_text(encoding="utf-8")), str(folder))
            except ValueError:
                break
    raise ConfigError(f"{folder} is not the folder of a finished discovery session")


def due_by_card(card: PolicyCard, today: datetime.date) -> list[str]:
    dated = [f"regular: the review was due on {card.review_due}"] if card.overdue(today) else []
    return dated + [f"appeal: {e.get('number', '')} about {e['feature']} is open" for e in card.open_appeals]


def changed_schema(run: Path, card: PolicyCard, dataset: str) -> list[str]:
    """How the public description of a data set differs from that of the run. No record is read."""
    folder = RunFolder.of(run)
    session = folder.session()
    options = {k: v for k, v in session.options.items() if k == "pooled"}
    if is_benchmark(dataset):
        schema = RunOptions.of({**options, "dataset": dataset}).schema(len(session.parties))
    else:
        schema = own_schema(Path(dataset))
    models = [folder.part(rank) / "model" / "model.json" for rank in folder.ranks(len(session.parties))]
    trained = {json.loads(path.read_text(encoding="utf-8")).get("scheme") for path in models if path.exists()}
    if not trained:
        raise ConfigError(f"{run} holds no part of a model, so its description of the data is not known")
    if trained == {schema.digest()}:
        return []
    names = {f.name for party_features in schema.features for f in party_features}
    changes = [f"new column {name}" for name in sorted(names - set(card.decisions))]
    changes += [f"column {name} is gone" for name in sorted(set(card.decisions) - names)]
    return [f"schema: {line}" for line in changes or ["same columns, but another description of the data"]]


def own_shift(run: Path, dataset: str, party: int) -> tuple[str, list[Shift]]:
    """A party's own columns in the records of the run and in new ones; it reads that party's files alone."""
    folder = RunFolder.of(run)
    session = folder.session()
    seed, before = int(session.options.get("seed", 0)), str(session.options["dataset"])
    if not 0 <= party < len(session.parties):
        raise ConfigError(f"--party must be from 0 to {len(session.parties) - 1}, not {party}")
    if party not in folder.ranks(len(session.parties)):
        folder.must_hold_all(f"party {party} looks at its own columns itself")
    old, old_ids = _own_table(before, party, len(session.parties))
    new, new_ids = _own_table(dataset, party, len(session.parties))
    fresh = new_records(old, new, old_ids, new_ids)
    return old.name, column_shifts(old.features, old.values, fresh, stream(seed, "shift", party))


def _own_table(dataset: str, party: int, parties: int) -> tuple[PartyTable, np.ndarray]:
    if is_benchmark(dataset):
        data = pooled(dataset, parties)
        return data.parties[party], load(dataset).ids
    reader = Reader.of(Path(dataset))
    names = list(reader.spec["parties"])
    if party >= len(names):
        raise DataError(f"{dataset} has {len(names)} parties, so there is no party {party}")
    return reader.table(names[party]), reader.id_array
