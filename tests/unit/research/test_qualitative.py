"""The qualitative appendix: values worked by hand, controls at chance, rules that hold, tables and plots."""

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
from secure_sccvfl.research.qualitative import Represented, analyse, components, mixing, read_s, write_qualitative
from secure_sccvfl.training.config import TrainConfig
from tests.multiprocess.named_files import help_of, unnamed

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


def drawn(shift: float) -> Represented:
    """Five columns of noise, the first moved by the group."""
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 2, 600) for _ in range(2)]
    z = [rng.normal(size=(600, 5)) + shift * np.outer(c, np.eye(5)[0]) for c in codes]
    return Represented(z[0], z[1], codes[0], codes[1])


def test_what_can_be_read_is_read_and_nothing_else():
    seen = read_s(drawn(2.0), 0)
    assert seen["low"] <= 0.921 <= seen["high"], "a shift of two deviations has AUC 0.921"
    assert 0.45 < seen["null"] < 0.55 < seen["null_high"] + 0.06
    nothing = read_s(drawn(0.0), 0)
    assert nothing["low"] < 0.5 < nothing["high"]  # 95 % interval; the seed is fixed
    still = Represented(np.ones((9, 2)), np.ones((9, 2)), np.arange(9) % 2, np.arange(9) % 2)
    assert read_s(still, 0)["auc"] == 0.5


def test_components_are_where_the_variance_is():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 4)) * np.array([1.0, 5.0, 0.1, 3.0])
    _, shown, shares = components(z, z)
    assert shares[0] > shares[1] and sum(shares) == pytest.approx(34 / 35.01, abs=0.02)
    assert abs(np.corrcoef(shown[:, 0], z[:, 1])[0, 1]) > 0.99
    view = mixing(Represented(z, z, np.arange(400) % 2, np.arange(400) % 2), 0)
    assert len(view["points"]) == len(view["groups"]) == 400 and view["width"] == 4
    json.dumps(view)


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


@pytest.fixture(scope="module")
def result(ready):
    return analyse(ready, ("erm", "scc"))


def test_the_analysis_is_data(result):
    assert json.loads(json.dumps(result)) == result
    assert [m["method"] for m in result["mixing"]] == ["erm", "scc"]


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


def test_tables_and_plots(result, tmp_path):
    epoch = dict.fromkeys(("train_loss", "validation_loss", "validation_accuracy", "fr"), 0.5) | {"scg": None}
    for history in ({}, {"paper": [{"epoch": k, **epoch} for k in range(3)]}):
        text = write_qualitative(tmp_path, {**result, "history": history}, "a command")
        assert ("training.png" in text) == (tmp_path / "training.png").exists() == bool(history)
    assert json.loads((tmp_path / "results.json").read_text())["command"] == "a command"
    assert (tmp_path / "results.md").read_text() == text
    assert unnamed(help_of("reproduce"), tmp_path.iterdir()) == []
    for picture in ("roles", "representations", "training"):
        assert f"({picture}.png)" in text and (tmp_path / f"{picture}.png").stat().st_size > 5000
    for name, figures in result["information"].items():
        assert f"| {name} | {figures['mi']:.4f} | {figures['null']:.4f} | {figures['null_high']:.4f} |" in text
    assert text.count("; permuted up to") == 4, "no AUC without its control"
    assert "-0.000" not in text and "nan" not in text and "None" not in text
