"""Runs one member's process for an orchestrator such as NVIDIA FLARE or Flower, and reports how it ended.

The orchestrator starts, watches and ends the process. Shares travel over the session's own connections only. A job
carries the digest of a session file and a word of `ACTIONS`; it names no file, option or command of a site. The site
sends back an `Outcome`: an exit code, a cause from a fixed vocabulary, the members that the cause blames, and a
digest that is equal at all parties if their records are. The digest covers a random name that only the parties know,
so nobody else can test guessed figures against it. Figures, ids, paths and error messages stay at the site.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.protocols.config import DEALER, ConfigError
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.reports.folders import COMPARED, HEADS, PREDICT
from secure_sccvfl.runs.console import CAUSE_FILE, CHECK_FAILED, OK, STOPPED, WRONG_USE

ACTIONS = ("run", "resume", PREDICT)
JOBS_FOLDER = "jobs"
GRACE = 30.0
"""Seconds between the request to end and the kill of an aborted process."""
_POLL = 0.25


class Refused(ConfigError):
    """This site does not take part in a job. The message is public."""


@dataclass(frozen=True)
class Site:
    """A site's own settings, which no job can change.

    home: the folder with its session files, certificates, approvals and table. member: `party-0`, ... or `dealer`.
    records: the file of new records for predictions, in `home`.
    """

    home: str
    member: str
    records: str = "new.csv"

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"party-\d+|{DEALER}", self.member):
            raise ConfigError(f"a member is party-0, party-1, ... or {DEALER}, not {self.member!r}")


@dataclass(frozen=True)
class Outcome:
    """All that leaves a site. Causes are fixed phrases; peers are members, separated by commas."""

    exit: int
    cause: str = ""
    peers: str = ""
    digest: str = ""

    @classmethod
    def received(cls, content: Mapping[str, Any]) -> Outcome:
        """An outcome as a site sent it, in its form whatever was sent."""
        code, cause, peers, digest = (content.get(field.name, "") for field in fields(cls))
        if not isinstance(code, int):
            return cls(STOPPED, "it sent no outcome")
        known = re.findall(rf"party-\d{{1,3}}|{DEALER}", str(peers)[:200])
        cause = re.sub(r"[^A-Za-z ,.`'-]", "", str(cause))[:100]
        digest = re.fullmatch("[0-9a-f]{64}|", str(digest))
        return cls(code, cause, ", ".join(known), digest[0] if digest else "")


def run_member(site: Site, job: str, action: str, session: str, aborted: Callable[[], bool]) -> Outcome:
    """Run this site's process to its end; blocks, and asks `aborted` four times a second.

    job: the orchestrator's id. Each id runs once, whatever the orchestrator repeats. session: the SHA-256 of the
    session file, which must be in the site's folder. An approved plan is required, also where the file does not ask.
    """
    home = Path(site.home)
    try:
        file, out = _session_file(home, action, session)
        if not re.fullmatch(r"[\w-]{1,64}", job) or (folder := home / JOBS_FOLDER / job).exists():
            raise Refused("this job has run here before, and no job is repeated")
    except ConfigError as error:
        return Outcome(WRONG_USE, str(error) if isinstance(error, Refused) else error.kind)
    folder.mkdir(parents=True)
    command = _command(site, action, file.name, out.name)
    environment = {**os.environ, CAUSE_FILE: str((folder / "cause.json").resolve())}
    with open(folder / "log.txt", "w", opener=private) as log:
        process = subprocess.Popen(
            command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                if aborted():
                    return Outcome(STOPPED, "aborted by the orchestrator")
                time.sleep(_POLL)
        finally:
            _end(process)
    if process.returncode != OK:
        return Outcome(process.returncode, *_cause(process.returncode, folder / "cause.json"))
    jobs = (PREDICT,) if action == PREDICT else load_session(file).jobs
    return Outcome(OK, digest=_agreed_digest(out, site.member, jobs))


def _session_file(home: Path, action: str, session: str) -> tuple[Path, Path]:
    """The session file with this digest, and the folder of its run."""
    if action not in ACTIONS:
        raise Refused("the job asks for an unknown action")
    files = [f for f in sorted(home.glob("*.toml")) if hashlib.sha256(f.read_bytes()).hexdigest() == session]
    if not files:
        raise Refused("this site has no session file with the digest of the job")
    name = load_session(files[0]).name
    if not re.fullmatch(r"[\w-]+", name):
        raise Refused("the name of the session is no word, and it names the folder of the run")
    return files[0], home / f"out-{name}"


def _command(site: Site, action: str, file: str, out: str) -> list[str]:
    """The process of this site, isolated from the orchestrator's import paths (-E, -P)."""
    words = [sys.executable, "-E", "-P", "-m", "secure_sccvfl", "dealer" if site.member == DEALER else "party"]
    words += [PREDICT] if action == PREDICT else ["--resume"] if action == "resume" else []
    words += ["--config", file, "--certs", "certs"]
    if site.member != DEALER:
        words += ["--rank", site.member.removeprefix("party-"), "--out", out, "--require-approval"]
        words += ["--records", site.records] if action == PREDICT else []
    return words


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process that still runs; kill it if it does not end in time."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(code: int, file: Path) -> tuple[str, str]:
    """The cause that a failed process wrote down, and the members that it blames."""
    try:
        cause, peers = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        killed = "its process was ended by a signal"
        return killed if code < 0 else "a check failed" if code == CHECK_FAILED else "its process failed", ""
    return cause, peers


def _agreed_digest(out: Path, member: str, jobs: Sequence[str]) -> str:
    """The digest of what must be equal at all parties: logs, ledgers and results of these jobs; "" at the dealer."""
    agreed = []
    for job in jobs:
        for file in sorted(out.glob(f"{job}*/{HEADS}"), key=lambda file: file.stat().st_mtime_ns)[-1:]:
            statement = json.loads(file.read_text(encoding="utf-8"))["statement"]
            agreed.append([statement["name"], *(statement["heads"][member][name] for name in COMPARED)])
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest() if agreed else ""


def verdict(sites: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> str:
    """What went wrong, by responsible site; empty if all ended well and the digests of the parties are equal.

    sites: the member of each site. A site that blames no peer is responsible for its own failure. If all that failed
    blame peers, all are listed with the sites that they name.
    """
    at = {member: site for site, member in sites.items()}
    failed = {site: outcome for site, outcome in outcomes.items() if outcome.exit != OK}
    lines = []
    for site, outcome in ({s: o for s, o in failed.items() if not o.peers} or failed).items():
        named = ", ".join(at.get(member, member) for member in outcome.peers.split(", "))
        lines.append(f"{site}: {outcome.cause}{named and f' ({named})'}, exit code {outcome.exit}")
    lines = lines or [f"{site}: no answer" for site in sites if site not in outcomes]
    if not lines and len({outcomes[site].digest for site, member in sites.items() if member != DEALER}) > 1:
        lines = ["the parties' digests differ: run `sccvfl audit verify` at each"]
    return "; ".join(lines)
