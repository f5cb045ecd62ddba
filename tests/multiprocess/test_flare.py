"""A consortium under NVIDIA FLARE: four provisioned sites, FLARE's server, and jobs from `nvflare job submit`.

Slow, and needs the extra `flare`. With the security `clear` FLARE's connections are not encrypted, so the capture
shows what its server is sent; `mtls` is what a consortium uses. The capture needs tcpdump and the right to use it.
In November 2026 each took 6 to 8 minutes on two busy cores, and one more than 15 at a load of 30.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.config import SessionConfig
from tests.multiprocess.members import PLACES, Hosts
from tests.support.sessions import LONG

pytest.importorskip("nvflare", reason="needs the extra flare: pip install secure-sccvfl[flare]")
pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(3600)]
SITES = ("hospital", "clinic", "payer", "notary")
PROJECT = """
api_version: 3
name: consortium
description: three parties and a dealer
participants:
  - {name: localhost, type: server, org: consortium, fed_learn_port: %d, admin_port: %d, connection_security: %s}
  - {name: hospital, type: client, org: hospital, connection_security: %s}
  - {name: clinic, type: client, org: clinic, connection_security: %s}
  - {name: payer, type: client, org: payer, connection_security: %s}
  - {name: notary, type: client, org: notary, connection_security: %s}
  - {name: lead@hospital.example, type: admin, org: hospital, role: lead, connection_security: %s}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config, scheme: grpc}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""
EXECUTOR = "secure_sccvfl.runs.member.flare.SessionExecutor"
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def processes_in(folder: Path) -> Iterator[tuple[int, str]]:
    """Processes that work in a folder or name it, with their command lines."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if int(entry.name) != os.getpid() and (str(folder) in words or (entry / "cwd").resolve() == folder):
                yield int(entry.name), words


def members_of(hosts: Hosts) -> list[int]:
    """The processes of the session that run."""
    found = [process for place in PLACES for process in processes_in(hosts.home(place))]
    return [number for number, words in found if re.search("secure_sccvfl (party|dealer)", words)]


class Federation:
    """FLARE's server and sites as processes, each with its own kit; `home` of a site is a member's folder."""

    def __init__(self, folder: Path, hosts: Hosts, security: str) -> None:
        self.folder, self.hosts = folder, hosts
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0)), other.bind(("127.0.0.1", 0))
            self.ports = one.getsockname()[1], other.getsockname()[1]
        folder.mkdir()
        (folder / "project.yml").write_text(PROJECT % (*self.ports, *[security] * 6))
        self.nvflare("provision", "-p", "project.yml")
        self.kits = folder / "workspace" / "consortium" / "prod_00"
        self.lead = ("--startup-kit", str(self.kits / "lead@hospital.example"))
        storage = self.kits / "localhost" / "local" / "resources.json.default"
        storage.write_text(storage.read_text().replace("/tmp/nvflare", str(folder / "storage")))
        assert main(["flare", "site", str(self.kits / "localhost")]) == 0
        for site, member in zip(SITES, PLACES, strict=True):
            assert (
                main(["flare", "site", str(self.kits / site), "--home", str(hosts.home(member)), "--member", member])
                == 0
            )
        if security == "mtls":  # FLARE's server does not look: each site refuses another class by itself
            resources = self.kits / "localhost" / "local" / "resources.json"
            resources.write_text(json.dumps({**json.loads(resources.read_text()), "app_validator": None}))
        self.running = [self._start(kit) for kit in ("localhost", *SITES)]

    def _start(self, kit: str) -> subprocess.Popen[bytes]:
        script = self.kits / kit / "startup" / "sub_start.sh"
        with open(self.folder / f"{kit}.log", "wb") as log:
            return subprocess.Popen(["bash", str(script), "--once"], env=ENVIRONMENT, stdout=log, stderr=log)

    def nvflare(self, *words: str) -> str:
        command = [sys.executable, "-m", "nvflare.cli", *words]
        ran = subprocess.run(command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=LONG)
        return ran.stdout + ran.stderr

    def submit(self, job: Path) -> str:
        """The id of the job; FLARE's server may still be starting."""
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            said = self.nvflare("job", "submit", "-j", str(job), *self.lead)
            if found := re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", said):
                return found[0]
            time.sleep(1)
        raise AssertionError(said)

    def meta(self, job: str) -> str:
        """What FLARE tells the submitter about a job."""
        return self.nvflare("job", "meta", job, *self.lead)

    def ended(self, job: str) -> tuple[str, dict[str, Any]]:
        """FLARE's status of a job when it has ended, and the outcomes that its server wrote down."""
        end = time.monotonic() + LONG
        while not (found := re.search(r"FINISHED[:_]\w+", said := self.meta(job))):
            assert time.monotonic() < end, said
            time.sleep(1)
        self.nvflare("job", "download", job, "-o", str(self.folder / "downloads"), *self.lead)
        written = [*(self.folder / "downloads").rglob("outcomes.json")]
        files = [file for file in written if job in str(file)]
        return found[0], json.loads(files[0].read_text()) if files else {}

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process, _ in processes_in(self.kits):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            time.sleep(2)
        for started in self.running:
            started.wait()


def approve(hosts: Hosts, file: str, approvals: str) -> None:
    """All parties sign the plan and hand their approvals to each other."""
    for rank in range(3):
        with contextlib.chdir(hosts.home(f"party-{rank}")):
            assert main(["approve", file, "--certs", "certs", "--rank", str(rank), "--yes"]) == 0
    for rank in range(3):
        for other in {0, 1, 2} - {rank}:
            signed = hosts.home(f"party-{other}") / approvals / f"party-{other}.json"
            shutil.copy(signed, hosts.home(f"party-{rank}") / approvals)


def write_session(hosts: Hosts, config: SessionConfig, file: str) -> None:
    for place in PLACES:
        (hosts.home(place) / file).write_text(config.to_toml())


def wait_for(done: Callable[[], Any]) -> Any:
    end = time.monotonic() + LONG
    while not (found := done()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def captured(ports: tuple[int, int], file: Path) -> Iterator[None]:
    """What passes FLARE's ports on the loopback, if tcpdump is here."""
    if shutil.which("tcpdump") is None:
        yield
        return
    ask = ["tcpdump", "-i", "lo", "-U", "-w", str(file), f"tcp port {ports[0]} or tcp port {ports[1]}"]
    with subprocess.Popen(ask, stderr=subprocess.DEVNULL) as capture:
        try:
            yield
        finally:
            time.sleep(2)
            capture.terminate()


def private_bytes(hosts: Hosts) -> dict[str, list[bytes]]:
    """What must not be on FLARE's ports: figures, shares, ids and paths, as text and as numbers in memory."""
    found: dict[str, list[bytes]] = {"figures": [], "shares": [], "ids": [], "paths": [str(hosts.folder).encode()]}

    def walk(value: Any) -> Iterator[float]:
        if isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                yield from walk(part)
        elif isinstance(value, float) and len(repr(value)) > 8:
            yield value

    for rank in range(3):
        out = hosts.home(f"party-{rank}") / "out-session"
        figures = [*walk(json.loads((out / "report.json").read_text()))]
        found["figures"] += [repr(f).encode() for f in figures] + [np.float64(f).tobytes() for f in figures]
        for file in out.rglob("*.npz"):
            with np.load(file) as arrays:
                for name in arrays.files:
                    if arrays[name].dtype == np.int64 and arrays[name].size:
                        found["shares"] += [
                            value.tobytes() for value in arrays[name].ravel()[:500] if abs(value) > 2**40
                        ]
        party = SITES[rank]
        ids = [
            line.partition(",")[0] for line in (hosts.home(f"party-{rank}") / f"{party}.csv").read_text().split()[1:]
        ]
        found["ids"] += [name.encode() for name in ids if len(name) > 5]
    return found


@pytest.mark.parametrize("security", ["mtls", "clear"])
def test_a_consortium(tmp_path: Path, security: str, capsys: pytest.CaptureFixture[str]) -> None:
    if security == "clear" and shutil.which("tcpdump") is None:
        pytest.skip("needs tcpdump, to see what FLARE is sent")
    hosts = Hosts(tmp_path / "hosts", ("selftest", "train", "evaluate"))
    config = replace(hosts.config, approval="required")
    write_session(hosts, config, "session.toml")
    approve(hosts, "session.toml", "approvals")
    federation = Federation(tmp_path / "flare", hosts, security)
    session, capture = hosts.home("party-0") / "session.toml", tmp_path / "flare.pcap"

    def job(name: str, *words: str, file: Path = session) -> Path:
        assert main(["flare", "job", str(file), "--sites", *SITES, "--out", str(tmp_path / name), *words]) == 0
        return tmp_path / name

    def end(job: Path) -> tuple[str, str, dict[str, Any]]:
        status, written = federation.ended(federation.submit(job))
        seen.append((job.name, status, written.get("problem")))
        return status, written.get("problem", ""), written.get("sites", {})

    seen: list[Any] = []
    try:
        with captured(federation.ports, capture):
            # a class that the sites do not allow, and code in a job
            other = job("other-class")
            client = other / "app" / "config" / "config_fed_client.json"
            client.write_text(client.read_text().replace(EXECUTOR, "subprocess.Popen"))
            code = job("code")
            (code / "app" / "custom").mkdir()
            (code / "app" / "custom" / "mine.py").write_text("print(1)\n")
            for refused, why in (
                (other, "class 'subprocess.Popen' is not allowed here"),
                (code, "BYOC not permitted"),
            ):
                number = federation.submit(refused)
                seen.append((refused.name, federation.ended(number)[0], why))
                assert seen[-1][1] == "FINISHED:FAILED_TO_RUN"
                said = federation.meta(number)
                sites = SITES if refused is other and security == "mtls" else ("server",)
                assert all(re.search(rf"{site} .*{re.escape(why)}", said) for site in sites), said
            # another session file
            changed = tmp_path / "changed.toml"
            changed.write_text(session.read_text().replace("3.0", "4.0"))
            status, problem, _ = end(job("changed", file=changed))
            assert "COMPLETED" not in status and "no session file with the digest of the job" in problem
            # an approval is missing at one site
            missing = hosts.home("party-1") / "approvals" / "party-2.json"
            missing.rename(tmp_path / "kept.json")
            status, problem, _ = end(job("unapproved"))
            assert problem == "clinic: the plan is not approved by all parties as it is, exit code 2"
            (tmp_path / "kept.json").rename(missing)
            # a party is killed; then the run is resumed
            started = federation.submit(job("killed"))
            home = hosts.home("party-1")
            wait_for(lambda: [*home.glob("out-session/train/checkpoints/*.npz")])
            [party] = [n for n, words in processes_in(home) if "secure_sccvfl party" in words]
            os.kill(party, signal.SIGKILL)
            status, written = federation.ended(started)
            seen.append(("killed", status, written["problem"]))
            assert written["problem"] == "clinic: its process was ended by a signal, exit code -9"
            status, problem, sites = end(job("resumed", "--action", "resume"))
            assert "COMPLETED" in status and not problem
            digests = {sites[site]["digest"] for site in SITES[:3]}
            assert len(digests) == 1 and len(digests.pop()) == 64 and sites["notary"]["digest"] == ""
            # new records
            status, problem, sites = end(job("predicted", "--action", "predict"))
            assert "COMPLETED" in status and not problem
            # the budget is spent: another session on the same records
            write_session(hosts, replace(config, name="second"), "second.toml")
            approve(hosts, "second.toml", "approvals-second")
            spent = job("spent", file=hosts.home("party-0") / "second.toml")
            aborted = federation.submit(spent)
            wait_for(lambda: len(members_of(hosts)) == 4)
            federation.nvflare("job", "abort", aborted, "--force", *federation.lead)
            wait_for(lambda: not members_of(hosts))
            seen.append(("aborted", federation.ended(aborted)[0], None))
            status, problem, _ = end(spent)
            assert "its privacy ledger does not allow it" in problem and "COMPLETED" not in status
    finally:
        federation.stop()
        with capsys.disabled():
            print(json.dumps(seen, indent=1))
    reports = []
    for rank in range(3):
        with contextlib.chdir(hosts.home(f"party-{rank}")):
            assert main(["audit", "verify", "out-session", "--certs", "certs", "--config", "session.toml"]) == 0
            reports.append(json.loads(Path("out-session", "report.json").read_text())["metrics"])
    assert reports[0] == reports[1] == reports[2]
    assert (hosts.home("party-0") / "out-session" / "predict" / "predictions.csv").exists()
    if capture.exists():
        content, counts = capture.read_bytes(), {}
        said = (sites["hospital"]["digest"].encode(), b"its privacy ledger does not allow it")
        assert all((text in content) == (security == "clear") for text in said), "it sees what is sent in the clear"
        for kind, secrets in private_bytes(hosts).items():
            assert secrets, kind
            counts[kind] = len(secrets)
            assert [secret for secret in set(secrets) if secret in content] == [], kind
        with capsys.disabled():
            print(security, len(content), "bytes captured; searched for", counts)
