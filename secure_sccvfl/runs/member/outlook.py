"""A plan in lines for people, and what one host adds to it: its own records, its ledgers, an estimate of costs.

What a host adds is not signed, and nothing is written. What a ledger will show afterwards is an upper bound: which
records take part is known only in the session, so the one that has spent most is taken.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import read_account
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.ledger import LedgerError
from secure_sccvfl.config.sections import OPTIONS
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.data.splits import expected_training_records
from secure_sccvfl.protocols.config import CONNECT_BY_HAND, COVERS, SEMI_HONEST, SessionConfig
from secure_sccvfl.protocols.net.certificates import SHOWN, spoken
from secure_sccvfl.releases.default_budget import EPSILON_RULE, default_words
from secure_sccvfl.releases.ledgers import fresh_beside_used, lasting_folder
from secure_sccvfl.runs.member.plan import Plan, Spending, jobs_of
from secure_sccvfl.training.modes.options import RunOptions


def outlook(
    config: SessionConfig, plan: Plan, rank: int | None, rows: int | None = None, round_trip: float = 0.0
) -> dict[str, Any]:
    """Rows (as given, or as counted in this party's own file), ledgers afterwards, estimates by job."""
    counted = rows if rows is not None else _own_rows(config, plan, rank)
    return {
        "rows": counted,
        "ledgers": {} if rank is None else _ledgers(plan, rank),
        "warning": "" if rank is None else _warning(plan, rank),
        "estimates": {} if counted is None else _estimates(config, plan, counted, round_trip),
    }


def _own_rows(config: SessionConfig, plan: Plan, rank: int | None) -> int | None:
    """The number of records in this party's own file, or of public data; None if the file is not here."""
    if plan.options is None or (rank is None and not plan.options.data.pooled):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about single columns: `check` and the run itself say so
            return len(plan.options.load(rank or 0, len(config.parties)).ids)
    except DataError:
        return None


def _warning(plan: Plan, rank: int) -> str:
    options = plan.options
    return (
        ""
        if options is None
        else fresh_beside_used(options.data.dataset, options.privacy.ledger, options.data.pooled, rank)
    )


def _ledgers(plan: Plan, rank: int) -> dict[str, dict[str, Any]]:
    options = plan.options
    if options is None:
        return {}
    folder = lasting_folder(options.data.dataset, options.privacy.ledger, options.data.pooled, rank)
    outlooks, earlier = {}, dict[str, list[Event]]()
    for job, spending in plan.spending.items():
        planned = earlier.setdefault(spending.ledger, [])
        planned += spending.events()
        outlooks[job] = _afterwards(folder, spending, planned)
    return outlooks


def _afterwards(folder: Path | None, spending: Spending, events: list[Event]) -> dict[str, Any]:
    """What the record that has spent most has spent, and will have spent at most after these events."""
    path = None if folder is None else folder / spending.ledger
    if path is None or not path.is_file():
        after = epsilon_of(events, spending.delta)
        return {"ledger": str(path or ""), "before": 0.0, "after": after, "fits": after <= spending.cap}
    try:
        account = read_account(path)
    except LedgerError as error:
        return {"ledger": str(path), "fits": False, "problem": str(error)}
    if (account.terms.epsilon, account.terms.delta) != (spending.cap, spending.delta):
        cap = f"its cap is epsilon {account.terms.epsilon:g} at delta {account.terms.delta:g}"
        return {"ledger": str(path), "fits": False, "problem": cap}
    after = max(epsilon_of([*history, *events], spending.delta) for history in account.histories())
    before = account.most(epsilon_of)
    return {"ledger": str(path), "before": before, "after": after, "fits": after <= spending.cap}


def _estimates(config: SessionConfig, plan: Plan, rows: int, round_trip: float) -> dict[str, Any]:
    if plan.options is None or plan.schema is None:
        return {}
    estimates = {job: estimate(job, plan.options, plan.schema, rows, round_trip) for job in jobs_of(config)}
    return {job: figures for job, figures in estimates.items() if figures is not None}


COSTS: dict[str, dict[str, tuple[tuple[float, ...], float]]] = {
    "train": {
        "rounds": ((165, 5.83), 1.05),
        "bytes": ((70300, 300, 46.1, 360), 1.06),
        "dealer_bytes": ((138000, 5210, 31.9, 629), 2.2),
        "seconds": ((0.106, 4.19e-5, 5.84e-7, 8.14e-6), 1.61),
    },
    "evaluate": {
        "rounds": ((38, 0), 1.0),
        "bytes": ((21300, 21.7, 4.47, 0), 1.54),
        "dealer_bytes": ((2910, 127, 0, 0), 2.08),
        "seconds": ((0.0259, 7.37e-6, 6.84e-8, 1.05e-7), 2.51),
    },
}
"""Coefficients of the terms of `estimate`, and the largest factor by which leaving a measured row out misses it.

They are fitted by least squares to the totals of results/bench-costs.json (`launch/bench.py costs`): default options,
two classes, two groups, all processes on one machine. Rounds: 1, log2(rows). Bytes to each peer, and seconds per
peer: 1, rows, rows x bins, bins^2. Bytes of the dealer, which sends each correction to one party: the same terms.
"""


def estimate(
    job: str, options: RunOptions, schema: Schema, rows: int, round_trip: float = 0.0
) -> dict[str, Any] | None:
    """Totals of a job on this many records, and how far off they were; None where nothing like it was measured."""
    usual = options.training.mode == "sealed" and options.evaluation.kind == "noisy"
    if not (job in COSTS and usual and schema.task == "binary" and len(schema.protected) == 1):
        return None
    bins, parties = sum(sum(columns.values()) for columns in schema.bins.values()), len(schema.parties)
    sizes = (1.0, rows, rows * bins, bins**2)
    scale = {"rounds": 1.0, "bytes": parties - 1, "dealer_bytes": 1 / parties, "seconds": parties - 1}
    terms = {figure: (1.0, math.log2(rows)) if figure == "rounds" else sizes for figure in scale}
    total = {
        figure: scale[figure] * sum(w * t for w, t in zip(weights, terms[figure], strict=True))
        for figure, (weights, _) in COSTS[job].items()
    }
    total["seconds"] += round_trip * total["rounds"]
    return {"total": total, "off": {figure: off for figure, (_, off) in COSTS[job].items()}}


SETTINGS = ("transport", "connect", "deadline", "idle", "frame_limit", "approval", "shards")
"""Settings of a session file besides those that the plan shows in lines of their own."""

REASONS = {
    "charged": "charged",
    "follows": "follows from what was charged",
    "public": "public before",
    "exact": "exact, NOT PRIVATE",
    "uncharged": "not charged",
    "asked": "as asked for",
}


def plan_lines(plan: Plan, here: Mapping[str, Any]) -> Iterator[str]:
    """Who, what is opened to whom, what it costs, and what this host adds."""
    session, data, card = (plan.sections[name] for name in ("session", "data", "card"))
    yield f"plan of {session['name']}: {', '.join(session['jobs'])}"
    for one in session["people"]:
        name, pin = one["name"] or "-", one["certificate"][: 2 * SHOWN] or "no certificate pinned"
        yield f"  {one['place']:<9} {name:<16} {one['address'] or 'dials the others':<26} {pin}"
    if data is not None:
        columns = ", ".join(f"{len(names)} of {party}" for party, names in data["columns"].items())
        s = " and ".join(f"{name} at {holder}" for name, _, holder in data["protected"])
        yield f"data: {data['name']}, {data['task']}; columns: {columns}; label at {data['label']}; protected: {s}"
        yield f"ids: made of {data['id']}"
        rows = "not counted here" if here["rows"] is None else f"{here['rows']}"
        yield f"records: {rows}"
        if data["tables"] != "all columns" and "train" in session["jobs"]:
            yield f"tables of s: of {', '.join(data['tables'])} alone, since the card decides every column"
    if card is None:
        yield "policy card: none, discovery proposes all roles"
    else:
        decided = " ".join(f"{name}={role}" for name, role in sorted(card["roles"].items()))
        approved = f"approved {card['approved']}" if card["approved"] else "nobody has approved it"
        yield f"policy card: version {card['version']}, {approved}: {decided}"
    level = session["options"].get("security", SEMI_HONEST)
    yield f"security: {level}. {COVERS[level]}"
    yield from _settings(plan)
    yield from _opened(plan)
    yield from _predicted(plan)
    yield from _charged(plan, here)
    if here.get("warning"):
        yield f"WARNING: {here['warning']}"
    yield from _estimated(here)
    yield f"code {plan.sections['code']['digest'][: 2 * SHOWN]}"
    yield f"digest of the plan: {spoken(plan.digest)}"


def _settings(plan: Plan) -> Iterator[str]:
    """Every setting of the session file and every option that is not its default: all of them are approved."""
    session, options = plan.sections["session"], plan.options
    usual: dict[str, Any] = {f.name: f.default for f in fields(SessionConfig)} | {"shards": {}}
    if any(one["certificate"] for one in session["people"]):
        usual["connect"] = CONNECT_BY_HAND
    settings = {name: (session[name], usual[name]) for name in SETTINGS if session[name] != usual[name]}
    if options is None:
        settings |= {f"option {name}": (value, None) for name, value in session["options"].items()}
    else:
        set_, plain = options.flat(), RunOptions.of({"dataset": options.data.dataset}).flat()
        differing = [o for o in OPTIONS if set_[o.wire] != plain[o.wire] and o.wire != "resume"]
        settings |= {f"option {o.path}": (set_[o.wire], plain[o.wire]) for o in differing}
    yield "settings that are not the default:" if settings else "all settings are the default"
    for name, (value, default) in settings.items():
        usual_text = "" if default in (None, "", (), {}) else f" (default {_shown(default)})"
        yield f"  {name} = {_shown(value)}{usual_text}"


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)


def _opened(plan: Plan) -> Iterator[str]:
    everybody = [one["place"] for one in plan.sections["session"]["people"]][:-1]
    for job, openings in plan.sections["openings"].items():
        yield f"{job} opens:"
        grouped: dict[tuple[str, str], tuple[list[str], int]] = {}
        for one in openings:
            to = "all" if one["to"] == everybody else ", ".join(one["to"])
            names, times = grouped.get((one["what"], REASONS[one["why"]]), ([], 0))
            grouped[one["what"], REASONS[one["why"]]] = (list(dict.fromkeys([*names, to])), times + one["times"])
        for (meaning, why), (to_whom, times) in grouped.items():
            yield f"  to {', '.join(to_whom)}: {meaning} ({times} in all; {why})"


def _predicted(plan: Plan) -> Iterator[str]:
    predictions = plan.sections["predictions"]
    if predictions is None:
        return
    people = predictions["people"]
    limit = "no limit on public data" if isinstance(people, str) else f"for at most {people} people in all"
    yield f"predictions: {predictions['what']} to {predictions['to']} alone, {limit}, once for each person"
    yield f"  asked again: {predictions['again']}; more people need a new approval"


def _charged(plan: Plan, here: Mapping[str, Any]) -> Iterator[str]:
    for job, budget in plan.sections["budget"].items():
        count = sum(charge["times"] for charge in budget["charges"])
        yield (
            f"{job} charges {count} releases: epsilon {budget['epsilon']:.2f} of {budget['cap']:g} at delta "
            f"{budget['delta']:g} ({budget['ledger']})"
        )
        if job == "train" and plan.options is not None and plan.options.privacy.private_model:
            data, cap = plan.options.data, budget["cap"]
            records = expected_training_records(load(data.dataset).n) if data.pooled else None
            yield f"  epsilon {cap:g} is {default_words(cap, records) or f'named; the default is {EPSILON_RULE}'}"
        yield "  alone: " + ", ".join(f"{p['part']} {p['alone']:.2f} ({p['times']})" for p in budget["parts"])
        ledger = here["ledgers"].get(job)
        if ledger is None:
            continue
        if "problem" in ledger:
            yield f"  here: {ledger['problem']}"
            continue
        verdict = "fits" if ledger["fits"] else "DOES NOT FIT: it would be refused, or end early"
        yield f"  here: {ledger['before']:.2f} is spent, at most {ledger['after']:.2f} afterwards; {verdict}"


def _estimated(here: Mapping[str, Any]) -> Iterator[str]:
    for job, estimate in here["estimates"].items():
        total, off = estimate["total"], estimate["off"]
        yield (
            f"{job} takes about {total['rounds']:.0f} rounds, {total['bytes'] / 1e6:.1f} MB from a party to others "
            f"and {total['dealer_bytes'] / 1e6:.1f} MB with the dealer, {total['seconds']:.0f} s"
        )
        yield (
            f"  estimated from runs with default options on one machine; on these it was off by a factor of up to "
            f"{off['rounds']:g} (rounds), {off['bytes']:g} (bytes), {off['seconds']:g} (seconds)"
        )
