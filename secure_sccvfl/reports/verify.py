"""Checks every chain, digest and figure in the folder of a finished run against the others.

- The hash chains of all logs (releases, audit, ledger) of every party and session are intact, and the parties' logs
  and results agree where they must.
- Model shares match their digests, the audit logs and the report.
- report.json and privacy_budget.json equal what these logs give when they are recomputed.
- The policy card matches the roles of the audit log.
- Every file matches the run's own log (`reports.run_log`), in which nothing may be missing or new.
- On a party's own host: everything matches what all parties signed, and derived files are the same when recomputed.

So they find a changed, dropped, swapped or added line in any log, a changed share, and a report of another run. On
one machine they cannot find what `run_log` names; on a host, the signatures of the others do. They cannot show
whether the parties' inputs were true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Account, read_account
from secure_sccvfl.accounting.ledger import Entry, LedgerError, comparable, read_ledger
from secure_sccvfl.accounting.report import build_report
from secure_sccvfl.policy.card import read_card
from secure_sccvfl.policy.roles import PolicyError, Roles
from secure_sccvfl.protocols.config import ConfigError, code_digest
from secure_sccvfl.protocols.errors import LogError
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER
from secure_sccvfl.reports.collect import APPROVALS, POOLED, build, make_host_results, notes_of, sealed_facts
from secure_sccvfl.reports.folders import EVALUATE, PREDICT, TRAIN, RunFolder, in_order, logs_in
from secure_sccvfl.reports.page import PAGE, made_on, write_page
from secure_sccvfl.reports.policy_card import CARD, write_card
from secure_sccvfl.reports.results import Report, encode, read
from secure_sccvfl.reports.run_log import FINISHED, LOG, contents, file_digest, read_log, recorded, since, strange
from secure_sccvfl.reports.signed import DERIVED, agreed_part, bare, check_signed, signed_code
from secure_sccvfl.runs.files import ModelError, model_digest

Problems = Iterator[str]
FIGURES = (
    *("epsilon_rdp", "epsilon_pld", "epsilon_opacus", "accountants_agree", "epsilon_added", "epsilon_dealer"),
    *("epsilon_batches_known", "delta", "cap", "remaining", "sets", "parts", "releases", "uncharged"),
)
"""The figures of a privacy report, which are the same in every version of the code."""


class RunFiles:
    """The folder of a run for the checks: of all parties, or of one on its own host."""

    def __init__(self, run: Path, authority: bytes | None = None) -> None:
        self.run, self.authority = run, authority
        self.report = read(run)
        self.folder = RunFolder.of(run)
        self.ranks = self.folder.ranks(self.report.parties)

    def parts(self, job: str) -> list[Path]:
        """The folder of a job at each party that is here."""
        return [self.folder.part(rank, job) for rank in self.ranks]

    def jobs(self) -> list[str]:
        return [job for job in (TRAIN, EVALUATE, PREDICT) if self.folder.has(job)]

    def audit(self, rank: int) -> list[dict[str, Any]]:
        return [e for log in in_order(self.folder.part(rank), "audit") for e in read_chain(log)]

    @property
    def own_records(self) -> bool:
        """Whether each party charged its own records, since the common ones are secret."""
        return self.report.align == "hidden"

    @property
    def same_code(self) -> bool:
        """Whether this version of the code made the run."""
        return any(line.get("code") == code_digest().hex() for line in read_log(self.run))


def check_logs(files: RunFiles) -> Problems:
    """Chains of the parties' logs, and their agreement."""
    for job in files.jobs():
        folders = files.parts(job)
        for stem in ("releases", "audit"):
            names = [[p.name for p in in_order(folder, stem)] for folder in folders]
            if any(n != names[0] for n in names) or (stem == "releases" and not names[0]):
                yield f"{job}: the parties do not have the same {stem} logs"
                continue
            for name in names[0]:
                logs = [bare(read_chain(folder / name)) for folder in folders]
                # A session that was stopped, and resumed in a later log, may have left some parties a line ahead.
                length = len(logs[0]) if name == names[0][-1] else min(map(len, logs))
                for folder, log in zip(folders, logs, strict=True):
                    if log[:length] != logs[0][:length] or (name == names[0][-1] and len(log) != length):
                        yield f"{name} of {folder.name} differs from that of {folders[0].name}"
    ledgers = [_lines(files, folder / LEDGER) for folder in files.parts(TRAIN)]
    for rank, ledger in zip(files.ranks, ledgers, strict=True):
        if ledger != ledgers[0]:
            yield f"{LEDGER} of party-{rank} differs from that of party-0"


def _lines(files: RunFiles, ledger: Path) -> list[Entry]:
    """What must be the same in every party's ledger."""
    return comparable(read_ledger(ledger)[0], own_records=files.own_records)


def check_results(files: RunFiles) -> Problems:
    """The results of all parties against each other."""
    for job in files.jobs():
        results = [files.folder.result(rank, job) for rank in files.ranks]
        for rank, result in zip(files.ranks, results, strict=True):
            if agreed_part(result) != agreed_part(results[0]):
                yield f"{job}: result.json of party-{rank} differs from that of party-0"
        if any(r["run"] != files.report.run for r in results):
            yield f"{job}: result.json is of another run than report.json"


def check_models(files: RunFiles) -> Problems:
    """Model shares against every file that names their digest."""
    for rank, folder in zip(files.ranks, files.parts(TRAIN), strict=True):
        computed = model_digest(folder / "model")
        trained = [e for e in files.audit(rank) if e["event"] == "trained"]
        named = {
            "report.json": files.report.models.get(f"party-{rank}"),
            "result.json": files.folder.result(rank)["model"],
            "the audit log": trained[-1]["model"] if trained else None,
        }
        for source, digest in named.items():
            if digest != computed:
                yield f"the model share of party-{rank} is not the one that {source} names"


def check_report(files: RunFiles) -> Problems:
    """report.json recomputed from the parties' files, and its figures in the audit log."""
    report = files.report
    pooled = {name: value for name in POOLED if (value := encode(getattr(report, name)))}
    again = build(files.folder, pooled, encode(report.data), strict=files.same_code)
    if not files.same_code:  # the words of warnings change between versions; the digest of the file is compared
        again = replace(again, warnings=report.warnings)
    for field in fields(Report):
        if getattr(again, field.name) != getattr(report, field.name):
            key = field.metadata.get("key", field.name)
            yield f"report.json: {key!r} is not what the run's files give"
    if report.security != files.folder.session().security:
        yield "report.json: the level of security is not that of session.toml"
    audit = files.audit(files.folder.first)
    decided = [e for e in audit if e["event"] in ("roles", "interventional check")]
    if not decided or decided[-1]["roles"] != report.roles or decided[-1]["mask"] != report.mask:
        yield "report.json: the roles are not the last ones of the audit log"
    tried = [{k: e[k] for k in ("lam", "validation", "steps")} for e in audit if e["event"] == "lambda tried"]
    if any(encode(trial) not in tried for trial in report.trials):
        yield "report.json: a trial is not in the audit log"


def check_budget(files: RunFiles) -> Problems:
    """The privacy report against the ledger, and the ledger against the releases that were made."""
    run = files.run
    ledger = files.folder.part() / LEDGER
    entries = read_ledger(ledger)[0]
    account = read_account(ledger)
    again = json.loads(json.dumps(build_report(account, notes_of(files.report))))
    budget = json.loads((run / "privacy_budget.json").read_text(encoding="utf-8"))
    for key in again if files.same_code else FIGURES:  # words change between versions
        if budget.get(key) != again[key]:
            yield f"privacy_budget.json: {key!r} is not what the ledger gives"
    if budget["ledgers"]["head"] != entries[-1]["hash"]:
        yield "privacy_budget.json was made from another ledger"
    yield from _unpaid(account, logs_in(files.folder.attempts(), "releases"))
    trained = [e for e in files.audit(files.folder.first) if e["event"] == "trained"]
    if not trained:
        yield "the audit log has no line of a model that was trained"
    elif files.own_records:  # all have the same audit log, and each has spent what its own records have
        if account.most(epsilon_of) != files.report.privacy.epsilon_rdp:
            yield "report.json: epsilon is not what the ledger gives"
    elif trained[-1]["epsilon_rdp"] != files.report.privacy.epsilon_rdp:
        yield "report.json: epsilon is not that of the audit log"


def _unpaid(account: Account, logs: Iterable[Path]) -> Problems:
    """Releases without a charge in the ledger, or made twice for one.

    The charge of another run in the same ledger does not count. Lines of older versions name no charge; there the
    event must have been charged. Steps of one kind are charged one by one, as NAME-0, NAME-1, ...
    """
    charges, released = {charge.key: charge.event.name for charge in account.charges}, set()
    for entry in (entry for log in logs for entry in read_chain(log) if entry["event"] is not None):
        event, key = entry["event"], entry.get("charge")
        names = [charges.get(str(key), "")] if "charge" in entry else charges.values()
        if not any(name == event or name.startswith(f"{event}-") for name in names):
            yield f"release {entry['release']!r} was never charged"
        elif key is not None and (key, entry["release"]) in released:
            yield f"release {entry['release']!r} was made twice for one charge"
        released.add((key, entry["release"]))


def check_evaluation(files: RunFiles) -> Problems:
    """Noisy figures of test records are charged at every party, at the cost in the report."""
    if files.report.evaluation is None or not files.report.noisy:
        return
    ledgers = [folder / EVALUATIONS for folder in files.parts(EVALUATE)]
    lines = [_lines(files, ledger) for ledger in ledgers]
    for rank, entries in zip(files.ranks, lines, strict=True):
        if entries != lines[0]:
            yield f"{EVALUATIONS} of party-{rank} differs from that of party-0"
    account = read_account(ledgers[0])
    if account.most(epsilon_of) != files.report.evaluation.epsilon_rdp:
        yield "report.json: the epsilon of the evaluation is not what its ledger gives"
    yield from _unpaid(account, logs_in(files.folder.attempts(EVALUATE), "releases"))


def check_policy(files: RunFiles) -> Problems:
    """The card's roles, with reviews undone, are those of the run."""
    card = read_card(files.run / CARD)
    roles = dict(card.roles.of)
    before = int(card.follows.get("events", 0))  # events of the card that the run was given
    for event in reversed(card.events[before:]):
        if "change" in event:
            roles[event["feature"]] = event["change"].split(" -> ")[0]
    if card.run == files.report.run and Roles(roles, card.proxies).digest() != files.report.mask:
        yield f"{CARD}: the roles are not those of the run"
    if card.run != files.report.run:
        yield f"{CARD} is of another run"


def check_files(files: RunFiles) -> Problems:
    """Every file equals its entry in the run's own log; none is missing, none is new."""
    run = files.run
    log = read_log(run)
    yield from strange(log)
    digests = recorded(log)
    here = {path.relative_to(run).as_posix(): path for path in contents(run)}
    for name in sorted(digests.keys() - here.keys()):
        yield f"{name} is missing"
    for name in sorted(here.keys() - digests.keys()):
        yield f"{name} is in no record of the run; move it elsewhere if you put it there"
    for name in sorted(digests.keys() & here.keys()):
        if file_digest(here[name]) != digests[name]:
            yield f"{name} was changed after it was recorded"
    page = run / "report.html"
    if page.exists() and f'content="{file_digest(run / "report.json")}"' not in page.read_text(encoding="utf-8"):
        yield "report.html was made from another report.json; make it again"


def check_heads(files: RunFiles) -> Problems:
    """One party's host: what all parties signed at the end of each job."""
    yield from check_signed(files.run, files.folder.session(), files.authority)


def check_derived(files: RunFiles) -> Problems:
    """One party's host: derived files, recomputed from what all parties signed, are the same."""
    run, config = files.run, files.folder.session()
    if (run / "session.toml").read_text(encoding="utf-8") != config.to_toml():
        yield "session.toml was changed"
    if signed_code(run, config) != code_digest().hex():
        return  # `unchecked` says so
    log = read_log(run)
    changed = any(entry["event"] in ("appeal", "approve", "review") for entry in log)
    with TemporaryDirectory(prefix="sccvfl-") as work:
        again = Path(work)
        for path in run.iterdir():
            if path.is_dir() or path.name in ("session.toml", APPROVALS):
                (again / path.name).symlink_to(path.resolve())
        report = make_host_results(again)
        if changed:  # a card that people have changed since is in the log, and in later statements
            write_card(again, read_card(run / CARD))
        write_page(again, today=made_on((run / PAGE).read_text(encoding="utf-8")))
        produced = {path.name for path in again.iterdir() if path.is_file() and not path.is_symlink()}
        present = {path.name for path in run.iterdir() if DERIVED.fullmatch(path.name)} - {"session.toml"}
        for name in sorted(produced | present):
            here, there = (path.read_bytes() if path.is_file() else None for path in (run / name, again / name))
            if here != there:
                yield f"{name} is not what the signed files give"
    facts = json.loads(json.dumps(sealed_facts(report)))
    ended = [entry for entry in log if entry["event"] == FINISHED]
    if not ended or any(ended[-1].get(key) != value for key, value in facts.items()):
        yield f"{LOG}: the line {FINISHED!r} is not what the run's files give"


Check = Callable[[RunFiles], Problems]
CHECKS: dict[str, Check] = {
    "logs": check_logs,
    "results": check_results,
    "models": check_models,
    "report": check_report,
    "budget": check_budget,
    "evaluation": check_evaluation,
    "policy": check_policy,
    "files": check_files,
}
HOST_CHECKS: dict[str, Check] = {**CHECKS, "signatures": check_heads, "recomputed": check_derived}


def verify(run: Path, seal: str | None = None, authority: bytes | None = None) -> dict[str, list[str]]:
    """Problems by check; none means that the run is consistent. An unreadable file is a problem too.

    seal: as noted when the run ended, or after a later event. authority: on a party's host, the consortium's
    authority (PEM), whose certificates alone count.
    """
    results: dict[str, list[str]] = {}
    try:
        files = RunFiles(run, authority)
    except ConfigError as error:
        if (run / TRAIN).is_dir() and (run / "report.json").exists():
            return {"signatures": [str(error)]}
        if not (run / LOG).exists():
            raise
        return {"report": ["report.json is missing, or cannot be read as the report of a run"]}
    for name, check in (CHECKS if files.folder.host is None else HOST_CHECKS).items():
        problems = results.setdefault(name, [])
        try:
            problems.extend(check(files))
        except (LogError, LedgerError, ModelError, PolicyError, ConfigError) as error:
            problems.append(str(error))
        except FileNotFoundError as error:
            lost = Path(error.filename)
            problems.append(f"{lost.relative_to(run) if lost.is_relative_to(run) else lost.name} is missing")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            problems.append(f"a file cannot be read as what it should be ({type(error).__name__})")
    if seal is not None:
        results["seal"] = list(_check_seal(run, seal))
    return results


def _check_seal(run: Path, seal: str) -> Problems:
    """A seal is the hash of a line of the run's log; later events may have followed it, another end may not."""
    try:
        later = since(read_log(run), seal)
    except LogError:
        later = None
    if later is None:
        yield "the run's log has another seal"
    elif any(entry["event"] == FINISHED for entry in later):
        yield "the run was finished again after this seal"


def unchecked(run: Path, seal: str | None = None, authority: bytes | None = None) -> list[str]:
    """What a check that found no problem could not look at, or what has happened since the seal."""
    folder, notes = RunFolder.of(run), []
    if seal is not None and (later := since(read_log(run), seal)):
        events = [f"{entry['event']} ({entry['time']})" for entry in later]
        notes.append(f"since this seal: {', '.join(events)}")
    if folder.host is None:
        return notes
    config = folder.session()
    if signed_code(run, config) != code_digest().hex():
        notes.append("made by another version of the code: the page and the other reports were not recomputed")
    if config.transport != "tls":  # with an authority it is a problem, not a note
        notes.append(f"the transport {config.transport} has no certificates: nothing is signed")
    elif not config.certificates and authority is None:
        notes.append("session.toml pins no certificate: --certs FOLDER checks whose they are")
    return notes
