"""Roles and policy cards."""

import json

import pytest

from secure_sccvfl.data import load
from secure_sccvfl.policy import Decision, PolicyCard, PolicyError, Roles, read_card, shipped_card

PROPOSED = Roles({"a": "N", "b": "M", "c": "P"})


def card(version="1", **decisions):
    return PolicyCard("toy", version, ("board",), {k: Decision(v, "because") for k, v in decisions.items()})


@pytest.mark.parametrize("name", ["german", "heart", "compas"])
def test_shipped_cards_name_features_that_exist_and_use_all_roles(name):
    shipped = shipped_card(name)
    features = {f.name for f in load(name).features}
    assert set(shipped.decisions) <= features
    assert {d.role for d in shipped.decisions.values()} == {"N", "M", "P"}


def test_a_card_overrides_what_discovery_proposed():
    roles = card(a="P").apply(PROPOSED)
    assert roles.of == {"a": "P", "b": "M", "c": "P"}


def test_a_card_without_a_reason_or_with_an_unknown_feature_is_refused():
    with pytest.raises(PolicyError, match="written reason"):
        Decision("M", "  ")
    with pytest.raises(PolicyError, match="unknown features"):
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


def test_an_unknown_data_set_has_no_card():
    with pytest.raises(PolicyError, match="no card"):
        shipped_card("moon")
