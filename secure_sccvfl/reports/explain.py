"""One person of a run in six steps, as data: from a run on public data, or from one party's own folder.

Public data (a benchmark, or data that may be pooled): everything, with the run's plaintext twin as the model, since
nobody has the model of a run under MPC; where the run itself decided about the person, its decision is included.
A consortium: one party sees its own columns, their roles, and what its own generator does to them. Nothing else about
a person was released to it, so nothing else can be shown.

One person in six steps, as text: the paper's worked example for a finished run.
"""

from __future__ import annotations

import csv
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.data.catalogue import loader_of
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.party_data import PartyData, pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.examples import DRAWS, OURS, PLAIN, cells, decoded, explained, most_frequent, moves
from secure_sccvfl.evaluation.pooled import ready_with
from secure_sccvfl.policy.card import PolicyCard, read_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.reports.figures import listed
from secure_sccvfl.reports.folders import RunFolder, read_json
from secure_sccvfl.reports.page import template
from secure_sccvfl.reports.policy_card import CARD
from secure_sccvfl.reports.results import Change, Description, Outcome, decode, encode, read
from secure_sccvfl.reports.sections import role_words
from secure_sccvfl.runs.answers import OTHERS, WEIGHS
from secure_sccvfl.runs.files import describe_data
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.training.modes.options import RunOptions


def explain(run: Path, record: str) -> dict[str, Any]:
    """A person of a finished run on public data."""
    report, session = read(run), RunFolder(run).session()
    options = RunOptions.of(session.options)
    if not options.data.pooled or options.evaluation.kind != "exact":
        raise ConfigError(
            "records of a consortium are not shown to all: a party explains what it holds itself, with --party"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = pooled(options.data.dataset, len(session.parties))
    spelled = loader_of(options.data.dataset).words(options.data.dataset).get("id", "id")
    row = _row(data.ids, record, options.data.dataset, IdRule.of(spelled))
    split = make_split(data, options.data.split, options.data.seed)
    config = replace(options.train_config(), evaluation="exact")
    budget, card = options.simulated_budget(len(session.parties)), _card(run)
    ready = ready_with(data, split, Roles(report.roles, report.proxies), config, budget, options.data.seed, card)
    people = report.examples.people if report.examples is not None else ()
    return {
        "record": record,
        "run": report.run,
        "party": None,
        **_shown(encode(report), report.party_names, report.data, card),
        "person": explained(ready, options.training.mode, row),
        "secure": next((encode(person) for person in people if person.id == record), None),
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
    part = folder.part(party)
    part = part if part.is_dir() else run
    session = folder.session() if session_file is None else load_session(session_file)
    options, parties = RunOptions.of(session.options), len(session.parties)
    if not 0 <= party < parties:
        raise ConfigError(f"the run has parties 0 to {parties - 1}, not {party}")
    result = read_json(part / "result.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        records = options.load(party, parties)
    name = records.schema.parties[party]
    row = _row(records.ids, record, f"the records of {name}", records.schema.id_rule)
    data = decode(Description, describe_data(options.data.dataset, records.schema))
    shown = _shown(result, result["parties"], data, _card(run))
    return {
        "record": record,
        "run": result["run"],
        "party": name,
        **shown,
        "columns": [column for column in shown["columns"] if column["holder"] == name],
        "person": _own_person(part, records, row, joined=not result["rows"]["validation"]),
        "decision": None if predictions is None else _predicted(predictions, record, records.schema.id_rule),
    }


def _own_person(part: Path, records: PartyData, row: int, joined: bool) -> dict[str, Any]:
    """A party's own columns of a person, and the counterfactuals of its generators.

    Nothing of this leaves the party. So the generators also use how often each value occurs among its own training
    records, where it knows which records these are. joined: validation records were trained with.
    """
    layout = records.party.layout
    model = load_model(part / "model", layout)
    roles = Roles(dict(model.roles), model.proxies)
    trained = records.party.take(records.split.train_and_validation if joined else records.split.train)
    if model.held_out.align == "exact":
        model = replace(model, noisy_tables=tuple(one.with_marginals([trained]) for one in model.noisy_tables))
    generators = model.generators(trained)
    before = records.party.inputs[row]
    values = np.array([decoded(block, before[block.columns]) for block in layout.blocks])
    rows, counterfactuals = np.repeat(before[None], DRAWS, axis=0), []
    for attribute in records.protected:
        code = None if attribute.codes is None else int(attribute.codes[row])
        for source in range(len(attribute.groups)) if code is None else (code,):
            for target in (g for g in range(len(attribute.groups)) if g != source):
                drawn = generators[attribute.name](rows, source, np.full(DRAWS, target), 0)
                groups = [attribute.groups[source], attribute.groups[target]]
                moved = moves(layout, roles, before, drawn[most_frequent(drawn, before)])
                empty = int((np.abs(drawn - before).max(axis=1) == 0).sum())
                edit = {"attribute": attribute.name, "groups": groups, "moved": moved, "empty": empty}
                counterfactuals.append(edit)
    return {
        "values": cells([block.feature for block in layout.blocks], values),
        "knows_group": records.protected[0].codes is not None,
        "knows_label": records.label is not None,
        "edits": counterfactuals,
        "draws": DRAWS,
    }


def _predicted(path: Path, record: str, rule: IdRule) -> dict[str, str]:
    """The line of a file of predictions that is about this record, in whichever way its id is written."""
    name = rule.id_of(record) or record
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                if (written := next(iter(line.values()))) == record or rule.id_of(written) == name:
                    return dict(line)
    except OSError as error:
        raise ConfigError(f"cannot read the predictions {path}: {error.strerror}") from None
    raise ConfigError(f"{path.name} has no record {record!r}")


def _shown(
    result: Mapping[str, Any], parties: Sequence[str], data: Description, card: PolicyCard | None
) -> dict[str, Any]:
    """The public part: the description, what each party holds, and every column with its role and why."""
    owners, decisions = result["owners"], {} if card is None else card.decisions
    holders = [
        {
            "party": name,
            "columns": [column for column, owner in owners.items() if owner == name],
            "label": name == data.label.holder,
            "protected": [attribute.name for attribute in data.protected if attribute.holder == name],
        }
        for name in parties
    ]
    columns = [
        {
            "name": name,
            "holder": owners[name],
            "role": role,
            "by_card": name in result["by_card"],
            **{key: result[source].get(name) for key, source in _EVIDENCE.items()},
            "reason": decisions[name].reason if name in decisions else "",
        }
        for name, role in sorted(result["roles"].items(), key=lambda item: ("MPN".index(item[1]), item[0]))
    ]
    return {"data": encode(data), "holders": holders, "columns": columns, "proxies": result["proxies"]}


_EVIDENCE = {"proposed": "proposed", "confidence": "confidence", "score": "scores"}


def _card(run: Path) -> PolicyCard | None:
    return read_card(run / CARD) if (run / CARD).exists() else None


def _row(ids: np.ndarray, record: str, where: str, rule: IdRule) -> int:
    """The row of a record, by its id as a file writes it or as the rule for ids does."""
    rows = np.flatnonzero((ids == record) | (ids == rule.id_of(record)))
    if not len(rows):
        made = "" if rule.plain else f" (made of {rule.words})"
        raise ConfigError(f"no record {record!r} in {where}; ids{made} look like {str(ids[0])!r}")
    return int(rows[0])


WIDTH = 98
NAMES = {OURS: "SCC-VFL", PLAIN: "plain training"}


def walk(explained: Mapping[str, Any]) -> str:
    """The six steps of what `explain` returned, by the template explain.txt: a title (#) or a paragraph a line."""
    words, party = decode(Description, explained["data"]), explained["party"]
    answered = explained.get("decision") or {}
    text = template("explain.txt").render(
        e=explained,
        words=words,
        roles=role_words(explained["proxies"]),
        decision=lambda outcome: words.decision(decode(Outcome, outcome)),
        moved=lambda change: words.change(decode(Change, change)),
        listed=listed,
        others={title: value for title, value in answered.items() if title.startswith(OTHERS)},
        weighs={title: value for title, value in answered.items() if title.startswith(WEIGHS)},
        named=NAMES,
        ours=OURS,
        plain=PLAIN,
    )
    seen_by = f", as {party} sees it" if party is not None else ""
    lines, number = [f"record {explained['record']}, run {explained['run'][:12]}{seen_by}"], 0
    for line in filter(None, text.splitlines()):
        if line.startswith("# "):
            number += 1
            lines += ["", f"{number}. {line.removeprefix('# ')}"]
        else:  # a line of a list hangs under its mark
            hang = "     " if line.startswith("- ") else "   "
            lines += textwrap.wrap(line, WIDTH, initial_indent="   ", subsequent_indent=hang, break_long_words=False)
    return "\n".join(lines)
