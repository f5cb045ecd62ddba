"""Collects the report of a run from the files that the parties here wrote: all of them, or one.

The privacy report of a run: what was released about its records, what it cost, and what is left.

The parties' ledgers must have the same lines, but for the records in them where each charges its own. Noisy figures
of test records have their own ledger, and so their own report.

Writes what follows from a finished run: report.json, the privacy report, the policy card, the page, and the seal.

All of it follows from the files that the parties' jobs wrote, so it can be made again elsewhere and compared.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.accountant import epsilon_of, tight_epsilon
from secure_sccvfl.accounting.budget import read_account
from secure_sccvfl.accounting.charts import percent
from secure_sccvfl.accounting.ledger import Entry, LedgerError, comparable, read_ledger
from secure_sccvfl.accounting.report import Notes, build_report, write_report
from secure_sccvfl.policy.card import AwareEntry, PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.releases.catalogue import NOISY_TABLES
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER
from secure_sccvfl.reports.figures import baseline_warning, check_warnings, group_warnings, interval, listed
from secure_sccvfl.reports.folders import EVALUATE, PREDICT, TRAIN, RunFolder, in_order, logs_in, own_heads
from secure_sccvfl.reports.page import write_page
from secure_sccvfl.reports.policy_card import card_of_run, write_card
from secure_sccvfl.reports.results import (
    REPORT,
    Cost,
    Refresh,
    Release,
    Report,
    decode,
    encode,
    known_fields,
    read,
    write,
)
from secure_sccvfl.reports.run_log import seal
from secure_sccvfl.runs.files import read_audit, run_names
from secure_sccvfl.training.modes import MODES

APPROVALS = "approvals.json"
"""On a party's host: who had approved the plan when it began."""
POOLED = ("baselines", "judges", "information", "frontier", "slice_baselines", "examples", "label_inference")
"""Fields that the pooled plaintext evaluation adds. Other runs have noisy baselines only, if any."""


def release_table(logs: Iterable[Path]) -> list[Release]:
    """Each kind of release with its receivers, purpose and how often it was made, from hash-chained logs."""
    table: dict[str, Release] = {}
    for entry in (entry for log in logs for entry in read_chain(log)):
        name = entry["release"]
        table.setdefault(name, decode(Release, known_fields(Release, {**entry, "name": name, "times": 0})))
        table[name] = replace(table[name], times=table[name].times + 1)
    return list(table.values())


def table_releases_of(part: Path) -> list[dict[str, Any]]:
    """Each release of the contingency tables: noise in a cell, scores and roles that followed, epsilon by then.

    From the logs of one party. Tables that an earlier run had paid for have no epsilon here.
    """
    account = read_account(part / LEDGER)
    runs = run_names(part)
    charged = {c.event.name: n for n, c in enumerate(account.charges, 1) if c.key.partition(" ")[0] in runs}
    entries = [entry for log in in_order(part, "audit") for entry in read_audit(log) if entry["event"] == "roles"]
    last = {entry["refresh"]: entry for entry in entries}
    refreshes = []
    for number, entry in sorted(last.items()):
        position = charged.get(NOISY_TABLES.charged_as(number))
        epsilon = None if position is None else account.until(position).most(epsilon_of)
        refreshes.append(known_fields(Refresh, {**entry, "epsilon": epsilon}))
    return refreshes


def build(
    folder: RunFolder, pooled: Mapping[str, Any] | None = None, data: Any = None, *, strict: bool = True
) -> Report:
    """The report of a finished run, from the folders of all parties or of one.

    pooled: by the names in `POOLED`, as JSON data. data: the description, for runs of versions that did not keep it.
    strict: refuse a nested field that the tree of `results` does not have; runs of other versions may have such.
    """
    pooled = pooled or {}
    trained = folder.result()
    evaluated = folder.result(job=EVALUATE) if folder.has(EVALUATE) else {}
    releases = release_table(logs_in(folder.attempts(), "releases"))
    later = {"evaluation": EVALUATE, "slices": EVALUATE} if evaluated else {}
    later |= {"predictions": PREDICT} if pooled.get("examples") is not None else {}
    for job in dict.fromkeys(later.values()):
        releases += [r for r in release_table(logs_in(folder.attempts(job), "releases")) if later.get(r.name) == job]
    cost = {**trained["cost"], **evaluated.get("cost", {})}
    total = {key: sum(phase[key] for phase in cost.values()) for key in Cost.__dataclass_fields__}
    rows = {**trained["rows"], **({"test": evaluated["records"]} if "records" in evaluated else {})}
    epsilon = tight_epsilon(read_account(folder.part() / LEDGER).dearest(), trained["privacy"]["delta"])
    released = ("metrics", "noise", "groups", "slices", "baselines", "baseline_noise", "baseline_groups")
    if (how := evaluated.get("evaluation")) is not None:
        how = {key: value for key, value in how.items() if key != "charged"}  # the ledger has the charge
    report = {
        **{"data": data, "tables": None},
        **trained,
        **{name: evaluated[name] for name in released if name in evaluated},
        "evaluation": how,
        **pooled,
        "parties": len(trained["parties"]),
        "party_names": trained["parties"],
        "rows": rows,
        "role_changes": trained["changes"],
        "tables": trained.get("tables") or None,
        "refreshes": table_releases_of(folder.part()),
        "privacy": {**trained["privacy"], "epsilon_pld": epsilon},
        "releases": [encode(release) for release in releases],
        "models": {f"party-{k}": folder.result(k)["model"] for k in folder.ranks(len(trained["parties"]))},
        "cost": {**cost, "total": total},
        "crypten_operations": {**trained.get("crypten_operations", {}), **evaluated.get("crypten_operations", {})},
    }
    if folder.host is not None:
        report |= {"host": folder.host, "approvals": _approvals(folder.run)}
    tree = decode(Report, known_fields(Report, report), strict=strict)
    return replace(tree, warnings=tuple(find_warnings(tree)))


def _approvals(run: Path) -> list[dict[str, Any]]:
    """Who had approved the plan when this host began."""
    path = run / APPROVALS
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def find_warnings(report: Report) -> Iterator[str]:
    """What a reader must know first, one sentence or two each."""
    metrics, privacy = report.metrics, report.privacy
    if report.aware is not None:
        yield AwareEntry.of(report.aware).words()
    if not report.pooled:
        yield (
            "No independent counterfactual model: data of a consortium cannot be pooled, so flips are counted with "
            "the counterfactuals of training. The true flip rate may be higher."
        )
    if not report.pooled and report.evaluation is not None and report.evaluation.kind == "exact":
        yield (
            "The figures of the test records are exact, as all parties agreed: they are not private. Two such "
            "reports about nearly the same records reveal the records in which they differ."
        )
    if not Roles(report.roles, report.proxies).edited:
        yield (
            "No column is a mediator: nothing changes with the group, no decision can flip, and the model is that of "
            "plain training."
        )
    yield from _accuracy_warnings(report)
    yield from filter(None, [baseline_warning(report)])
    yield from check_warnings(report)
    yield from group_warnings(report)
    names = report.data.protected[0].labels
    few = [name for name, group in zip(names, report.groups, strict=False) if "positive_rate" in group.too_few]
    if few and report.evaluation is not None:
        yield (
            f"Too few records of a group (fewer than {report.evaluation.min_group}) are in the test part, so "
            f"no rate or gap rests on it: {', '.join(few)}."
        )
    rate = metrics.get("positive_rate")
    if rate is not None and (rate < 0.01 or rate > 0.99):
        yield (
            f"Nearly every decision is the same (positive: {percent(rate)}). Constant decisions cannot flip, so a "
            "low flip rate means little here."
        )
    if privacy.noise == "dealer":
        yield "The dealer alone adds noise: released values must be kept from the dealer."
    if privacy.epsilon_batches_known > privacy.epsilon_rdp and privacy.epsilon_dealer is not None:
        yield (
            f"The dealer drew the batches and knows them: if it reads the noisy gradients, epsilon "
            f"{privacy.epsilon_dealer:.2f} holds against it, not {privacy.epsilon_rdp:.2f}."
        )
    for row in report.label_inference:
        name = report.party_names[row.party]
        if name != report.data.label.holder:
            yield (
                f"From the gradients it was sent, {name} can read {percent(row.rate)} of the training labels "
                f"({percent(row.low)} to {percent(row.high)}; guessing gives {percent(row.chance)})."
            )
    if MODES.get(report.mode).labels == "shown":
        yield (
            f"Mode {report.mode} sends every party gradients of its own columns. They reveal the labels, and s of "
            "training records to a party that knows s of others. The budget of s does not cover them. Use mode "
            "sealed if labels and s must stay with their holders."
        )


def _accuracy_warnings(report: Report) -> Iterator[str]:
    """Simple models that are as accurate as this one."""
    metrics, others = report.metrics, report.baselines
    words = {"majority": "always the most frequent answer", "drop_m": "a model without the mediators"}
    simple = {k: v["acc"] for k in words if "acc" in (v := others.get(k, {})) and metrics.get("acc", 1.0) <= v["acc"]}
    if not simple:
        return
    low, high = interval(report, "acc", metrics["acc"]) or (0.0, 1.0)
    named = [f"{words[k]} ({percent(acc)}{', within the interval' * (acc <= high)})" for k, acc in simple.items()]
    share = f"{percent(metrics['acc'])} correct (95 % interval {percent(low)} to {percent(high)})"
    text = f"{share}: no more than {listed(named)}."
    if "majority" in simple:
        text += " Until that changes, a low flip rate means little."
    if "drop_m" in simple:
        text += " The one without the mediators is simpler, and cannot flip through them."
        gaps = all(others["drop_m"].get(g, 1.0) < metrics.get(g, 0.0) for g in ("dp_gap", "eo_gap"))
        text += " It also has smaller gaps between groups." * gaps
    yield text


BUDGET, EVALUATION_BUDGET = "privacy_budget", "evaluation_budget"


@dataclass(frozen=True)
class BudgetReport:
    """What the ledgers of one kind say. `name`: of the files that say it."""

    name: str
    report: dict[str, Any]
    vouched: bool
    """Whether every ledger has its head, so that lines cut off its end would be noticed."""

    @property
    def sound(self) -> bool:
        """The accountants agree."""
        return bool(self.report["accountants_agree"])

    def write(self, folder: Path) -> tuple[Path, ...]:
        """NAME.json, .md and .html in this folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(write_report(folder, self.report, self.name))


def budget_reports(run: Path) -> Iterator[BudgetReport]:
    """The reports of a run's folder, or of one ledger. Nothing is written.

    The first is about the training records, the second about the test records if there is one. LedgerError if a
    ledger is damaged or two of them differ.
    """
    if run.is_file():
        yield _report([run], None, EVALUATION_BUDGET if run.name == EVALUATIONS else BUDGET)
        return
    folder, results = RunFolder.of(run), read(run) if (run / REPORT).is_file() else None
    ledgers = [run / TRAIN / LEDGER] if folder.host is not None else sorted(run.glob(f"party-*/{LEDGER}"))
    if not ledgers:
        raise ConfigError(f"{run}: neither a ledger nor a folder with party-K/{LEDGER}")
    yield _report(ledgers, results, BUDGET)
    evaluations = (
        [run / EVALUATE / EVALUATIONS] if folder.host is not None else run.glob(f"evaluation/party-*/{EVALUATIONS}")
    )
    if existing := sorted(path for path in evaluations if path.exists()):
        yield _report(existing, results, EVALUATION_BUDGET)


def _report(ledgers: list[Path], run: Report | None, name: str) -> BudgetReport:
    """The parties' ledgers of one kind, which must agree: the report is that of the first."""
    # With hidden alignment each party charged its own records, since nobody knows which all of them have.
    entries, vouched = _agreed(ledgers, run is not None and run.align == "hidden")
    account = read_account(ledgers[0])
    report = build_report(account, None if run is None else notes_of(run), held_out=name == EVALUATION_BUDGET)
    report["ledgers"] = {"read": len(ledgers), "lines": len(entries), "head": entries[-1]["hash"]}
    return BudgetReport(name, report, vouched)


def _agreed(ledgers: list[Path], own_records: bool) -> tuple[list[Entry], bool]:
    """The lines that all ledgers have, and whether all have a head; LedgerError says where two differ."""
    read = {path: read_ledger(path) for path in ledgers}
    first, (entries, _) = next(iter(read.items()))
    wanted = comparable(entries, own_records=own_records)
    for path, (lines, _) in read.items():
        other = comparable(lines, own_records=own_records)
        if other != wanted:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, other, strict=False)))
            raise LedgerError(
                f"{first.parent.name} ({len(entries)} lines) and {path.parent.name} ({len(other)} lines) differ from "
                f"line {same + 1} on; a party missed a charge or its ledger was set back: trust the longer one"
            )
    return entries, all(vouched for _, vouched in read.values())


def notes_of(report: Report) -> Notes:
    """What a run says about its noise and its uncharged releases."""
    return Notes(report.privacy.noise, tuple({"name": u.name, "purpose": u.purpose} for u in report.uncharged))


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
