"""Scores, p-values, roles, the budget of the sketch."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.stats import spearmanr

from accounting.budget import BudgetError
from accounting.events import Sensitivity
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Protected
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.discovery.decisions import (
    DiscoveryConfig,
    RoleAssignment,
    benjamini_hochberg,
    decide,
    interventional_check,
)
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.noisy_tables import NoisyTables, release_tables
from secure_sccvfl.discovery.residuals import Conditional, residual_hsic, residual_scores
from secure_sccvfl.discovery.scores import paper_scores, probability_gap, table_hsic, weigh
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.policy.card import Decision, PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan


def test_scores_of_tables_whose_answer_is_known():
    independent = np.outer([3, 5, 2], [10, 30])
    assert probability_gap(independent) == pytest.approx(0) and table_hsic(independent) == pytest.approx(0)
    same = np.diag([20.0, 20.0])
    assert probability_gap(same) == pytest.approx(1) and table_hsic(same) == pytest.approx(1 / 4)
    three = np.array([[10, 0, 0], [0, 10, 10.0]])
    assert probability_gap(three) == pytest.approx(1), "the largest pairwise gap counts"
    assert table_hsic(np.zeros((2, 2))) == 0.0


FEATURES = 19


def roles_of(sketches, config, seed=0, conditional=(), **more):
    made = Discovery(PlainStatistics(NoNoise()), (), (), 0, config, seed)
    own = weigh(sketches, config, seed, [sorted(sketches[0].tables)])
    evidence = made._evidence(sketches)[0] if config.score == "hsic" else own
    return decide(evidence, config, conditional=conditional, **more)


def german(rows=None):
    data = load("german")
    data = data if rows is None else data.take(rows)
    return data, make_parties(data)


def test_the_sketch_equals_a_cross_table_when_there_is_no_noise():
    data, parties = german()
    sketch = release_tables(PlainStatistics(NoNoise()), parties, data.protected, "s", FEATURES)[0]
    codes, values = data.protected[0].codes, data.parties[1].values[:, 3]
    for category in range(3):
        for group in range(2):
            assert sketch.tables["housing"][category, group] == ((values == category) & (codes == group)).sum()


def test_five_refreshes_end_at_the_noise_of_one_release_of_the_whole_budget():
    data, parties = german()
    noise = GaussianNoise(SpendingPlan(releases=5), 1)
    statistics = PlainStatistics(noise)
    merged = release_tables(statistics, parties, data.protected, "0", FEATURES)
    for i in range(1, 5):
        fresh = release_tables(statistics, parties, data.protected, str(i), FEATURES)
        merged = tuple(a.merged(b) for a, b in zip(merged, fresh, strict=True))
    once = GaussianNoise(SpendingPlan(releases=1), 1).deviation(Sensitivity.of_counts(np.sqrt(19)))
    assert merged[0].deviation == pytest.approx(once, rel=0.02) and merged[0].releases == 5


def test_noisy_scores_keep_the_order_of_the_noise_free_ones():
    data, parties = german()
    truth = release_tables(PlainStatistics(NoNoise()), parties, data.protected, "s", FEATURES)[0].tables
    names = sorted(truth)
    agreement = []
    for seed in range(20):
        noise = GaussianNoise(SpendingPlan(releases=1), seed)
        noisy = release_tables(PlainStatistics(noise), parties, data.protected, "s", FEATURES)[0].tables
        agreement.append(
            spearmanr([paper_scores(truth[k]) for k in names], [paper_scores(noisy[k]) for k in names])[0]
        )
    assert np.mean(agreement) > 0.8


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


def test_false_discoveries_stay_at_the_level_when_s_is_shuffled():
    data, parties = german()
    found = []
    for seed in range(12):
        shuffled = np.random.default_rng(seed).permutation(data.protected[0].codes)
        fake = (Protected("s", "employer", ("0", "1"), shuffled),)
        noise = GaussianNoise(SpendingPlan(releases=1), seed)
        sketches = release_tables(PlainStatistics(noise), parties, fake, "s", FEATURES)
        finding = roles_of(sketches, DiscoveryConfig(rule="fdr", fdr=0.1, simulations=100), seed)
        found.append(any(r != "N" for r in finding.roles.of.values()))
    assert np.mean(found) <= 0.1 + 2 * np.sqrt(0.1 * 0.9 / 12)


def test_fdr_finds_what_is_there():
    data, parties = german()
    sketches = release_tables(PlainStatistics(NoNoise()), parties, data.protected, "s", FEATURES)
    finding = roles_of(sketches, DiscoveryConfig(rule="fdr", rho_p=0.5, fdr=0.05, simulations=200), 0)
    assert {"housing", "personal_status_sex", "employment_since"} <= set(finding.roles.named("P"))
    assert finding.roles.of["foreign_worker"] == "N"


def test_benjamini_hochberg_on_a_worked_example():
    p = {"a": 0.001, "b": 0.012, "c": 0.02, "d": 0.2, "e": 0.9}
    assert benjamini_hochberg(p, 0.05) == {"a", "b", "c"}
    assert benjamini_hochberg({"a": 0.9}, 0.05) == set()


def sketch(**scores):
    tables = {k: 100 * np.array([[0.5 + v / 2, 0.5 - v / 2], [0.5 - v / 2, 0.5 + v / 2]]) for k, v in scores.items()}
    return (NoisyTables("s", tables, 1.0),)


def test_fractions_take_the_top_scores():
    config = DiscoveryConfig("fractions", rho_m=0.5, rho_p=0.5)
    roles = roles_of(sketch(a=0.9, b=0.5, c=0.2, d=0.1), config, 0).roles
    assert roles.of == {"a": "P", "b": "M", "c": "N", "d": "N"}


def test_hysteresis_keeps_a_role_until_the_score_clears_the_boundary():
    config = DiscoveryConfig("fractions", "paper", rho_m=0.5, rho_p=0.5, hysteresis=0.2)
    before = {"a": "P", "b": "M", "c": "N", "d": "N"}
    close = roles_of(sketch(a=0.9, b=0.40, c=0.41, d=0.1), config, previous=before)
    assert close.roles.of["b"] == "M" and not close.log
    clear = roles_of(sketch(a=0.9, b=0.30, c=0.5, d=0.1), config, previous=before)
    assert clear.roles.of["c"] == "M" and clear.log


def test_a_card_has_the_last_word_and_is_logged():
    card = PolicyCard("toy", "1", ("board",), {"a": Decision("N", "given by law")})
    finding = roles_of(sketch(a=0.9, b=0.1), DiscoveryConfig(), card=card)
    assert finding.roles.of["a"] == "N" and "given by law" in finding.log[0]


def test_the_interventional_check_demotes_an_idle_mediator_and_refuses_a_changed_n():
    """The function alone; that a run acts on its answer is in test_method_training.py."""
    finding = RoleAssignment(Roles({"a": "M", "b": "N", "c": "M", "d": "P"}), {"a": 0.4}, {"a": 0.01}, ("before",))
    kept = interventional_check(finding, {"b": 0.0, "d": 0.0}, {"a": 1e-9, "c": 0.3})
    assert kept == finding
    checked = interventional_check(finding, {"b": 0.0, "d": 0.0}, {"a": 0.0, "c": 0.3})
    assert checked.roles.of == {"a": "N", "b": "N", "c": "M", "d": "P"}
    assert checked.log == ("before", "a: M -> N, does not respond to a change of s")
    assert (checked.scores, checked.p_values) == (finding.scores, finding.p_values)
    for moved in ("b", "d"):
        with pytest.raises(RuntimeError, match=rf"must stay fixed: \['{moved}'\]"):
            interventional_check(finding, {"b": 0.0, "d": 0.0, moved: -1e-9}, {"a": 0.3, "c": 0.3})


def test_conditional_hsic_ranks_what_s_explains_beyond_the_other_columns():
    data, parties = german()
    others = [p.take(np.arange(0, data.n, 3)) for p in parties]
    rows = parties[0].residual_features(0, others[0].inputs)
    assert all(np.allclose((block**2).sum(axis=1), 1.0) for block in rows.values()), "the stated sensitivity"
    plain = PlainStatistics(NoNoise())

    def dependence(protected):
        release = residual_scores(plain, parties, others, protected, FEATURES, 0)
        assert release[1] == 0.0
        return residual_hsic(release, parties, protected, 0).values

    scores = dependence(data.protected)
    shuffled = (
        Protected("s", "employer", ("0", "1"), np.random.default_rng(0).permutation(data.protected[0].codes)),
    )
    assert scores["employment_since"] > 5 * np.median(list(dependence(shuffled).values()))
    finding = roles_of(
        release_tables(PlainStatistics(NoNoise()), parties, data.protected, "s", FEATURES),
        DiscoveryConfig("fractions", rho_p=0.5),
        0,
        conditional=[Conditional(scores, {})],
    )
    assert finding.roles.of["employment_since"] == "P"


@pytest.mark.parametrize("bad", [{"rule": "x"}, {"score": "x"}, {"rho_m": 2}, {"fdr": -1}, {"simulations": 1}])
def test_a_bad_discovery_configuration_is_refused(bad):
    with pytest.raises(ValueError, match=r"unknown|must|bad"):
        DiscoveryConfig(**bad)
