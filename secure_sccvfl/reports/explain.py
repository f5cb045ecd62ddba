"""One person of a run in six steps, as data: from a run on public data, or from one party's own folder.

Public data (a benchmark, or data that may be pooled): everything, with the run's plaintext twin as the model, since
nobody has the model of a run in secret; where the run itself decided about the person, its decision stands beside.
A consortium: one party sees its own columns, their roles, and what its own generator does to them. It was told
nothing else about a person, so nothing else can be shown.
"""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protocols.config import ConfigError
from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party_data import PartyData, pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.examples import cells, decoded
from secure_sccvfl.evaluation.pooled import ready_with
from secure_sccvfl.evaluation.qualitative.explained import DRAWS, explained, most_frequent
from secure_sccvfl.evaluation.qualitative.people import moves
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.policy.card import PolicyCard, read_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.policy_card import CARD
from secure_sccvfl.runs.description import describe
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.training.modes.options import RunOptions


def explain(run: Path, record: str) -> dict[str, Any]:
    """A person of a finished run on public data."""
    report = _json(run / "report.json")
    session = load_session(_must(run, "session.toml"))
    options = RunOptions.of(session.options)
    if not options.data.pooled or options.evaluation.kind != "exact":
        raise ConfigError(
            "records of a consortium are not shown to all: a party explains what it holds itself, with --party"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = pooled(options.data.dataset, len(session.parties))
    row = _row(data.ids, record, options.data.dataset)
    split = make_split(data, options.data.split, options.data.seed)
    roles = Roles(report["roles"], report["proxies"])
    config = replace(options.train_config(), evaluation="exact")
    budget = options.simulated_budget(len(session.parties))
    ready = ready_with(data, split, roles, config, budget, options.data.seed, _card(run))
    in_secret = {e["id"]: e for e in (report.get("examples") or {}).get("people", ())}
    return {
        "record": record,
        "run": report["run"],
        "party": None,
        "data": report["data"],
        "holders": _holders(report),
        "columns": _columns(report, _card(run)),
        "proxies": report["proxies"],
        "person": explained(ready, options.training.mode, row),
        "secure": in_secret.get(record),
    }


def explain_to_party(
    run: Path, record: str, party: int, session_file: Path | None = None, predictions: Path | None = None
) -> dict[str, Any]:
    """What one party can say about a person: from its own folder, its own file and what was released to it.

    `run` is the folder of a whole run, or the party's own. predictions: the file of a `predict` session, at the
    party that received it.
    """
    folder = RunFolder.of(run)
    if folder.host not in (None, party):
        folder.must_hold_all(f"party {party} explains what it holds itself")
    place = folder.part(party)
    place = place if place.is_dir() else run
    session = load_session(session_file if session_file is not None else _must(run, "session.toml"))
    options, parties = RunOptions.of(session.options), len(session.parties)
    if not 0 <= party < parties:
        raise ConfigError(f"the run has parties 0 to {parties - 1}, not {party}")
    result = _json(place / "result.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        own = options.load(party, parties)
    row = _row(own.ids, record, f"the records of {own.schema.parties[party]}")
    words = describe(options.data.dataset, own.schema)
    told = {**result, "data": words, "party_names": result["parties"]}
    return {
        "record": record,
        "run": result["run"],
        "party": own.schema.parties[party],
        "data": words,
        "holders": _holders(told),
        "columns": [c for c in _columns(told, _card(run)) if c["holder"] == own.schema.parties[party]],
        "proxies": result["proxies"],
        "person": _own_person(place, own, row),
        "decision": _predicted(predictions, record) if predictions is not None else None,
    }


def _own_person(place: Path, own: PartyData, row: int) -> dict[str, Any]:
    """A party's own columns of a person, and what its generators make of them."""
    layout = own.party.layout
    model = load_model(place / "model", layout)
    roles = Roles(dict(model.roles), model.proxies)
    generators = model.generators(own.party.take(own.split.train))
    values = np.array([decoded(block, own.party.inputs[row, block.columns]) for block in layout.blocks])
    edits = []
    for attribute in own.protected:
        known = None if attribute.codes is None else int(attribute.codes[row])
        for source in range(len(attribute.groups)) if known is None else (known,):
            for target in (g for g in range(len(attribute.groups)) if g != source):
                moved, empty = _edit(generators[attribute.name], own.party.inputs[row], source, target, layout, roles)
                groups = [attribute.groups[source], attribute.groups[target]]
                edits.append({"attribute": attribute.name, "groups": groups, "moved": moved, "empty": empty})
    return {
        "values": cells([block.feature for block in layout.blocks], values),
        "knows_group": own.protected[0].codes is not None,
        "knows_label": own.label is not None,
        "edits": edits,
        "draws": DRAWS,
    }


def _edit(
    generator: Generator, before: np.ndarray, source: int, target: int, layout: Layout, roles: Roles
) -> tuple[list[dict[str, Any]], int]:
    """The most frequent edit of a record that changes anything, and how many draws change nothing."""
    rows = np.repeat(before[None], DRAWS, axis=0)
    edits = generator(rows, source, np.full(DRAWS, target), 0)
    still = int((np.abs(edits - before).max(axis=1) == 0).sum())
    return moves(layout, roles, before, edits[most_frequent(edits, before)]), still


def _predicted(path: Path, record: str) -> dict[str, str]:
    """The line of a file of predictions that is about this record."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                if line.get("id") == record:
                    return dict(line)
    except OSError as error:
        raise ConfigError(f"cannot read the predictions {path}: {error.strerror}") from None
    raise ConfigError(f"{path.name} has no record {record!r}")


def _holders(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By party: how many columns it holds, and whether it holds the label or a protected attribute."""
    label, protected = report["data"]["label"]["holder"], report["data"]["protected"]
    return [
        {
            "party": name,
            "columns": [column for column, owner in report["owners"].items() if owner == name],
            "label": name == label,
            "protected": [a["name"] for a in protected if a["holder"] == name],
        }
        for name in report["party_names"]
    ]


def _columns(report: Mapping[str, Any], card: PolicyCard | None) -> list[dict[str, Any]]:
    """Every column with its holder, role and why."""
    decided = {} if card is None else card.decisions
    return [
        {
            "name": name,
            "holder": report["owners"][name],
            "role": role,
            "by_card": name in report["by_card"],
            "proposed": report["proposed"].get(name),
            "confidence": report["confidence"].get(name),
            "score": report["scores"].get(name),
            "reason": decided[name].reason if name in decided else "",
        }
        for name, role in sorted(report["roles"].items(), key=lambda item: ("MPN".index(item[1]), item[0]))
    ]


def _card(run: Path) -> PolicyCard | None:
    return read_card(run / CARD) if (run / CARD).exists() else None


def _row(ids: np.ndarray, record: str, where: str) -> int:
    found = np.flatnonzero(ids == record)
    if not len(found):
        raise ConfigError(f"{where} has no record {record!r}; ids look like {str(ids[0])!r}")
    return int(found[0])


def _must(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise ConfigError(f"{folder} is not the folder of a finished run: it has no {name}")
    return folder / name


def _json(path: Path) -> dict[str, Any]:
    text = _must(path.parent, path.name).read_text(encoding="utf-8")
    try:
        return dict(json.loads(text))
    except ValueError:
        raise ConfigError(f"{path} cannot be read: it is torn or was changed; `audit verify` tells more") from None
