"""What one host can say of a plan besides what all agree on: its own records, its ledgers, and an estimate of costs.

Nothing here is signed, and nothing is written. A ledger is read as it lies. What it will show afterwards is an upper
bound: which of its records take part is known only in the session, so the one that has spent most is taken.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

from accounting.accountant import epsilon_of
from accounting.budget import read_account
from accounting.events import Event
from accounting.ledger import LedgerError
from protocols.config import SessionConfig
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party_data import Schema
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
    """What people should know of the ledgers here before they agree."""
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
    bins, parties = sum(sum(own.values()) for own in schema.bins.values()), len(schema.parties)
    sizes = (1.0, rows, rows * bins, bins**2)
    scale = {"rounds": 1.0, "bytes": parties - 1, "dealer_bytes": 1 / parties, "seconds": parties - 1}
    terms = {figure: (1.0, math.log2(rows)) if figure == "rounds" else sizes for figure in scale}
    total = {
        figure: scale[figure] * sum(w * t for w, t in zip(weights, terms[figure], strict=True))
        for figure, (weights, _) in COSTS[job].items()
    }
    total["seconds"] += round_trip * total["rounds"]
    return {"total": total, "off": {figure: off for figure, (_, off) in COSTS[job].items()}}
