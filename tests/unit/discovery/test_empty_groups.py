"""A group without a record is no secret's business of the others: no refusal tells them, and nothing breaks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import own_part
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig, decide
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.residuals import Conditional, ResidualDependence
from secure_sccvfl.discovery.scores import OpenedSquares, paper_scores, weigh
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import PlainStatistics, check_groups
from secure_sccvfl.evaluation.counterfactual_models import (
    COUNTERFACTUAL_MODELS,
    CounterfactualError,
    make_counterfactuals,
)
from secure_sccvfl.models.cvae import Cvae, CvaeConfig
from secure_sccvfl.models.generators import GeneratorConfig, make_generator
from secure_sccvfl.models.table_generator import shift_direction
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.research.paper.generators import pseudo_groups
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import train
from tests.support.discovery import WIDTH, Consortium
from tests.unit.data.test_dataset import write

DATA = load("acs12")
PARTY = make_parties(DATA)[0]
NAMES = [block.feature.name for block in PARTY.layout.blocks]


@pytest.mark.parametrize("codes", [[0] * 300, [1] * 300])
def test_parties_see_the_same_of_an_empty_group_as_of_a_full_one(codes: list[int]) -> None:
    """Releases, charges and what is sent before them; the counts of the group are what noise is added to: 0."""

    def observed(group: Consortium, kind: type[SecureStatistics] | None = None) -> list[object]:
        def job(session, statistics, budget):
            tables = group.release_counts(session, statistics)
            group.release(session, statistics, ResidualDependence("residuals", WIDTH))
            names = [entry["release"] for entry in session.released]
            return tables, (names, [event.to_dict() for event in budget.events])

        return group.run(job) if kind is None else group.run(job, kind=kind)

    empty = Consortium()
    empty.codes[0] = np.array(codes)
    for (tables, seen), (_, full) in zip(observed(empty), observed(Consortium()), strict=True):
        assert seen == full
        for name, values in tables[0].items():
            assert (values == empty.table(name, 0)).all() and not values[:, 1 - codes[0]].any()
    for tables, _ in observed(empty, SecureStatistics):
        assert all(np.isfinite(values).all() for values in tables[0].values())


@pytest.mark.parametrize("codes", [[0, 2], [-1, 0], [0.0, 1.0], [0, 1, 1]])
def test_malformed_codes_are_still_refused(codes: list[float]) -> None:
    with pytest.raises(DataError):
        check_groups(np.array(codes), 2, 2)
    assert (check_groups(np.array([1, 1]), 2, 2) == 1).all()


def test_only_the_holder_is_warned_and_continues(tmp_path: Path) -> None:
    path = write(tmp_path, office={"old": ["yes"] * 200}, n=200)
    with pytest.warns(DataWarning, match=r"'old': no training record of \['no'\]"):
        held = own_part(path, 1, 0).protected[0].codes
    assert held is not None and (held == 1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_part(path, 0, 0).protected[0].codes is None
    with pytest.raises(DataError, match="not among"):
        own_part(write(tmp_path, office={"old": ["maybe"] * 200}, n=200), 1, 0)


def finite(*values: object) -> None:
    assert all(np.isfinite(np.asarray(value)).all() for value in values)


@st.composite
def noisy_tables(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Tables of the party as noise may leave them: groups or bins at zero, below it, or far below it."""
    counts = st.one_of(st.just(0.0), st.floats(-60, 60), st.floats(-1e4, 0), st.floats(0, 1e4))
    tables = {b.feature.name: draw(arrays(float, (b.feature.bins, 3), elements=counts)) for b in PARTY.layout.blocks}
    group, how = draw(st.integers(0, 2)), draw(st.sampled_from(["zero", "negative", "as drawn", "all"]))
    for table in tables.values():
        if how == "zero":
            table[:, group] = 0.0
        elif how == "negative":
            table[:, group] = -np.abs(table[:, group]) - 1
        elif how == "all":
            table[:] = -np.abs(table)
    return tables


@given(noisy_tables(), st.floats(0, 100), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_what_follows_a_release_copes_with_any_counts(
    tables: dict[str, np.ndarray], deviation: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    finite(*(paper_scores(table) for table in tables.values()))
    release = NoisyTables("s", tables, deviation)
    for config in (
        DiscoveryConfig("fractions", "paper"),
        DiscoveryConfig("fdr", "paper", simulations=20),
        DiscoveryConfig(score="stable", simulations=20),
    ):
        evidence = weigh([release, release], config, seed, [NAMES])
        decided = decide(evidence, config, conditional=[Conditional(dict.fromkeys(NAMES, 0.0), {})])
        finite(list(evidence.scores.values()), list(decided.scores.values()))
        drawn = weigh([release, release], config, seed, [NAMES], redrawn=True)
        finite(*drawn.scores.values(), *drawn.p_values.values(), list(evidence.p_values.values()))
    for opened in PlainStatistics(NoNoise()).projected((tables,), 1, ()):
        one = OpenedSquares("s", opened, {k: len(table) for k, table in tables.items()}, deviation)
        finite(*([one.score(k), one.p_values(k, seed), one.redrawn(k, 3, seed)[0]] for k in tables))
    finite(shift_direction(PARTY.layout, tables, NAMES))
    inputs, roles = PARTY.inputs[:50], Roles(dict.fromkeys(NAMES, "M"))
    for kind in ("minimal", "moments"):
        generator = make_generator(PARTY.layout, tables, deviation, roles, GeneratorConfig(kind), seed, inputs)
        for start in range(3):
            edited = generator(inputs, start, rng.integers(0, 3, len(inputs)), 0)
            finite(edited)
            assert edited.min() >= -1e-12 and edited.max() <= 1 + 1e-12


@pytest.mark.parametrize("how", ["zero", "negative", "one group has all"])
def test_the_cvae_copes_with_an_empty_group(how: str) -> None:
    tables = {b.feature.name: np.full((b.feature.bins, 3), 20.0) for b in PARTY.layout.blocks}
    for table in tables.values():
        table[:, 1:] = {"zero": 0.0, "negative": -30.0, "one group has all": -1e9}[how]
        table[:, 0] *= 1e6 if how == "one group has all" else 1
    inputs = PARTY.inputs[:100]
    codes = pseudo_groups(PARTY.layout, inputs, tables, np.random.default_rng(0))
    assert how != "one group has all" or not codes.any()
    model = Cvae(PARTY.layout, tuple(NAMES), 3, CvaeConfig(epochs=3)).fit(inputs, codes, 0)
    finite(codes, model.edit(inputs, codes, (codes + 1) % 3))


@pytest.mark.parametrize("rule", ["fractions", "fdr"])
def test_a_whole_training_copes_with_an_empty_group(rule: str) -> None:
    """The training part has no record of one group; the others have."""
    data = load("german")
    split = make_split(data, "iid", 0)
    codes = data.protected[0].codes.copy()
    codes[split.train] = 0
    bare = replace(data, protected=(replace(data.protected[0], codes=codes),))
    config = TrainConfig(refreshes=1, lambdas=(8.0,), discovery=DiscoveryConfig(rule=rule, simulations=20))
    model = train(PlainEngine(), PlainStatistics(GaussianNoise(SpendingPlan(releases=2), 0)), bare, split, config, 0)
    finite(model.head.weight, model.lam, model.temperature, list(model.assignment.scores.values()))
    finite(model.logits(tuple(p.take(split.test) for p in make_parties(bare))))


@pytest.mark.parametrize("kind", COUNTERFACTUAL_MODELS)
def test_a_counterfactual_model_without_a_large_enough_group_says_so(kind: str) -> None:
    few = DATA.take(np.flatnonzero(DATA.protected[0].codes == 0)[:4])
    with pytest.raises(CounterfactualError, match="no group has 5"):
        make_counterfactuals(kind, few, np.zeros(0, str), (NAMES[0],), 0, everyone=few)


def test_no_name_of_a_group_is_revealed(tmp_path: Path) -> None:
    """What the others learn of a refused input has no word of the holder's data in it."""
    group = Consortium()
    group.codes[0] = group.codes[0] + 7

    def job(session, statistics, budget) -> Mapping[str, object]:
        with pytest.raises(DataError) as caught:
            group.release_counts(session, statistics)
        return {"line": str(caught.value), "charged": len(budget.events)}

    lines = group.run(job, kind=SecureStatistics)
    assert [line["charged"] for line in lines] == [0, 0, 0]
    for rank in (0, 2):
        assert lines[rank]["line"] == "sketch-0: party 1 refused its own input; nothing was charged"
