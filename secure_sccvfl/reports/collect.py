"""`report.json`: all results of a run as data, collected from what the parties here wrote: all of them, or one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accounting.account import read_account
from accounting.accountant import LossDistributionAccountant, epsilon_of
from accounting.ledger import FileSets, read_ledger
from protocols.records.chain import read_chain
from secure_sccvfl.policy.entries import AwareEntry
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.catalogue import SKETCH
from secure_sccvfl.releases.ledgers import LEDGER
from secure_sccvfl.reports.charts import percent
from secure_sccvfl.reports.figures import interval
from secure_sccvfl.reports.folders import EVALUATE, PREDICT, RunFolder, in_order, logs_in
from secure_sccvfl.reports.judged import judge_warnings
from secure_sccvfl.runs.audit_log import read_audit, sessions_of
from secure_sccvfl.training.modes import MODES

VERSION = 1
APPROVALS = "approvals.json"
"""On a party's host: who had approved the plan when it began."""
HARNESS = ("baselines", "judges", "qualitative", "frontier", "slice_baselines")
"""What a harness that sees pooled data adds to a report. Without one, baselines are those that were computed in
secret with noise, if any, and the rest is absent."""


def release_table(logs: Iterable[Path]) -> list[dict[str, Any]]:
    """Each kind of release with its receivers, purpose and how often it was made, from hash-chained logs."""
    made: dict[str, dict[str, Any]] = {}
    for entry in (entry for log in logs for entry in read_chain(log)):
        known = made.setdefault(
            entry["release"],
            {
                "name": entry["release"],
                "receivers": entry["receivers"],
                "shape": entry["shape"],
                "purpose": entry["purpose"],
                "event": entry["event"],
                "times": 0,
            },
        )
        known["times"] += 1
    return list(made.values())


def tight_epsilon(ledger: Path, delta: float) -> float:
    """Epsilon by loss distributions of the record that has spent most, from a party's ledger."""
    accountant = LossDistributionAccountant()
    for event in read_account(read_ledger(ledger)[0], FileSets.beside(ledger)).dearest():
        accountant.compose(event)
    return accountant.epsilon(delta)


def refreshes_of(part: Path) -> list[dict[str, Any]]:
    """Of each release of the tables: noise in a cell, scores and roles that followed, and epsilon spent by then.

    From the logs of one party. Tables that an earlier run had paid for have no epsilon here.
    """
    account = read_account(read_ledger(part / LEDGER)[0], FileSets.beside(part / LEDGER))
    runs, logged = sessions_of(part), [e for log in in_order(part, "audit") for e in read_audit(log)]
    places = {c.event.name: n for n, c in enumerate(account.charges, 1) if c.key.partition(" ")[0] in runs}
    made = {entry["refresh"]: entry for entry in logged if entry["event"] == "roles"}
    told = ("refresh", "deviation", "roles", "proposed", "scores", "p_values", "changes")
    return [
        {
            **{key: entry[key] for key in told},
            "epsilon": account.until(places[name]).most(epsilon_of) if name in places else None,
        }
        for number, entry in sorted(made.items())
        for name in [SKETCH.charged_as(number)]
    ]


def build(
    folder: RunFolder,
    harness: Mapping[str, Any] | None = None,
    words: Mapping[str, Any] | None = None,
    examples: Mapping[str, Any] | None = None,
    label_inference: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The report of a finished run, from the folders of all parties or of one; no path of this machine is in it.

    harness: by the names in `HARNESS`. words: the public words of the data, for runs of versions that did not keep
    them.
    """
    trained = folder.result()
    evaluated = folder.result(job=EVALUATE) if folder.has(EVALUATE) else None
    known = evaluated.get("records") if evaluated is not None else None
    releases = release_table(logs_in(folder.attempts(), "releases"))
    if evaluated is not None:
        told = release_table(logs_in(folder.attempts(EVALUATE), "releases"))
        releases += [r for r in told if r["name"] in ("evaluation", "slices")]
    if examples is not None:
        told = release_table(logs_in(folder.attempts(PREDICT), "releases"))
        releases += [r for r in told if r["name"] == "predictions"]
    cost = {**trained["cost"], **(evaluated["cost"] if evaluated is not None else {})}
    total = {
        key: sum(phase[key] for phase in cost.values()) for key in ("seconds", "rounds", "bytes", "dealer_bytes")
    }
    jobs = (trained, evaluated or {})
    operations = {phase: count for job in jobs for phase, count in job.get("crypten_operations", {}).items()}
    report = {
        "version": VERSION,
        "run": trained["run"],
        "engine": trained["engine"],
        "mode": trained["mode"],
        "aware": trained["aware"],
        "parties": len(trained["parties"]),
        "party_names": trained["parties"],
        "dataset": trained["dataset"],
        "data": trained.get("data", words),
        "pooled": trained["pooled"],
        "split": trained["split"],
        "seed": trained["seed"],
        "align": trained.get("align", "exact"),
        "rows": {**trained["rows"], **({"test": known} if known is not None else {})},
        **{key: evaluated[key] if evaluated is not None else {} for key in ("evaluation", "metrics", "noise")},
        "groups": evaluated["groups"] if evaluated is not None else [],
        **({"slices": evaluated["slices"]} if evaluated is not None and "slices" in evaluated else {}),
        "baselines": evaluated.get("baselines", {}) if evaluated is not None else {},
        **{key: evaluated[key] for key in ("baseline_noise",) if evaluated is not None and key in evaluated},
        **(harness or {}),
        "roles": trained["roles"],
        "proxies": trained["proxies"],
        "proposed": trained["proposed"],
        "by_card": trained["by_card"],
        "confidence": trained["confidence"],
        "mask": trained["mask"],
        "owners": trained["owners"],
        "scores": trained["scores"],
        "role_changes": trained["changes"],
        "refreshes": refreshes_of(folder.part()),
        "lambda": trained["lambda"],
        "temperature": trained["temperature"],
        **({"tables": trained["tables"]} if trained.get("tables") else {}),
        "trials": trained["trials"],
        "validity": trained.get("validity", {}),
        "privacy": {
            **trained["privacy"],
            "epsilon_pld": tight_epsilon(folder.part() / LEDGER, trained["privacy"]["delta"]),
            "uncharged": [
                {"name": r["name"], "purpose": r["purpose"], "receivers": r["receivers"], "times": r["times"]}
                for r in releases
                if r["event"] is None
            ],
        },
        "releases": releases,
        "models": {f"party-{k}": folder.result(k)["model"] for k in folder.ranks(len(trained["parties"]))},
        "examples": examples,
        "label_inference": list(label_inference),
        "cost": {**cost, "total": total},
        "crypten_operations": operations,
        "warnings": [],
        **({} if folder.host is None else {"host": folder.host, "approvals": _approvals(folder.run)}),
    }
    return {**report, "warnings": find_warnings(report)}


def _approvals(run: Path) -> list[dict[str, Any]]:
    """Who had approved the plan when this host began."""
    path = run / APPROVALS
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def find_warnings(report: Mapping[str, Any]) -> list[str]:
    """What a reader must know, in plain words."""
    found = []
    metrics, baselines = report["metrics"], report["baselines"]
    if report["aware"] is not None:
        found.append(AwareEntry.of(report["aware"]).words())
    if not report["pooled"]:
        found.append(
            "No independent judge: data of a consortium cannot be pooled, so flips are counted under the same "
            "“what if” that training used. The true rate may be higher."
        )
    if not report["pooled"] and report["evaluation"].get("kind") == "exact":
        found.append(
            "The figures of the test records are exact, as all parties agreed: they are not private. Two such "
            "reports about nearly the same records tell about the records in which they differ."
        )
    if not Roles(report["roles"], report["proxies"]).edited:
        found.append(
            "No column is a mediator: nothing moves with the group, no decision can flip, and the model is that of "
            "plain training."
        )
    for name, what, so in (
        ("majority", "always giving the most frequent answer", "As long as that is so, few flips are worth little."),
        ("drop_m", "a model without the mediators", "That one is simpler, and cannot flip through them."),
    ):
        other = baselines.get(name, {}).get("acc")
        if other is not None and metrics.get("acc", 1.0) <= other:
            low, high = interval(report, "acc", metrics["acc"]) or (0.0, 1.0)
            told = f"{percent(metrics['acc'])} right against {percent(other)}"
            unsure = (
                f", which its 95 % interval, {percent(low)} to {percent(high)}, includes" if other <= high else ""
            )
            gaps = ("dp_gap", "eo_gap")
            fairer = name == "drop_m" and all(baselines[name].get(g, 1.0) < metrics.get(g, 0.0) for g in gaps)
            more = " It treats the groups more alike, too." if fairer else ""
            found.append(f"No more accurate than {what} ({told}{unsure}). {so}{more}")
    found += judge_warnings(report)
    names = report["data"]["protected"][0]["labels"]
    few = [name for name, group in zip(names, report["groups"], strict=False) if "positive_rate" in group["too_few"]]
    if few:
        found.append(
            f"Too few records of a group (fewer than {report['evaluation']['min_group']}) are in the test part, so "
            f"no rate or gap rests on it: {', '.join(few)}."
        )
    rate = metrics.get("positive_rate")
    if rate is not None and (rate < 0.01 or rate > 0.99):
        found.append(
            f"Nearly every decision is the same (positive: {percent(rate)}). Who always says the same cannot flip, "
            "so few flips mean little here."
        )
    if report["privacy"]["noise"] == "dealer":
        found.append("Noise is the dealer's alone: released values must be kept from the dealer.")
    privacy = report["privacy"]
    if privacy["epsilon_batches_known"] > privacy["epsilon_rdp"] and privacy["epsilon_dealer"] is not None:
        found.append(
            f"The dealer drew the batches in secret and knows them: should it read the noisy gradients, "
            f"epsilon {privacy['epsilon_dealer']:.2f} holds against it, not {privacy['epsilon_rdp']:.2f}."
        )
    for row in report["label_inference"]:
        name = report["party_names"][row["party"]]
        if name != report["data"]["label"]["holder"]:
            found.append(
                f"From the gradients it was shown, {name} can read {percent(row['rate'])} of the training labels "
                f"({percent(row['low'])} to {percent(row['high'])}; guessing gives {percent(row['chance'])})."
            )
    if MODES.get(report["mode"]).labels == "shown":
        found.append(
            f"Mode {report['mode']} shows every party gradients of its own columns, and these give the labels away, "
            "and s of training records to a party that knows s of others. The budget of s does not cover them. Use "
            "mode sealed if labels and s must stay with their holders."
        )
    return found
