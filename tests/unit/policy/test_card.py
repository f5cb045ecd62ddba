"""Roles and policy cards."""

import datetime
import json
import re
from dataclasses import replace

import pytest

from secure_sccvfl.data.catalogue import EMBEDDED, load
from secure_sccvfl.data.census import TASKS
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.discovery.discovery import check_support
from secure_sccvfl.policy.card import Decision, Evidence, Owner, PolicyCard, named_card, read_card, shipped_card
from secure_sccvfl.policy.roles import PolicyError, Roles
from secure_sccvfl.reports.policy_card import card_markdown, card_of_run
from secure_sccvfl.reports.results import Column
from tests.unit.reports import literal

PROPOSED = Roles({"a": "N", "b": "M", "c": "P"})


def card(version="1", **decisions):
    ours = (Evidence("ours", "guideline"),)
    return PolicyCard("toy", version, ("board",), {k: Decision(v, "because", ours) for k, v in decisions.items()})


@pytest.mark.parametrize("name", [*EMBEDDED, "german-full", "german-worked-example"])
@pytest.mark.filterwarnings("ignore::secure_sccvfl.data.dataset.DataWarning")
def test_shipped_cards_fit_their_data_and_use_all_roles(name):
    shipped = shipped_card(name)
    data = load(shipped.dataset)
    shipped.check({f.name for f in data.features}, name)
    check_support(shipped, make_parties(data))
    assert {d.role for d in shipped.decisions.values()} == {"N", "M", "P"}
    partly = {"german", "heart", "compas"}
    assert (len(shipped.decisions) < len(data.features)) == (name in partly), "the paper's examples decide a few"


@pytest.mark.parametrize("task", ["acs-income", "acs-income-sex"])
def test_census_records_of_any_source_have_a_card(task):
    names = {f.name for features in TASKS[task].values() for f in features}
    for suffix in (":some/where.csv", "@CO-2018", ""):
        shipped = shipped_card(f"{task}{suffix}")
        shipped.check(names, task)
        assert set(shipped.decisions) == names and {d.role for d in shipped.decisions.values()} == {"N", "M", "P"}


def test_a_card_overrides_what_discovery_proposed():
    roles = card(a="P").apply(PROPOSED)
    assert roles.of == {"a": "P", "b": "M", "c": "P"}


def test_a_card_says_what_becomes_of_proxies():
    edited = replace(card(a="P"), proxies="edit").apply(PROPOSED)
    assert edited.edited == edited.descendants == ("a", "b", "c") and edited.penalized == edited.dropped == ()
    dropped = replace(card(a="P"), proxies="drop").apply(PROPOSED)
    assert dropped.edited == ("b",) and dropped.dropped == ("a", "c") and dropped.penalized == ()
    guarded = card(a="P").apply(PROPOSED)
    assert guarded.penalized == ("a", "c") and guarded.dropped == () and guarded.descendants == ("a", "b", "c")
    assert dropped.with_role("N", ("c",)) == Roles({"a": "P", "b": "M", "c": "N"}, "drop")
    for bad in ("hide", 3, ["edit"]):
        with pytest.raises(PolicyError, match=r"proxies = .* on a policy card; use guard, edit, drop"):
            PolicyCard.of({**card(a="P").to_json(), "proxies": bad})


def test_a_card_without_any_possible_mediator_is_refused():
    whole = card(a="P", b="N", c="N")
    for how in ("guard", "drop"):
        with pytest.raises(PolicyError, match="for toy decides every column and makes none a mediator"):
            replace(whole, proxies=how).check({"a", "b", "c"}, "toy")
    replace(whole, proxies="edit").check({"a", "b", "c"}, "toy")
    card(a="P", b="N").check({"a", "b", "c"}, "toy")


def test_a_card_without_a_reason_or_with_an_unknown_feature_is_refused():
    with pytest.raises(PolicyError, match="written reason"):
        Decision("M", "  ")
    with pytest.raises(PolicyError, match="names 'z', which is no column of toy"):
        card(z="M").apply(PROPOSED)
    with pytest.raises(PolicyError, match="version and owners"):
        PolicyCard("toy", "1", ())
    with pytest.raises(PolicyError, match="unknown role"):
        Roles({"a": "X"})  # type: ignore[dict-item]
    with pytest.raises(PolicyError, match="no card"):
        shipped_card("moon")


def test_two_versions_are_compared():
    assert card(a="P", b="M").diff(card("2", a="N", b="M", c="P")) == {"a": ("P", "N"), "c": (None, "P")}


def run_report(**changes):
    """The report of a small run."""
    report = literal.report(dataset="toy", run="ab", **changes)
    features = {"a": Column("number", "first", relation="close")}
    privacy = replace(report.privacy, epsilon_rdp=8.0, releases=5)
    return replace(report, privacy=privacy, data=replace(report.data, features=features))


def test_the_card_of_a_run_keeps_given_reasons_and_adds_evidence():
    report = run_report(
        party_names=("x", "y"),
        roles={"a": "P", "b": "M", "c": "N"},
        proxies="edit",
        proposed={"a": "M", "b": "M", "c": "M"},
        confidence={"a": 0.25, "b": 0.875, "c": 1.0},
        scores={"a": 0.1, "b": 0.3, "c": 0.2},
        role_changes=("c: M -> N, does not respond to a change of s",),
        missing_depends=("c",),
    )
    run_card = card_of_run(report, card("7", a="P"), datetime.date(2026, 1, 31))
    assert (run_card.version, run_card.owners, run_card.review_due, run_card.run) == (
        "7",
        (Owner("board"),),
        "2026-05-02",
        "ab",
    )
    assert run_card.decisions["a"].reason == "because" and "proposed by discovery" in run_card.decisions["b"].reason
    assert "left it alone" in run_card.decisions["c"].reason
    depends = ["whether a value is missing depends on" in d.words_of_evidence for d in run_card.decisions.values()]
    assert dict(zip(run_card.decisions, depends, strict=True)) == {"a": False, "b": False, "c": True}
    rests_on = "score 0.300, place 1 of 3; 5 noisy releases, epsilon 8.00 at 1e-05"
    assert run_card.decisions["b"].words_of_evidence == f"discovery proposes M with confidence 87.5 %; {rests_on}"
    assert run_card.decisions["a"].words_of_evidence.startswith(
        "guideline: ours; discovery proposes M with confidence 25.0 %; score 0.100"
    )
    assert run_card.decisions["a"].is_override and not run_card.without_evidence
    assert (run_card.decisions["a"].proposed, run_card.decisions["a"].confidence, run_card.decisions["a"].score) == (
        "M",
        0.25,
        0.1,
    )
    assert run_card.dictionary == {"a": {"meaning": "first", "relation": "close"}} and not run_card.approvals
    assert run_card.follows["version"] == "7" and run_card.follows["approved"] == ""
    assert PolicyCard.of(json.loads(json.dumps(run_card.to_json()))) == run_card
    assert run_card.roles.digest() == Roles(report.roles, "edit").digest() != Roles(report.roles).digest()
    text = card_markdown(run_card)
    assert (
        "| a | P | M (overridden) | because | guideline: ours; discovery proposes M" in text
        and "edited with the mediators" in text
    )


def test_a_review_date_of_people_is_not_moved_by_training():
    """Only a review sets a new date."""
    report = run_report(roles={}, scores={})
    given = replace(card(a="P"), review_due="2020-01-31")
    assert card_of_run(report, given, datetime.date(2026, 1, 31)).review_due == "2020-01-31"


def test_a_card_without_evidence_is_refused_for_a_run_and_can_still_be_read(tmp_path):
    """Whether a decision is an override is known only after discovery, so every decision needs evidence before it."""
    raw = shipped_card("german").to_json()
    raw["decisions"]["housing"].pop("evidence")
    path = tmp_path / "card.json"
    path.write_text(json.dumps(raw))
    assert read_card(path).without_evidence == ("housing",)
    with pytest.raises(PolicyError, match=r"no evidence for 'housing' .*: role P needs some, such as evidence = "):
        named_card(str(path), "german")


def test_a_role_against_discovery_needs_more_evidence_than_discoverys_own():
    evidence = (Evidence("discovery proposes M", "discovery"),)
    assert not Decision("M", "proposed", evidence, "M", 0.9, 0.3).lacks_evidence
    override = Decision("P", "changed by hand", evidence, "M", 0.9, 0.3)
    assert override.lacks_evidence and override.is_override
    assert not replace(override, evidence=(Evidence("law", "statute"), *evidence)).lacks_evidence
    with pytest.raises(PolicyError, match=r"no evidence for 'a' .*: discovery proposed M, so P needs some"):
        PolicyCard("toy", "1", ("board",), {"a": override}).check_evidence()


def test_cards_of_earlier_versions_are_read():
    """Owners were names, evidence a text, and there was no date, dictionary or approval."""
    old = {
        "dataset": "toy",
        "version": "3",
        "owners": ["board", "x"],
        "proxies": "guard",
        "decisions": {
            "a": {"role": "M", "reason": "why", "evidence": "by card; score 0.3", "proposed": "N", "confidence": 0.5},
            "b": {"role": "N", "reason": "why", "evidence": ""},
        },
        "events": [{"kind": "appeal", "number": "1", "date": "2026-01-31", "who": "x", "text": "y", "feature": "a"}],
        "review_due": "2027-01-31",
        "run": "ab",
    }
    read = PolicyCard.of(old)
    assert read.owners == (Owner("board"), Owner("x")) and read.open_appeals
    assert read.decisions["a"].words_of_evidence == "by card; score 0.3" and read.without_evidence == ("b",)
    assert "score 0.3" in card_markdown(read)
    assert PolicyCard.of(json.loads(json.dumps(read.to_json()))) == read


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"owners": [{"name": "x", "kind": "king"}]}, "no kind of owner 'king'; available: affected, board"),
        ({"owners": [{"kind": "board"}]}, "an owner needs a name"),
        ({"owners": [{"name": "x", "mail": "y"}]}, "an owner is a text, or a table of texts with name, kind"),
        ({"owners": "board"}, "owners of a card are a list"),
        ({"owners": [{"name": "x", "key": "12"}]}, "must be a public Ed25519 key in 64 hexadecimal digits"),
        ({"decisions": {"a": {"role": "N", "reason": "x", "evidence": {"kind": "rumour", "text": "y"}}}}, "rumour"),
        ({"decisions": {"a": {"role": "N", "reason": "x", "evidence": 3}}}, "evidence is a text, or a table"),
        ({"decisions": {"a": {"reason": "x"}}}, "each decision of a card is"),
        ({"dictionary": {"a": {"colour": "red"}}}, "the entry of 'a' is a table of texts with meaning"),
        ({"dictionary": {"a": {"manipulability": "much"}}}, "manipulability is none, some, free; got 'much'"),
        ({"approvals": [{"who": "x"}]}, "an approval has who, kind, date, version and digest"),
        ({"date": "soon"}, "'soon' is no date"),
    ],
)
def test_entries_that_cannot_be_read_are_named(change, message):
    with pytest.raises(PolicyError, match=re.escape(message)):
        PolicyCard.of({**card(a="M").to_json(), **change})
