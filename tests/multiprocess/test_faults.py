"""Every fault ends every process, by itself, with a line that names the peer and the step.

tests/contract/test_wire.py has wrong frames and handshakes, between threads.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.net.certificates import Credentials, make_certificates
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.runs.local.processes import LocalSession
from tests.multiprocess.byhand import ByHand
from tests.multiprocess.programs import ROOT
from tests.support.sessions import CERTIFICATES, DEADLINE, LONG, in_threads

PATIENCE = 20.0
"""How long the processes wait for one that is missing or silent, in tests that must see them give up."""


# A process dies or hangs while the launcher watches.


class Watched:
    """A session of the launcher that is disturbed in the middle."""

    def __init__(self, folder: Path, deadline: float) -> None:
        middle = threading.Event()
        config = SessionConfig(
            parties=("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
            deadline=deadline,
            options={"size": 50, "repeat": 200},
        )
        on_event = lambda event: middle.set() if event.get("number", 0) >= 5 else None  # noqa: E731
        self.session = LocalSession(config, folder / "run", on_event=on_event)
        self.middle = middle

    def disturb(self, victim: str, number: signal.Signals) -> dict[str, int]:
        with self.session as session:
            assert self.middle.wait(LONG), "the session did not get going"
            pid = {child.name: child.process.pid for child in session.children}[victim]
            os.kill(pid, number)
            self.ending = session.wait()
        assert all(child.process.poll() is not None for child in self.session.children)
        return self.ending.exit_codes


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Watched]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield Watched(tmp_path, getattr(request, "param", DEADLINE))
    assert list(temporary.iterdir()) == []  # no key left behind


@pytest.mark.parametrize("victim", ["party 0", "party 2", "dealer"])
def test_a_killed_process_stops_the_others(watched: Watched, victim: str) -> None:
    codes = watched.disturb(victim, signal.SIGKILL)
    assert codes[victim] == 137
    survivors = [name for name in codes if name != victim]
    assert all(codes[name] == 1 for name in survivors), codes
    assert watched.ending.code in (1, 137)
    lines = {line.split(":")[0]: line for line in watched.ending.failures}
    assert all("(step: " in lines[name] for name in survivors), lines
    assert any(f": {victim}: closed the connection" in lines[name] for name in survivors), lines
    assert not (watched.session.folder / "party-1" / "result.json").exists()
    # Nothing more was opened: no log is more than the one release under way ahead of another.
    opened = [
        len(read_chain(watched.session.folder / f"party-{rank}" / "releases.jsonl"))
        for rank in range(3)
        if f"party {rank}" != victim
    ]
    assert max(opened) - min(opened) <= 1


@pytest.mark.parametrize("watched", [PATIENCE / 2], indirect=True)
def test_a_stopped_process_is_ended_after_the_deadline(watched: Watched) -> None:
    codes = watched.disturb("party 1", signal.SIGSTOP)
    assert codes["party 1"] == 137
    assert codes["party 0"] == codes["party 2"] == codes["dealer"] == 1
    # Who notices first depends on who waits for whom: a peer may name party 1 together with one that waits for it.
    text = "\n".join(watched.ending.failures)
    assert re.search(r"party 1(, party \d)*: did not (answer within|ask for what others wait for)", text), text


def descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from descendants(int(child))


def test_ending_the_launcher_ends_everything(tmp_path: Path) -> None:
    """SIGTERM to run_mpc.py in the middle: exit code 130, no process and no key left.

    The temporary folder has a name that is too long for a socket's address.
    """
    temporary = tmp_path / "temporary" / ("long" * 25)
    temporary.mkdir(parents=True)
    launcher = subprocess.Popen(
        [sys.executable, str(ROOT / "launch" / "run_mpc.py"), "selftest", "--repeat", "200", "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        log = tmp_path / "run" / "logs" / "party-0.log"
        end = time.monotonic() + LONG
        while "(5 of" not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < end and launcher.poll() is None, "the session did not get going"
            time.sleep(0.1)
        children = list(descendants(launcher.pid))
        launcher.terminate()
        _, errors = launcher.communicate(timeout=LONG)
    finally:
        launcher.kill()
        launcher.communicate()
    assert launcher.returncode == 130 and "interrupted" in errors
    assert len(children) >= 4
    end = time.monotonic() + LONG  # what they were forked from ends when it sees that the launcher has
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(temporary.iterdir()) == []


# A peer is missing or not who it should be.


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[ByHand]:
    session = ByHand(tmp_path, connect=PATIENCE)
    yield session
    session.close()


def test_a_party_that_never_starts(by_hand: ByHand) -> None:
    by_hand.free_port(2)
    for name in ("dealer", "party 0", "party 1"):
        by_hand.start(name)
    endings = by_hand.endings()
    for name, (code, line) in endings.items():
        assert code == 1 and line.startswith(f"{name}: ") and "(step: " in line, endings
        assert "party 2" in line and f"within {by_hand.config.connect:.0f} s" in line
    by_hand.close()
    assert by_hand.ports_are_free()


def answer_to_stranger(address: str, context: ssl.SSLContext | None) -> bytes:
    """What a caller with this context receives, beyond a TLS alert; without one it speaks plain HTTP."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=LONG) as raw:
        try:
            if context is None:
                raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
                heard = raw.recv(1)
                return b"" if heard == b"\x15" else heard  # 21: the record type of an alert
            with context.wrap_socket(raw) as secure:
                return secure.recv(1)
        except OSError:
            return b""


def test_strangers_are_turned_away(by_hand: ByHand, tmp_path: Path) -> None:
    """No TLS, no certificate, a certificate of another authority, only TLS 1.2: instead of party 2."""
    make_certificates(tmp_path / "others", 3)
    by_hand.free_port(2)
    with_certificate = Credentials.of(tmp_path / "others", "party-2").context(server=False)
    with_certificate.verify_mode = ssl.CERT_NONE
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
    for name in ("dealer", "party 0", "party 1"):
        by_hand.start(name)
    old = Credentials.of(CERTIFICATES, "party-2").context(server=False)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2

    def visit(address: str) -> list[bytes]:
        """Each party is visited from the moment that it answers, whenever the other one does."""
        return [answer_to_stranger(address, context) for context in (None, without, with_certificate, old)]

    visits = [functools.partial(visit, address) for address in by_hand.config.parties[:2]]
    assert in_threads(visits) == [[b""] * 4] * 2
    codes = {name: process.wait(LONG) for name, process in by_hand.processes.items()}
    texts = {name: process.said() for name, process in by_hand.processes.items()}
    for name in ("party 0", "party 1"):
        text = texts[name].lower()
        assert text.count("turned away") >= 4, text
        assert "http request" in text or "wrong version number" in text or "record" in text
        assert "peer did not return a certificate" in text
        assert "certificate not accepted" in text
        assert "unsupported protocol" in text
        assert codes[name] == 1
        last = texts[name].splitlines()[-1]
        assert "party 2" in last and "did not connect" in last and "(step: connect)" in last
    assert codes["dealer"] == 1


def test_strangers_do_not_disturb_a_session(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, repeat=1)
    try:
        for name in ("party 0", "party 1"):
            by_hand.start(name)
        idle = []
        for address in by_hand.config.parties[:2]:
            host, port = address.rsplit(":", 1)
            for _ in range(40):  # more than a listener keeps at once
                idle.append(socket.create_connection((host, int(port))))  # says nothing, holds the line
            with socket.create_connection((host, int(port))) as noise:
                noise.sendall(b"\x00" * 1000)
        for name in ("dealer", "party 2"):
            by_hand.start(name)
        endings = by_hand.endings()
        for connection in idle:
            connection.close()
        assert {name: code for name, (code, _) in endings.items()} == dict.fromkeys(endings, 0), endings
    finally:
        by_hand.close()
