"""A member under an orchestrator: what leaves the site, what is refused, and how a process is ended."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import secure_sccvfl.releases.prediction_log
import secure_sccvfl.runs.member.plan  # noqa: F401
from secure_sccvfl.protocols.errors import LedgerRefusal, PeerError, PeerStopped, ProtocolError, cause_of
from secure_sccvfl.runs.console import CAUSE_FILE, guarded
from secure_sccvfl.runs.member import orchestrated
from secure_sccvfl.runs.member.orchestrated import Outcome, Site, run_member, verdict

JOB = "5e0b9c1c-6a0e-4c6e-9a52-0a6c8c1f3b11"
SECRET = "row 17 of /srv/bank.csv: epsilon would be 8.0312"
RAISING = "import sys; from secure_sccvfl.protocols.errors import *; from secure_sccvfl.runs.console import guarded\n"
FORM = {
    "exit": r"-?\d+",
    "cause": r"[a-z][A-Za-z ,'-]*|",
    "peers": r"(party-\d|dealer|, )*",
    "digest": r"[0-9a-f]{64}|",
}
"""Everything that an orchestrator is handed, and its form: no digit in a cause, so no figure and no row."""


def classes(parent: type[ProtocolError]) -> Iterator[type[ProtocolError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from classes(child)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "session.toml").write_text('parties = ["a:1", "b:1", "c:1"]\njobs = ["train"]\nname = "loans"\n')
    return Site(str(tmp_path), "party-1")


@pytest.fixture
def run(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs Python code in place of the party; every outcome has the form."""
    session = hashlib.sha256((Path(site.home) / "session.toml").read_bytes()).hexdigest()

    def run(code: str, job: str = JOB, action: str = "run", digest: str = session, aborted: bool = False) -> Outcome:
        monkeypatch.setattr(orchestrated, "_command", lambda *given: [sys.executable, "-c", code])
        outcome = run_member(site, job, action, digest, lambda: aborted)
        assert set(asdict(outcome)) == set(FORM)
        wrong = {name: value for name, value in asdict(outcome).items() if not re.fullmatch(FORM[name], str(value))}
        assert not wrong and Outcome.received(asdict(outcome)) == outcome
        return outcome

    return run


def test_a_failure_leaves_the_site_as_a_fixed_phrase(run: Callable[..., Outcome], site: Site) -> None:
    raising = f"{RAISING}def work(): raise LedgerRefusal({SECRET!r})\nsys.exit(guarded('party 1', work))"
    assert run(raising) == Outcome(1, "its privacy ledger does not allow it")
    assert SECRET in (Path(site.home) / "jobs" / JOB / "log.txt").read_text(), "the people of the site can read it"
    assert run("import os; os.kill(os.getpid(), 9)", "2") == Outcome(-9, "its process was ended by a signal")
    assert run(f"import sys; print({SECRET!r}); sys.exit(3)", "3") == Outcome(3, "a check failed")


@pytest.mark.parametrize(
    "kind", sorted({*classes(ProtocolError)}, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_no_text_of_an_error_is_in_its_cause(kind: type[ProtocolError]) -> None:
    error = kind.__new__(kind)
    error.args = (SECRET,)
    if isinstance(error, PeerError):
        error.peer = f"party 1 (bank, {SECRET}), dealer"
    cause, peers = cause_of(error)
    assert re.fullmatch(FORM["cause"], cause) and cause and cause == kind.kind
    assert peers == ("party-1, dealer" if isinstance(error, PeerError) else "")


def test_other_errors_are_unexpected_and_a_full_disk_is_named() -> None:
    assert cause_of(KeyError(SECRET)) == ("an unexpected error", "")
    assert cause_of(OSError(28, SECRET, "/srv/bank")) == ("its disk is full", "")
    assert cause_of(PeerStopped("party 2 (bureau)", "x", SECRET)) == ("a peer stopped", "party-2")


def test_a_cause_is_written_only_where_an_orchestrator_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise LedgerRefusal(SECRET)

    assert guarded("party 1", work) == 1 and [*tmp_path.iterdir()] == []
    monkeypatch.setenv(CAUSE_FILE, str(tmp_path / "cause.json"))
    assert guarded("party 1", work) == 1
    assert json.loads((tmp_path / "cause.json").read_text()) == [LedgerRefusal.kind, ""]


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ({"action": "serve"}, "unknown action"),
        ({"action": "--resume"}, "unknown action"),
        ({"digest": "0" * 64}, "no session file with the digest"),
        ({"job": "../../out"}, "no job is repeated"),
    ],
)
def test_what_a_site_does_not_run(run: Callable[..., Outcome], site: Site, asked: dict[str, str], cause: str) -> None:
    outcome = run("raise SystemExit(0)", **asked)
    assert outcome.exit == 2 and cause in outcome.cause
    assert not (Path(site.home) / "jobs").exists()


def test_a_job_runs_once_whatever_the_orchestrator_repeats(run: Callable[..., Outcome], site: Site) -> None:
    count = "open('count', 'a').write('x')"
    assert run(count).exit == 0
    assert "no job is repeated" in run(count).cause
    assert (Path(site.home) / "count").read_text() == "x"


def test_an_aborted_process_is_killed_if_it_does_not_end(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrated, "GRACE", 0.2)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    assert run(stubborn, aborted=True).cause == "aborted by the orchestrator"


def test_the_digest_shows_equal_records_and_depends_on_the_name_of_the_run(run: Callable[..., Outcome]) -> None:
    def heads(mine: str, name: str) -> str:
        one = {"releases": "a", "audit": "b", "ledgers": {}, "result": mine, "log": "own", "files": "own"}
        text = json.dumps({"statement": {"name": name, "heads": {"party-1": one}}})
        making = "from pathlib import Path; out = Path('out-loans/train'); out.mkdir(parents=True, exist_ok=True)"
        return f"{making}; (out / 'heads.json').write_text({text!r})"

    digests = [
        run(heads(*given), str(n)).digest for n, given in enumerate([("c", "x"), ("c", "x"), ("d", "x"), ("c", "y")])
    ]
    assert digests[0] == digests[1] and len({*digests}) == 3 and all(digests)


def test_a_member_is_started_with_an_approved_plan_and_from_no_path_of_the_orchestrator() -> None:
    party = orchestrated._command(Site("/srv", "party-1", "people.csv"), "predict", "session.toml", "out-loans")
    assert {"-E", "-P", "--require-approval"} <= {*party} and party[party.index("--records") + 1] == "people.csv"
    assert "--resume" in orchestrated._command(Site("/srv", "dealer"), "resume", "session.toml", "out-loans")
    with pytest.raises(ValueError, match="a member is"):
        Site("/srv", "party-1 --debug")


def test_a_receiver_keeps_to_the_form_whatever_a_site_sends() -> None:
    assert Outcome.received({"exit": "0"}) == Outcome(1, "it sent no outcome") == Outcome.received({})
    sent = {"exit": 1, "cause": "<b>x</b>" + "y" * 500, "peers": "party-1, /srv", "digest": "12.5", "more": 1}
    got = Outcome.received(sent)
    assert "<" not in got.cause and len(got.cause) <= 100
    assert (got.peers, got.digest) == ("party-1", "")
    assert {field.name for field in fields(Outcome)} == set(FORM)


def test_the_responsible_site_is_named() -> None:
    sites = {"hospital": "party-0", "clinic": "party-1", "notary": "dealer"}
    well = {"hospital": Outcome(0, digest="a"), "clinic": Outcome(0, digest="a"), "notary": Outcome(0)}
    gone = Outcome(1, "a connection to a peer failed", "party-1")
    assert verdict(sites, well) == ""
    assert "digests differ" in verdict(sites, {**well, "clinic": Outcome(0, digest="b")})
    assert (
        verdict(sites, {**well, "hospital": gone, "clinic": Outcome(-9, "killed")}) == "clinic: killed, exit code -9"
    )
    assert "(clinic), exit code 1" in verdict(sites, {**well, "hospital": gone})
    assert verdict(sites, {"hospital": well["hospital"], "notary": well["notary"]}) == "clinic: no answer"
