"""The pooled evaluation: what each party of a run gets, baselines, and mode `aware`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

import secure_sccvfl as scc
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_models import FIRST, RUN_MODELS, Counterfactuals
from secure_sccvfl.evaluation.examples import draw
from secure_sccvfl.evaluation.methods import METHODS, aware_of, erm, own_rows, prepare
from secure_sccvfl.evaluation.pooled import compare, hand_out, run_counterfactuals
from secure_sccvfl.evaluation.scoring import (
    AwarePredictor,
    evaluate,
    flat,
    logits_of,
    net_flips,
    stability,
    with_failed_checks,
    with_s_fixed,
)
from secure_sccvfl.metrics.rates import NULL
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.policy.card import Decision, PolicyCard
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
        edited = scoring.counterfactuals[FIRST]
        assert np.array_equal(file["target"][edited.source], edited.target)


def test_baselines_carry_the_permutation_baseline_and_models_their_checks(scoring):
    comparison = compare(DATA, SPLIT, ROLES, scoring, TrainConfig(), SpendingPlan(), 300)
    plain = comparison.baselines["erm"]
    for kind in RUN_MODELS:
        seen = comparison.judges[kind]
        assert seen["edit_erm"] == plain[f"fr_{kind}"] and seen["edit_erm_null"] == plain[f"fr_null_{kind}"]
        assert seen["edit_erm_null"] <= seen["edit_erm"] / 4 and "null" not in seen["failed"]
        assert {"edit_auc", "edit_auc_real", "edit_mmd_ratio"} <= set(seen)
        assert comparison.baselines["drop_m"][f"fr_{kind}"] == comparison.baselines["drop_m"][f"net_{kind}"] == 0.0
    assert {"auc", "bacc", "acc_base", "fr_base_all", "fr_descendants_all", "fr_descendants_null_all"} <= set(plain)


def test_checks_are_about_known_figures():
    figures = {"edit_auc": 0.5, "edit_mmd_ratio": float("nan")}
    assert with_failed_checks(figures) == {"edit_auc": 0.5, "failed": ["AUC"]}


def test_without_mediators_there_are_no_counterfactuals():
    nothing = run_counterfactuals(DATA, SPLIT, Roles(dict.fromkeys(ROLES.of, "N")), 300)
    assert not nothing.counterfactuals and not nothing.nulls and nothing.descendants is None


def test_examples_change_mediators_alone_and_something_in_each(scoring):
    drawn = draw(DATA, SPLIT.test, scoring.counterfactuals[FIRST], 300)
    assert len(drawn) == 24
    for record in drawn:
        moved = {name for name, value in record["before"].items() if value != record["after"][name]}
        assert moved and moved <= set(ROLES.named("M"))
        assert record["groups"][0] != record["groups"][1]


CONFIG = TrainConfig(generator=GeneratorConfig(kind="minimal", draws=4), lambdas=(4.0,), refreshes=0)


PEOPLE_ROLES = {"hours": "M", "job": "M", "town": "P", "skill": "N"}


def people(rows=3000):
    """Hours and job follow s, the town stands for it, and the label follows hours, job and skill."""
    rng = np.random.default_rng(5)
    s, skill = rng.integers(0, 2, rows), rng.uniform(0, 1, rows)
    hours = np.clip(rng.normal(34 + 8 * s, 9), 0, 79)
    job = np.where(rng.random(rows) < 0.25 + 0.4 * s, 0, rng.integers(1, 3, rows))
    town = np.where(rng.random(rows) < 0.2 + 0.6 * s, "x", "y")
    label = (rng.random(rows) < expit((hours - 38) / 5 + 1.5 * (job == 0) + 3 * skill - 2)).astype(int)
    a = pd.DataFrame({"id": range(rows), "hours": hours, "skill": skill, "y": label})
    b = pd.DataFrame({"id": range(rows), "job": np.array(["a", "b", "c"])[job], "town": town, "s": s})
    return scc.load(frames={"a": a, "b": b}, label=("a", "y"), protected=("b", "s")).dataset


@pytest.fixture(scope="module")
def ready():
    data = people()
    card = PolicyCard(
        "people", "1", ("me",), {name: Decision(role, "as made") for name, role in PEOPLE_ROLES.items()}
    )
    return prepare(data, make_split(data, "iid", 300), 300, CONFIG, card=card)


def net_flip_rate(ready, predict):
    """Net flip rate under the run's own counterfactuals of the test rows."""
    test = ready.split.test
    inputs, target = own_rows(ready)
    edited = Counterfactuals("own", np.arange(len(inputs)), inputs, np.ones(len(inputs)), target)
    codes = ready.data.protected[0].codes[test]
    logits, after = logits_of(predict, ready.inputs[test], codes), logits_of(predict, inputs, target)
    return net_flips(logits, after, codes, edited, "binary")


def test_using_s_lowers_net_flip_rates(ready):
    plain = net_flip_rate(ready, erm(ready).predict)
    assert plain > 0.15
    for name in ("aware", "pcf"):
        assert net_flip_rate(ready, METHODS.get(name)(ready).predict) <= plain / 3, name
    assert net_flip_rate(ready, METHODS.get("drop_m")(ready).predict) == 0


def test_it_costs_less_accuracy_than_dropping_the_mediators(ready):
    test = ready.split.test
    label, codes = ready.data.label.values[test], ready.data.protected[0].codes[test]
    right = {}
    for name in ("erm", "aware", "drop_m"):
        logits = logits_of(METHODS.get(name)(ready).predict, ready.inputs[test], codes)
        right[name] = float(((logits[:, 0] > 0) == label).mean())
    assert right["erm"] - 0.05 < right["aware"] and right["aware"] > right["drop_m"] + 0.03


def test_a_larger_lambda_asks_for_equal_logits(ready):
    """With s passed along: the root-mean-square gap under the run's own counterfactuals falls."""
    light, heavy = (aware_of(ready, replace(CONFIG, lambdas=(lam,))) for lam in (0.0, 16.0))
    test = ready.split.test
    inputs, target = own_rows(ready)
    codes = ready.data.protected[0].codes[test]
    gaps = []
    for fitted in (light, heavy):
        before = logits_of(fitted.predict, ready.inputs[test], codes)
        gaps.append(np.sqrt(((logits_of(fitted.predict, inputs, target) - before) ** 2).mean()) / before.std())
    assert gaps[1] < gaps[0] / 2


def test_parity_leans_on_no_difference_of_group_means(ready):
    """With fixed columns all the same, mean logits of the groups differ by far less than those of ERM."""
    codes, inputs = ready.data.protected[0].codes, ready.inputs.copy()
    fixed = ready.columns(ready.roles.named("N"))
    inputs[:, fixed] = inputs[0, fixed]
    gaps = []
    for method in (METHODS.get("erm"), METHODS.get("parity")):
        logits = method(ready).predict(inputs)[:, 0]
        gaps.append(abs(logits[codes == 0].mean() - logits[codes == 1].mean()))
    assert gaps[1] < gaps[0] / 4


@pytest.mark.parametrize("name", ["aware", "pcf", "parity"])
def test_the_white_box_is_the_model(ready, name):
    fitted, test = METHODS.get(name)(ready), ready.split.test
    inputs, codes = ready.inputs[test], ready.data.protected[0].codes[test]
    logits = fitted.white_box(torch.tensor(inputs)).numpy()
    assert np.allclose(logits, logits_of(fitted.predict, inputs, codes), atol=1e-9)


def test_a_model_that_uses_s_gives_no_logit_without_it(ready):
    fitted = METHODS.get("aware")(ready)
    with pytest.raises(TypeError, match="needs the group of each record"):
        fitted.predict(ready.inputs)
    with pytest.raises(TypeError, match="needs the group of each record"):
        logits_of(fitted.predict, ready.inputs, None)


def test_counterfactuals_are_scored_as_members_of_their_target_group():
    """s itself flips the decision: it counts, unless it is held."""
    codes, inputs = np.array([0, 1, 0, 1]), np.zeros((4, 1))
    edited = Counterfactuals("x", np.arange(4), inputs, np.ones(4), 1 - codes)
    predict = AwarePredictor(lambda u, g: g[:, None] - 0.5)
    scored = {s.metric: s.value for s in stability(predict, inputs, edited, "binary", "x", codes)}
    assert scored["fr"] == 1.0
    held = {s.metric: s.value for s in stability(predict, inputs, with_s_fixed(edited, codes), "binary", "x", codes)}
    assert held["fr"] == 0.0
    metrics = flat(evaluate(predict, inputs, codes, codes, "binary", {"x": edited}, {"x": edited}))
    assert metrics["acc"] == 1.0 and metrics["fr_x"] == 1.0
    assert metrics["fr_null_x"] == 0.0, "under the permutation baseline s itself does not change"
