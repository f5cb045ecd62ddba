"""Approvals of a card: they hold for one content, and a forged signature is found."""

from __future__ import annotations

import datetime
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secure_sccvfl.launch.cli import main
from secure_sccvfl.policy.approvals import approved, concerns, make_key, read_key, signed_bytes, unapproved, verdicts
from secure_sccvfl.policy.card import (
    LARGEST,
    Approval,
    Decision,
    Evidence,
    Owner,
    PolicyCard,
    read_card,
    shipped_card,
)
from secure_sccvfl.policy.roles import PolicyError

TODAY = "2026-03-01"
BOARD, PEOPLE = "lending policy board", "applicants' representative"


@pytest.fixture
def card() -> PolicyCard:
    return shipped_card("german")


def with_key(card: PolicyCard, who: str, key: Ed25519PrivateKey) -> PolicyCard:
    """The card with the public key of an owner on it."""
    public = key.public_key().public_bytes_raw().hex()
    return replace(card, owners=tuple(replace(o, key=public) if o.name == who else o for o in card.owners))


def words(card: PolicyCard) -> list[str]:
    return [v.words for v in verdicts(card)]


def test_an_approval_holds_for_the_card_as_it_is(card: PolicyCard) -> None:
    yes = approved(card, BOARD, TODAY)
    (verdict,) = verdicts(yes)
    assert verdict.holds and not verdict.problem and yes.approved_on == TODAY
    assert (verdict.approval.kind, verdict.approval.version) == ("board", "1")
    assert unapproved(yes) == ["affected", "expert", "regulator"] and card.approved_on == ""
    assert PolicyCard.of(json.loads(json.dumps(yes.to_json()))) == yes
    again = approved(yes, BOARD, "2026-04-01")
    assert [a.date for a in again.approvals] == ["2026-04-01"], "one approval of an owner for one content"


def test_what_discovery_finds_later_and_the_next_date_need_no_new_approval(card: PolicyCard) -> None:
    yes = approved(card, BOARD, TODAY)
    evidence = (*yes.decisions["housing"].evidence, Evidence("discovery proposes M", "discovery"))
    seen = replace(yes.decisions["housing"], evidence=evidence, proposed="M", confidence=0.5, score=0.1)
    later = replace(yes, decisions={**yes.decisions, "housing": seen}, review_due="2027-01-31")
    assert later.approved_on == TODAY


CHANGES = {
    "role": lambda c: {"decisions": {**c.decisions, "housing": replace(c.decisions["housing"], role="N")}},
    "reason": lambda c: {"decisions": {**c.decisions, "housing": replace(c.decisions["housing"], reason="other")}},
    "evidence": lambda c: {
        "decisions": {**c.decisions, "housing": replace(c.decisions["housing"], evidence=(Evidence("x", "policy"),))}
    },
    "a column more": lambda c: {"decisions": {**c.decisions, "job": Decision("M", "x", (Evidence("x", "policy"),))}},
    "proxies": lambda c: {"proxies": "drop"},
    "owners": lambda c: {"owners": c.owners[:1]},
    "the key of another owner": lambda c: {
        "owners": (c.owners[0], *(replace(o, key="0" * 64) for o in c.owners[1:]))
    },
    "dictionary": lambda c: {"dictionary": {"housing": {"relation": "other"}}},
    "data set": lambda c: {"dataset": "other"},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_card_is_not_approved(card: PolicyCard, what: str) -> None:
    yes = approved(card, BOARD, TODAY)
    changed = replace(yes, **CHANGES[what](yes))
    (verdict,) = verdicts(changed)
    assert not verdict.holds and verdict.problem and "changed after this approval" in verdict.words
    assert changed.approved_on == "" and any("changed after" in line for line in concerns(changed, _day()))


def _day() -> datetime.date:
    return datetime.date(2026, 3, 2)


def test_an_approval_of_an_earlier_version_is_history(card: PolicyCard) -> None:
    later = replace(approved(card, BOARD, TODAY), version="2")
    (verdict,) = verdicts(later)
    assert not verdict.holds and not verdict.problem and "of version 1, not of 2" in verdict.words


def test_a_signature_is_over_the_whole_approval(card: PolicyCard) -> None:
    key = Ed25519PrivateKey.generate()
    yes = approved(with_key(card, BOARD, key), BOARD, TODAY, key)
    assert words(yes) == [f"{BOARD} on {TODAY}: signed with the key that the card names"]
    (approval,) = yes.approvals
    forged = {
        "who": PEOPLE,
        "kind": "affected",
        "date": "2026-03-02",
        "version": "2",
        "digest": "0" * 64,
        "key": Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex(),
        "signature": approval.signature[:-2] + ("00" if approval.signature[-2:] != "00" else "01"),
    }
    for name, value in forged.items():
        broken = replace(yes, approvals=(replace(approval, **{name: value}),))
        (verdict,) = verdicts(broken)
        assert verdict.problem and not verdict.holds and "forged, or changed" in verdict.words, name
    for lost in ("key", "signature"):
        (verdict,) = verdicts(replace(yes, approvals=(replace(approval, **{lost: ""}),)))
        assert verdict.problem and not verdict.holds, lost
    other = replace(yes, dataset="other")
    assert verdicts(other)[0].problem


def test_a_stranger_cannot_sign_for_an_owner_whose_key_is_on_the_card(card: PolicyCard) -> None:
    owner_key, stranger = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    named = with_key(card, BOARD, owner_key)
    with pytest.raises(PolicyError, match="the card names a key for"):
        approved(named, BOARD, TODAY, stranger)
    with pytest.raises(PolicyError, match="the card names a key for"):
        approved(named, BOARD, TODAY)
    # A stranger who edits the file signs the right content with another key, or signs nothing.
    public = stranger.public_key().public_bytes_raw().hex()
    bare = Approval(BOARD, "board", TODAY, "1", named.digest())
    loose = replace(bare, key=public)
    loose = replace(loose, signature=stranger.sign(signed_bytes(named, loose)).hex())
    for approval in (loose, bare):
        (verdict,) = verdicts(replace(named, approvals=(approval,)))
        assert (
            verdict.problem and not verdict.holds and "not signed with the key that the card names" in verdict.words
        )
    signed = approved(card, BOARD, TODAY, stranger)
    assert "by a key that the card names for nobody" in words(signed)[0]


def test_only_owners_approve_and_only_what_rests_on_evidence(card: PolicyCard) -> None:
    with pytest.raises(PolicyError, match="'me' is no owner of the card; it has lending policy board"):
        approved(card, "me", TODAY)
    bare = replace(card, decisions={"housing": Decision("P", "why")})
    with pytest.raises(PolicyError, match="no evidence for 'housing'"):
        approved(bare, BOARD, TODAY)
    approval = approved(card, BOARD, TODAY).approvals[0]
    raised = replace(card, approvals=(replace(approval, kind="affected"),))
    assert verdicts(raised)[0].problem, "a kind that the owner does not have"
    gone = replace(card, owners=(Owner("x"),))
    assert verdicts(replace(gone, approvals=(replace(approval, digest=gone.digest()),)))[0].problem


def test_a_key_is_its_owners_alone_and_is_shown_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], card: PolicyCard
) -> None:
    path = tmp_path / "board.pem"
    public = make_key(path)
    assert (
        stat.S_IMODE(path.stat().st_mode) == 0o600 and read_key(path).public_key().public_bytes_raw().hex() == public
    )
    with pytest.raises(PolicyError, match="not written over"):
        make_key(path)
    secret = read_key(path).private_bytes_raw().hex()
    card_path = tmp_path / "card.json"
    card_path.write_text(json.dumps(card.to_json()))
    assert main(["policy", "approve", str(card_path), "--as", BOARD, "--key", str(path)]) == 0
    assert main(["policy", "verify", str(card_path), "--json"]) == 0
    shown = capsys.readouterr()
    lines = path.read_text().splitlines()
    for text in (shown.out, shown.err, card_path.read_text()):
        assert secret not in text and lines[1] not in text
    for bad in ("not a key", lines[1]):
        (tmp_path / "bad.pem").write_text(bad)
        with pytest.raises(PolicyError, match="holds no private key") as error:
            read_key(tmp_path / "bad.pem")
        assert lines[1] not in str(error.value)


def test_approve_and_verify_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], card: PolicyCard
) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card.to_json()))
    assert main(["policy", "verify", str(path)]) == 3 and "not approved" in capsys.readouterr().out
    assert main(["policy", "approve", str(path), "--as", PEOPLE]) == 0
    capsys.readouterr()
    assert main(["policy", "verify", str(path)]) == 0
    assert f"holds: {PEOPLE}" in capsys.readouterr().out
    changed = path.read_text().replace('"role": "P"', '"role": "N"', 1)
    path.write_text(changed)
    assert main(["policy", "verify", str(path)]) == 3
    assert "BROKEN" in capsys.readouterr().out
    assert main(["policy", "check", str(path)]) == 3
    assert "the card was changed after this approval" in capsys.readouterr().out
    assert main(["policy", "approve", "german", "--as", PEOPLE]) == 2
    assert "only JSON cards are written" in capsys.readouterr().err


@pytest.mark.parametrize("text", [" " * (LARGEST + 1), "[" * 100_000], ids=["too long", "nested"])
@pytest.mark.parametrize("name", ["card.json", "card.toml"])
def test_a_file_that_is_no_card_is_refused_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PolicyError, match=f"{name}( is neither|: larger than 1 MiB)"):
        read_card(tmp_path / name)
