"""Certified decisions against brute force: no edit of mediators flips them, and some edit flips every other one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

import secure_sccvfl as scc
from secure_sccvfl.api.trained import TrainedModel
from secure_sccvfl.data.dataset import Dataset, Label, PartyTable, Protected
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.certified import (
    base_logits,
    certificate_scores,
    certified_records,
    model_contributions,
    predictor_contributions,
)
from secure_sccvfl.evaluation.methods import METHODS, erm, logistic, prepare, with_kappa
from secure_sccvfl.evaluation.methods import scc as default
from secure_sccvfl.evaluation.pooled import compare, ready_with, run_counterfactuals
from secure_sccvfl.evaluation.scoring import one_thread
from secure_sccvfl.metrics.rates import wilson
from secure_sccvfl.models.certificate import CertificateError
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.research.paper.methods import paper_with
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.plain import decisions
from tests.support.aware_card import write_card

EDITS = 100_000
METHODS_CHECKED = {"scc": default, "erm": erm, "logistic": logistic}


def with_gaps(task="multiclass", rows=600):
    """Synthetic records: numbers with missing values as mediators, three classes or a number as the label."""
    rng = np.random.default_rng(7)
    s = rng.integers(0, 2, rows)
    pay, hours, age = (rng.beta(2, 2, rows) for _ in range(3))
    job = rng.integers(0, 3, rows).astype(float)
    score = 0.5 * pay * s + 0.5 * hours + 5 * age + 0.1 * job + 0.3 * rng.normal(size=rows)
    pay[rng.random(rows) < 0.2 + 0.3 * s] = np.nan
    job[rng.random(rows) < 0.1] = np.nan
    edges = (0.0, 0.3, 0.6, 1.0)
    bank = (
        Feature("pay", "number", low=0, high=1, edges=edges, missing=True),
        Feature("age", "number", low=0, high=1, edges=edges),
    )
    employer = (
        Feature("hours", "number", low=0, high=1, edges=edges),
        Feature("job", "category", categories=("a", "b", "c"), missing=True),
    )
    parties = (
        PartyTable("bank", bank, np.column_stack([pay, age])),
        PartyTable("employer", employer, np.column_stack([hours, job])),
    )
    label = Label("bank", np.digitize(score, np.quantile(score, [0.4, 0.7])), ("0", "1", "2"))
    if task == "regression":
        label = Label("bank", (score - score.min()) / np.ptp(score))
    return Dataset(
        "gaps", task, np.arange(rows).astype(str), parties, label, (Protected("s", "bank", ("0", "1"), s),)
    )


def prepared(data, mediators, seed=5, **changes):
    roles = Roles({feature.name: "M" if feature.name in mediators else "N" for feature in data.features})
    config = replace(TrainConfig(), **changes)
    return ready_with(data, make_split(data, "iid", seed), roles, config, SpendingPlan(releases=config.charged), seed)


def prepared_by_card(name):
    data = scc.load(name).dataset
    return prepared(data, named_card("shipped", name).roles.edited)


SETS = {
    "german": lambda: prepared_by_card("german"),
    "acs12-gender": lambda: prepared_by_card("acs12-gender"),
    "three classes, missing numbers": lambda: prepared(with_gaps(), {"pay", "hours", "job"}),
}


@pytest.fixture(scope="module", params=list(SETS))
def ready(request):
    with one_thread():
        return SETS[request.param]()


def public_values(feature, rng=None, count=0):
    """Cells of a feature: with rng, random ones; without it, every category or cut; missing where it is allowed."""
    kept = feature.categories if feature.kind == "category" else feature.cuts
    if rng is None:
        cells = np.arange(len(kept), dtype=float) if feature.kind == "category" else np.array(kept, dtype=float)
        return np.append(cells, np.nan) if feature.missing else cells
    drawn = rng.integers(0, len(kept), count) if feature.kind == "category" else None
    cells = rng.uniform(feature.low, feature.high, count) if drawn is None else drawn.astype(float)
    return np.where(feature.missing & (rng.random(count) < 0.3), np.nan, cells)


def certificate_of(ready, fitted):
    inputs, edited = ready.inputs[ready.split.test], ready.roles.edited
    contributions = predictor_contributions(fitted.predict, ready.parties, edited)
    return certified_records(
        base_logits(fitted.predict, ready.parties, inputs, edited), contributions, ready.data.task
    )


@pytest.mark.parametrize("method", METHODS_CHECKED)
def test_no_edit_flips_a_certified_decision_and_some_edit_flips_every_other(ready, method):
    with one_thread():
        fitted = METHODS_CHECKED[method](ready)
        data, test, features = ready.data, ready.split.test, ready.data.features
        layout = Layout.of(features)
        mediators = [k for k, feature in enumerate(features) if feature.name in ready.roles.edited]
        bits = certificate_of(ready, fitted)
        before = decisions(fitted.predict(ready.inputs[test]), data.task)
        rng = np.random.default_rng(1)
        certified = np.flatnonzero(bits)
        if len(certified):
            drawn = rng.choice(certified, EDITS)
            cells = data.values[test][drawn]
            for k in mediators:
                cells[:, k] = public_values(features[k], rng, EDITS)
            assert (decisions(fitted.predict(layout.encode(cells)), data.task) != before[drawn]).sum() == 0
        grid = np.array(list(product(*(public_values(features[k]) for k in mediators))))
        for record in np.flatnonzero(~bits):
            cells = np.repeat(data.values[test][[record]], len(grid), axis=0)
            cells[:, mediators] = grid
            assert (decisions(fitted.predict(layout.encode(cells)), data.task) != before[record]).any()
        assert 0 < len(certified) < len(bits) or method != "scc"


def test_weights_and_probing_give_the_same_contributions(ready):
    edited = ready.roles.edited
    by_weights = model_contributions(ready.model, ready.parties, edited)
    probed = predictor_contributions(default(ready).predict, ready.parties, edited)
    assert len(by_weights) == len(probed) == len(edited)
    for one, other in zip(by_weights, probed, strict=True):
        assert one == pytest.approx(other, abs=1e-12) and np.ptp(one) > 0


def test_the_bits_of_the_api_and_its_share_are_those_of_the_evaluation(ready):
    if ready.data.name == "gaps":
        frame = pd.DataFrame(
            {f.name: [f.text(v) for v in c] for f, c in zip(ready.data.features, ready.data.values.T, strict=True)}
        )
    else:
        frame = scc.load(ready.data.name).frame
    model, test = TrainedModel(ready), ready.split.test
    bits = model.certificate(frame.iloc[test])
    assert bits.dtype == bool and bits.name == "certified" and len(bits) == len(test)
    assert (bits.to_numpy() == certificate_of(ready, default(ready))).all()
    figures, codes = model.evaluate(), ready.data.protected[0].codes[test]
    shares = {"certified": bits.to_numpy()} | {
        f"certified[{group}]": bits[codes == code].to_numpy()
        for code, group in enumerate(ready.data.protected[0].groups)
    }
    for name, part in shares.items():
        expected = (part.mean(), *wilson(part.mean(), len(part)), 1.0)
        assert figures.loc[name].to_numpy() == pytest.approx(expected, abs=6e-5)


def test_without_mediators_every_record_is_certified():
    model = TrainedModel(prepared(with_gaps(), ()))
    assert model.evaluate().value["certified"] == 1.0
    assert certificate_scores(model.ready, erm(model.ready))[0].value == 1.0


def test_a_mediator_with_one_value_in_all_records_can_still_change_decisions():
    """The public dictionary counts, not which of its values occur."""
    data = with_gaps()
    bank, employer = data.parties
    values = employer.values.copy()
    values[:, 1] = 0.0
    ready = prepared(replace(data, parties=(bank, replace(employer, values=values))), {"job"})
    (of_levels,) = predictor_contributions(erm(ready).predict, ready.parties, {"job"})
    assert of_levels.shape == (4, 3)


def test_the_shift_of_a_regression_is_reached_and_never_exceeded():
    ready = prepared(with_gaps("regression"), {"pay", "job"})
    model, data, features = TrainedModel(ready), ready.data, ready.data.features
    cells = data.values[ready.split.test]
    frame = pd.DataFrame({f.name: [f.text(v) for v in c] for f, c in zip(features, cells.T, strict=True)})
    shift = model.certificate(frame)
    before = model.logits(frame)[:, 0]
    layout, predict = Layout.of(features), default(ready).predict
    after = []
    for pay, job in product(public_values(features[0]), public_values(features[3])):
        moved = cells.copy()
        moved[:, 0], moved[:, 3] = pay, job
        after.append(predict(layout.encode(moved))[:, 0])
    assert shift.shift_up.to_numpy() == pytest.approx(np.max(after, axis=0) - before, abs=1e-12)
    assert shift.shift_down.to_numpy() == pytest.approx(before - np.min(after, axis=0), abs=1e-12)
    figures = model.evaluate().value
    assert figures["max_shift_up"] == pytest.approx(shift.shift_up.max(), abs=6e-5) and shift.shift_up.max() > 0.01
    assert figures["max_shift_down"] == pytest.approx(shift.shift_down.max(), abs=6e-5)
    scores = {score.metric: score.value for score in certificate_scores(ready, default(ready))}
    assert scores == pytest.approx({"max_shift_down": shift.shift_down.max(), "max_shift_up": shift.shift_up.max()})


@pytest.mark.parametrize(
    ("settings", "reason"), [({"head": "mlp"}, "head of kind mlp"), ({"aware": True}, "mode aware uses s")]
)
def test_models_that_are_not_additive_are_refused_and_have_no_share(settings, reason, tmp_path):
    data, card = scc.load("german"), write_card(tmp_path / "card.toml")
    model = scc.train(data, private_model=False, card=card, **settings)
    with pytest.raises(CertificateError, match=f"^no certificate: [^\n]*{reason}[^\n]*$"):
        model.certificate(data.frame.assign(s=data.dataset.protected[0].codes))
    assert not [name for name in model.evaluate().index if name.startswith("certified")]


def test_every_additive_method_of_the_tables_has_a_certified_share_and_no_other():
    additive = ("majority", "logreg", "drop_m", "drop_m_guard", "erm", "parity", "scc")
    methods = {name: METHODS.get(name) for name in (*additive, "aware")} | {"paper": paper_with(epochs=2)}
    with one_thread():
        ready = SETS["acs12-gender"]()
        shares = {name: certificate_scores(ready, method(ready)) for name, method in methods.items()}
    assert {name for name, scores in shares.items() if scores} == set(additive)
    values = {name: scores[0].value for name, scores in shares.items() if scores}
    assert values["majority"] == values["drop_m"] == values["drop_m_guard"] == 1.0
    assert values["erm"] < values["scc"] < 1.0


def test_the_pooled_evaluation_of_a_run_has_certified_shares():
    data, seed = scc.load("acs12-gender").dataset, 5
    split, config = make_split(data, "iid", seed), TrainConfig()
    roles = named_card("shipped", "acs12-gender").roles
    with one_thread():
        scoring = run_counterfactuals(data, split, roles, seed)
        figures = compare(data, split, roles, scoring, config, SpendingPlan(releases=config.charged), seed).baselines
    assert len(figures) == 5 and all(0 <= metrics["certified"] <= 1 for metrics in figures.values())


@pytest.mark.parametrize("private", [False, True])
def test_the_range_penalty_raises_the_certified_share(private):
    """On seeds that nothing was chosen on; roles, tables and noise are the same for all weights."""
    data = scc.load("acs12-gender").dataset
    config = replace(TrainConfig().only(3.0), private=private)
    with one_thread():
        given = SpendingPlan(releases=config.charged), named_card("shipped", "acs12-gender")
        ready = prepare(data, make_split(data, "iid", 1150), 1150, config, *given)
        fits = [with_kappa(ready, kappa) for kappa in (0.0, 0.1, 0.3)]
        inputs = ready.inputs[ready.split.test]
        shares = [certificate_scores(ready, fitted)[0].value for fitted in fits]
    assert np.allclose(fits[0].predict(inputs), default(ready).predict(inputs)), "a weight of 0 changes nothing"
    assert shares[0] + 0.1 < shares[1] < shares[2]


def test_plain_training_has_no_range_penalty():
    ready = prepared_by_card("acs12-gender")
    with one_thread():
        ranged = replace(ready, config=replace(ready.config, kappa=0.3))
        inputs = ready.inputs[ready.split.test]
        for method in (erm, METHODS.get("drop_m")):
            assert np.array_equal(method(ready).predict(inputs), method(ranged).predict(inputs))
