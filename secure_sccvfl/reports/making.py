"""Writes what follows from a finished run: report.json, the privacy report, the policy card, the page, and the seal.

All of it follows from the files that the parties' jobs wrote, so it can be made again elsewhere and compared.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from accounting.ledger import LedgerError
from protocols.config import ConfigError
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.reports.collect import build
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.page import write_page
from secure_sccvfl.reports.policy_card import card_of_run, write_card
from secure_sccvfl.reports.privacy_report import budget_reports
from secure_sccvfl.reports.results import Report, write
from secure_sccvfl.reports.run_log import seal
from secure_sccvfl.reports.signed import own_heads


def write_results(run: Path, report: Report, card: PolicyCard | None, today: datetime.date) -> None:
    """Write everything that follows from a report. card: the one that the run was given."""
    write(run, report)
    _write_budget(run)
    write_card(run, card_of_run(report, card, today))
    write_page(run, today=today)


def make_host_results(run: Path) -> Report:
    """Write the results of one party on its own host, as of the day on which its last job ended."""
    folder = RunFolder.of(run)
    report, config = build(folder), folder.session()
    ended = own_heads(run / config.jobs[-1], config)["date"]
    write_results(run, report, folder.given_card(), datetime.date.fromisoformat(ended))
    return report


def seal_results(run: Path, report: Report) -> str:
    """Record all files of the run's folder; returns the seal, which every party should keep."""
    return seal(run, sealed_facts(report))


def sealed_facts(report: Report) -> dict[str, Any]:
    """What the run's log says about a finished run, next to its files."""
    budget = {k: getattr(report.privacy, k) for k in ("epsilon_rdp", "epsilon_pld", "delta", "cap")}
    facts = {"run": report.run, "dataset": report.dataset, "mask": report.mask, "lambda": report.lam}
    return {**facts, "budget": budget, "metrics": dict(report.metrics)}


def _write_budget(run: Path) -> None:
    try:
        reports = list(budget_reports(run))
    except LedgerError as error:
        raise ConfigError(f"the parties' ledgers do not agree: {error}") from None
    if not all(report.sound for report in reports):
        raise ConfigError("the accountants disagree; do not trust any figure of the privacy report")
    for report in reports:
        report.write(run)
