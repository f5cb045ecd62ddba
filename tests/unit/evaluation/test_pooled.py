"""What the pooled evaluation gives to each party of a run, and what it reports about its models."""

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_models import FIRST, RUN_MODELS
from secure_sccvfl.evaluation.examples import draw
from secure_sccvfl.evaluation.pooled import compare, hand_out, run_counterfactuals
from secure_sccvfl.evaluation.scoring import with_failed_checks
from secure_sccvfl.metrics.rates import NULL
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training.config import TrainConfig

DATA = load("acs12-gender")
SPLIT = make_split(DATA, "iid", 300)
NAMES = {"employment": "M", "hrs_work": "M", "edu": "M", "time_to_work": "M", "married": "P"}
ROLES = Roles({f.name: NAMES.get(f.name, "N") for f in DATA.features})


@pytest.fixture(scope="module")
def scoring():
    return run_counterfactuals(DATA, SPLIT, ROLES, 300)


def test_every_party_has_its_columns_and_only_the_holder_the_targets(scoring, tmp_path):
    for rank in range(len(DATA.parties)):
        (tmp_path / f"party-{rank}").mkdir()
    hand_out(DATA, scoring, tmp_path)
    holder = [p.name for p in DATA.parties].index(DATA.protected[0].holder)
    wanted = {f"judge-{end}{kind}.npz" for kind in RUN_MODELS for end in ("", NULL)}
    for rank in range(len(DATA.parties)):
        assert {path.name for path in (tmp_path / f"party-{rank}").iterdir()} == wanted
        for name in wanted:
            with np.load(tmp_path / f"party-{rank}" / name) as file:
                assert ("target" in file) == (rank == holder and NULL not in name), "it reveals the own group"
    with np.load(tmp_path / f"party-{holder}" / f"judge-{FIRST}.npz") as file:
        edited = scoring.edits[FIRST]
        assert np.array_equal(file["target"][edited.source], edited.target)


def test_baselines_carry_the_permutation_baseline_and_models_their_checks(scoring):
    found = compare(DATA, SPLIT, ROLES, scoring, TrainConfig(), SpendingPlan(), 300)
    plain = found.baselines["erm"]
    for kind in RUN_MODELS:
        seen = found.judges[kind]
        assert seen["edit_erm"] == plain[f"fr_{kind}"] and seen["edit_erm_null"] == plain[f"fr_null_{kind}"]
        assert seen["edit_erm_null"] <= seen["edit_erm"] / 4 and "null" not in seen["failed"]
        assert {"edit_auc", "edit_auc_real", "edit_mmd_ratio"} <= set(seen)
        assert found.baselines["drop_m"][f"fr_{kind}"] == found.baselines["drop_m"][f"net_{kind}"] == 0.0
    assert {"auc", "bacc", "acc_base", "fr_base_all", "fr_descendants_all", "fr_descendants_null_all"} <= set(plain)


def test_checks_are_about_known_figures():
    figures = {"edit_auc": 0.5, "edit_mmd_ratio": float("nan")}
    assert with_failed_checks(figures) == {"edit_auc": 0.5, "failed": ["AUC"]}


def test_without_mediators_there_are_no_counterfactuals():
    nothing = run_counterfactuals(DATA, SPLIT, Roles(dict.fromkeys(ROLES.of, "N")), 300)
    assert not nothing.edits and not nothing.nulls and nothing.descendants is None


def test_examples_change_mediators_alone_and_something_in_each(scoring):
    drawn = draw(DATA, SPLIT.test, scoring.edits[FIRST], 300)
    assert len(drawn) == 24
    for record in drawn:
        moved = {name for name, value in record["before"].items() if value != record["after"][name]}
        assert moved and moved <= set(ROLES.named("M"))
        assert record["groups"][0] != record["groups"][1]
