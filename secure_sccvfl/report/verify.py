"""Does a finished run fit together? Every chain, digest and figure of its folder is checked against the others.

The checks:
- The hash chains of all logs (releases, audit, ledger) of every party and session are intact.
- The parties' logs and results agree where they must.
- Model shares match their digests, the audit logs and the report.
- report.json and privacy_budget.json equal what these logs give when they are made anew.
- The policy card matches the roles of the audit log.
- Every file matches the run's own log (`secure_sccvfl.report.run_log`), in which nothing may be missing or new.

So they find a changed, dropped, swapped or added line in any log, a changed share, and a report that does not
belong to the run. They cannot find what `run_log` names, or whether the parties' inputs were true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accounting.account import read_account
from accounting.accountant import epsilon_of
from accounting.ledger import FileSets, read_ledger
from accounting.ledger import LedgerError as BudgetLedgerError
from accounting.report import Notes, build_report
from protocols.config import ConfigError, code_digest
from protocols.errors import LedgerError
from protocols.records.chain import read_chain
from secure_sccvfl.policy.card import read_card
from secure_sccvfl.policy.roles import PolicyError, Roles
from secure_sccvfl.privacy.ledgers import EVALUATIONS
from secure_sccvfl.report.policy_card import CARD
from secure_sccvfl.report.results import HARNESS, attempts, build, find_warnings, result_of
from secure_sccvfl.report.run_log import LOG, contents, file_digest, read_log, recorded
from secure_sccvfl.run.model_files import ModelError, model_digest

SESSIONS = (".", "evaluation", "examples")
CHAINED = ("index", "previous", "hash")
PRIVATE = ("model",)
"""Entries of an audit log that differ between parties by design."""
LOCAL_RESULTS = ("model", "cost", "refused")
Problems = Iterator[str]


class RunFiles:
    """A run's folder as the checks read it."""

    def __init__(self, run: Path) -> None:
        self.run = run
        try:
            self.report: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
            self.parties = int(self.report["parties"])
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(f"{run} is not the folder of a finished run: it has no report.json to check") from None

    def folders(self, session: str) -> list[Path]:
        return [self.run / session / f"party-{rank}" for rank in range(self.parties)]

    def sessions(self) -> list[str]:
        return [s for s in SESSIONS if s == "." or (self.run / s).is_dir()]

    def audit(self, rank: int) -> list[dict[str, Any]]:
        return [e for log in _in_order(self.run / f"party-{rank}", "audit") for e in read_chain(log)]


def _in_order(folder: Path, stem: str) -> list[Path]:
    """audit.jsonl, then audit-1.jsonl, audit-2.jsonl, ... of resumed runs."""
    found = [p for p in folder.glob(f"{stem}*.jsonl") if re.fullmatch(rf"{stem}(-\d+)?\.jsonl", p.name)]
    return sorted(found, key=lambda p: int(p.stem.partition("-")[2] or 0))


def _bare(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.items() if k not in (*CHAINED, *PRIVATE)} for e in entries]


def check_logs(files: RunFiles) -> Problems:
    """Chains of the parties' logs, and their agreement."""
    for session in files.sessions():
        folders = files.folders(session)
        for stem in ("releases", "audit"):
            names = [[p.name for p in _in_order(folder, stem)] for folder in folders]
            if any(n != names[0] for n in names) or (stem == "releases" and not names[0]):
                yield f"{session}: the parties do not have the same {stem} logs"
                continue
            for name in names[0]:
                logs = [_bare(read_chain(folder / name)) for folder in folders]
                # A session that was stopped, and resumed in a later log, may have left some parties a line ahead.
                length = len(logs[0]) if name == names[0][-1] else min(map(len, logs))
                for folder, log in zip(folders, logs, strict=True):
                    if log[:length] != logs[0][:length] or (name == names[0][-1] and len(log) != length):
                        yield f"{name} of {folder.name} differs from that of {folders[0].name}"
    ledgers = [read_ledger(folder / "ledger.jsonl")[0] for folder in files.folders(".")]
    for rank, ledger in enumerate(ledgers):
        if ledger != ledgers[0]:
            yield f"ledger.jsonl of party-{rank} differs from that of party-0"


def check_results(files: RunFiles) -> Problems:
    """What every party's process wrote at its end."""
    for session in files.sessions():
        results = [result_of(files.run / session, rank) for rank in range(files.parties)]
        public = [{k: v for k, v in r.items() if k not in LOCAL_RESULTS} for r in results]
        for rank, seen in enumerate(public):
            if seen != public[0]:
                yield f"{session}: result.json of party-{rank} differs from that of party-0"
        if any(r["run"] != files.report["run"] for r in results):
            yield f"{session}: result.json is of another run than report.json"


def check_models(files: RunFiles) -> Problems:
    """Shares against every place that names their digest."""
    for rank, folder in enumerate(files.folders(".")):
        found = model_digest(folder / "model")
        trained = [e for e in files.audit(rank) if e["event"] == "trained"]
        named = {
            "report.json": files.report["models"].get(folder.name),
            "result.json": result_of(files.run, rank)["model"],
            "the audit log": trained[-1]["model"] if trained else None,
        }
        for place, digest in named.items():
            if digest != found:
                yield f"the model share of {folder.name} is not the one that {place} names"


def check_report(files: RunFiles) -> Problems:
    """report.json made anew from the parties' files, and its figures in the audit log."""
    report, run = files.report, files.run
    models = {f"party-{rank}": result_of(run, rank)["model"] for rank in range(files.parties)}
    evaluated = result_of(run / "evaluation", 0) if (run / "evaluation").is_dir() else None
    anew = build(
        run,
        result_of(run, 0),
        evaluated,
        {key: report[key] for key in HARNESS if key in report},
        models,
        report["data"],
        report["examples"],
        report["label_inference"],
    )
    # Words change between versions of this code; for another version only the digest of the file is compared.
    same_code = any(line.get("code") == code_digest().hex() for line in read_log(run))
    anew["warnings"] = find_warnings(anew) if same_code else report["warnings"]
    anew = json.loads(json.dumps(anew))
    for key in sorted(anew.keys() | report.keys()):
        if anew.get(key) != report.get(key):
            yield f"report.json: {key!r} is not what the run's files give"
    audit = files.audit(0)
    decided = [e for e in audit if e["event"] in ("roles", "interventional check")]
    if not decided or decided[-1]["roles"] != report["roles"] or decided[-1]["mask"] != report["mask"]:
        yield "report.json: the roles are not the last ones of the audit log"
    tried = [{k: e[k] for k in ("lam", "validation", "steps")} for e in audit if e["event"] == "lambda tried"]
    if any(trial not in tried for trial in report["trials"]):
        yield "report.json: a trial is not in the audit log"


def check_budget(files: RunFiles) -> Problems:
    """The privacy report against the ledger, and the ledger against the releases that were made."""
    run = files.run
    ledger = run / "party-0" / "ledger.jsonl"
    entries = read_ledger(ledger)[0]
    account = read_account(entries, FileSets.beside(ledger))
    anew = json.loads(json.dumps(build_report(account, Notes.from_dict(files.report["privacy"]))))
    told = json.loads((run / "privacy_budget.json").read_text(encoding="utf-8"))
    for key, value in anew.items():
        if told.get(key) != value:
            yield f"privacy_budget.json: {key!r} is not what the ledger gives"
    if told["ledgers"]["head"] != entries[-1]["hash"]:
        yield "privacy_budget.json was made from another ledger"
    paid = {event.name for event in account.events}
    for log in _in_order(run / "party-0", "releases"):
        for entry in read_chain(log):
            # Steps of one kind are charged one by one, as NAME-0, NAME-1, ...
            event = entry["event"]
            if event is not None and not any(name == event or name.startswith(f"{event}-") for name in paid):
                yield f"release {entry['release']!r} was never charged"
    trained = [e for e in files.audit(0) if e["event"] == "trained"]
    if not trained or trained[-1]["epsilon_rdp"] != files.report["privacy"]["epsilon_rdp"]:
        yield "report.json: epsilon is not that of the audit log"


def check_evaluation(files: RunFiles) -> Problems:
    """Noisy figures of test records: paid for at every party, at the price in the report."""
    run, told = files.run, files.report["evaluation"]
    if told.get("kind") != "noisy":
        return
    ledgers = [folder / EVALUATIONS for folder in files.folders("evaluation")]
    lines = [read_ledger(ledger)[0] for ledger in ledgers]
    for rank, entries in enumerate(lines):
        if entries != lines[0]:
            yield f"{EVALUATIONS} of party-{rank} differs from that of party-0"
    account = read_account(lines[0], FileSets.beside(ledgers[0]))
    if account.most(epsilon_of) != told["epsilon_rdp"]:
        yield "report.json: the epsilon of the evaluation is not what its ledger gives"
    paid = [charge.event.name for charge in account.charges]
    logs = [log for folder in attempts(run, "evaluation") for log in _in_order(folder / "party-0", "releases")]
    opened = [entry["event"] for log in logs for entry in read_chain(log) if entry["event"] is not None]
    if len(opened) > len(paid) or set(opened) - set(paid):
        yield "figures of test records were opened that were never charged"


def check_policy(files: RunFiles) -> Problems:
    """The card's roles, with reviews undone, are those of the run."""
    card = read_card(files.run / CARD)
    roles = dict(card.roles.of)
    before = int(card.follows.get("events", 0))  # of the card that the run was given: made before it
    for event in reversed(card.events[before:]):
        if "change" in event:
            roles[event["feature"]] = event["change"].split(" -> ")[0]
    if card.run == files.report["run"] and Roles(roles, card.proxies).digest() != files.report["mask"]:
        yield f"{CARD}: the roles are not those of the run"
    if card.run != files.report["run"]:
        yield f"{CARD} is of another run"


def check_files(files: RunFiles) -> Problems:
    """Every file equals its entry in the run's own log; none is missing, none is new."""
    run = files.run
    known = recorded(read_log(run))
    here = {path.relative_to(run).as_posix(): path for path in contents(run)}
    for name in sorted(known.keys() - here.keys()):
        yield f"{name} is missing"
    for name in sorted(here.keys() - known.keys()):
        yield f"{name} is in no record of the run; move it elsewhere if you put it there"
    for name in sorted(known.keys() & here.keys()):
        if file_digest(here[name]) != known[name]:
            yield f"{name} was changed after it was recorded"
    page = run / "report.html"
    if page.exists() and f'content="{file_digest(run / "report.json")}"' not in page.read_text(encoding="utf-8"):
        yield "report.html was made from another report.json; make it again"


CHECKS: dict[str, Callable[[RunFiles], Problems]] = {
    "logs": check_logs,
    "results": check_results,
    "models": check_models,
    "report": check_report,
    "budget": check_budget,
    "evaluation": check_evaluation,
    "policy": check_policy,
    "files": check_files,
}


def verify(run: Path, seal: str | None = None) -> dict[str, list[str]]:
    """Problems by check; none means that the run fits together. An unreadable file is a problem too."""
    found: dict[str, list[str]] = {}
    try:
        files = RunFiles(run)
    except ConfigError:
        if not (run / LOG).exists():
            raise
        return {"report": ["report.json is missing, or cannot be read as the report of a run"]}
    for name, check in CHECKS.items():
        problems = found.setdefault(name, [])
        try:
            problems.extend(check(files))
        except (LedgerError, BudgetLedgerError, ModelError, PolicyError, ConfigError) as error:
            problems.append(str(error))
        except FileNotFoundError as error:
            problems.append(f"{Path(error.filename).relative_to(run).as_posix()} is missing")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            problems.append(f"a file cannot be read as what it should be ({type(error).__name__})")
    if seal is not None:
        found["seal"] = [] if _head(run).startswith(seal) and len(seal) >= 12 else ["the run's log has another seal"]
    return found


def _head(run: Path) -> str:
    try:
        return str(read_log(run)[-1]["hash"])
    except (LedgerError, IndexError):
        return ""
