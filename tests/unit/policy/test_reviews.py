"""Appeals, reviews, what discovery finds later, and what is not in order with a card."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.policy.approvals import approved, concerns
from secure_sccvfl.policy.card import Contest, Decision, Evidence, Owner, PolicyCard, shipped_card
from secure_sccvfl.policy.reviews import Proposals, Review, deltas, next_version, reviewed
from secure_sccvfl.policy.roles import PolicyError
from secure_sccvfl.reports.policy_card import card_markdown

LAW = (Evidence("a law", "statute"),)
DAY = "2026-03-02"


@pytest.fixture
def card() -> PolicyCard:
    decisions = {"a": Decision("P", "because", LAW), "b": Decision("M", "because", LAW, "M", 0.9, 0.3)}
    entries = {"a": {"meaning": "first", "relation": "unknown"}}
    return PolicyCard("toy", "1", (Owner("board", "board"),), decisions, dictionary=entries)


@pytest.fixture
def asked(card: PolicyCard) -> PolicyCard:
    return card.appealed("a", "2026-03-01", "someone", "why?", wants="N")


def test_a_review_that_keeps_everything_answers_the_appeal_and_sets_the_next_quarter(asked: PolicyCard) -> None:
    assert [e["number"] for e in asked.open_appeals] == ["1"]
    kept = reviewed(asked, Review(DAY, "board", "it stays", "appeal", "1"))
    assert kept.decisions == asked.decisions and kept.version == "1" and not kept.open_appeals
    assert kept.review_due == "2026-06-01", "91 days later"
    assert (kept.events[-1]["evidence"], kept.events[-1]["entry"]) == ("kept", "kept"), "both were looked at"
    with pytest.raises(PolicyError, match="no open appeal '1'; open are: none"):
        reviewed(kept, Review(DAY, "board", "again", "appeal", "1"))


def test_an_answer_may_change_role_evidence_and_entry(asked: PolicyCard) -> None:
    heard = (Evidence("hearing", "stakeholder"),)
    review = Review(DAY, "board", "agreed", "appeal", "1", "", "N", heard, {"relation": "none"}, "2026-06-30")
    after = reviewed(asked, review)
    assert (after.decisions["a"].role, after.decisions["a"].reason) == ("N", "agreed")
    assert after.decisions["a"].evidence == heard and after.dictionary["a"] == {
        "meaning": "first",
        "relation": "none",
    }
    assert (after.version, after.date, after.review_due) == ("2", DAY, "2026-06-30")
    event = after.events[-1]
    assert event["change"] == "P -> N" and event["evidence"] == "statute: a law -> stakeholder: hearing"
    assert event["entry"] == "relation: unknown -> none" and event["version"] == "2"
    assert "dictionary entry relation: unknown" in card_markdown(after)


def test_evidence_or_entry_alone_make_a_new_version(card: PolicyCard) -> None:
    for change in ({"evidence": (Evidence("x", "policy"),)}, {"entry": {"confounders": "income"}}):
        after = reviewed(card, Review(DAY, "board", "better", "policy", feature="a", **change))
        assert after.version == "2" and after.roles == card.roles and "change" not in after.events[-1]


def test_a_regular_review_may_change_a_role(card: PolicyCard) -> None:
    after = reviewed(card, Review(DAY, "board", "new law", "policy", feature="b", role="P", evidence=LAW))
    assert after.decisions["b"].role == "P" and after.events[-1]["because"] == "policy"
    with pytest.raises(PolicyError, match="a changed role needs evidence"):
        Review(DAY, "board", "just so", feature="b", role="P")
    with pytest.raises(PolicyError, match="name the column whose role"):
        Review(DAY, "board", "just so", role="P", evidence=LAW)
    with pytest.raises(PolicyError, match="no feature 'z'"):
        reviewed(card, Review(DAY, "board", "just so", feature="z", role="P", evidence=LAW))
    with pytest.raises(PolicyError, match="no date"):
        reviewed(card, Review("tomorrow", "board", "regular"))
    with pytest.raises(PolicyError, match="names it"):
        Review(DAY, "board", "x", "appeal")


def test_an_answer_is_about_the_column_of_its_appeal(asked: PolicyCard) -> None:
    with pytest.raises(PolicyError, match="appeal 1 is about 'a', not about 'b'"):
        reviewed(asked, Review(DAY, "board", "x", "appeal", "1", "b", "N", LAW))


def proposals_of(**proposed: str) -> Proposals:
    result = {
        "proposed": proposed,
        "scores": dict.fromkeys(proposed, 0.125),
        "confidence": dict.fromkeys(proposed, 0.75),
        "records": 100,
        "dataset": "new",
        "privacy": {"epsilon_rdp": 2.0, "cap": 8.0, "delta": 1e-5},
    }
    return Proposals.of(result, "reviews/1")


def test_a_review_records_what_discovery_finds_now(card: PolicyCard) -> None:
    after = reviewed(card, Review(DAY, "board", "as before", proposals=proposals_of(a="M", b="N", c="M")))
    assert after.roles == card.roles and after.version == "1", "people decide; discovery proposes"
    assert after.events[-1]["deltas"] == {
        "a": {"proposed": ["P", "M"], "score": [None, 0.125]},
        "b": {"proposed": ["M", "N"], "score": [0.3, 0.125]},
        "c": {"proposed": [None, "M"], "score": [None, 0.125]},
    }
    assert "100 records of new, epsilon 2.00 of 8" in after.events[-1]["discovery"]
    assert (after.decisions["b"].proposed, after.decisions["b"].score) == ("N", 0.125)
    assert after.decisions["b"].evidence[0] == LAW[0] and len(after.decisions["b"].evidence) == 2
    assert deltas(after, proposals_of(a="M", b="N")) == {}, "the next review counts from here"
    assert deltas(after, proposals_of(a="M"))["b"]["proposed"] == ["N", None], "a column that is gone"
    text = card_markdown(after)
    assert "b: proposed M" in text and "score 0.300" in text
    bare = reviewed(card, Review(DAY, "board", "no data yet"))
    assert bare.events[-1]["discovery"] == "not run again"
    with pytest.raises(PolicyError, match="not the result of a discovery session"):
        Proposals.of({"ok": True}, "x")


def test_a_proposal_that_changed_leaves_a_role_without_evidence_of_people_to_be_decided(card: PolicyCard) -> None:
    only = Decision("M", "proposed", (Evidence("discovery proposes M", "discovery"),), "M", 0.9, 0.3)
    run = replace(card, decisions={"b": only})
    after = reviewed(run, Review(DAY, "board", "as before", proposals=proposals_of(b="N")))
    assert run.without_evidence == () and after.without_evidence == ("b",)


def test_versions_count() -> None:
    assert [next_version(v) for v in ("1", "2.7", "draft")] == ["2", "2.8", "draft.1"]


TODAY = datetime.date(2026, 3, 2)


def test_a_missing_kind_of_owner_is_reported_and_affected_people_first(card: PolicyCard) -> None:
    first, second, *_ = concerns(card, TODAY)
    assert first == "no representative of affected people is named among the owners"
    assert second == "not among the owners: a domain expert, a regulator or compliance lead"
    plain = replace(card, owners=("the bank", "people"))
    assert "(of unknown kind: the bank, people)" in concerns(plain, TODAY)[1]
    whole = shipped_card("german")
    contest = "no contact and deadline for contesting a decision (contest) on the card"
    assert concerns(whole, TODAY) == ["nobody has approved version 1", contest]
    assert concerns(replace(whole, contest=Contest("board@bank.example", 30)), TODAY) == concerns(whole, TODAY)[:1]
    for owner in whole.owners:
        whole = approved(whole, owner.name, DAY)
    assert concerns(whole, TODAY) == [contest]


def test_overdue_cards_open_appeals_and_missing_evidence_are_reported(asked: PolicyCard) -> None:
    due = replace(asked, review_due="2026-03-01", decisions={**asked.decisions, "c": Decision("N", "x")})
    warnings = concerns(due, TODAY)
    assert "the review was due on 2026-03-01" in warnings and "appeal 1 about a is open" in warnings
    assert "no evidence for the role of c" in warnings
    assert due.overdue(TODAY) and not due.overdue(datetime.date(2026, 3, 1))


def test_check_fails_a_card_that_a_run_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "german"]) == 0
    assert "can be followed" in capsys.readouterr().out
    raw = shipped_card("german").to_json()
    raw["decisions"]["housing"].pop("evidence")
    (tmp_path / "card.json").write_text(json.dumps(raw))
    assert main(["policy", "check", str(tmp_path / "card.json"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["concerns"][0] == "no evidence for the role of housing"


def test_before_training_the_concerns_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from secure_sccvfl.runs.local.screens import show_concerns

    card = replace(shipped_card("german"), review_due="2020-01-31").appealed("housing", DAY, "me", "no choice")
    (tmp_path / "card.json").write_text(json.dumps(card.to_json()))
    show_concerns({"card": str(tmp_path / "card.json"), "dataset": "german"})
    shown = capsys.readouterr().err
    assert "policy card: the review was due on 2020-01-31" in shown and "appeal 1 about housing is open" in shown
    show_concerns({"dataset": "german"})
    assert capsys.readouterr().err == ""


def test_a_card_says_how_a_decision_is_contested_and_owners_approve_it() -> None:
    raw = {"dataset": "loans", "version": "1", "owners": ["board"], "decisions": {}}
    plain = PolicyCard.of(raw)
    card = PolicyCard.of({**raw, "contest": {"contact": "appeals@bank.example", "days": 30}})
    assert card.digest() != plain.digest() and PolicyCard.of(card.to_json()) == card
    assert "To contest a decision: appeals@bank.example, within 30 days of it." in card_markdown(card)
    assert "contest" not in plain.to_json() and "contest a decision:" not in card_markdown(plain)
    for odd in ("write to us", {"contact": "a"}, {"contact": " ", "days": 3}, {"contact": "a", "days": True}):
        with pytest.raises(PolicyError, match="contest"):
            PolicyCard.of({**raw, "contest": odd})
