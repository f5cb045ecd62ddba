"""Roles and policy cards."""

import datetime
import json
from dataclasses import replace

import pytest

from secure_sccvfl.data.catalogue import EMBEDDED, load
from secure_sccvfl.data.census import TASKS
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.discovery.inputs import check_support
from secure_sccvfl.discovery.roles import (
    Decision,
    PolicyCard,
    PolicyError,
    Roles,
    next_version,
    read_card,
    shipped_card,
)
from secure_sccvfl.report.policy_card import card_markdown, card_of_run, mask_of

PROPOSED = Roles({"a": "N", "b": "M", "c": "P"})


def card(version="1", **decisions):
    return PolicyCard("toy", version, ("board",), {k: Decision(v, "because") for k, v in decisions.items()})


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
def test_census_records_of_any_place_have_a_card(task):
    names = {f.name for own in TASKS[task].values() for f in own}
    for place in (":some/where.csv", "@CO-2018", ""):
        shipped = shipped_card(f"{task}{place}")
        shipped.check(names, task)
        assert set(shipped.decisions) == names and {d.role for d in shipped.decisions.values()} == {"N", "M", "P"}


def test_a_card_overrides_what_discovery_proposed():
    roles = card(a="P").apply(PROPOSED)
    assert roles.of == {"a": "P", "b": "M", "c": "P"}


def test_a_card_says_what_becomes_of_proxies():
    edited = replace(card(a="P"), proxies="edit").apply(PROPOSED)
    assert edited.edited == edited.descendants == ("a", "b", "c") and edited.guarded == edited.dropped == ()
    dropped = replace(card(a="P"), proxies="drop").apply(PROPOSED)
    assert dropped.edited == ("b",) and dropped.dropped == ("a", "c") and dropped.guarded == ()
    guarded = card(a="P").apply(PROPOSED)
    assert guarded.guarded == ("a", "c") and guarded.dropped == () and guarded.descendants == ("a", "b", "c")
    assert dropped.with_role("N", ("c",)) == Roles({"a": "P", "b": "M", "c": "N"}, "drop")
    for bad in ("hide", 3, ["edit"]):
        with pytest.raises(PolicyError, match=r"proxies = .* on a policy card; use guard, edit, drop"):
            PolicyCard.of({**card(a="P").to_json(), "proxies": bad})


def test_a_card_that_leaves_nothing_to_edit_is_refused():
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


def test_two_versions_are_compared():
    assert card(a="P", b="M").diff(card("2", a="N", b="M", c="P")) == {"a": ("P", "N"), "c": (None, "P")}


def test_appeals_and_reviews_are_logged_and_nothing_else_changes():
    shipped = shipped_card("german")
    after = shipped.logged("appeal", "2026-03-01", "an applicant", "housing is not a choice")
    assert after.events[-1]["text"] == "housing is not a choice" and after.decisions == shipped.decisions
    with pytest.raises(PolicyError, match="an event is"):
        shipped.logged("appeal", "2026-03-01", "an applicant", " ")


def test_a_card_survives_a_round_trip_through_json(tmp_path):
    path = tmp_path / "card.json"
    path.write_text(json.dumps(shipped_card("german").to_json()))
    assert read_card(path) == shipped_card("german")


def test_the_card_of_a_run_keeps_given_reasons_and_adds_evidence():
    report = {
        "dataset": "toy",
        "run": "ab",
        "party_names": ["x", "y"],
        "roles": {"a": "P", "b": "M", "c": "N"},
        "proxies": "edit",
        "proposed": {"a": "M", "b": "M", "c": "M"},
        "confidence": {"a": 0.25, "b": 0.875, "c": 1.0},
        "scores": {"a": 0.1, "b": 0.3, "c": 0.2},
        "role_changes": ["c: M -> N, does not respond to a change of s"],
        "privacy": {"releases": 5, "epsilon_rdp": 8.0, "delta": 1e-5},
    }
    made = card_of_run(report, card("7", a="P"), datetime.date(2026, 1, 31))
    assert (made.version, made.owners, made.review_due, made.run) == ("7", ("board",), "2027-01-31", "ab")
    assert made.decisions["a"].reason == "because" and "proposed by discovery" in made.decisions["b"].reason
    assert "left it alone" in made.decisions["c"].reason
    rests_on = "score 0.300, place 1 of 3; 5 noisy releases, epsilon 8.00 at 1e-05"
    assert made.decisions["b"].evidence == f"discovery proposes M with confidence 87.5 %; {rests_on}"
    assert made.decisions["a"].evidence.startswith(
        "by card; discovery proposes M with confidence 25.0 %; score 0.100"
    )
    assert (made.decisions["a"].proposed, made.decisions["a"].confidence) == ("M", 0.25)
    assert PolicyCard.of(json.loads(json.dumps(made.to_json()))) == made
    assert mask_of(made) == Roles(report["roles"], "edit").digest() != Roles(report["roles"]).digest()
    told = card_markdown(made)
    assert "| a | P | because | by card; discovery proposes M" in told and "edited with the mediators" in told


def test_reviews_answer_appeals_and_set_the_next_date():
    asked = card(a="P").appealed("a", "2026-03-01", "someone", "why?", wants="N")
    assert [e["number"] for e in asked.open_appeals] == ["1"]
    kept = asked.reviewed("2026-03-02", "board", "it stays", appeal="1")
    assert kept.decisions == asked.decisions and kept.version == "1" and kept.review_due == "2027-03-02"
    changed = asked.reviewed("2026-03-02", "board", "agreed", appeal="1", role="N", due="2026-06-01")
    assert changed.decisions["a"].role == "N" and changed.version == "2" and not changed.open_appeals
    assert changed.overdue(datetime.date(2026, 6, 2)) and not changed.overdue(datetime.date(2026, 6, 1))
    assert [next_version(v) for v in ("1", "2.7", "draft")] == ["2", "2.8", "draft.1"]
    with pytest.raises(PolicyError, match="no open appeal"):
        kept.reviewed("2026-03-03", "board", "again", appeal="1")
    with pytest.raises(PolicyError, match="in answer to an appeal"):
        kept.reviewed("2026-03-03", "board", "just so", role="N")
    with pytest.raises(PolicyError, match="no date"):
        kept.reviewed("tomorrow", "board", "regular")


def test_an_unknown_data_set_has_no_card():
    with pytest.raises(PolicyError, match="no card"):
        shipped_card("moon")
