"""What is made last in a run's folder: report.json, the privacy report, the policy card, the page, and the seal.

All of it follows from what the parties' jobs wrote. So it can be made again elsewhere, and compared.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
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
from secure_sccvfl.reports.run_log import seal
from secure_sccvfl.reports.signed import own_heads

REPORT = "report.json"


def write_results(run: Path, report: Mapping[str, Any], given: PolicyCard | None, today: datetime.date) -> None:
    """Write everything that follows from a report. `given`: the card that the run was given."""
    (run / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _write_budget(run)
    write_card(run, card_of_run(report, given, today))
    write_page(run, today=today)


def make_host_results(run: Path) -> dict[str, Any]:
    """Write the results of one party on its own host, as of the day on which its last job ended; the report."""
    folder = RunFolder.of(run)
    report, config = build(folder), folder.session()
    ended = own_heads(run / config.jobs[-1], config)["date"]
    write_results(run, report, folder.given_card(), datetime.date.fromisoformat(ended))
    return report


def seal_results(run: Path, report: Mapping[str, Any]) -> str:
    """Record all files of the run's folder; returns the seal, which others should keep."""
    return seal(run, sealed_facts(report))


def sealed_facts(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the run's log says about a finished run, beside its files."""
    budget = {k: report["privacy"][k] for k in ("epsilon_rdp", "epsilon_pld", "delta", "cap")}
    facts = {key: report[key] for key in ("run", "dataset", "mask", "lambda")}
    return {**facts, "budget": budget, "metrics": report["metrics"]}


def _write_budget(run: Path) -> None:
    try:
        made = list(budget_reports(run))
    except LedgerError as error:
        raise ConfigError(f"the parties' ledgers do not agree: {error}") from None
    if not all(report.sound for report in made):
        raise ConfigError("the accountants disagree; trust none of the figures of the privacy report")
    for report in made:
        report.write(run)
