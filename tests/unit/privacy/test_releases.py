"""The catalogue of releases: SECURITY.md, plans and the page follow from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from secure_sccvfl.modes import MODES
from secure_sccvfl.modes.base import mode_plan
from secure_sccvfl.modes.options import RunOptions
from secure_sccvfl.privacy.kinds import Facts
from secure_sccvfl.privacy.releases import CATALOGUE, NOISY_GRADIENT, SCORES, SKETCH, kind_of
from secure_sccvfl.report.sections import learned

ROOT = Path(__file__).resolve().parents[3]
EVERYTHING = {"rule": "fdr", "conditional": True, "gain": True, "generator": "moments", "source": "moments"}


def test_the_table_in_security_md_is_the_catalogue() -> None:
    text = (ROOT / "SECURITY.md").read_text().partition("## What leaves a run")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `.*$", text, re.M) == [kind.row() for kind in CATALOGUE]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("evaluation", ["noisy", "exact"])
def test_every_release_of_a_plan_is_of_one_kind_and_charged_where_the_kind_is(mode: str, evaluation: str) -> None:
    options = RunOptions.of({"mode": mode, "evaluation": evaluation, **EVERYTHING})
    for release in mode_plan(options.schema(3), options).releases.values():
        kinds = [kind for kind in CATALOGUE if kind.is_name(release.name)]
        assert len(kinds) == 1, release.name
        assert (release.event is not None) == (kinds[0].basis == "charged"), release.name


def test_charged_kinds_and_no_others_name_a_charge_and_what_follows_names_a_kind() -> None:
    names = {kind.name for kind in CATALOGUE}
    for kind in CATALOGUE:
        assert (kind.charge is not None) == (kind.basis == "charged"), kind.name
        assert bool(kind.follows) == (kind.basis == "follows") and set(kind.follows) <= names, kind.name


def test_what_follows_goes_back_to_something_that_was_charged() -> None:
    by_name = {kind.name: kind for kind in CATALOGUE}
    for kind in (kind for kind in CATALOGUE if kind.basis == "follows"):
        while kind.basis == "follows":
            kind = by_name[kind.follows[0]]
        assert kind.basis == "charged"


def test_names_are_read_back() -> None:
    assert kind_of("sketch-12 for party 3", charged=True) is SKETCH
    assert kind_of("noisy gradient 0", charged=True) is NOISY_GRADIENT
    assert kind_of("evaluation", charged=True) is not kind_of("evaluation", charged=False)
    assert kind_of("made by another version", charged=False) is None


def test_sizes_follow_from_public_facts() -> None:
    facts = Facts({0: {"a": 5, "b": 2}, 1: {"c": 3}}, (2, 4), refreshes=1)
    assert [(made.name, made.receivers, made.shape) for made in SKETCH.releases(facts)] == [
        ("sketch-0 for party 0", (0,), (7, 6)),
        ("sketch-0 for party 1", (1,), (3, 6)),
        ("sketch-1 for party 0", (0,), (7, 6)),
        ("sketch-1 for party 1", (1,), (3, 6)),
    ]
    (scores,) = SCORES.releases(facts)
    assert (scores.receivers, scores.shape, scores.times) == ((0, 1), (3,), 2)


def test_the_page_has_words_for_every_kind_and_keeps_names_it_does_not_know() -> None:
    shared = {"receivers": [0], "shape": [1], "times": 1, "purpose": "for a test"}
    made = [
        {"name": kind.titled(0, 0), "event": kind.charge, **shared} for kind in CATALOGUE if kind.name != "evaluation"
    ]
    unknown = {"name": "of another version", "event": None, **shared}
    shown = learned({"releases": [*made, unknown], "data": {"label": {"labels": ["no", "yes"]}}})
    assert [entry["name"] for entry in shown] == [
        *(kind.words for kind in CATALOGUE if kind.name != "evaluation"),
        "of another version",
    ]
