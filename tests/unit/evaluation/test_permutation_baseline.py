"""Where s means nothing, a sound model changes next to nothing: the permutation baseline and the validity checks."""

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_models import (
    COUNTERFACTUAL_MODELS,
    CounterfactualModel,
    Counterfactuals,
    failed_checks,
    shuffled,
)
from secure_sccvfl.evaluation.methods import erm, prepare
from secure_sccvfl.evaluation.scoring import fit_counterfactuals, flat
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.entries import Decision
from secure_sccvfl.reports.tables import markdown

SEEDS = range(400, 404)
ROLES = {"employment": "M", "hrs_work": "M", "edu": "M", "time_to_work": "M", "married": "P"}
CARDS = {"german": None, "acs12-gender": ROLES}


def edit_at_random(case):
    """Every record takes the mediators of any other one."""
    rows, columns = case.movable, case.layout.columns(case.edited)
    moved = case.inputs[rows].copy()
    picked = stream(case.seed, "at random").permutation(len(case.inputs))[: len(rows)]
    moved[:, columns] = case.inputs[picked][:, columns]
    return Counterfactuals("", rows, moved, np.ones(len(rows)), case.target[rows])


@pytest.fixture(scope="module", params=CARDS)
def rates(request):
    """Mean flip rates of ERM by model, for true and permuted s. The autoencoder is left out: it is slow."""
    data, roles, patch = load(request.param), CARDS[request.param], pytest.MonkeyPatch()
    card = None
    if roles is not None:
        decisions = {f.name: Decision(roles.get(f.name, "N"), "fixed for a comparison") for f in data.features}
        card = PolicyCard(data.name, "1", ("tests",), decisions)
    found = {}
    with patch.context() as patched:
        patched.delitem(COUNTERFACTUAL_MODELS.entries, "cvae")
        at_random = CounterfactualModel(f"{__name__}:edit_at_random", "random", ("x", "cross"), "")
        patched.setitem(COUNTERFACTUAL_MODELS.entries, "random", at_random)
        for seed in SEEDS:
            ready = prepare(data, make_split(data, "iid", seed), seed, card=card)
            scoring = fit_counterfactuals(data, ready.split, ready.roles, seed)
            scores = flat(scoring.score(erm(ready).predict))
            for kind in COUNTERFACTUAL_MODELS:
                pair = [scores[f"{fr}_{kind}"] for fr in ("fr", "fr_null")]
                found.setdefault(kind, []).append(pair)
    return {
        kind: dict(zip(("edit_erm", "edit_erm_null"), np.mean(pairs, 0), strict=True))
        for kind, pairs in found.items()
    }


@pytest.mark.parametrize("kind", ["all", "kr_all"])
def test_a_model_of_all_rows_passes_the_permutation_baseline(rates, kind):
    assert rates[kind]["edit_erm_null"] <= rates[kind]["edit_erm"] / 4
    assert failed_checks(rates[kind]) == ()


@pytest.mark.parametrize("kind", ["random", "ot"])
def test_a_model_that_moves_everybody_is_caught(rates, kind):
    assert rates[kind]["edit_erm_null"] > rates[kind]["edit_erm"] / 2
    assert failed_checks(rates[kind]) == ("null",)


def test_shuffling_moves_s_and_nothing_else():
    data = load("german")
    null = shuffled(data, 0)
    old, new = data.protected[0].codes, null.protected[0].codes
    assert np.array_equal(np.bincount(old), np.bincount(new)) and abs(np.corrcoef(old, new)[0, 1]) < 0.1
    assert np.array_equal(data.values, null.values) and data.label is null.label and data.ids is null.ids
    assert np.array_equal(new, shuffled(data, 0).protected[0].codes)
    assert not np.array_equal(new, shuffled(data, 1).protected[0].codes)


def test_each_check_fails_on_its_own():
    sound = {"edit_auc": 0.65, "edit_mmd_ratio": 0.7, "edit_erm": 0.04, "edit_erm_null": 0.01}
    assert failed_checks(sound) == failed_checks({}) == ()
    assert failed_checks({**sound, "edit_auc": 0.64}) == ("AUC",)
    assert failed_checks({**sound, "edit_mmd_ratio": 0.71}) == ("MMD",)
    assert failed_checks({**sound, "edit_erm_null": 0.011}) == ("null",)
    assert failed_checks({**sound, "edit_erm": 0.0}) == ("null",), "it moves decisions under shuffled s alone"
    assert failed_checks({**sound, "edit_auc": float("nan")}) == ()


def test_a_failing_model_is_marked_in_the_table():
    def row(method, judge, metric, mean):
        return {"dataset": "d", "split": "iid", "method": method, "judge": judge, "metric": metric} | {
            "mean": mean, "low": mean, "high": mean, "seeds": 3,
        }  # fmt: skip

    rows = []
    for judge, null in (("ot", 0.09), ("all", 0.003)):
        rows += [row("erm", judge, "fr", 0.1), row("erm", judge, "fr_null", null), row("erm", judge, "net", 0.02)]
        figures = {"edit_auc": 0.7, "edit_auc_unedited": 0.3, "edit_auc_real": 0.8}
        figures |= {"edit_mmd_ratio": 0.1, "edit_size": 1.0}
        figures |= {"edit_erm": 0.1, "edit_erm_null": null}
        rows += [row("(edits)", judge, metric, value) for metric, value in figures.items()]
    text = markdown("main", rows)
    head = next(line for line in text.splitlines() if line.startswith("| method"))
    assert "fr [all] | fr_null [all] | net [all] | fr [ot] **fails** | fr_null [ot] | net [ot] **fails** |" in head
    assert "ERM 0.1000 with true s and 0.0900 with permuted s; **fails**: null" in text
    assert "0.0030 with permuted s; passes every check" in text
    assert "AUC of the target group 0.70 (unchanged 0.30, real records 0.80)" in text
    assert "| 10.00 % (10.00-10.00) | 9.00 % (9.00-9.00) | 2.00 %" in text
