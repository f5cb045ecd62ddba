"""One person in six steps, as text: the worked example of the paper for a run of one's own."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accounting.charts import percent, tidy
from secure_sccvfl.evaluation.explained import OURS, PLAIN
from secure_sccvfl.reports.figures import listed
from secure_sccvfl.reports.results import Change, Description, Example, Outcome, decode

WIDTH = 98
ROLES = {
    "M": "mediators: moved with the group, and the decision must stay",
    "P": "proxies",
    "N": "held fixed: copied bit by bit",
}
PROXIES = {
    "guard": "passed through unchanged; training keeps the model from leaning on them",
    "edit": "moved like mediators, as the card says",
    "drop": "the model does not see them",
}
NAMES = {OURS: "SCC-VFL", PLAIN: "plain training"}


def walk(told: Mapping[str, Any]) -> str:
    """The six steps."""
    words = decode(Description, told["data"])
    steps = _for_party(told, words) if told["party"] is not None else _for_everybody(told, words)
    head = f"record {told['record']}, run {told['run'][:12]}"
    lines = [head + (f", as {told['party']} sees it" if told["party"] is not None else "")]
    for number, (title, body) in enumerate(steps, start=1):
        lines += ["", f"{number}. {title}", *(line for text in body for line in _wrapped(text))]
    return "\n".join(lines)


Steps = Iterator[tuple[str, Sequence[str]]]


def _wrapped(text: str) -> list[str]:
    """A paragraph, or a line of a list that hangs under its mark."""
    hang = "     " if text.startswith("- ") else "   "
    return textwrap.wrap(text, WIDTH, initial_indent="   ", subsequent_indent=hang, break_long_words=False)


def _for_everybody(told: Mapping[str, Any], words: Description) -> Steps:
    person = told["person"]
    yield _who_holds_what(told, words)
    yield _roles(told, words)
    yield "The edit", _edit(told, words)
    yield (
        "Both decisions",
        [_decided(name, seen, words) for name, seen in person["models"].items()] + _shown_model(told, words),
    )
    yield "Why", _why(told, words)
    yield "What it means", _meaning(told, words)


def _who_holds_what(told: Mapping[str, Any], words: Description) -> tuple[str, list[str]]:
    lines = []
    for holder in told["holders"]:
        more = [*(["the label"] if holder["label"] else []), *(f"{name} (protected)" for name in holder["protected"])]
        columns = "; ".join(words.name(name) for name in holder["columns"])
        lines.append(f"- {holder['party']}. {columns}{'. And ' + listed(more) if more else ''}")
    first = told["data"]["protected"][0]
    about = f"Protected: {first['name']} ({first['meaning']})" if first["meaning"] else f"Protected: {first['name']}"
    used = "" if told["party"] is not None else "No model input, unless the run was declared to use it. "
    return "Who holds what", [*lines, f"{about}. {used}Its holder alone knows it for each record."]


def _roles(told: Mapping[str, Any], words: Description) -> tuple[str, list[str]]:
    lines = []
    for role, meaning in ROLES.items():
        own = [c for c in told["columns"] if c["role"] == role]
        if own:
            more = f": {PROXIES[told['proxies']]}" if role == "P" else ""
            lines.append(f"{role}, {meaning}{more}")
        for c in own:
            sure = "no table was released"
            if c["proposed"]:
                sure = f"discovery proposes {c['proposed']}, confidence {percent(c['confidence'])}"
            who = f"by card; {sure}" if c["by_card"] else sure
            reason = f": {c['reason']}" if c["reason"] and c["by_card"] else ""
            lines.append(f"- {words.name(c['name'])} ({who}){reason}")
    return "Roles, and why", lines


def _edit(told: Mapping[str, Any], words: Description) -> list[str]:
    person = told["person"]
    old, new = (words.groups[g] for g in person["groups"])
    lines = [f"From “{old}” to “{new}”, by noisy tables as discovery releases them."]
    for m in person["moved"]:
        name, old_value, new_value = words.change(decode(Change, m))
        lines.append(f"- {name} ({m['role']}): {old_value} -> {new_value}")
    if not person["moved"]:
        lines.append("Nothing moves for this person.")
    names = {m["feature"] for m in person["moved"]}
    for role, what in (("M", "Mediators that stay"), ("N", "Copied (N)"), ("P", "Passed through (P)")):
        kept = [
            f"{words.name(c['name'])}: {words.value(c['name'], person['values'][c['name']])}"
            for c in told["columns"]
            if c["role"] == role and c["name"] not in names
        ]
        if kept:
            lines.append(f"{what}. {'; '.join(kept)}.")
    lines.append(
        f"Who moves is drawn: this is the most frequent edit of {person['draws']} draws; "
        f"{person['empty']} of them change nothing."
    )
    return lines


def _decided(name: str, seen: Mapping[str, Any], words: Description) -> str:
    before, after = seen["before"], seen["after"]
    old, new = (words.decision(decode(Outcome, outcome)) for outcome in (before, after))
    if words.task == "regression":
        return f"- {NAMES[name]}: {old} before, {new} after"
    return (
        f"- {NAMES[name]}: “{old}” ({percent(before['score'])}, logit {tidy(before['logit'], 3)}) before, “{new}” "
        f"({percent(after['score'])}, logit {tidy(after['logit'], 3)}) after: the decision "
        f"{'stays' if old == new else 'FLIPS'}"
    )


def _shown_model(told: Mapping[str, Any], words: Description) -> list[str]:
    """Which model this is, and what the run itself said."""
    lines = [
        f"Percentages: {words.score}. Both models are plaintext twins of the run: the same records, roles, settings "
        "and seed, other noise. Nobody has the model of the run itself."
    ]
    seen = told["secure"]
    if seen is None:
        return [*lines, "The run under MPC did not score this person."]
    person = decode(Example, seen)
    old, new = (f"“{words.decision(o)}” ({percent(o.score)})" for o in (person.before, person.after))
    moved = "; ".join(f"{name}: {before} -> {after}" for name, before, after in map(words.change, person.moved))
    lines.append(
        f"The run under MPC decided {old} before and {new} after the change by an independent counterfactual model "
        f"({moved})."
    )
    return lines


def _why(told: Mapping[str, Any], words: Description) -> list[str]:
    person, lines = told["person"], []
    if person["moved"]:
        lines.append("What each moved column alone does to the logit:")
    for m in person["moved"]:
        pushes = ", ".join(f"{NAMES[name]} {value:+.3f}" for name, value in _tidied(m["pushes"]).items())
        lines.append(f"- {words.name(m['feature'])}: {pushes}")
    ours, plain = (person["models"][name] for name in (OURS, PLAIN))
    weight = "lambda" if person["lambda"] is None else f"lambda = {person['lambda']:g}"
    lines.append(
        f"All together: {tidy(ours['change'], 3)} with SCC-VFL, {tidy(plain['change'], 3)} with plain training. The "
        f"consistency loss asks for a difference of 0 and weighs it by {weight}. It does so on average over people "
        "and plausible edits, not for this one alone."
    )
    told_all = [
        f"{NAMES[name]} {tidy(seen['everyone']['gap'], 3)}"
        + (f" and {percent(seen['everyone']['flips'])} flips" if "flips" in seen["everyone"] else "")
        for name, seen in person["models"].items()
    ]
    lines.append(f"Over all test records, mean change of the logit: {'; '.join(told_all)}.")
    return lines


def _tidied(pushes: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) + 0.0 for name, value in pushes.items()}


def _meaning(told: Mapping[str, Any], words: Description) -> list[str]:
    person = told["person"]
    ours = person["models"][OURS]
    lines = []
    if "flips" in ours:
        stable = ours["flips"] == 0
        plain = person["models"][PLAIN]["flips"]
        lines.append(
            f"{'Stable' if stable else 'Not stable'} under this card: {ours['flips']} of {person['draws']} edits "
            f"flip the decision with SCC-VFL, {plain} with plain training."
        )
    true = words.classes.get(person["label"], person["label"])
    parts = {"train": "the model was trained on this record", "validation": "settings were chosen with this record"}
    lines.append(
        f"In truth: “{true}”; {parts.get(person['part'], 'this record was held out')}. Stable does not mean right."
    )
    lines.append(
        "It does not say that the group has no influence: what proxies and fixed columns carry of it stays, other "
        "edits are possible, and the edit rests on noisy tables. It says nothing of what the person should do."
    )
    lines.append(
        'To object to a role: sccvfl policy appeal RUN --feature COLUMN --who "..." --text "...". A changed role '
        "makes a new card, which the next run follows."
    )
    return lines


def _for_party(told: Mapping[str, Any], words: Description) -> Steps:
    person = told["person"]
    yield _who_holds_what(told, words)
    yield _roles(told, words)
    yield "The edit of this party's columns", _own_edits(told, words)
    decision = told["decision"]
    if decision is not None:
        label = decision.get("decision", decision.get("prediction", ""))
        logit = next((f", logit {value}" for key, value in decision.items() if key.startswith("logit")), "")
        yield (
            "Both decisions",
            [f"Decided: “{words.classes.get(label, label)}”{logit}. After an edit: not known here."],
        )
    else:
        yield (
            "Both decisions",
            [
                "Not known here. Decisions about new records are opened to their receiver alone: with --predictions "
                "FILE it reads them. Decisions about training and test records are opened to nobody."
            ],
        )
    yield "Why", ["Not known here: nobody was told what a column adds to a decision."]
    group = "" if person["knows_group"] else " It does not know the group, so every direction is shown."
    yield (
        "What it means",
        [
            f"{told['party']} sees its own columns, their roles and its own generator, which follows from tables "
            f"that were released to it.{group} Other parties' columns and edits cannot be shown.",
            "These tables were not released to others: do not hand on what step 3 shows.",
            'To object to a role: sccvfl policy appeal RUN --feature COLUMN --who "..." --text "...".',
        ],
    )


def _own_edits(told: Mapping[str, Any], words: Description) -> list[str]:
    person, lines = told["person"], []
    for edit in person["edits"]:
        old, new = (words.groups.get(g, g) for g in edit["groups"])
        lines.append(f"From “{old}” to “{new}” ({person['draws'] - edit['empty']} of {person['draws']} draws move):")
        for name, before, after in (words.change(decode(Change, m)) for m in edit["moved"]):
            lines.append(f"- {name}: {before} -> {after}")
        if not edit["moved"]:
            lines.append("- nothing moves")
    kept = [
        f"{words.name(c['name'])} ({c['role']}): {words.value(c['name'], person['values'][c['name']])}"
        for c in told["columns"]
    ]
    return [f"This record. {'; '.join(kept)}.", *lines]
