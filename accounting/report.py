"""The privacy report of a ledger: as data, as text, and as one page with plots.

It says what was released, what each release cost and what is left. It says in plain words what the guarantee covers
and what it does not. Everything is computed from the ledger's events. Notes of a run add what a ledger cannot know:
who made the noise, and which values were released without a charge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from secure_sccvfl.accounting.accountant import (
    epsilon_added,
    epsilon_against_dealer,
    epsilon_of,
    epsilon_with_batches_known,
    finite,
    tight_epsilon,
)
from secure_sccvfl.accounting.budget import GRAM, HEAD, Account, Charge, Terms, by_part, part_of
from secure_sccvfl.accounting.calibration import releases_left
from secure_sccvfl.accounting.charts import STYLE, running_chart
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.paper import claim
from secure_sccvfl.accounting.plain_text import markdown

PAPER_SIGMAS = (0.2, 0.5, 1.0, 2.0, 5.0)
NOISE = {
    "dealer+holder": "Two independent noise contributions at full scale, of the dealer and of the holder of the "
    "protected attribute; the guarantee counts both. It holds against every coalition of parties without the holder "
    "(they lack both). Against a dealer who reads what was released, and against the holder about others' columns, "
    "one contribution is left; nothing holds against the dealer and the holder together.",
    "dealer": "Noise was added once, by the dealer. The guarantee holds against any parties together; what was "
    "released must be kept from the dealer, who could subtract its noise.",
    "all-parties": "Every party added noise at full scale; one contribution is counted. The guarantee holds as long "
    "as one party keeps its noise secret.",
}
SAMPLED = (
    "Some releases are about a random sample of the records, drawn in secret by the dealer: no party knows who took "
    "part, and the figures count on that. Against one who knows, epsilon {known:.3f} holds instead of {spent:.3f}."
)
DEALER = "Against a dealer who reads what was released, epsilon {dealer:.3f} holds instead of {spent:.3f}."
NO_DEALER = "Against a dealer who reads what was released, nothing holds."
COVERS = (
    "The released statistics that are listed here, all of them together, and what is computed from them alone "
    "(scores, roles).",
    "The content of every record that the ledger has charged: replacing any one record by any other changes the odds "
    "of any outcome of these releases by a factor of at most e^epsilon, except with probability delta. The parties "
    "know which records take part, so this is what there is to hide; the figure for adding or removing a record is "
    "given as well.",
    "Sets of records that overlap: each record counts every release it was part of, and the figures are those of the "
    "record that has spent most.",
)
COVERS_HEAD = (
    "The heads that are listed here, and all that is computed from them: predictions, figures, what-if answers and "
    "further evaluations reveal nothing more about training records."
)
HEAD_NOISE = (
    "Only the dealer's noise of a head is counted: a party that receives predictions knows the noise that it added "
    "itself. The head and its predictions must be kept from the dealer, who could subtract its noise."
)
MODEL = "The trained model and its predictions: they depend on the records through more than these statistics."
OTHER_MODELS = (
    "Models that are not listed here as a head, and their predictions: they are not private.",
    "The columns of people for whom a prediction is made: the answer depends on them, whoever trained the model.",
)
COVERS_NOT = (
    "Values that were released without a charge: those listed as uncharged, if any.",
    "Which records take part and how many: the parties know it, since they align their records.",
    "A person with several records: each is counted on its own.",
    "Facts about groups: what is true of many records is what the statistics are meant to show.",
)


@dataclass(frozen=True)
class Notes:
    """What a run knows beyond its ledger.

    noise: who made it. uncharged: name and purpose of other releases. security: what holds if a party deviates.
    """

    noise: str | None = None
    uncharged: tuple[Mapping[str, str], ...] = ()
    security: str | None = None


def build_report(account: Account, notes: Notes | None = None, *, held_out: bool = False) -> dict[str, Any]:
    """All figures of the report as data. held_out: whether this is the ledger of evaluations on held-out records."""
    notes = Notes() if notes is None else notes
    account = replace(account, charges=_merged(account.charges))
    terms, events = account.terms, account.events
    running = [account.until(count).spent() for count in range(len(events) + 1)]
    total, with_batches_known = running[-1], account.most(epsilon_with_batches_known)
    dealer = account.most(epsilon_against_dealer)
    releases = [
        {
            **event.to_dict(),
            "multiplier": event.multiplier,
            "cost": after.renyi - before.renyi,
            "epsilon_after": after.renyi,
            "epsilon_pld_after": after.pld,
        }
        for event, before, after in zip(events, running, running[1:], strict=False)
    ]
    split = by_part(account.dearest(), held_out=held_out)
    heads = HEAD in split
    against = DEALER.format(dealer=dealer, spent=total.renyi) if math.isfinite(dealer) else NO_DEALER
    sampled = SAMPLED.format(known=with_batches_known, spent=total.renyi)
    return {
        "epsilon_rdp": total.renyi,
        "epsilon_pld": total.pld,
        "epsilon_opacus": total.opacus,
        "accountants_agree": total.agree,
        "epsilon_added": account.most(epsilon_added),
        "epsilon_dealer": finite(dealer),
        "epsilon_batches_known": with_batches_known,
        "delta": terms.delta,
        "cap": terms.epsilon,
        **({"raised": [decision.content for decision in account.raised]} if account.raised else {}),
        "remaining": max(0.0, terms.epsilon - total.renyi),
        "sets": [{"records": digest, "size": len(account.sets[digest])} for digest in sorted(account.sets)],
        "neighbours": "one record replaced by another",
        "about": "held-out records" if held_out else "training records",
        "parts": [
            {
                "part": name,
                "releases": sum(event.count for event in part),
                "epsilon_rdp": epsilon_of(part, terms.delta),
                "epsilon_pld": tight_epsilon(part, terms.delta),
                "epsilon_dealer": finite(epsilon_against_dealer(part, terms.delta)),
            }
            for name, part in split.items()
        ],
        "releases": releases,
        "room": _releases_left(account),
        "paper": _paper(terms, events),
        "sampled": sampled if any(e.sampling < 1 for e in events) else None,
        "dealer": against if events else None,
        "noise": NOISE.get(notes.noise or "", notes.noise or "Who made the noise is not stated."),
        "security": notes.security,
        "head": HEAD_NOISE if heads else None,
        "covers": [*COVERS, COVERS_HEAD] if heads else list(COVERS),
        "covers_not": [*(OTHER_MODELS if heads else (MODEL,)), *COVERS_NOT],
        "uncharged": [dict(u) for u in notes.uncharged],
    }


def _merged(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Consecutive sampled steps as one line: there may be hundreds, and each alone says little."""
    lines: list[Charge] = []
    for charge in charges:
        event = charge.event
        unnumbered = replace(event, name=event.name.rstrip("0123456789").rstrip("-"), refresh=0)
        if event.sampling == 1:
            lines.append(charge)
        elif lines and replace(lines[-1].event, count=event.count) == unnumbered:
            lines[-1] = replace(lines[-1], event=replace(unnumbered, count=lines[-1].event.count + event.count))
        else:
            lines.append(replace(charge, event=unnumbered))
    return tuple(lines)


def _releases_left(account: Account) -> dict[str, Any] | None:
    """How many more releases like the last one (other than of heads) fit the cap."""
    terms = account.terms
    if not account.events:
        return None
    like = next((e for e in reversed(account.events) if part_of(e.name) not in (GRAM, HEAD)), account.events[-1])
    charged = account.dearest(account.sets[like.records])
    return {"like": like.name, "count": releases_left(charged, like, terms.epsilon, terms.delta)}


def _paper(terms: Terms, events: Sequence[Event]) -> dict[str, Any] | None:
    """The paper's statement next to what holds, for as many tables and releases as were made here.

    An added record moves the counts of d tables by sqrt(d), which gives the number of tables. Other releases have
    none.
    """
    events = [event for event in events if part_of(event.name) not in (GRAM, HEAD)]
    squares = [event.added**2 for event in events]
    tables = max((round(square) for square in squares if abs(square - round(square)) < 1e-9), default=0)
    if tables < 1:
        return None
    count = sum(event.count for event in events)
    claims = [claim(sigma, terms.delta, tables, count) for sigma in PAPER_SIGMAS]
    return {
        "tables": tables,
        "releases": count,
        "claims": [{**asdict(c), "too_small": c.too_small} for c in claims],
    }


def to_markdown(report: Mapping[str, Any]) -> str:
    return _templates(html=False).get_template("privacy_budget.md").render(r=report)


def to_html(report: Mapping[str, Any]) -> str:
    """One page that needs nothing else."""
    page = _templates(html=True).get_template("privacy_budget.html")
    return page.render(r=report, chart=Markup(running_chart(report)), style=Markup(STYLE))


def write_report(folder: Path, report: dict[str, Any], name: str = "privacy_budget") -> tuple[Path, ...]:
    """NAME.json, .md and .html in this folder."""
    texts = {"json": json.dumps(report, indent=2) + "\n", "md": to_markdown(report), "html": to_html(report)}
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{name}.{ending}")
        paths[-1].write_text(text, encoding="utf-8")
    return tuple(paths)


def _templates(html: bool) -> Environment:
    """Names in a ledger come from outside, so everything that a template prints is escaped, in Markdown too."""
    return Environment(
        loader=PackageLoader(__package__),
        autoescape=html,
        finalize=None if html else _marked,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _marked(value: object) -> object:
    return markdown(value) if isinstance(value, str) else value
