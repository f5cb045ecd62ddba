"""The catalogue of releases: plans, reports, docs/releases.md and the DP audit follow from it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from secure_sccvfl.accounting.accountant import epsilon_against_dealer, epsilon_of
from secure_sccvfl.accounting.events import Event, Sensitivity
from secure_sccvfl.audit import canaries
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.releases import catalogue
from secure_sccvfl.releases.catalogue import (
    CATALOGUE,
    NOISY_GRADIENT,
    NOISY_TABLES,
    SCORES,
    Kind,
    PlanFacts,
    charge_number,
    kind_of,
)
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event, price_head
from secure_sccvfl.reports.results import Release as Made
from secure_sccvfl.reports.sections import learned
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.modes.base import mode_plan, spread_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.unit.reports import literal

ROOT = Path(__file__).resolve().parents[3]
EVERYTHING = {"rule": "fdr", "conditional": True, "gain": True}


def test_every_kind_is_listed_once_and_has_a_complete_row() -> None:
    assert list(CATALOGUE) == [kind for kind in vars(catalogue).values() if isinstance(kind, Kind)]
    for kind in CATALOGUE:
        texts = (kind.title, kind.what, kind.receiver, kind.about, kind.epsilon, kind.why)
        assert all(texts) and bool(kind.canary) == (kind.basis == "charged"), kind.title


def test_every_charged_kind_names_its_own_canary() -> None:
    options = RunOptions.of({})
    for kind in (kind for kind in CATALOGUE if kind.basis == "charged"):
        assert getattr(canaries, kind.canary).kind is kind
        assert canaries.canaries_of([kind], options, options.schema(3))[0].kind is kind


def test_a_charged_kind_without_a_canary_or_a_derived_one_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="has a charge and a canary"):
        replace(NOISY_TABLES, canary="")
    with pytest.raises(ValueError, match="has a charge and a canary"):
        replace(SCORES, canary="TableCanary")
    with pytest.raises(ValueError, match="names them"):
        replace(SCORES, follows=())


def document(name: str) -> str:
    """A document without line breaks."""
    return " ".join((ROOT / name).read_text().split())


def test_coverage_is_stated_for_every_release() -> None:
    """And for none that does not exist. tests/architecture/test_generated_pages.py compares the whole page."""
    groups = tomllib.loads((ROOT / "docs" / "coverage.toml").read_text())["groups"]
    assert {name for group in groups for name in group["releases"]} == {kind.title for kind in CATALOGUE}
    assert all(f"| `{kind.title}` |" in document("docs/releases.md") for kind in CATALOGUE)


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        ("", "Alone, the tables cost {tables:.2f} and the head {head:.2f}"),
        ("german-full", "where a policy card decides every column, {tables:.2f} and {head:.2f}."),
    ],
)
def test_the_figures_of_security_md_are_those_of_the_accountant(card: str, sentence: str) -> None:
    """Two releases of the tables of 20 columns and one head, at epsilon 8."""
    tables, heads = events_of("dealer+holder", card)
    assert epsilon_of([*tables, *heads], 1e-5) == pytest.approx(8, abs=0.005)
    text = sentence.format(tables=epsilon_of(tables, 1e-5), head=epsilon_of(heads, 1e-5))
    assert text in document("SECURITY.md")
    if not card:
        against_holder = epsilon_of([*(replace(event, copies=1) for event in tables), *heads], 1e-5)
        coverage = document("docs/releases.md")
        assert f"about others' columns: {against_holder:.2f};" in coverage
        assert f"who later reads tables: {epsilon_against_dealer(tables, 1e-5):.2f} without" in coverage
        every = [event for part in events_of("all-parties", card) for event in part]
        assert f"(`all-parties`: {epsilon_against_dealer(every, 1e-5):.2f} with three parties" in coverage


def events_of(noise: NoiseKind, card: str) -> tuple[list[Event], list[Event]]:
    """What a default run of three parties on German charges: tables, and the head."""
    options = RunOptions.of({"dataset": "german", "noise": noise, "card": card})
    spread = spread_of(options, options.schema(3))
    assert spread.heads is not None
    level = NoiseLevel(spread.multiplier, noise, 3)
    moved = Sensitivity.of_counts(20**0.5)
    tables = [noised_event(f"sketch-{number}", moved, level, "records", number) for number in range(2)]
    return tables, list(price_head(*spread.heads, 1, noise, 3, "records").events)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("evaluation", ["noisy", "exact"])
def test_every_release_of_a_plan_is_of_one_kind_and_charged_where_the_kind_is(mode: str, evaluation: str) -> None:
    if mode == "split" and evaluation == "noisy":
        pytest.skip("mode split is not private, so its figures are exact")
    options = RunOptions.of({"mode": mode, "evaluation": evaluation, **EVERYTHING})
    for release in mode_plan(options.schema(3), options).releases.values():
        kinds = [kind for kind in CATALOGUE if kind.is_name(release.name)]
        assert len(kinds) == 1, release.name
        assert (release.event is not None) == (kinds[0].basis == "charged"), release.name


def test_what_follows_goes_back_to_something_that_was_charged() -> None:
    by_name = {kind.name: kind for kind in CATALOGUE}
    for kind in CATALOGUE:
        assert set(kind.follows) <= by_name.keys(), kind.name
        while kind.basis == "follows":
            kind = by_name[kind.follows[0]]
            assert kind.basis in ("follows", "charged")


def test_names_are_read_back() -> None:
    assert kind_of("sketch-12 for party 3", charged=True) is NOISY_TABLES
    assert kind_of("noisy gradient 0", charged=True) is NOISY_GRADIENT
    assert kind_of("evaluation", charged=True) is not kind_of("evaluation", charged=False)
    assert kind_of("made by another version", charged=False) is None
    assert [charge_number(name) for name in ("sketch-12", "dp gradient-3", "risk gains", "other-7")] == [12, 3, 0, 0]


def test_sizes_follow_from_public_facts() -> None:
    facts = PlanFacts({0: {"a": 5, "b": 2}, 1: {"c": 3}}, (2, 4), refreshes=1)
    assert [(release.name, release.receivers, release.shape) for release in NOISY_TABLES.releases(facts)] == [
        ("sketch-0 for party 0", (0,), (7, 6)),
        ("sketch-0 for party 1", (1,), (3, 6)),
        ("sketch-1 for party 0", (0,), (7, 6)),
        ("sketch-1 for party 1", (1,), (3, 6)),
    ]
    (scores,) = SCORES.releases(facts)
    assert (scores.receivers, scores.shape, scores.times) == ((0, 1), (3,), 2)


def test_the_page_has_words_for_every_kind_and_keeps_names_it_does_not_know() -> None:
    named = [(kind.titled(0, 0), kind.charge) for kind in CATALOGUE if kind.name != "evaluation"]
    named.append(("of another version", None))
    shown = learned(literal.report(releases=tuple(Made(n, (0,), (1,), "for a test", e, 1) for n, e in named)))
    assert [entry["name"] for entry in shown] == [
        *(kind.what for kind in CATALOGUE if kind.name != "evaluation"),
        "of another version",
    ]
