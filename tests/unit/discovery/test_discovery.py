"""Roles: scores, p-values, repeated releases, the budget, and the confidence of proposals."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from secure_sccvfl.accounting.budget import BudgetError
from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Protected
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.party import make_parties, part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import (
    DiscoveryConfig,
    RoleAssignment,
    benjamini_hochberg,
    confidence,
    decide,
    interventional_check,
)
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.noisy_tables import NoisyTables, release_tables
from secure_sccvfl.discovery.residuals import Conditional, residual_hsic, residual_scores
from secure_sccvfl.discovery.scores import Evidence, probability_gap, table_hsic, weigh
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.policy.card import Decision, PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.session.saving import restore_share
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.releases.catalogue import REDRAWS
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from secure_sccvfl.research.role_stability import same_roles
from secure_sccvfl.runs.model_files import HeldOut, PartyModel, load_model, save_model
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import train
from tests.support.reference import reference

DATA = load("german")
PARTIES = make_parties(DATA)
FEATURES = len(DATA.features)


def test_scores_of_tables_whose_answer_is_known():
    independent = np.outer([3, 5, 2], [10, 30])
    assert probability_gap(independent) == pytest.approx(0) and table_hsic(independent) == pytest.approx(0)
    same = np.diag([20.0, 20.0])
    assert probability_gap(same) == pytest.approx(1) and table_hsic(same) == pytest.approx(1 / 4)
    three = np.array([[10, 0, 0], [0, 10, 10.0]])
    assert probability_gap(three) == pytest.approx(1), "the largest pairwise gap counts"
    assert table_hsic(np.zeros((2, 2))) == 0.0


def roles_of(releases, config, seed=0, conditional=(), **more):
    run = Discovery(PlainStatistics(NoNoise()), (), (), 0, config, seed)
    table_evidence = weigh(releases, config, seed, [sorted(releases[0].tables)])
    evidence = run._evidence(releases)[0] if config.score == "hsic" else table_evidence
    return decide(evidence, config, conditional=conditional, **more)


def test_tables_without_noise_equal_a_cross_table():
    release = release_tables(PlainStatistics(NoNoise()), PARTIES, DATA.protected, "s", FEATURES)[0]
    codes, values = DATA.protected[0].codes, DATA.parties[1].values[:, 3]
    for category in range(3):
        for group in range(2):
            assert release.tables["housing"][category, group] == ((values == category) & (codes == group)).sum()


def test_five_refreshes_end_at_the_noise_of_one_release_of_the_whole_budget():
    noise = GaussianNoise(SpendingPlan(releases=5), 1)
    statistics = PlainStatistics(noise)
    merged = release_tables(statistics, PARTIES, DATA.protected, "0", FEATURES)
    for i in range(1, 5):
        fresh = release_tables(statistics, PARTIES, DATA.protected, str(i), FEATURES)
        merged = tuple(a.merged(b) for a, b in zip(merged, fresh, strict=True))
    once = GaussianNoise(SpendingPlan(releases=1), 1).deviation(Sensitivity.of_counts(np.sqrt(19)))
    assert merged[0].deviation == pytest.approx(once, rel=0.02) and merged[0].releases == 5


def test_the_budget_is_what_the_accountant_says_and_is_not_exceeded():
    budget = SpendingPlan(releases=5)
    accountant = RdpAccountant()
    accountant.compose(GaussianDpEvent(budget.multiplier), budget.releases)
    assert accountant.get_epsilon(budget.delta) == pytest.approx(8.0, abs=0.01)
    noise = GaussianNoise(budget, 0)
    for i in range(5):
        noise.release({"a": np.zeros(3)}, str(i), Sensitivity.of_counts(1.0))
    with pytest.raises(BudgetError, match="the cap is 8"):
        noise.release({"a": np.zeros(3)}, "one too many", Sensitivity.of_counts(1.0))
    assert len(noise.charges) == 5 and noise.charges[-1].epsilon_after <= 8.01


@pytest.mark.parametrize("factor", [1.0, 2 / 3, 3 / 2])
def test_the_noise_has_the_scale_that_is_charged(factor):
    noise = GaussianNoise(SpendingPlan(), 7)
    drawn = noise.release({"a": np.zeros(4000)}, "x", Sensitivity.of_counts(3.0))["a"]
    expected = factor * 3.0 * noise.plan.multiplier * np.sqrt(2)
    far = abs(drawn.std() / expected - 1) > 4 / np.sqrt(2 * 4000)
    assert far == (factor != 1.0)


@pytest.mark.parametrize(
    "bad", [{"epsilon": 0}, {"delta": 0}, {"delta": 1.0}, {"releases": 0}, {"noise": "all-parties", "parties": 0}]
)
def test_a_bad_budget_is_refused(bad):
    with pytest.raises(ValueError, match="must"):
        SpendingPlan(**bad)


def test_fdr_finds_what_is_there():
    releases = release_tables(PlainStatistics(NoNoise()), PARTIES, DATA.protected, "s", FEATURES)
    assignment = roles_of(releases, DiscoveryConfig(rule="fdr", rho_p=0.5, fdr=0.05, simulations=200), 0)
    assert {"housing", "personal_status_sex", "employment_since"} <= set(assignment.roles.named("P"))
    assert assignment.roles.of["foreign_worker"] == "N"


def test_benjamini_hochberg_on_a_worked_example():
    p = {"a": 0.001, "b": 0.012, "c": 0.02, "d": 0.2, "e": 0.9}
    assert benjamini_hochberg(p, 0.05) == {"a", "b", "c"}
    assert benjamini_hochberg({"a": 0.9}, 0.05) == set()


def tables_with_scores(**scores):
    tables = {k: 100 * np.array([[0.5 + v / 2, 0.5 - v / 2], [0.5 - v / 2, 0.5 + v / 2]]) for k, v in scores.items()}
    return (NoisyTables("s", tables, 1.0),)


def test_fractions_take_the_top_scores():
    config = DiscoveryConfig("fractions", rho_m=0.5, rho_p=0.5)
    roles = roles_of(tables_with_scores(a=0.9, b=0.5, c=0.2, d=0.1), config, 0).roles
    assert roles.of == {"a": "P", "b": "M", "c": "N", "d": "N"}


def test_hysteresis_keeps_a_role_until_the_score_clears_the_boundary():
    config = DiscoveryConfig("fractions", "paper", rho_m=0.5, rho_p=0.5, hysteresis=0.2)
    before = {"a": "P", "b": "M", "c": "N", "d": "N"}
    close = roles_of(tables_with_scores(a=0.9, b=0.40, c=0.41, d=0.1), config, previous=before)
    assert close.roles.of["b"] == "M" and not close.log
    clear = roles_of(tables_with_scores(a=0.9, b=0.30, c=0.5, d=0.1), config, previous=before)
    assert clear.roles.of["c"] == "M" and clear.log


def test_a_card_has_the_last_word_and_is_logged():
    card = PolicyCard("toy", "1", ("board",), {"a": Decision("N", "given by law")})
    assignment = roles_of(tables_with_scores(a=0.9, b=0.1), DiscoveryConfig(), card=card)
    assert assignment.roles.of["a"] == "N" and "given by law" in assignment.log[0]


def test_the_interventional_check_demotes_an_idle_mediator_and_refuses_a_changed_n():
    """The function alone; that a run acts on its answer is in test_method_training.py."""
    assignment = RoleAssignment(Roles({"a": "M", "b": "N", "c": "M", "d": "P"}), {"a": 0.4}, {"a": 0.01}, ("before",))
    kept = interventional_check(assignment, {"b": 0.0, "d": 0.0}, {"a": 1e-9, "c": 0.3})
    assert kept == assignment
    checked = interventional_check(assignment, {"b": 0.0, "d": 0.0}, {"a": 0.0, "c": 0.3})
    assert checked.roles.of == {"a": "N", "b": "N", "c": "M", "d": "P"}
    assert checked.log == ("before", "a: M -> N, does not respond to a change of s")
    assert (checked.scores, checked.p_values) == (assignment.scores, assignment.p_values)
    for moved in ("b", "d"):
        with pytest.raises(RuntimeError, match=rf"must stay fixed: \['{moved}'\]"):
            interventional_check(assignment, {"b": 0.0, "d": 0.0, moved: -1e-9}, {"a": 0.3, "c": 0.3})


def test_conditional_hsic_ranks_what_s_explains_beyond_the_other_columns():
    others = [p.take(np.arange(0, DATA.n, 3)) for p in PARTIES]
    rows = PARTIES[0].residual_features(0, others[0].inputs)
    assert all(np.allclose((block**2).sum(axis=1), 1.0) for block in rows.values()), "the stated sensitivity"
    plain = PlainStatistics(NoNoise())

    def dependence(protected):
        release = residual_scores(plain, PARTIES, others, protected, FEATURES, 0)
        assert release[1] == 0.0
        return residual_hsic(release, PARTIES, protected, 0).values

    scores = dependence(DATA.protected)
    shuffled = (
        Protected("s", "employer", ("0", "1"), np.random.default_rng(0).permutation(DATA.protected[0].codes)),
    )
    assert scores["employment_since"] > 5 * np.median(list(dependence(shuffled).values()))
    assignment = roles_of(
        release_tables(PlainStatistics(NoNoise()), PARTIES, DATA.protected, "s", FEATURES),
        DiscoveryConfig("fractions", rho_p=0.5),
        0,
        conditional=[Conditional(scores, {})],
    )
    assert assignment.roles.of["employment_since"] == "P"


@pytest.mark.parametrize("bad", [{"rule": "x"}, {"score": "x"}, {"rho_m": 2}, {"fdr": -1}, {"simulations": 1}])
def test_a_bad_discovery_configuration_is_refused(bad):
    with pytest.raises(ValueError, match=r"unknown|must|bad"):
        DiscoveryConfig(**bad)


CONFIG = replace(
    TrainConfig(),
    refreshes=1,
    late_refreshes=0,
    lambdas=(4.0,),
    discovery=DiscoveryConfig("fractions", "paper", rho_p=0.5),
)


def discovery(noise, **settings):
    seen: list[tuple[str, dict]] = []
    run = Discovery(
        PlainStatistics(noise),
        PARTIES,
        DATA.protected,
        FEATURES,
        DiscoveryConfig(**settings),
        0,
        audit=lambda event, numbers: seen.append((event, dict(numbers))),
    )
    return run, seen


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


def test_a_first_release_without_budget_ends_the_run_and_a_later_one_leaves_the_roles():
    noise = GaussianNoise(SpendingPlan(releases=2), 0)
    run, seen = discovery(noise)
    releases, assignment = run.refresh(0)
    releases, assignment = run.refresh(1, releases, assignment)
    kept = run.refresh(2, releases, assignment)
    assert kept == (releases, assignment) and len(noise.charges) == 2
    assert [event for event, _ in seen] == ["roles", "roles", "refresh refused"]
    assert "cap" in seen[2][1]["reason"]
    with pytest.raises(BudgetError):
        run.refresh(3)


def test_a_decision_is_logged_with_the_numbers_it_rests_on():
    run, seen = discovery(GaussianNoise(SpendingPlan(releases=1), 0), rule="fdr", simulations=50)
    _, assignment = run.refresh(0)
    (event, numbers) = seen[0]
    assert event == "roles" and numbers["roles"] == assignment.roles.of
    assert numbers["scores"] == assignment.scores and numbers["p_values"] == assignment.p_values
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


def test_a_saved_model_makes_the_counterfactuals_of_the_trained_one(tmp_path):
    statistics = PlainStatistics(GaussianNoise(SpendingPlan(releases=3), 0))
    model = train(PlainEngine(), statistics, DATA, make_split(DATA, "iid", 0), CONFIG, 0)
    for party in PARTIES:
        shares = restore_share(np.zeros((1, 1), np.int64), HEAD_BITS)
        kept = PartyModel(
            "r", party.rank, 3, "s", "binary", 1.0, 1.0, dict(model.roles.of), CONFIG.generator, 0,
            HeldOut("iid", True, "exact", {}),
            model.encoders[party.rank], model.noisy_tables, shares, shares[0],
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
    run, seen = discovery(NoNoise(), hysteresis=hysteresis)
    level = run.config.fdr
    p_values = iter([0.5 * level, 1.05 * level, 1.2 * level])

    def evidence(self, releases):
        return Evidence({"housing": 0.3}, {"housing": next(p_values)}), ()

    monkeypatch.setattr(Discovery, "_evidence", evidence)
    assert run.config == DiscoveryConfig(hysteresis=hysteresis) and DiscoveryConfig().hysteresis == 0.1
    releases, assignment = run.refresh(0)
    roles = [assignment.roles.of["housing"]]
    for number in (1, 2):
        releases, assignment = run.refresh(number, releases, assignment)
        roles.append(assignment.roles.of["housing"])
    assert roles == (["M", "M", "N"] if hysteresis else ["M", "N", "N"])
    assert [numbers["changes"] for _, numbers in seen][-1] == (["housing: M -> N"] if hysteresis else [])


@cache
def everyone(name: str):
    data = load(name)
    return data, make_parties(data)


def assignment_of_run(
    name: str, seed: int, card: PolicyCard | None = None, epsilon: float = 8.0, **settings
) -> RoleAssignment:
    """Discovery of a run with this seed: its own training part and noise, two releases."""
    data, parties = everyone(name)
    part = part_of(data, make_split(data, "iid", seed).train, parties)
    noise = PlainStatistics(GaussianNoise(SpendingPlan(epsilon=epsilon), seed))
    config = DiscoveryConfig(**settings)
    run = Discovery(noise, part.parties, part.protected, len(data.features), config, seed, card)
    releases, assignment = (), None
    for number in range(2):
        releases, assignment = run.refresh(number, releases, assignment)
    assert assignment is not None and not assignment.confidence
    return run.with_confidence(releases, assignment)


def agreements(assignments: list[RoleAssignment]) -> tuple[np.ndarray, np.ndarray]:
    """For each role and other run: the confidence of the role, and whether it came again."""
    pairs = [
        (a.confidence[k], a.proposed[k] == b.proposed[k])
        for a in assignments
        for b in assignments
        if a is not b
        for k in a.proposed
    ]
    sure, again = np.array(pairs).T
    return sure, again.astype(bool)


def test_confident_roles_of_german_come_again():
    sure, again = agreements([assignment_of_run("german", seed) for seed in range(300, 312)])
    high, low = sure > 0.9, sure < 0.5
    assert high.mean() > 0.25 and again[high].mean() >= 0.8
    assert low.any() and again[low].mean() < again[high].mean() - 0.2, "and others less often"


def measured_stability(dataset: str) -> tuple[float, float, int]:
    """Agreement of two runs in results/role-stability.json, its standard error, and the number of runs."""
    results = json.loads((Path(__file__).parents[3] / "results" / "role-stability.json").read_text("utf-8"))
    asked = {"dataset": dataset, "budget": "tables alone", "score": DiscoveryConfig().score}
    (row,) = [row for row in results["rows"] if all(row[k] == v for k, v in asked.items())]
    runs = len(row["seeds"])
    return row["same"], row["half_width"] / stats.t.ppf(0.975, runs - 1), runs


def test_roles_of_colorado_agree_between_two_runs():
    """As often as was measured on other seeds, less three standard errors of the difference.

    The limit is about .907; these seeds give .946, with a standard error of .013. So .95 and .94, which were limits
    here, lie within chance of what is measured: drawn again, agreement would be below them in 6 and 3 of 10 cases,
    and below three errors in 1 to 4 of 1,000 (normal, or t with 19 degrees). Seeds are fixed, so only changed code
    draws again. The control, epsilon 1 instead of 8, has .73.
    """
    path = f"acs-income:{reference('acsincome_co2018.csv.gz')}"
    seeds = range(300, 312)
    mean, error, runs = measured_stability("acs-income")
    limit = mean - 3 * error * np.sqrt(1 + runs / len(seeds))
    agreed = np.nanmean(same_roles([assignment_of_run(path, seed) for seed in seeds]))
    worse = np.nanmean(same_roles([assignment_of_run(path, seed, epsilon=1.0) for seed in seeds]))
    assert worse < limit <= agreed


def test_what_is_clear_is_sure_and_what_is_on_the_edge_is_not():
    config = DiscoveryConfig(rho_p=0.5)
    evidence = Evidence({"a": 0.9, "b": 0.5, "c": 0.0}, {"a": 0.001, "b": 0.001, "c": 0.9})
    clear = Evidence(
        {k: np.full(REDRAWS, v) for k, v in evidence.scores.items()},
        {k: np.full(REDRAWS, v) for k, v in evidence.p_values.items()},
    )
    proposed = decide(evidence, config).proposed
    assert proposed == {"a": "P", "b": "M", "c": "N"}
    assert confidence(clear, (), config, proposed, 0) == {"a": 1.0, "b": 1.0, "c": 1.0}
    coin = np.arange(REDRAWS) % 2
    close = replace(clear, p_values={**clear.p_values, "c": np.where(coin, 0.001, 0.9)})
    assert confidence(close, (), config, proposed, 0)["c"] == pytest.approx(0.5, abs=0.1)
    tied = replace(clear, scores={**clear.scores, "b": np.where(coin, 0.95, 0.5)})
    sure = confidence(tied, (), config, proposed, 0)
    assert sure["a"] == sure["b"] == pytest.approx(0.5, abs=0.1) and sure["c"] == 1.0
    beyond = {"a": 0.0, "b": 1.0, "c": 0.0}
    residual = Conditional(beyond, {k: [v] * REDRAWS for k, v in beyond.items()})
    assert confidence(clear, [residual], config, proposed, 0)["a"] == 0.0, "residuals count"
    unsure = replace(residual, redrawn={**residual.redrawn, "b": coin.tolist()})
    sure = confidence(clear, [unsure], config, proposed, 0)
    assert sure["a"] == pytest.approx(0.5, abs=0.1), "and are redrawn"


def tables(names: str, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {k: rng.multinomial(300, np.full(8, 1 / 8)).reshape(4, 2).astype(float) for k in names}


@pytest.mark.parametrize("rule", ["fdr", "fractions"])
def test_a_party_redraws_its_own_features_as_if_alone(rule):
    config, both = DiscoveryConfig(rule, "stable"), tables("abc")
    alone = weigh([NoisyTables("s", {k: both[k] for k in "ab"}, 3.0)], config, 7, ["ab"], redrawn=True)
    joint = weigh([NoisyTables("s", both, 3.0)], config, 7, ["ab", "c"], redrawn=True)
    assert all(np.array_equal(alone.scores[k], joint.scores[k]) for k in "ab")
    assert alone.p_values.keys() == (set("ab") if rule == "fdr" else set())
    assert all(len(v) == REDRAWS for v in joint.scores.values())


def test_several_attributes_take_the_strongest_evidence():
    one, other = NoisyTables("s", tables("ab"), 3.0), NoisyTables("t", tables("ab", 1), 3.0)
    config = DiscoveryConfig(score="stable", simulations=50)
    both, alone = weigh([one, other], config, 0, ["ab"]), [weigh([s], config, 0, ["ab"]) for s in (one, other)]
    assert both.scores == {k: max(e.scores[k] for e in alone) for k in "ab"}
    assert both.p_values == pytest.approx({k: min(1.0, 2 * min(e.p_values[k] for e in alone)) for k in "ab"})
    drawn = [weigh([s], config, 0, ["ab"], redrawn=True) for s in (one, other)]
    joint = weigh([one, other], config, 0, ["ab"], redrawn=True)
    assert np.array_equal(joint.scores["a"], np.maximum(*(d.scores["a"] for d in drawn)))


def test_a_card_decides_and_the_proposal_is_kept_with_its_confidence():
    card = PolicyCard("german", "1", ("board",), {"housing": Decision("N", "given by law")})
    plain, ruled = assignment_of_run("german", 300), assignment_of_run("german", 300, card)
    assert ruled.roles.of["housing"] == "N" and ruled.by_card == ("housing",) and plain.by_card == ()
    assert ruled.proposed == plain.proposed and ruled.confidence == plain.confidence
    assert RoleAssignment.of_record(json.loads(json.dumps(ruled.as_record()))) == ruled


def test_hysteresis_under_fdr_is_a_margin_and_no_more():
    """A score that clears the margin changes a role, also among features that were found."""
    config = DiscoveryConfig(rho_p=0.5, hysteresis=0.1)
    p = {"a": 0.001, "b": 0.001}
    close = decide(Evidence({"a": 0.30, "b": 0.31}, p), config, {"a": "P", "b": "M"})
    assert close.proposed == {"a": "P", "b": "M"}
    clear = decide(Evidence({"a": 0.30, "b": 0.40}, p), config, {"a": "P", "b": "M"})
    assert clear.proposed == {"a": "M", "b": "P"} and clear.log == ("a: P -> M", "b: M -> P")


@pytest.mark.parametrize(("p", "kept"), [(0.105, True), (0.095, True), (0.12, False), (0.085, False)])
def test_a_role_by_evidence_is_kept_unless_its_p_value_clears_the_level_by_the_margin(p, kept):
    """The default rule: near its level a feature stays what it was, found or not; clear of it, it changes."""
    config = DiscoveryConfig(hysteresis=0.1, fdr=0.1)
    was = "N" if p < 0.1 else "M"
    role = decide(Evidence({"a": 0.3}, {"a": p}), config, {"a": was}).proposed["a"]
    assert (role == was) == kept
    assert (decide(Evidence({"a": 0.3}, {"a": p}), config).proposed["a"] == "M") == (p < 0.1)
