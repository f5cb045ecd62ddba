"""Single people explained, and mutual information with s: values worked by hand, controls at chance."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.examples import DRAWS, column_sizes, explained, most_frequent, moves, versions
from secure_sccvfl.evaluation.pooled import mutual_information, mutual_information_with_s, ready_with
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training.config import TrainConfig

DATA = load("german")
SPLIT = make_split(DATA, "iid", 0)
NAMED = {"employment_since": "M", "credit_history": "M", "duration": "M", "housing": "P"}
ROLES = Roles({f.name: NAMED.get(f.name, "N") for f in DATA.features})
LAYOUT = Layout.of(DATA.features)
CODES = DATA.protected[0].codes


@pytest.fixture(scope="module")
def ready():
    return ready_with(DATA, SPLIT, ROLES, TrainConfig(), SpendingPlan(), 0)


def test_mutual_information_by_hand():
    assert mutual_information(np.array([[5, 0], [0, 5]])) == pytest.approx(math.log(2))
    assert mutual_information(np.array([[4, 2], [8, 4]])) == pytest.approx(0.0, abs=1e-12)
    half = 0.4 * math.log(0.4 / 0.25) + 0.1 * math.log(0.1 / 0.25)
    assert mutual_information(np.array([[4, 1], [1, 4]])) == pytest.approx(2 * half)


def test_information_has_its_permutation_baseline(ready):
    rows = SPLIT.train
    parties = [party.take(rows) for party in ready.parties]
    by_column = mutual_information_with_s(parties, CODES[rows], 2, 0)
    assert set(by_column) == {f.name for f in DATA.features}
    assert all(0 <= f["null"] <= f["null_high"] for f in by_column.values())
    assert by_column["personal_status_sex"]["mi"] > 3 * by_column["personal_status_sex"]["null_high"]
    # With s shuffled a column is above its 95 % quantile by chance: 8 or more of 19 with probability below 1e-5
    # for independent columns. The seed is fixed.
    null = mutual_information_with_s(parties, np.random.default_rng(1).permutation(CODES[rows]), 2, 0)
    assert sum(f["mi"] > f["null_high"] for f in null.values()) < 8


def test_sizes_of_counterfactual_changes_by_hand():
    before = LAYOUT.encode(DATA.values[:1])
    after = before.copy()
    housing, duration = (LAYOUT.columns([name]) for name in ("housing", "duration"))
    after[0, housing] = np.roll(before[0, housing], 1)
    after[0, duration] = before[0, duration] + 0.25
    sizes = dict(zip(LAYOUT.names, column_sizes(LAYOUT, before, after)[0], strict=True))
    assert sizes["housing"] == 1.0 and sizes["duration"] == pytest.approx(0.25) and sum(sizes.values()) == 1.25
    assert [m["feature"] for m in moves(LAYOUT, ROLES, before[0], after[0])] == ["housing", "duration"]
    old, new = versions(LAYOUT, DATA.values[0], after[0])
    assert {name for name in old if old[name] != new[name]} == {"housing", "duration"}
    assert float(new["duration"]) == float(old["duration"]) + 17  # a quarter of 4 to 72 months


def test_one_person_explained(ready):
    row = int(SPLIT.test[0])
    explanation = explained(ready, "sealed", row)
    assert (
        json.loads(json.dumps(explanation)) == explanation
        and explanation["part"] == "test"
        and explanation["draws"] == DRAWS
    )
    assert explanation["groups"][0] == DATA.protected[0].groups[CODES[row]] != explanation["groups"][1]
    assert {m["role"] for m in explanation["moved"]} <= {"M"}
    assert explained(ready, "sealed", int(SPLIT.train[0]))["part"] == "train"


def test_the_most_frequent_counterfactual_that_changes_anything():
    before = np.zeros(2)
    counterfactuals = np.array([[0, 0], [0, 0], [0, 0], [0, 1.0], [1.0, 0], [1.0, 0]])
    assert most_frequent(counterfactuals, before) == 4
    assert most_frequent(counterfactuals[:3], before) == 0
