"""Appeals and reviews reach the other hosts' cards as signed files; nothing else does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secure_sccvfl.launch.cli import main
from secure_sccvfl.policy.approvals import approved
from secure_sccvfl.policy.card import PolicyCard, read_card
from secure_sccvfl.protocols.net.certificates import Credentials, fingerprint, sign
from secure_sccvfl.reports.policy_card import CARD, card_markdown, write_card
from secure_sccvfl.reports.run_log import read_log, seal
from secure_sccvfl.runs.member.card_updates import PURPOSE, SIGNED
from secure_sccvfl.runs.member.plan import canonical
from tests.multiprocess.named_files import help_of, unnamed
from tests.unit.runs.member.conftest import credentials_of

APPEAL = ["--feature", "chol", "--who", "an applicant", "--text", "no choice of mine", "--wants", "N"]
REVIEW = ["--appeal", "1", "--who", "board", "--text", "agreed", "--role", "N", "--evidence", "stakeholder: hearing"]


@pytest.fixture
def hosts(desk: Path, certificates: Path) -> Path:
    """The folders of two hosts after a run, each with its own copy of the card, and what discovery told it."""
    for rank in range(2):
        out = desk / f"out-{rank}"
        (out / "train").mkdir(parents=True)
        (out / "train" / "heads.json").write_text(json.dumps({"rank": rank}))
        shutil.copy(desk / "session.toml", out)
        found = [{"text": f"epsilon {rank}", "kind": "discovery"}]
        evidence = [{"text": "some", "kind": "guideline"}, *found]
        decision = {"role": "M", "reason": "follows", "evidence": evidence, "proposed": "M", "confidence": 0.9}
        raw = {"dataset": "own", "version": "1", "owners": ["board"], "decisions": {"chol": decision}, "run": "r"}
        write_card(out, PolicyCard.of(raw))
        seal(out, {})
    return desk


def sent(hosts: Path, certificates: Path, name: str = "sent.json") -> Path:
    assert main(["policy", "send", "out-0", "--certs", str(certificates), "--out", name]) == 0
    return hosts / name


def test_an_appeal_and_its_review_reach_another_host(
    hosts: Path, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "appeal", "out-0", *APPEAL]) == 0
    assert main(["policy", "review", "out-0", *REVIEW]) == 0
    assert "role M → N" in capsys.readouterr().out and "&gt;" not in card_markdown(read_card(hosts / "out-0" / CARD))
    file = sent(hosts, certificates)
    assert "PRIVATE KEY" not in file.read_text() and unnamed(help_of("policy"), ["card-party-0.json"]) == []
    before = {path: path.stat().st_mtime_ns for path in hosts.rglob("*")}
    assert main(["policy", "receive", "out-1", str(file)]) == 0
    assert unnamed(help_of("policy"), (p for p in hosts.rglob("*") if before.get(p) != p.stat().st_mtime_ns)) == []
    here, there = (read_card(hosts / f"out-{rank}" / CARD) for rank in (1, 0))
    assert (here.events, here.version, here.digest()) == (there.events, there.version, there.digest())
    assert here.decisions["chol"].role == "N" and "epsilon 1" in here.decisions["chol"].words_of_evidence
    line = read_log(hosts / "out-1")[-1]
    assert line["event"] == "review" and line["received"]["from"] == "party-0"
    lines = len(read_log(hosts / "out-1"))
    assert main(["policy", "receive", "out-1", str(file)]) == 0 and "nothing new" in capsys.readouterr().out
    assert len(read_log(hosts / "out-1")) == lines


def test_cards_that_grew_apart_are_refused(
    hosts: Path, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        assert main(["policy", "appeal", f"out-{rank}", *APPEAL[:-3], f"reason {rank}"]) == 0
    before = (hosts / "out-1" / CARD).read_bytes()
    assert main(["policy", "receive", "out-1", str(sent(hosts, certificates))]) == 2
    assert "lacks what is on this host's card (appeal 1 by an applicant)" in capsys.readouterr().err
    assert (hosts / "out-1" / CARD).read_bytes() == before


def test_approvals_of_two_hosts_come_together_and_an_earlier_file_takes_none_away(
    hosts: Path, certificates: Path
) -> None:
    """Approvals of owners whose key the card does not name stay where they were made: anybody could write them."""
    keys = {name: Ed25519PrivateKey.generate() for name in ("board", "clinic")}
    owners = [{"name": name, "key": key.public_key().public_bytes_raw().hex()} for name, key in keys.items()]
    for rank in range(2):
        path = hosts / f"out-{rank}" / CARD
        write_card(path.parent, PolicyCard.of({**json.loads(path.read_text()), "owners": [*owners, "guest"]}))
    before = sent(hosts, certificates, "before.json")
    for rank, owner in ((0, "board"), (1, "clinic"), (0, "guest")):
        folder = hosts / f"out-{rank}"
        write_card(folder, approved(read_card(folder / CARD), owner, "2026-01-01", keys.get(owner)))
    assert main(["policy", "receive", "out-1", str(before)]) == 0
    assert [a.who for a in read_card(hosts / "out-1" / CARD).approvals] == ["clinic"]
    assert main(["policy", "receive", "out-1", str(sent(hosts, certificates))]) == 0
    assert [a.who for a in read_card(hosts / "out-1" / CARD).approvals] == ["clinic", "board"]


def resigned(update: dict[str, Any], credentials: Credentials) -> dict[str, Any]:
    """As a dishonest member with its own key would write it."""
    covered = {key: update[key] for key in SIGNED}
    return {
        **update,
        "certificate": credentials.certificate.read_text(),
        "signature": sign(credentials, PURPOSE, canonical(covered)),
    }


def with_card(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda update: change(update["card"])


OF_ALL = {"kind": "review", "number": "2", "date": "2026-11-18", "who": "board", "text": "as before"}
"""A review of no column."""
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], bool, str]] = {
    "text": (with_card(lambda c: c["events"][0].update(text="another")), False, "the signature does not fit"),
    "place": (lambda u: u.update(place="party-1"), True, "not signed with the certificate that the run pins"),
    "run": (with_card(lambda c: c.update(run="s")), True, "about another run"),
    "owner": (with_card(lambda c: c["owners"].append("me")), True, "changes owners"),
    "role": (
        with_card(lambda c: c["decisions"]["chol"].update(role="N")),
        True,
        "a role or evidence without a review",
    ),
    "evidence": (
        with_card(lambda c: c["decisions"]["chol"].update(evidence="statute: x")),
        True,
        "a role or evidence without a review",
    ),
    "reason": (
        with_card(lambda c: c["decisions"]["chol"].update(reason="x")),
        True,
        "changes the card without a review",
    ),
    "new column": (
        with_card(lambda c: c["decisions"].update(x={"role": "N", "reason": "r", "evidence": "e"})),
        True,
        "a role or evidence without a review",
    ),
    "date": (with_card(lambda c: c.update(review_due="2999-01-01")), True, "changes the card without a review"),
    "appeal that changes a role": (
        with_card(
            lambda c: (
                c["events"].append({"kind": "appeal", "who": "x", "feature": "chol", "change": "M -> N"}),
                c["events"].append(OF_ALL),
                c["decisions"]["chol"].update(role="N"),
            )
        ),
        True,
        "a role or evidence without a review",
    ),
    "another role than the review says": (
        with_card(
            lambda c: (
                c["events"].append({**OF_ALL, "feature": "chol", "change": "M -> N"}),
                c["decisions"]["chol"].update(role="P"),
            )
        ),
        True,
        "a role or evidence without a review",
    ),
    "column that is gone": (
        with_card(
            lambda c: (
                c["events"].append({**OF_ALL, "feature": "chol", "change": "M -> N"}),
                c["decisions"].pop("chol"),
            )
        ),
        True,
        "a role or evidence without a review",
    ),
    "reason beside a review": (
        with_card(lambda c: (c["events"].append(OF_ALL), c["decisions"]["chol"].update(reason="x"))),
        True,
        "a reason or an entry without a review",
    ),
    "event that is none": (with_card(lambda c: c["events"].append({"who": "x"})), True, "its events cannot be read"),
    "torn": (lambda u: u.pop("signature"), False, "is not what `sccvfl policy send` writes"),
    "no card": (lambda u: u.update(card={}), True, "the card has no 'dataset'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_host_did_not_sign_or_must_not_change_is_refused(
    hosts: Path, certificates: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change, signs, message = CHANGES[name]
    assert main(["policy", "appeal", "out-0", *APPEAL]) == 0
    file = sent(hosts, certificates)
    update = json.loads(file.read_text())
    change(update)
    file.write_text(json.dumps(resigned(update, credentials_of(certificates, 0)) if signs else update))
    before, log = (hosts / "out-1" / CARD).read_bytes(), read_log(hosts / "out-1")
    assert main(["policy", "receive", "out-1", str(file)]) == 2
    told = capsys.readouterr().err
    assert message in told.splitlines()[-1] and "Traceback" not in told
    assert (hosts / "out-1" / CARD).read_bytes() == before and read_log(hosts / "out-1") == log


def test_a_stranger_cannot_send(hosts: Path, certificates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = sent(hosts, certificates)
    other = credentials_of(certificates, 2)
    file.write_text(json.dumps(resigned(json.loads(file.read_text()), other)))
    assert fingerprint(other.certificate.read_bytes()) in (hosts / "session.toml").read_text()
    assert main(["policy", "receive", "out-1", str(file)]) == 2
    assert "not signed with the certificate that the run pins for 'party-0'" in capsys.readouterr().err
    assert main(["policy", "send", "out-0"]) == 2 and "send needs --certs" in capsys.readouterr().err
    (hosts / "empty").mkdir()
    assert main(["policy", "send", "empty", "--certs", str(certificates)]) == 2
    assert "empty is not the folder of one party's own host" in capsys.readouterr().err
