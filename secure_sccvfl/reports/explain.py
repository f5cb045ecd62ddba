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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.accounting.charts import percent, tidy
from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.data.catalogue import loader_of
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party_data import PartyData, pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.examples import DRAWS, OURS, PLAIN, cells, decoded, explained, most_frequent, moves
from secure_sccvfl.evaluation.pooled import ready_with
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.policy.card import PolicyCard, read_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.reports.figures import listed
from secure_sccvfl.reports.folders import RunFolder, read_json
from secure_sccvfl.reports.policy_card import CARD
from secure_sccvfl.reports.results import Change, Description, Example, Outcome, decode, encode, read
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
    values = np.array([decoded(block, records.party.inputs[row, block.columns]) for block in layout.blocks])
    counterfactuals = []
    for attribute in records.protected:
        code = None if attribute.codes is None else int(attribute.codes[row])
        for source in range(len(attribute.groups)) if code is None else (code,):
            for target in (g for g in range(len(attribute.groups)) if g != source):
                moved, empty = _edit(
                    generators[attribute.name], records.party.inputs[row], source, target, layout, roles
                )
                groups = [attribute.groups[source], attribute.groups[target]]
                counterfactuals.append(
                    {"attribute": attribute.name, "groups": groups, "moved": moved, "empty": empty}
                )
    return {
        "values": cells([block.feature for block in layout.blocks], values),
        "knows_group": records.protected[0].codes is not None,
        "knows_label": records.label is not None,
        "edits": counterfactuals,
        "draws": DRAWS,
    }


def _edit(
    generator: Generator, before: np.ndarray, source: int, target: int, layout: Layout, roles: Roles
) -> tuple[list[dict[str, Any]], int]:
    """The most frequent counterfactual of a record that changes anything, and how many draws change nothing."""
    rows = np.repeat(before[None], DRAWS, axis=0)
    counterfactuals = generator(rows, source, np.full(DRAWS, target), 0)
    still = int((np.abs(counterfactuals - before).max(axis=1) == 0).sum())
    return moves(layout, roles, before, counterfactuals[most_frequent(counterfactuals, before)]), still


def _predicted(path: Path, record: str, rule: IdRule) -> dict[str, str]:
    """The line of a file of predictions that is about this record, in whichever way its id is written."""
    name = rule.id_of(record) or record
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                if (written := line.get("id", "")) == record or rule.id_of(written) == name:
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
        raise ConfigError(f"{where} has no record {record!r}; ids{made} look like {str(ids[0])!r}")
    return int(rows[0])


WIDTH = 98
NAMES = {OURS: "SCC-VFL", PLAIN: "plain training"}
APPEAL = 'To object to a role: sccvfl policy appeal RUN --feature COLUMN --who "..." --text "...".'
Data = Mapping[str, Any]


def walk(explained: Data) -> str:
    """The six steps of what `reports.explain` returned."""
    words, party = decode(Description, explained["data"]), explained["party"]
    steps = _for_party(explained, words) if party is not None else _for_everybody(explained, words)
    seen_by = f", as {party} sees it" if party is not None else ""
    lines = [f"record {explained['record']}, run {explained['run'][:12]}{seen_by}"]
    for number, (title, body) in enumerate(steps, start=1):
        lines += ["", f"{number}. {title}", *(line for text in body for line in _wrapped(text))]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """A paragraph, or a line of a list that hangs under its mark."""
    hang = "     " if text.startswith("- ") else "   "
    return textwrap.wrap(text, WIDTH, initial_indent="   ", subsequent_indent=hang, break_long_words=False)


def _for_everybody(explained: Data, words: Description) -> Iterator[tuple[str, Sequence[str]]]:
    models = explained["person"]["models"]
    yield "Who holds what", _holders(explained, words)
    yield "Roles, and why", list(_roles(explained, words))
    yield "The counterfactual", list(_counterfactual(explained, words))
    decisions = [_decisions(name, seen, words) for name, seen in models.items()]
    yield "Both decisions", [*decisions, *_shown_model(explained["secure"], words)]
    yield "Why", list(_reasons(explained["person"], words))
    yield "What it means", list(_meaning(explained["person"], words))


def _holders(explained: Data, words: Description) -> list[str]:
    lines = []
    for holder in explained["holders"]:
        more = [*(["the label"] if holder["label"] else []), *(f"{name} (protected)" for name in holder["protected"])]
        columns = "; ".join(words.name(name) for name in holder["columns"])
        lines.append(f"- {holder['party']}. {columns}{'. And ' + listed(more) if more else ''}")
    first = words.protected[0]
    about = f"Protected: {first.name} ({first.meaning})" if first.meaning else f"Protected: {first.name}"
    used = "" if explained["party"] is not None else "No model input, unless the run was declared to use it. "
    return [*lines, f"{about}. {used}Its holder alone knows it for each record."]


def _roles(explained: Data, words: Description) -> Iterator[str]:
    for role, (word, meaning) in role_words(explained["proxies"]).items():
        columns = [column for column in explained["columns"] if column["role"] == role]
        if columns:
            yield f"{role}, {word}: {meaning}"
        for c in columns:
            source = "no table was released"
            if c["proposed"]:
                source = f"discovery proposes {c['proposed']}, confidence {percent(c['confidence'])}"
            reason = f": {c['reason']}" if c["reason"] and c["by_card"] else ""
            yield f"- {words.name(c['name'])} ({'by card; ' if c['by_card'] else ''}{source}){reason}"


def _values(columns: Sequence[Data], values: Mapping[str, str], words: Description, roles: bool = False) -> str:
    """Columns with their values in words."""
    named = [
        (words.name(c["name"]), f" ({c['role']})" * roles, words.value(c["name"], values[c["name"]])) for c in columns
    ]
    return "; ".join(f"{name}{role}: {value}" for name, role, value in named)


def _counterfactual(explained: Data, words: Description) -> Iterator[str]:
    person = explained["person"]
    old, new = (words.groups[group] for group in person["groups"])
    yield f"From “{old}” to “{new}”, by noisy tables as discovery releases them."
    for change in person["moved"]:
        name, before, after = words.change(decode(Change, change))
        yield f"- {name} ({change['role']}): {before} -> {after}"
    if not person["moved"]:
        yield "Nothing moves for this person."
    moved = {change["feature"] for change in person["moved"]}
    for role, title in (("M", "Mediators that stay"), ("N", "Copied (N)"), ("P", "Passed through (P)")):
        if same := [c for c in explained["columns"] if c["role"] == role and c["name"] not in moved]:
            yield f"{title}. {_values(same, person['values'], words)}."
    yield (
        f"Counterfactuals are drawn: this is the most frequent of {person['draws']} draws; {person['empty']} of them "
        "change nothing."
    )


def _decisions(name: str, seen: Data, words: Description) -> str:
    before, after = seen["before"], seen["after"]
    old, new = (words.decision(decode(Outcome, outcome)) for outcome in (before, after))
    if words.task == "regression":
        return f"- {NAMES[name]}: {old} before, {new} after"
    return (
        f"- {NAMES[name]}: “{old}” ({percent(before['score'])}, logit {tidy(before['logit'], 3)}) before, “{new}” "
        f"({percent(after['score'])}, logit {tidy(after['logit'], 3)}) after: the decision "
        f"{'stays' if old == new else 'FLIPS'}"
    )


def _shown_model(secure: Data | None, words: Description) -> Iterator[str]:
    """Which model this is, and what the run itself decided."""
    yield (
        f"Percentages: {words.score}. Both models are plaintext twins of the run: the same records, roles, settings "
        "and seed, other noise. Nobody has the model of the run itself."
    )
    if secure is None:
        yield "The run under MPC did not score this person."
        return
    person = decode(Example, secure)
    old, new = (f"“{words.decision(o)}” ({percent(o.score)})" for o in (person.before, person.after))
    moved = "; ".join(f"{name}: {before} -> {after}" for name, before, after in map(words.change, person.moved))
    yield f"The run under MPC decided {old} before and {new} after an independent counterfactual ({moved})."


def _reasons(person: Data, words: Description) -> Iterator[str]:
    if person["moved"]:
        yield "What each moved column alone does to the logit:"
    for change in person["moved"]:
        pushes = [f"{NAMES[name]} {round(value, 3) + 0.0:+.3f}" for name, value in change["pushes"].items()]
        yield f"- {words.name(change['feature'])}: {', '.join(pushes)}"
    ours, plain = (tidy(person["models"][name]["change"], 3) for name in (OURS, PLAIN))
    weight = "lambda" if person["lambda"] is None else f"lambda = {person['lambda']:g}"
    yield (
        f"All together: {ours} with SCC-VFL, {plain} with plain training. The consistency loss asks for a difference "
        f"of 0 and weighs it by {weight}. It does so on average over people and plausible counterfactuals, not for "
        "this one alone."
    )
    everyone = [(name, seen["everyone"]) for name, seen in person["models"].items()]
    means = [
        f"{NAMES[name]} {tidy(e['gap'], 3)}" + (f" and {percent(e['flips'])} flips" if "flips" in e else "")
        for name, e in everyone
    ]
    yield f"Over all test records, mean change of the logit: {'; '.join(means)}."


def _meaning(person: Data, words: Description) -> Iterator[str]:
    ours, plain = person["models"][OURS], person["models"][PLAIN]
    if "flips" in ours:
        yield (
            f"{'Not stable' if ours['flips'] else 'Stable'} under this card: {ours['flips']} of {person['draws']} "
            f"counterfactuals flip the decision with SCC-VFL, {plain['flips']} with plain training."
        )
    parts = {"train": "the model was trained on this record", "validation": "settings were chosen with this record"}
    part = parts.get(person["part"], "this record was held out")
    yield f"In truth: “{words.classes.get(person['label'], person['label'])}”; {part}. Stable does not mean right."
    yield (
        "It does not say that the group has no influence: what proxies and fixed columns carry of it stays, other "
        "counterfactuals are possible, and this one rests on noisy tables. It says nothing of what the person should "
        "do."
    )
    yield f"{APPEAL} A changed role makes a new card, which the next run follows."


def _for_party(explained: Data, words: Description) -> Iterator[tuple[str, Sequence[str]]]:
    person, party, decision = explained["person"], explained["party"], explained["decision"]
    yield "Who holds what", _holders(explained, words)
    yield "Roles, and why", list(_roles(explained, words))
    yield "The counterfactual of this party's columns", list(_own_counterfactuals(explained, words))
    text = (
        "Not known here. Decisions about new records are opened to their receiver alone: with --predictions FILE it "
        "reads them. Decisions about training and test records are opened to nobody."
    )
    if decision is not None:
        label = decision.get("decision", decision.get("prediction", ""))
        logit = next((f", logit {value}" for key, value in decision.items() if key.startswith("logit")), "")
        text = f"Decided: “{words.classes.get(label, label)}”{logit}. After a counterfactual: not known here."
    answered = decision or {}
    others = [f"- {title}: “{words.classes.get(v, v)}”" for title, v in answered.items() if title.startswith(OTHERS)]
    if others:
        text = text.replace("a counterfactual: not known here.", "counterfactuals, by a majority of draws:")
    yield "Both decisions", [text, *others]
    reasons = [f"- {title}: {v or 'no column'}" for title, v in answered.items() if title.startswith(WEIGHS)]
    yield "Why", reasons or ["Not known here: what a column adds to a decision was released to nobody."]
    group = "" if person["knows_group"] else " It does not know the group, so every direction is shown."
    yield (
        "What it means",
        [
            f"{party} sees its own columns, their roles and its own generator, which follows from its own "
            f"records and from tables that were released to it.{group} Other parties' columns and counterfactuals "
            "cannot be shown.",
            "These tables were not released to others: do not hand on what step 3 shows.",
            APPEAL,
        ],
    )


def _own_counterfactuals(explained: Data, words: Description) -> Iterator[str]:
    person = explained["person"]
    yield f"This record. {_values(explained['columns'], person['values'], words, roles=True)}."
    for edit in person["edits"]:
        old, new = (words.groups.get(g, g) for g in edit["groups"])
        yield f"From “{old}” to “{new}” ({person['draws'] - edit['empty']} of {person['draws']} draws move):"
        changes = [words.change(decode(Change, change)) for change in edit["moved"]]
        yield from (f"- {name}: {before} -> {after}" for name, before, after in changes)
        if not changes:
            yield "- nothing moves"
