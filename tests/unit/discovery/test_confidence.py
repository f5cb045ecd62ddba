"""The confidence of proposed roles: what it says, that parties find it alone, and that it comes true."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties, part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig, RoleAssignment, confidence, decide
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.residuals import Conditional
from secure_sccvfl.discovery.scores import Evidence, weigh
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.policy.card import Decision, PolicyCard
from secure_sccvfl.releases.catalogue import REDRAWS
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.research.role_stability import same_roles
from tests.support.reference import reference


@cache
def everyone(name: str):
    data = load(name)
    return data, make_parties(data)


def found(name: str, seed: int, card: PolicyCard | None = None, epsilon: float = 8.0, **settings) -> RoleAssignment:
    """Discovery of a run with this seed: its own training part and noise, two releases."""
    data, parties = everyone(name)
    part = part_of(data, make_split(data, "iid", seed).train, parties)
    noise = PlainStatistics(GaussianNoise(SpendingPlan(epsilon=epsilon), seed))
    config = DiscoveryConfig(**settings)
    made = Discovery(noise, part.parties, part.protected, len(data.features), config, seed, card)
    sketches, finding = (), None
    for number in range(2):
        sketches, finding = made.refresh(number, sketches, finding)
    assert finding is not None and not finding.confidence
    return made.with_confidence(sketches, finding)


def agreements(findings: list[RoleAssignment]) -> tuple[np.ndarray, np.ndarray]:
    """For each role and other run: the confidence of the role, and whether it came again."""
    pairs = [
        (a.confidence[k], a.proposed[k] == b.proposed[k])
        for a in findings
        for b in findings
        if a is not b
        for k in a.proposed
    ]
    sure, again = np.array(pairs).T
    return sure, again.astype(bool)


def test_confident_roles_of_german_come_again():
    sure, again = agreements([found("german", seed) for seed in range(300, 312)])
    high, low = sure > 0.9, sure < 0.5
    assert high.mean() > 0.25 and again[high].mean() >= 0.8
    assert low.any() and again[low].mean() < again[high].mean() - 0.2, "and others less often"


def measured_stability(dataset: str) -> tuple[float, float, int]:
    """Agreement of two runs in results/role-stability.json, its standard error, and the number of runs."""
    told = json.loads((Path(__file__).parents[3] / "results" / "role-stability.json").read_text("utf-8"))
    asked = {"dataset": dataset, "budget": "tables alone", "score": DiscoveryConfig().score}
    (row,) = [row for row in told["rows"] if all(row[k] == v for k, v in asked.items())]
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
    agreed = np.nanmean(same_roles([found(path, seed) for seed in seeds]))
    worse = np.nanmean(same_roles([found(path, seed, epsilon=1.0) for seed in seeds]))
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
    own = weigh([NoisyTables("s", {k: both[k] for k in "ab"}, 3.0)], config, 7, ["ab"], redrawn=True)
    joint = weigh([NoisyTables("s", both, 3.0)], config, 7, ["ab", "c"], redrawn=True)
    assert all(np.array_equal(own.scores[k], joint.scores[k]) for k in "ab")
    assert own.p_values.keys() == (set("ab") if rule == "fdr" else set())
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


def test_a_card_decides_and_the_proposal_stays_beside_it_with_its_confidence():
    card = PolicyCard("german", "1", ("board",), {"housing": Decision("N", "given by law")})
    plain, ruled = found("german", 300), found("german", 300, card)
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
    found = decide(Evidence({"a": 0.3}, {"a": p}), config, {"a": was}).proposed["a"]
    assert (found == was) == kept
    assert (decide(Evidence({"a": 0.3}, {"a": p}), config).proposed["a"] == "M") == (p < 0.1)


def test_sixty_features_take_seconds_and_little_on_the_wire():
    rng = np.random.default_rng(0)
    many = {f"feature_{k:02d}": rng.normal(60, 20, (25, 9)) for k in range(60)}
    began = time.perf_counter()
    drawn = weigh([NoisyTables("s", many, 3.0)], DiscoveryConfig(score="stable"), 0, [list(many)], redrawn=True)
    sure = confidence(drawn, {}, DiscoveryConfig(), dict.fromkeys(many, "M"), 0)
    assert time.perf_counter() - began < 20 and len(sure) == 60
    assert sum(v.size for v in drawn.scores.values()) == 60 * REDRAWS < 2500
