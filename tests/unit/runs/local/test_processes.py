"""Which of several failed processes a run's one line is about."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.dealing.dealer import Dealer
from secure_sccvfl.protocols.errors import PeerError, PeerStopped
from secure_sccvfl.runs.console import PEER_STOPPED
from secure_sccvfl.runs.local import processes
from secure_sccvfl.runs.local.processes import Child, LocalSession, new_folder


def child(folder: Path, name: str, program: str) -> Child:
    log = folder / f"{name}.log"
    with log.open("w") as output:
        whole = f"import signal, sys, time\n{program}"
        return Child(name, subprocess.Popen([sys.executable, "-c", whole], stderr=output, text=True), log)


def ending(seconds: float, line: str, code: int) -> str:
    """A program that ends after a while with a line in its log."""
    return f"time.sleep({seconds})\nprint({line!r}, file=sys.stderr)\nsys.exit({code})"


def ended(line: str, code: int) -> str:
    """A program with a line in its log that ends on a signal."""
    stop = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))"
    return f"{stop}\nprint({line!r}, file=sys.stderr, flush=True)\ntime.sleep(600)"


def test_one_that_is_slow_to_stop_still_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dealer hears first that a party stops; the party, on a busy machine, needs a while to end."""
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    session = LocalSession(SessionConfig(parties=("a:1", "b:2")), tmp_path)
    session.children = [
        child(tmp_path, "dealer", ending(0.0, "dealer: party 0: stopped: LocalError", PEER_STOPPED)),
        child(tmp_path, "party 0", ending(1.5, "party 0: refused by the ledger", 1)),
    ]
    outcome = session.wait()
    assert outcome.cause == "party 0: refused by the ledger" and outcome.code == 1
    assert outcome.exit_codes == {"dealer": 1, "party 0": 1}, "people see the documented codes alone"


def test_words_do_not_decide_who_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of the user's own data may read like the line of one that only heard of it.

    The party has ended before anyone looks, and the dealer fails when the session ends it.
    """
    monkeypatch.setattr(processes, "_GRACE", 0.1)
    session = LocalSession(SessionConfig(parties=("a:1", "b:2")), tmp_path)
    session.children = [
        child(tmp_path, "dealer", ended("dealer: party 0: closed the connection", 1)),
        child(tmp_path, "party 0", ending(0.0, "party 0: no column 'engine: stopped: hot'", 1)),
    ]
    session.children[1].process.wait()
    while not session.children[0].log.read_text():
        time.sleep(0.02)
    outcome = session.wait()
    assert outcome.cause == "party 0: no column 'engine: stopped: hot'"
    assert len(outcome.failures) == 2 and session.children[0].process.returncode == 1


class Stopping:
    """A transport on which party 1 stops while the dealer waits for party 0."""

    parties = 2

    def __init__(self, reason: str, waited_for: str) -> None:
        self.error = PeerStopped("party 1", "request for tuples", reason, waited_for)

    def receive_message(self, peer: int, step: str, *, wait: float | None = None) -> bytes:
        raise self.error


def dealer_says(reason: str, waited_for: str) -> str:
    dealer = Dealer(Stopping(reason, waited_for), {0: bytes(32), 1: bytes(32)}, idle=1.0)
    with pytest.raises(PeerError) as caught:
        dealer.serve()
    return str(caught.value)


def test_the_dealer_names_the_party_that_held_it_up() -> None:
    assert dealer_says("x", "party 0, dealer").startswith("party 0: did not ask for what others wait for; party 1")


@pytest.mark.parametrize("waited_for", ["", "party 0"])
def test_the_dealer_goes_by_the_reason_and_not_by_its_words(waited_for: str) -> None:
    assert dealer_says("dealer: did not answer", waited_for).startswith("party 1: stopped: dealer: did not answer")


def test_two_runs_in_one_second_have_separate_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []
    for _ in range(5):
        folders.append(new_folder())
        folders[-1].mkdir(parents=True)
    assert len(set(folders)) == 5
