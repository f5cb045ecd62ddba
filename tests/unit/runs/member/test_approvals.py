"""A party starts only if all parties signed the plan as it is, with the certificates that it pins."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from secure_sccvfl.accounting.budget import CapDecision
from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.net.certificates import (
    AUTHORITY_KEY,
    Authority,
    Credentials,
    certify,
    fingerprint,
    pem,
    read_key,
    sign,
    write_key,
)
from secure_sccvfl.releases.ledgers import signed_by, write_decision
from secure_sccvfl.runs.member.plan import (
    PURPOSE,
    ApprovalError,
    approvals_folder,
    approve,
    canonical,
    check_approvals,
    make_plan,
)
from tests.unit.runs.member.conftest import CARD, credentials_of, edit


@pytest.fixture
def approved(desk: Path, config: SessionConfig, certificates: Path) -> Path:
    """The folder with the approvals of all three."""
    plan = make_plan(config)
    for rank in range(3):
        approve(config, plan, credentials_of(certificates, rank), rank, desk / "approvals")
    return desk / "approvals"


def refused(config: SessionConfig, folder: Path) -> str:
    with pytest.raises(ApprovalError) as caught:
        check_approvals(config, folder)
    message = str(caught.value)
    assert "\n" not in message and "PRIVATE KEY" not in message
    return message


def test_all_approvals_are_returned_for_the_report(config: SessionConfig, approved: Path, certificates: Path) -> None:
    approvals = check_approvals(config, approved)
    assert [one["place"] for one in approvals] == ["party-0", "party-1", "party-2"]
    assert {one["digest"] for one in approvals} == {make_plan(config).digest}
    for rank, one in enumerate(approvals):
        assert one["fingerprint"] == config.certificates[f"party-{rank}"]
        assert credentials_of(certificates, rank).key.read_text() not in json.dumps(one)
    path = approved / "party-1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "name": "another", "digests": {}}))
    assert check_approvals(config, approved) == approvals, "what is not signed is taken from the plan"


def test_without_pins_or_with_none_nothing_is_asked_for(config: SessionConfig, desk: Path) -> None:
    assert check_approvals(replace(config, certificates={}), desk / "approvals") == []
    assert check_approvals(replace(config, approval="none"), desk / "approvals") == []
    assert "no approval" in refused(replace(config, approval="required"), desk / "approvals")


def test_who_is_missing_is_named(config: SessionConfig, approved: Path) -> None:
    (approved / "party-1.json").unlink()
    assert refused(config, approved) == "party 1 (clinic): no approval of the plan is in approvals/"
    (approved / "party-2.json").write_text("{}")
    assert "party 2 (payer): what is there is no approval" in refused(config, approved)


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_forged_signature_is_found(config: SessionConfig, approved: Path, certificates: Path) -> None:
    """By another member with its own key, by a changed field, and by a signature made for another purpose."""
    path = approved / "party-1.json"
    genuine = path.read_text()
    approval = json.loads(genuine)
    covered = canonical({name: approval[name] for name in ("place", "digest", "fingerprint", "time")})
    for forged in (
        {"signature": sign(credentials_of(certificates, 0), PURPOSE, covered)},
        {"signature": sign(credentials_of(certificates, 1), "heads", covered)},
        {"signature": ""},
        {"time": "2020-01-01T00:00:00+00:00"},
    ):
        path.write_text(genuine)
        change(path, **forged)
        assert refused(config, approved).startswith("party 1 (clinic): the signature does not fit: it is forged")
    path.write_text(genuine)
    assert len(check_approvals(config, approved)) == 3


def test_an_approval_of_one_party_does_not_serve_for_another(config: SessionConfig, approved: Path) -> None:
    shutil.copy(approved / "party-0.json", approved / "party-1.json")
    assert "party 1 (clinic): what is there is the approval of somebody else" in refused(config, approved)
    change(approved / "party-1.json", place="party-1")
    assert "party 1 (clinic): approved with certificate" in refused(config, approved)


def test_the_authority_cannot_approve_for_a_party(
    config: SessionConfig, approved: Path, certificates: Path, tmp_path: Path
) -> None:
    """It makes itself a certificate for party 1 and signs the very plan with it."""
    authority = Authority(certificates.parent / "authority")
    folder = tmp_path / "forged" / "party-1"
    folder.mkdir(parents=True)
    write_key(folder / "key.pem", stolen := ec.generate_private_key(ec.SECP256R1()))
    signing = read_key(authority.folder / AUTHORITY_KEY)
    certificate = pem(certify(authority.certificate, signing, stolen.public_key(), "party-1", "clinic", 1))
    (folder / "cert.pem").write_bytes(certificate)
    (tmp_path / "forged" / "ca.pem").write_bytes(pem(authority.certificate))
    forged = Credentials.of(tmp_path / "forged", "party-1")
    with pytest.raises(ConfigError, match="but the session file pins"):
        approve(config, make_plan(config), forged, 1, approved)
    approval = json.loads((approved / "party-1.json").read_text())
    approval |= {"certificate": certificate.decode(), "fingerprint": fingerprint(certificate)}
    covered = canonical({name: approval[name] for name in ("place", "digest", "fingerprint", "time")})
    change(approved / "party-1.json", **{**approval, "signature": sign(forged, PURPOSE, covered)})
    message, pin = refused(config, approved), config.certificates["party-1"]
    used = fingerprint(certificate)
    assert message == f"party 1 (clinic): approved with certificate {used[:8]}, but the session file pins {pin[:8]}"


def test_what_changed_after_the_approval_is_named(desk: Path, config: SessionConfig, approved: Path) -> None:
    everybody = "party 0 (hospital), party 1 (clinic), party 2 (payer): the plan changed since the approval: "
    assert refused(replace(config, options={**config.options, "epsilon": 4.0}), approved) == (
        f"{everybody}the session file"
    )
    (desk / "card.json").write_text(json.dumps({**CARD, "version": "2"}))
    assert refused(config, approved) == f"{everybody}the policy card"
    (desk / "card.json").write_text(json.dumps(CARD))
    edit(desk / "own.toml", "low = 100, high = 600", "low = 100, high = 700")
    assert refused(config, approved) == f"{everybody}the data description"
    edit(desk / "own.toml", "low = 100, high = 700", "low = 100, high = 600")
    assert len(check_approvals(config, approved)) == 3


def test_one_who_approved_an_older_plan_is_named_alone(
    desk: Path, config: SessionConfig, approved: Path, certificates: Path
) -> None:
    newer = replace(config, deadline=90.0)
    for rank in (0, 2):
        approve(newer, make_plan(newer), credentials_of(certificates, rank), rank, approved)
    assert refused(newer, approved) == "party 1 (clinic): the plan changed since the approval: the session file"
    change(approved / "party-1.json", digests={"session": "0"})
    assert "what differs cannot be told" in refused(newer, approved)


def test_the_dealer_and_strangers_do_not_approve(config: SessionConfig, desk: Path, certificates: Path) -> None:
    with pytest.raises(ConfigError, match="the session has party 0"):
        approve(config, make_plan(config), Credentials.of(certificates, "dealer"), 3, desk / "approvals")
    unpinned = replace(config, certificates={})
    with pytest.raises(ConfigError, match="pins no certificates"):
        approve(unpinned, make_plan(unpinned), credentials_of(certificates, 0), 0, desk / "approvals")


def test_a_party_does_not_start_without_the_others_approvals(
    desk: Path, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens or connects, no folder is made, and the line says who is missing."""
    given = ["--certs", str(certificates), "--rank", "0"]
    assert main(["approve", "session.toml", *given]) == 2
    assert "nobody can be asked here" in capsys.readouterr().err
    assert main(["approve", "session.toml", *given, "--yes"]) == 0
    assert "party-0.json: hand it to the other parties" in capsys.readouterr().out
    assert main(["party", "--config", "session.toml", "--out", "out", *given]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message == "party 0: party 1 (clinic), party 2 (payer): no approval of the plan is in approvals/"
    assert not (desk / "out").exists()


def test_more_predictions_need_a_new_approval(config: SessionConfig, approved: Path) -> None:
    more = replace(config, options={**config.options, "predictions": 2000})
    assert "changed since the approval: the session file and the predictions that are allowed" in refused(
        more, approved
    )


def test_two_session_files_in_a_folder_have_approvals_of_their_own(desk: Path, config: SessionConfig) -> None:
    assert approvals_folder(desk / "session.toml") == desk / "approvals"
    assert approvals_folder(desk / "second.toml") == desk / "approvals-second"


@pytest.mark.parametrize(("said", "code"), [("y", 0), (" Yes ", 0), ("no", 3), ("", 3)])
def test_y_is_yes(desk: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: said)
    assert main(["approve", "session.toml", "--certs", str(certificates), "--rank", "0"]) == code
    assert (desk / "approvals" / "party-0.json").exists() == (code == 0)


def test_a_plan_checks_the_signatures_under_a_raised_cap(
    desk: Path, config: SessionConfig, certificates: Path
) -> None:
    """A renewed certificate is told by `plan`, before hosts meet."""
    decision = CapDecision("ledger.jsonl", 8.0, 12.0, 1e-6, "0" * 64, "yearly review", "2026-11-17")
    for rank in range(2):
        decision = signed_by(decision, credentials_of(certificates, rank), f"party-{rank}")
    write_decision(desk / "cap.toml", decision)
    raised = replace(config, options={**config.options, "cap": "cap.toml", "epsilon": 12.0})
    with pytest.raises(ConfigError, match="party-2 has not signed the decision on the cap"):
        make_plan(raised)
    write_decision(desk / "cap.toml", signed_by(decision, credentials_of(certificates, 2), "party-2"))
    make_plan(raised)
    renewed = {**config.certificates, "party-1": "0" * 64}
    with pytest.raises(ConfigError, match=r"party-1 .* may have been renewed: let it sign again"):
        make_plan(replace(raised, certificates=renewed))
