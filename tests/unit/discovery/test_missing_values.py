"""Whether missing values depend on s: the test's false-alarm rate and power, and where discovery says so."""

import numpy as np
import pytest

import secure_sccvfl as scc
from secure_sccvfl.discovery.scores import missing_p_value
from secure_sccvfl.releases.catalogue import MISSING_P_VALUES, PlanFacts

RUNS = 1000


def tables(rng, sizes, shares, deviation):
    """Two noisy tables of one owner: a column with missing values in these shares, and one without."""
    missing = rng.binomial(sizes, shares)
    present = np.array([rng.multinomial(n, [0.5, 0.3, 0.2]) for n in sizes - missing]).T
    other = np.array([rng.multinomial(n, [0.6, 0.4]) for n in sizes]).T
    exact = {"column": np.vstack([present, missing]), "other": other}
    return {name: table + rng.normal(0.0, deviation, table.shape) for name, table in exact.items()}


def p_values(sizes, shares, deviation, seed=0):
    rng = np.random.default_rng(seed)
    drawn = (tables(rng, np.array(sizes), shares, deviation) for _ in range(RUNS))
    return np.array([missing_p_value("column", one, deviation) for one in drawn])


@pytest.mark.parametrize("sizes", [(900, 600), (700, 500, 200, 100)], ids=["2 groups", "4 groups"])
@pytest.mark.parametrize("deviation", [0.0, 8.0, 40.0])
def test_false_alarms_have_the_stated_rate(sizes, deviation):
    """At each level within four standard errors of 1,000 runs; the seed is fixed."""
    observed = p_values(sizes, 0.3, deviation)
    for level in (0.01, 0.05, 0.2):
        assert (observed < level).mean() == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / RUNS))


@pytest.mark.parametrize("deviation", [0.0, 8.0])
def test_a_difference_of_fifteen_points_is_detected(deviation):
    assert (p_values((900, 600), (0.2, 0.35), deviation) < 0.01).mean() > 0.99


def test_a_column_without_missing_values_is_never_reported():
    assert missing_p_value("column", tables(np.random.default_rng(0), np.array([90, 60]), 0.0, 0.0), 0.0) == 1.0


def test_the_announcement_is_declared_only_where_values_may_be_missing():
    facts = PlanFacts({0: {"a": 3, "b": 2}, 1: {"c": 4}}, (2,), score="hsic")
    assert MISSING_P_VALUES.releases(facts) == []
    with_missing = PlanFacts(facts.bins, (2,), score="hsic", may_be_missing=("b", "c", "no table"))
    (release,) = MISSING_P_VALUES.releases(with_missing)
    assert (release.shape, release.times, release.event) == ((2,), 1, None)


def test_discovery_names_the_column_whose_missing_values_follow_gender():
    """Of people in census data, women have no time to work more often, 20 % against 14 %."""
    discovered = scc.discover(scc.load("acs12-gender"), epsilon=8.0, seed=0).scores["missing depends on s"]
    assert discovered[discovered].index.tolist() == ["time_to_work"]
