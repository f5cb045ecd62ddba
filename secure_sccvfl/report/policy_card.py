"""The policy card of a run: every role with its reason and the evidence that the run has for it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accounting.plain_text import markdown
from protocols.config import ConfigError
from secure_sccvfl.discovery.roles import REVIEW_DAYS, Decision, PolicyCard, read_card, shipped_card
from secure_sccvfl.report.charts import percent
from secure_sccvfl.report.run_log import record

CARD = "policy_card.json"
WORDS = {
    "P": "a proxy: it stands for the protected attribute",
    "M": "a mediator: it may follow from the protected attribute, so decisions must not change when it does",
    "N": "held fixed: it hardly follows the protected attribute",
}
PROXIES = {
    "guard": "the model sees them and is kept from relying on them; a change of the protected attribute leaves them",
    "edit": "they are edited with the mediators, and decisions must not change when they do",
    "drop": "the model does not see them",
}


def card_of_run(report: Mapping[str, Any], given: PolicyCard | None, today: datetime.date) -> PolicyCard:
    """The run's decisions. Roles of a given card keep its reasons; discovery proposed the others.

    Each says what discovery proposed, and with what confidence, also where the card decided.
    """
    scores, roles, proposed, sure = (report[key] for key in ("scores", "roles", "proposed", "confidence"))
    place = {name: number + 1 for number, name in enumerate(sorted(scores, key=lambda k: -scores[k]))}
    idle = {line.split(":")[0] for line in report["role_changes"] if "does not respond" in line}
    privacy = report["privacy"]
    noisy = f"{privacy['releases']} noisy releases, epsilon {privacy['epsilon_rdp']:.2f} at {privacy['delta']:g}"
    decisions = {}
    for name, role in roles.items():
        evidence = f"score {scores[name]:.3f}, place {place[name]} of {len(scores)}; {noisy}"
        evidence = f"discovery proposes {proposed[name]} with confidence {percent(sure[name])}; {evidence}"
        if given is not None and name in given.decisions:
            fixed = given.decisions[name]
            reason, evidence = fixed.reason, "; ".join(filter(None, ("by card", fixed.evidence, evidence)))
        elif name in idle:
            reason = "held fixed: a trial edit of the protected attribute left it alone"
        else:
            reason = f"{WORDS[role]} (proposed by discovery)"
        decisions[name] = Decision(role, reason, evidence, proposed[name], sure[name])
    return PolicyCard(
        report["dataset"],
        given.version if given is not None else "1",
        given.owners if given is not None else tuple(report["party_names"]),
        decisions,
        given.events if given is not None else (),
        (today + datetime.timedelta(days=REVIEW_DAYS)).isoformat(),
        report["run"],
        given.aware if given is not None else None,
        report["proxies"],
    )


def mask_of(card: PolicyCard) -> str:
    return card.roles.digest()


def card_markdown(card: PolicyCard) -> str:
    """The card for people."""
    owners = ", ".join(map(markdown, card.owners))
    lines = [
        f"# Policy card: {markdown(card.dataset)}, version {markdown(card.version)}",
        "",
        f"Owners: {owners}. Review due: {card.review_due or 'not set'}. Mask {mask_of(card)[:12]}.",
        "",
        f"Proxies: {PROXIES[card.proxies]}.",
        "",
        *([] if card.aware is None else [markdown(card.aware.words()), ""]),
        "| feature | role | reason | evidence |",
        "|---|---|---|---|",
    ]
    for name, d in sorted(card.decisions.items(), key=lambda item: ("PMN".index(item[1].role), item[0])):
        lines.append(f"| {markdown(name)} | {d.role} | {markdown(d.reason)} | {markdown(d.evidence)} |")
    lines += ["", "## Appeals and reviews", ""]
    for event in card.events:
        about = " ".join(f"{k} {event[k]}" for k in ("feature", "wants", "answers", "change") if k in event)
        what = f"{event['date']} {event['kind']} {event.get('number', '')}"
        lines.append(f"- {markdown(what)} by {markdown(event['who'])} ({markdown(about)}): {markdown(event['text'])}")
    if not card.events:
        lines.append("None.")
    return "\n".join(lines) + "\n"


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


def keep_card(place: Path, card: PolicyCard, event: str) -> None:
    """Write a changed card back to its place; the log of a run gets a line about the event."""
    if not place.is_dir():
        place.write_text(json.dumps(card.to_json(), indent=1) + "\n", encoding="utf-8")
        return
    facts = {"card": card.events[-1]["number"], "version": card.version, "mask": mask_of(card)}
    record(place, event, facts, write_card(place, card))
