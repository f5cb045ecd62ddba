"""The policy card of a finished run: appeals, reviews, approvals, and what makes a review due."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from secure_sccvfl.accounting.ledger import read_ledger
from secure_sccvfl.launch.cli import main
from secure_sccvfl.policy.card import read_card
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.reports.policy_card import write_card
from secure_sccvfl.reports.results import read
from tests.multiprocess.audited import problems


def test_appeal_review_and_diff(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = run / "policy_card.json"
    shutil.copy(card, run.parent / "old.json")
    feature, decision = next((k, d) for k, d in read_card(card).decisions.items() if d.role == "M")
    assert decision.reason and "score" in decision.words_of_evidence and "epsilon" in decision.words_of_evidence
    said = ["--who", "an applicant", "--text", "not my choice", "--wants", "N"]
    assert main(["policy", "appeal", str(run), "--feature", feature, *said]) == 0
    assert f"appeal 1 about {feature} is open" in capsys.readouterr().err
    assert f"appeal 1 about {feature} is open" in unescape((run / "report.html").read_text())
    answer = ["--who", "the board", "--text", "agreed: no ground for a decision", "--due", "2020-01-31"]
    heard = ["--role", "N", "--evidence", "stakeholder: hearing of applicants", "--relation", "none that is known"]
    assert main(["policy", "review", str(run), "--appeal", "1", *heard, *answer]) == 0
    page = unescape((run / "report.html").read_text())
    assert (
        "the review was due on 2020-01-31" in page
        and "appeal 1 about" not in page
        and "hearing of applicants" in page
    )
    shown = capsys.readouterr()
    assert "the review was due on 2020-01-31" in shown.err and "is open" not in shown.err
    assert main(["policy", "diff", str(run.parent / "old.json"), str(run), "--json"]) == 0
    difference = json.loads(capsys.readouterr().out)
    assert difference["changed"] == {feature: ["M", "N"]} and difference["to"] == "2"
    assert [e["event"] for e in read_chain(run / "audit.jsonl")] == ["finished", "appeal", "review"]
    assert problems(run) == []
    assert main(["policy", "approve", str(run), "--as", "bank"]) == 0
    capsys.readouterr()
    assert main(["policy", "verify", str(run)]) == 0 and "holds: bank" in capsys.readouterr().out
    assert problems(run) == [] and read_chain(run / "audit.jsonl")[-1]["event"] == "approve"
    card.write_text(card.read_text().replace("hearing of applicants", "hearing of nobody"))
    assert main(["policy", "verify", str(run)]) == 3 and "BROKEN: bank" in capsys.readouterr().out
    assert problems(run, "files") == ["policy_card.json was changed after it was recorded"]
    assert main(["policy", "review", str(run), "--appeal", "1", *answer]) == 2
    assert "no open appeal '1'" in capsys.readouterr().err


def test_a_review_runs_discovery_again_and_the_run_still_fits_together(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In secret, with the run's settings; what it proposes is beside what was proposed before."""
    said = ["--who", "the board", "--text", "as before"]
    assert main(["policy", "review", str(run), "--because", "regular", "--dataset", "german", *said]) == 0
    card = read_card(run / "policy_card.json")
    event = card.events[-1]
    assert event["because"] == "regular" and "reviews/1: 1000 records of german, epsilon " in event["discovery"]
    result = json.loads((run / "reviews" / "1" / "party-0" / "result.json").read_text())
    before = read(run)
    moved = {k for k, v in result["proposed"].items() if before.proposed[k] != v}
    assert set(event["deltas"]) == moved
    for name, delta in event["deltas"].items():
        assert delta["proposed"] == [before.proposed[name], result["proposed"][name]]
        assert delta["score"] == [before.scores[name], result["scores"][name]]
    assert {k: d.proposed for k, d in card.decisions.items()} == result["proposed"]
    assert {k: d.role for k, d in card.decisions.items()} == before.roles, "people decide"
    charged = [e for e in read_chain(run / "reviews" / "1" / "party-0" / "releases.jsonl") if e["event"] is not None]
    paid = read_ledger(run / "reviews" / "1" / "party-0" / "ledger.jsonl")[0]
    assert charged and len(paid) > 1, "a rerun is charged"
    assert problems(run) == []
    (run / "reviews" / "1" / "party-1" / "result.json").write_text("{}")
    assert problems(run, "files") == ["reviews/1/party-1/result.json was changed after it was recorded"]
    capsys.readouterr()
    assert main(["policy", "review", str(run), "--discovery", str(run / "reviews" / "1"), *said]) == 0
    assert read_card(run / "policy_card.json").events[-1]["deltas"] == {}


def test_the_record_of_a_decision_names_card_mask_and_approval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the training; or of the run's card if that was approved since. A card with other roles is refused."""
    mask = read(run).mask
    with (run / "examples" / "party-0" / "predictions.csv").open() as file:
        assert {(r["card"], r["mask"], r["approved"]) for r in csv.DictReader(file)} == {("none", mask, "no")}
    assert main(["policy", "approve", str(run), "--as", "bank"]) == 0
    records, card = str(run / "examples" / "records.csv"), run / "policy_card.json"
    given = ["predict", "--model", str(run), "--records", records, "--card", str(card), "--json"]
    assert main([*given, "--out", str(run.parent / "told")]) == 0
    with (run.parent / "told" / "party-0" / "predictions.csv").open() as file:
        (named,) = {(r["card"], r["mask"], r["approved"]) for r in csv.DictReader(file)}
    assert named == ("1", mask, read_card(card).approved_on) and read_card(card).approved_on
    text = card.read_text().replace('"role": "N"', '"role": "P"', 1)
    card.write_text(text.replace('"evidence": [', '"evidence": ["x",'))
    capsys.readouterr()
    assert main([*given, "--out", str(run.parent / "other")]) == 2
    assert "the card has other roles than the model" in capsys.readouterr().out


def test_status_finds_what_makes_a_review_due(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "status", str(run), "--dataset", "german", "--party", "0"]) == 0
    shown = capsys.readouterr().out
    assert "no review is due" in shown and "no record that the old one does not have" in shown
    assert main(["policy", "status", str(run), "--dataset", "heart", "--json"]) == 0
    due = json.loads(capsys.readouterr().out)["due"]
    assert "schema: new column chol" in due and "schema: column housing is gone" in due
    assert main(["policy", "appeal", str(run), "--feature", "housing", "--who", "me", "--text", "no"]) == 0
    capsys.readouterr()
    assert main(["policy", "status", str(run)]) == 0
    assert "appeal: 1 about housing is open" in capsys.readouterr().out


def test_a_card_of_an_earlier_run_may_have_changed_roles(run: Path) -> None:
    """Reviews before a run are no changes since it."""
    card = read_card(run / "policy_card.json")
    name, decision = next((k, d) for k, d in card.decisions.items() if d.role == "M")
    event = {"kind": "review", "number": "1", "date": "2026-01-31", "who": "x", "text": "y"}
    reviewed = replace(card, events=({**event, "feature": name, "change": f"N -> {decision.role}"},))
    for follows, fits in (({"version": "1", "events": "1"}, True), ({}, False)):
        write_card(run, replace(reviewed, follows=follows))
        assert (problems(run, "policy") == []) is fits
