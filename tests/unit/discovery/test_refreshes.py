"""Discovery on either engine: what is refused before a charge, refreshes, decay, moments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accounting.budget import BudgetError
from protocols.session.saving import restore_share
from protocols.steps.head import HEAD_BITS
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.scores import Evidence
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.runs.model_files import HeldOut, PartyModel, load_model, save_model
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import train

DATA = load("german")
PARTIES = make_parties(DATA)
FEATURES = len(DATA.features)
CONFIG = replace(
    TrainConfig(),
    refreshes=1,
    late_refreshes=0,
    lambdas=(4.0,),
    discovery=DiscoveryConfig("fractions", "paper", rho_p=0.5),
)


def discovery(noise, **settings):
    seen: list[tuple[str, dict]] = []
    made = Discovery(
        PlainStatistics(noise),
        PARTIES,
        DATA.protected,
        FEATURES,
        DiscoveryConfig(**settings),
        0,
        audit=lambda event, numbers: seen.append((event, dict(numbers))),
    )
    return made, seen


# refused before anything is charged


@pytest.mark.parametrize("edges", ["quantiles", ["median", 3], [0, "max"]])
def test_bin_edges_come_from_the_public_dictionary_only(edges):
    with pytest.raises(DataError, match="public numbers"):
        Feature.of({"name": "x", "kind": "number", "edges": edges})


@pytest.mark.parametrize("value", [1e9, -1.0, np.nan])
def test_a_record_outside_the_public_range_never_reaches_a_bin(value):
    table = DATA.parties[0]
    column = next(i for i, f in enumerate(table.features) if f.kind == "number")
    values = table.values.copy()
    values[5, column] = value
    changed = replace(DATA, parties=(replace(table, values=values), *DATA.parties[1:]))
    with pytest.raises(DataError, match=r"outside the public range|NaN"):
        make_parties(changed)


def test_a_first_sketch_without_budget_ends_the_run_and_a_later_one_leaves_the_masks():
    noise = GaussianNoise(SpendingPlan(releases=2), 0)
    made, seen = discovery(noise)
    sketches, finding = made.refresh(0)
    sketches, finding = made.refresh(1, sketches, finding)
    kept = made.refresh(2, sketches, finding)
    assert kept == (sketches, finding) and len(noise.charges) == 2
    assert [event for event, _ in seen] == ["roles", "roles", "refresh refused"]
    assert "cap" in seen[2][1]["reason"]
    with pytest.raises(BudgetError):
        made.refresh(3)


def test_a_decision_is_logged_with_the_numbers_it_rests_on():
    made, seen = discovery(GaussianNoise(SpendingPlan(releases=1), 0), rule="fdr", simulations=50)
    _, finding = made.refresh(0)
    (event, numbers) = seen[0]
    assert event == "roles" and numbers["roles"] == finding.roles.of
    assert numbers["scores"] == finding.scores and numbers["p_values"] == finding.p_values
    assert len(numbers["p_values"]) == FEATURES and numbers["deviation"] > 0 and numbers["settings"]["fdr"] == 0.1


# averages


def test_older_tables_of_other_records_count_less():
    old = NoisyTables("s", {"a": np.zeros((2, 2))}, 2.0, records="then")
    new = NoisyTables("s", {"a": np.ones((2, 2))}, 2.0, records="now")
    assert old.merged(new, 0.25).tables["a"][0, 0] == pytest.approx(1 / 1.25)
    assert old.merged(replace(new, records="then"), 0.25).tables["a"][0, 0] == pytest.approx(0.5)
    assert (old.merged(new, 0.0).tables["a"] == 1).all()
    assert old.merged(new, 0.0).deviation == pytest.approx(2.0)


def test_the_stated_deviation_of_a_decayed_average_is_the_true_one():
    rng = np.random.default_rng(0)
    old = NoisyTables("s", {"a": rng.normal(0, 3.0, (200, 50))}, 3.0, records="then")
    new = NoisyTables("s", {"a": rng.normal(0, 2.0, (200, 50))}, 2.0, records="now")
    merged = old.merged(new, 0.3)
    assert merged.tables["a"].std() == pytest.approx(merged.deviation, rel=0.03)


def test_a_kept_model_edits_as_the_trained_one_did(tmp_path):
    statistics = PlainStatistics(GaussianNoise(SpendingPlan(releases=3), 0))
    model = train(PlainEngine(), statistics, DATA, make_split(DATA, "iid", 0), CONFIG, 0)
    for party in PARTIES:
        shares = restore_share(np.zeros((1, 1), np.int64), HEAD_BITS)
        kept = PartyModel(
            "r", party.rank, 3, "s", "binary", 1.0, 1.0, dict(model.roles.of), CONFIG.generator, 0,
            HeldOut("iid", True, "exact", {}),
            model.encoders[party.rank], model.sketches, shares, shares[0],
        )  # fmt: skip
        save_model(kept, tmp_path / str(party.rank))
        again = load_model(tmp_path / str(party.rank), party.layout).generators(party)
        targets = np.ones(len(party.inputs), int)
        for attribute, generate in again.items():
            trained = model.generators[attribute][party.rank]
            assert (generate(party.inputs, 0, targets, 0) == trained(party.inputs, 0, targets, 0)).all()


@pytest.mark.parametrize("hysteresis", [0.0, 0.1])
def test_a_refresh_compares_with_the_roles_before_it_under_the_default_rule(hysteresis, monkeypatch):
    """A p-value just above the level: without a margin the mediator is lost, with it the role is kept."""
    made, seen = discovery(NoNoise(), hysteresis=hysteresis)
    level = made.config.fdr
    told = iter([0.5 * level, 1.05 * level, 1.2 * level])

    def evidence(self, sketches):
        return Evidence({"housing": 0.3}, {"housing": next(told)}), ()

    monkeypatch.setattr(Discovery, "_evidence", evidence)
    assert made.config == DiscoveryConfig(hysteresis=hysteresis) and DiscoveryConfig().hysteresis == 0.1
    sketches, finding = made.refresh(0)
    roles = [finding.roles.of["housing"]]
    for number in (1, 2):
        sketches, finding = made.refresh(number, sketches, finding)
        roles.append(finding.roles.of["housing"])
    assert roles == (["M", "M", "N"] if hysteresis else ["M", "N", "N"])
    assert [numbers["changes"] for _, numbers in seen][-1] == (["housing: M -> N"] if hysteresis else [])
