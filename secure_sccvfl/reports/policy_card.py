"""The policy card of a run: every role with its reason and the evidence that the run gives for it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.charts import percent
from secure_sccvfl.accounting.plain_text import markdown
from secure_sccvfl.accounting.tables import Table, page
from secure_sccvfl.policy.approvals import concerns, urgent, verdicts
from secure_sccvfl.policy.card import (
    DISCOVERY,
    ENTRY,
    REVIEW_DAYS,
    Decision,
    Evidence,
    Owner,
    PolicyCard,
    read_card,
    shipped_card,
)
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.reports.results import Report
from secure_sccvfl.reports.run_log import record

CARD = "policy_card.json"
WORDS = {
    "P": "a proxy: it stands for the protected attribute",
    "M": "a mediator: it may follow from the protected attribute, so decisions must not change when it does",
    "N": "held fixed: it hardly follows the protected attribute",
}
PROXIES = {
    "guard": "the model sees it under a proxy penalty; counterfactuals leave it as it is",
    "edit": "it is edited with the mediators, and decisions must not change when it does",
    "drop": "the model does not see it",
}
"""How proxies are handled, each of them."""


def card_of_run(report: Report, given: PolicyCard | None, today: datetime.date) -> PolicyCard:
    """The run's decisions. Roles of a given card keep its reasons; discovery proposed the others.

    Each says what discovery proposed, and with what confidence, also where the card decided. Nobody has approved what
    a run adds, so it starts without approvals and names those of the given card in `follows`.
    """
    scores, roles, proposed, sure = report.scores, report.roles, report.proposed, report.confidence
    rank = {name: number + 1 for number, name in enumerate(sorted(scores, key=lambda k: -scores[k]))}
    idle = {line.split(":")[0] for line in report.role_changes if "does not respond" in line}
    privacy = report.privacy
    count = privacy.releases if report.tables is None else len(report.tables["releases"])
    whose = " kept of an earlier run" if report.tables is not None else ""
    noisy = f"{count} noisy releases{whose}, epsilon {privacy.epsilon_rdp:.2f} at {privacy.delta:g}"
    decisions = {}
    for name, role in roles.items():
        if given is not None and name not in proposed:  # no table was released: the card decides every column
            decisions[name] = given.decisions[name]
            continue
        text = f"score {scores[name]:.3f}, place {rank[name]} of {len(scores)}; {noisy}"
        text = f"discovery proposes {proposed[name]} with confidence {percent(sure[name])}; {text}"
        evidence = [Evidence(text, DISCOVERY)]
        if name in report.missing_depends:
            evidence.append(Evidence("whether a value is missing depends on the protected attribute", DISCOVERY))
        if given is not None and name in given.decisions:
            reason, evidence = given.decisions[name].reason, [*given.decisions[name].by_people, *evidence]
        elif name in idle:
            reason = "held fixed: a trial edit of the protected attribute left it alone"
            evidence.insert(0, Evidence("no trial edit of the protected attribute moved it", "empirical"))
        else:
            reason = f"{WORDS[role]} (proposed by discovery)"
        decisions[name] = Decision(role, reason, tuple(evidence), proposed[name], sure[name], scores[name])
    dictionary = {
        name: {key: text for key in ENTRY if (text := getattr(column, key))}
        for name, column in report.data.features.items()
    }
    due = (today + datetime.timedelta(days=REVIEW_DAYS)).isoformat()
    card = PolicyCard(
        report.dataset, "1", tuple(map(Owner, report.party_names)), decisions, review_due=due, run=report.run
    )
    card = replace(card, proxies=report.proxies, dictionary=dictionary, date=today.isoformat())
    if given is None:
        return card
    return replace(
        card,
        version=given.version,
        owners=given.owners,
        events=given.events,
        review_due=given.review_due or due,
        aware=given.aware,
        contest=given.contest,
        date=given.date or card.date,
        dictionary={**dictionary, **{k: {**dictionary.get(k, {}), **v} for k, v in given.dictionary.items()}},
        follows={
            "version": given.version,
            "digest": given.digest(),
            "approved": given.approved_on,
            "events": str(len(given.events)),
        },
    )


def card_markdown(card: PolicyCard) -> str:
    """The card for people."""
    owners = ", ".join(markdown(o.words) for o in card.owners)
    dated = f" of {markdown(card.date)}" if card.date else ""
    roles = [
        (name, d.role, f"{d.proposed} (overridden)" if d.is_override else d.proposed, d.reason, d.words_of_evidence)
        for name, d in sorted(card.decisions.items(), key=lambda item: ("PMN".index(item[1].role), item[0]))
    ]
    entries = [(name, *(entry.get(k, "") for k in ENTRY)) for name, entry in sorted(card.dictionary.items())]
    previous = None
    if card.follows.get("version"):
        before = card.follows.get("approved") or "nobody"
        previous = f"The run was given version {markdown(card.follows['version'])}, approved: {markdown(before)}."
    return page(
        f"# Policy card: {markdown(card.dataset)}, version {markdown(card.version)}{dated}",
        f"Owners: {owners}. Review due: {card.review_due or 'not set'}. Mask {card.roles.digest()[:12]}.",
        f"A proxy: {PROXIES[card.proxies]}.",
        None if card.aware is None else markdown(card.aware.words()),
        None if card.contest is None else f"{markdown(card.contest.words)}.",
        Table(("feature", "role", "proposed", "reason", "evidence"), roles),
        *(("## Feature dictionary", Table(("feature", *ENTRY), entries)) if entries else ()),
        "## Approvals",
        _listed([v.words for v in verdicts(card)]),
        previous,
        "## Appeals and reviews",
        _listed([event_words(e) for e in card.events]),
    )


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown(line.replace('->', '→'))}" for line in lines) or "None."


ABOUT = ("because", "feature", "wants", "answers", "change", "evidence", "entry", "version", "discovery")
"""Fields of an event of a card in addition to its text."""
WORDS_OF_FIELDS = {"change": "role", "entry": "dictionary entry"}


def event_words(event: Mapping[str, Any]) -> str:
    """An appeal or a review in one line."""
    about = [f"{WORDS_OF_FIELDS.get(key, key)} {event[key]}" for key in ABOUT if key in event]
    for name, delta in event.get("deltas", {}).items():
        (old, new), scores = delta["proposed"], ["none" if v is None else f"{v:.3f}" for v in delta["score"]]
        about.append(f"{name}: proposed {old or 'none'} -> {new or 'none'}, score {' -> '.join(scores)}")
    if "deltas" in event and not event["deltas"]:
        about.append("no proposed role changed")
    what = f"{event['date']} {event['kind']} {event.get('number', '')} by {event['who']}"
    return f"{what} ({'; '.join(about)}): {event['text']}"


def governance(card: PolicyCard, today: datetime.date) -> dict[str, Any]:
    """The card for the page: owners, approvals, concerns, appeals and reviews."""
    return {
        "version": card.version,
        "date": card.date,
        "review_due": card.review_due,
        "owners": [o.words for o in card.owners],
        "concerns": concerns(card, today),
        "urgent": [f"Policy card: {line}." for line in urgent(card, today)],
        "approvals": [v.words for v in verdicts(card)],
        "follows": card.follows,
        "contest": "" if card.contest is None else card.contest.words,
        "events": [event_words(event) for event in card.events],
    }


def write_card(folder: Path, card: PolicyCard) -> tuple[Path, ...]:
    """policy_card.json and policy_card.md in a folder."""
    paths = (folder / CARD, (folder / CARD).with_suffix(".md"))
    paths[0].write_text(json.dumps(card.to_json(), indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(card_markdown(card), encoding="utf-8")
    return paths


def find_card(name: str) -> PolicyCard:
    """A card by its file, by the folder of its run, or by the name of a data set with an embedded card."""
    path = Path(name)
    if path.is_dir():
        if not (path / CARD).exists():
            raise ConfigError(f"{path} has no {CARD}: name a file, or the folder of a finished run")
        return read_card(path / CARD)
    return read_card(path) if path.suffix in (".json", ".toml") else shipped_card(name)


def keep_card(
    path: Path, card: PolicyCard, event: str, files: Iterable[Path] = (), received: Mapping[str, str] | None = None
) -> str:
    """Write a changed card back to its file. In a run's folder the page is written again and the log gets a line.

    files: what else the event made in that folder. received: who signed the change, if it came from another host.
    Returns the new seal of the run; empty if it is no run's card.
    """
    if not path.is_dir():
        path.write_text(json.dumps(card.to_json(), indent=1) + "\n", encoding="utf-8")
        return ""
    counts = {"events": len(card.events), "approvals": len(card.approvals), "version": card.version}
    facts = {**counts, **({} if received is None else {"received": dict(received)})}
    changed = [*write_card(path, card), *files]
    if (path / "report.html").exists():
        from secure_sccvfl.reports.page import write_page  # which reads what was just written

        changed.append(write_page(path))
    return record(path, event, {**facts, "mask": card.roles.digest(), "card": card.digest()}, changed)
