"""Log digests that the parties sign at the end of each job, and how a party's folder is checked against them later.

The protocol is `protocols.session.log_digests`. This module says of what a party signs digests (its heads):

| head | of what | compared with the others' |
|---|---|---|
| releases | the log of what this session opened or released | yes |
| audit | every decision of this session with its figures, without the digest of the own model share | yes |
| ledgers | each privacy ledger as copied into the job's folder; with `align = hidden` without the records | yes |
| result | what the job returned, without what differs by design; numbers to nine digits | yes |
| log | a salted digest of the run's own log so far, which later events (appeals, pages) extend | no |
| files | a salted digest of the digests of all files of the folder | no: it binds its owner and reveals nothing |

OUT/JOB/heads.json keeps the joint statement, the signature and the certificate of every party, and the salt and list
of files behind the last line. The last statement lists the files of all earlier jobs too, and their statements.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.ledger import LedgerError, comparable, ledger_digest, read_ledger
from secure_sccvfl.protocols.config import ConfigError, SessionConfig, code_digest, node_folder
from secure_sccvfl.protocols.dealing.randomness import fresh_key
from secure_sccvfl.protocols.errors import LogError
from secure_sccvfl.protocols.net.certificates import Credentials
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.session.log_digests import broken_signatures, exchange_digests
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER
from secure_sccvfl.reports.folders import (
    COMPARED,
    EVALUATE,
    HEADS,
    PREDICT,
    TRAIN,
    attempts,
    in_order,
    own_heads,
    read_digests,
)
from secure_sccvfl.reports.run_log import HEAD, LOG, STOPPED, contents, file_digest, read_log

LOCAL_RESULTS = ("model", "cost", "crypten_operations", "refused", "on_record")
"""Entries in which the results of the parties differ by design."""
SPENT = ("privacy", "evaluation")
"""Entries about the budget: with hidden alignment each party charges its own records, and has its own figures."""
OF_ALL = ("kind", "min_group", "deviation", "controls", "standard_errors")
"""Entries of the latter that are nevertheless the same at all parties."""
IN_FOLDER = {PREDICT: (PREDICT, "serve")}
"""The jobs of folders that are not named for one alone."""
AGREED_RESULTS = (TRAIN, EVALUATE, PREDICT)
"""Jobs whose results are the same at all parties otherwise."""
CHAINED = ("index", "previous", "hash")
PRIVATE = ("model",)
"""Entries of an audit log that differ between parties by design."""
DERIVED = re.compile(r"report\.(json|html)|(privacy|evaluation)_budget\.\w+|policy_card\.\w+|session\.toml")
"""Files derived from the others; they are recomputed to be checked."""


def bare(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of a log as all parties have them."""
    return [{k: v for k, v in e.items() if k not in (*CHAINED, *PRIVATE)} for e in entries]


def agreed_part(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result that is the same at all parties."""
    agreed = {k: v for k, v in result.items() if k not in LOCAL_RESULTS}
    if result.get("align") == "hidden":
        agreed |= {k: {n: v for n, v in agreed[k].items() if n in OF_ALL} for k in SPENT if k in agreed}
    return agreed


def sign_job(
    session: Session, config: SessionConfig, run: Path, folder: Path, credentials: Credentials | None
) -> None:
    """Run by all parties together when a job has ended: exchange digests, sign them, and store what all signed.

    run: this party's folder. place: the job's folder in it.
    """
    salt, files = fresh_key().hex(), files_of(run)
    digests = {**job_digests(folder, config.job), "log": _log_head(run, salt), "files": committed(salt, files)}
    digests["date"] = datetime.date.today().isoformat()
    signed = exchange_digests(session, config, about(config), digests, credentials)
    record = {"rank": session.rank, **signed, "salt": salt, "files": files}
    fresh = folder / f"{HEADS}.part"
    with open(fresh, "w", encoding="utf-8", opener=private) as file:  # a digest of few decisions tells them
        file.write(_text(record))
    fresh.replace(folder / HEADS)


def about(config: SessionConfig) -> dict[str, str]:
    """What all parties state about a session, resumed or not."""
    return {"job": config.job, "session": settings_digest(config), "code": code_digest().hex()}


def settings_digest(config: SessionConfig) -> str:
    """The digest of a session file without its job and whether it is resumed.

    The number of predictions may change by a later approval, and is in the plan that all approve.
    """
    options = {k: v for k, v in config.options.items() if k not in ("resume", "predictions")}
    facts = json.loads(json.dumps({**vars(config), "job": "", "options": options}))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def job_digests(folder: Path, job: str) -> dict[str, Any]:
    """The heads of a job's records in its folder."""
    releases, audit = in_order(folder, "releases"), in_order(folder, "audit")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    ledgers = [name for name in (LEDGER, EVALUATIONS) if (folder / name).exists()]
    return {
        "releases": _digest([e["hash"] for e in read_chain(releases[-1])[-1:]]) if releases else "",
        "audit": _digest(bare(read_chain(audit[-1]))) if audit else "",
        "ledgers": {name: _ledger_digest(folder / name, result) for name in ledgers},
        "result": _digest(_rounded(agreed_part(result))) if job in AGREED_RESULTS else "",
    }


def _ledger_digest(path: Path, result: Mapping[str, Any]) -> str:
    """The digest of a ledger; without the records where each party charges its own. `files` binds all of it."""
    entries, _ = read_ledger(path)
    if result.get("align") != "hidden":
        return ledger_digest(entries)
    return _digest(comparable(entries, own_records=True))


def files_of(run: Path) -> dict[str, str]:
    """The digest of every file of a party's folder, except derived files and the run's own log."""
    paths = {path.relative_to(run).as_posix(): path for path in contents(run)}
    return {name: file_digest(path) for name, path in sorted(paths.items()) if is_listed(name)}


def is_listed(name: str) -> bool:
    """Whether a statement lists the file of this name."""
    return not DERIVED.fullmatch(name) and name not in (LOG, HEAD) and not name.endswith((".part", ".lock"))


def committed(salt: str, files: Mapping[str, str]) -> str:
    """The salted digest of a list of files, for the others: binding, and without the salt it reveals nothing."""
    return hashlib.sha256(salt.encode() + b"\0" + json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def statement_digest(folder: Path) -> bytes:
    """The digest of the statement of a job; zeros if the job has not ended."""
    if not (folder / HEADS).exists():
        return bytes(32)
    return hashlib.sha256(json.dumps(read_digests(folder)["statement"], sort_keys=True).encode()).digest()


def signed_code(run: Path, config: SessionConfig) -> str:
    """The version of the code that the last of a run's jobs was signed with."""
    return str(read_digests(run / config.jobs[-1])["statement"]["code"])


def signed_jobs(run: Path, config: SessionConfig) -> list[Path]:
    """The folders of all jobs that were signed, in the order of their sessions."""
    return [run / job for job in config.jobs] + [p for p in attempts(run, PREDICT) if p not in stopped(run)]


def stopped(run: Path) -> list[Path]:
    """Predictions that did not end: without a result, or recorded as stopped in the run's log."""
    recorded = {n.partition("/")[0] for e in read_log(run) if e["event"] == STOPPED for n in e["files"]}
    unsigned = [folder for folder in attempts(run, PREDICT) if not (folder / HEADS).exists()]
    return [folder for folder in unsigned if folder.name in recorded or not (folder / "result.json").exists()]


def check_signed(run: Path, config: SessionConfig, authority: bytes | None = None) -> Iterator[str]:
    """Differences to the statements that all parties signed. authority: whose certificates count."""
    listed: dict[str, str] = {}
    folders = signed_jobs(run, config)
    for folder in folders:
        try:
            signed = read_digests(folder)
            for line in _check_statement(folder, signed, config, authority):
                yield f"{folder.name}/{HEADS}: {line}"
            yield from _check_lists(folder, signed["files"], listed)
            listed |= signed["files"]
        except FileNotFoundError:
            yield f"{folder.name}/{HEADS} is missing"
        except (ConfigError, ValueError, KeyError, TypeError, AttributeError):
            yield f"{folder.name}/{HEADS} was changed: it cannot be read"
    yield from _check_files(run, folders[-1], listed)
    log = [str(entry["hash"]) for entry in read_log(run)]
    for folder in folders:
        yield from _check_own(folder, config, log)  # statements of older versions have the hash itself


def _check_lists(folder: Path, files: Mapping[str, str], earlier: Mapping[str, str]) -> Iterator[str]:
    """The files that a statement lists against those of earlier statements."""
    for name, digest in sorted(earlier.items()):
        if name not in files:
            yield f"{name} was gone before the end of {folder.name}"
        elif files[name] != digest:
            yield f"{name} was changed before the end of {folder.name}"


def _check_own(folder: Path, config: SessionConfig, log: list[str]) -> Iterator[str]:
    """The heads of a job's records, recomputed, against those in its statement."""
    try:
        computed, record = own_heads(folder, config), read_digests(folder)
        now = job_digests(folder, record["statement"]["job"])
        expected = {"", *log, *(committed(record["salt"], {LOG: line}) for line in log)}
    except (LogError, LedgerError, OSError, ValueError, KeyError, TypeError, AttributeError):
        yield f"{folder.name}: a log, a ledger or the result cannot be read"
        return
    yield from (
        f"{folder.name}: {_NAMED[k]} is not what all parties signed" for k in now if now[k] != computed.get(k)
    )
    if computed["log"] not in expected:
        yield f"{LOG} is not the log that all parties signed at the end of {folder.name}"


def _check_files(run: Path, last: Path, listed: Mapping[str, str]) -> Iterator[str]:
    """The folder against what all statements list. `last`: the job whose own statement is in no list."""
    here = files_of(run)
    set_apart = {folder.name for folder in stopped(run)}
    for name in sorted(listed.keys() | here.keys()):
        if name.partition("/")[0] in set_apart and name not in listed:
            continue  # a session that was stopped; the run's own log has it
        if name not in listed and name != f"{last.name}/{HEADS}":
            yield f"{name} is in no statement that all parties signed"
        elif name in listed and name not in here:
            yield f"{name} is missing, which all parties signed"
        elif name in listed and listed[name] != here[name]:
            yield f"{name} is not what all parties signed"


_KEPT = {"rank", "statement", "signatures", "salt", "files"}
_NAMED = {"releases": "releases.jsonl", "audit": "audit.jsonl", "ledgers": "a ledger", "result": "result.json"}


def _check_statement(
    folder: Path, signed: Mapping[str, Any], config: SessionConfig, authority: bytes | None
) -> Iterator[str]:
    """The statement itself: of this session, signed by all, and the parties' heads agree where they must."""
    statement = signed["statement"]
    if (folder / HEADS).read_text(encoding="utf-8") != _text(signed) or set(signed) != _KEPT:
        yield "was changed"
    name = re.sub(r"-\d+$", "", folder.name)
    if statement["job"] not in IN_FOLDER.get(name, (name,)):
        yield "the statement is of another job"
    if statement["session"] != settings_digest(config):
        yield "the statement is of another session file than session.toml"
    if config.transport == "tls" or authority is not None:  # who writes the folder also writes what its session says
        yield from broken_signatures(signed, config.dealer, config.certificates, authority)
    node = node_folder(signed["rank"], config.dealer)
    if committed(signed["salt"], signed["files"]) != statement["heads"][node]["files"]:
        yield "the list of files is not the one that all parties signed"
    for party, heads in statement["heads"].items():
        for name in COMPARED:
            if heads[name] != statement["heads"][node][name]:
                yield f"{_NAMED[name]} of {party} differs from that of {node}"


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"


def _log_head(run: Path, salt: str) -> str:
    """Without the salt, who knows an earlier seal could try words of an appeal against the hash of its line."""
    return committed(salt, {LOG: str(read_log(run)[-1]["hash"])}) if (run / LOG).exists() else ""


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _rounded(value: Any) -> Any:
    """Numbers to nine digits: processors differ in the last ones."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, Mapping):
        return {str(k): _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, (list, tuple)) else value
