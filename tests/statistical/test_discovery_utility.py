"""How well noisy scores keep the order of the true ones, and how often discovery errs. Noise as released."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.dataset import Protected
from secure_sccvfl.data.party import Attribute
from secure_sccvfl.discovery.decisions import DiscoveryConfig, decide
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.noisy_tables import release_tables
from secure_sccvfl.discovery.scores import weigh
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.releases.catalogue import NOISY_TABLES, PlanFacts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from tests.support.chance import confirmed
from tests.support.discovery import PAPER, Study
from tests.support.sessions import run_session

REPETITIONS = 20


class RankedStudy(Study):
    def agreement(self, scores) -> float:
        return float(spearmanr(list(self.truth.values()), [scores[k] for k in self.truth])[0])

    def mean_agreement(self, epsilon: float, kind: NoiseKind = "dealer+holder", releases: int = 1) -> float:
        budget = SpendingPlan(epsilon=epsilon, releases=releases, noise=kind)
        scores_of_seeds = [
            self.scores(PlainStatistics(GaussianNoise(budget, seed)), releases) for seed in range(REPETITIONS)
        ]
        return float(np.mean([self.agreement(scores) for scores in scores_of_seeds]))


@pytest.fixture(scope="module")
def german():
    return RankedStudy("german")


@pytest.fixture(scope="module")
def compas():
    return RankedStudy("compas")


def test_german_at_epsilon_four(german):
    assert german.mean_agreement(4.0) >= 0.68
    assert german.mean_agreement(4.0, "dealer") == pytest.approx(german.mean_agreement(4.0)), "the same noise in all"


def test_compas_persons_at_epsilon_two(compas):
    assert compas.mean_agreement(2.0) >= 0.92


def test_far_less_budget_is_seen_in_the_scores(german):
    assert german.mean_agreement(0.5) < 0.68


def test_false_discoveries_on_shuffled_s_stay_at_the_level(german):
    level, runs = 0.1, 40
    config = DiscoveryConfig(rule="fdr", fdr=level)
    false = []
    for seed in range(runs):
        codes = np.random.default_rng(seed).permutation(german.data.protected[0].codes)
        fake = (Protected("s", german.data.parties[0].name, ("0", "1"), codes),)
        noisy_tables = german.noisy_tables(
            PlainStatistics(GaussianNoise(SpendingPlan(releases=1), seed)), protected=fake
        )
        discovery = Discovery(PlainStatistics(NoNoise()), (), (), 0, config, seed)
        assignment = decide(discovery._evidence(noisy_tables)[0], config)
        # s is shuffled: whatever is found is false, so the share of false discoveries is 1 or 0.
        false.append(any(role != "N" for role in assignment.roles.of.values()))
    assert np.mean(false) <= level + np.sqrt(level * (1 - level) / runs)


@pytest.mark.chance(1e-9)
@pytest.mark.parametrize("kind", ["dealer", "dealer+holder"])
def test_the_real_protocol_gives_what_the_simulation_promises(german, kind: NoiseKind):
    """Simulated agreement is .86 on average with two noise contributions, and below .6 about once in 90 times: 2.3
    deviations after Fisher's transformation. Five fresh runs are all below it less than once in 1e9 times.
    """
    data = german.data
    columns = {r: {f.name: f.bins for f in t.features} for r, t in enumerate(data.parties)}
    holder = [t.name for t in data.parties].index(data.protected[0].holder)

    def protected(rank: int) -> Attribute:
        s = data.protected[0]
        return Attribute(s.name, s.holder, s.groups, s.codes if rank == holder else None)

    def job(session):
        budget, records = Budget.in_memory(4.0, 1e-5), RecordSet(np.arange(data.n, dtype=np.uint64))
        name = session.agree_on_name()
        charger = Charger(session, budget, noise_multiplier(4.0, 1e-5, 1), name, records, kind)
        statistics = SecureStatistics(session, columns, [holder], data.n, charger)
        parties = [german.parties[session.rank]]
        noisy_tables = release_tables(statistics, parties, [protected(session.rank)], "sketch-0", german.features)
        return weigh(noisy_tables, PAPER, 0, [parties[0].layout.names]).scores

    plan = ReleasePlan(NOISY_TABLES.releases(PlanFacts(columns, (2,))))

    def agreement() -> float:
        scores = run_session(job, len(columns), plan)
        return german.agreement({k: v for part in scores for k, v in part.items()})

    assert not confirmed(lambda: agreement() <= 0.6, 5)
