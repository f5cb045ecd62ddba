"""Own data are evaluated too: majority and permutation baseline, under MPC and without pooling.

With the noise switched off, what is opened is what a plain computation on pooled columns gives.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import read_account
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party_data import own_part
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.noisy_tables import NoisyTables, shuffled
from secure_sccvfl.metrics import noisy
from secure_sccvfl.metrics.noisy import Sums, figures_of
from secure_sccvfl.models.certificate import at_first_level, certified_binary, ends, level_encodings
from secure_sccvfl.models.counterfactuals import EncodedCounterfactuals
from secure_sccvfl.models.encoders import reached
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.releases.mechanisms import SLOPES
from secure_sccvfl.runs import evaluate as score
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.config import BASELINES
from secure_sccvfl.training.plain import PlainEngine, _residual
from tests.support.own_data import heart_rows, write_own
from tests.support.private import silence
from tests.support.sessions import local_config, run_session
from tests.support.two_parties import DESCRIPTION, people, run_two, write_data

PARTIES, SETTLED = 3, 1e-3
SHORT = {
    "refreshes": 0,
    "fdr": 0.9,
    "lambdas": [3.0],
    "take_lambda": 3.0,
    "min_group": 5,
    "align": "exact",
}


def run_jobs(make, folder, options):
    config, listeners = local_config(PARTIES, options=options)
    for listener in listeners:
        listener.close()
    jobs = [make(config, rank) for rank in range(PARTIES)]
    results = run_session(
        lambda session: jobs[session.rank].run(session, lambda *step: None), PARTIES, jobs[0].plan(), folder=folder
    )
    return results, jobs


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run on own data and its evaluation, whose noise is switched off; the shuffle of s is known here alone."""
    home = tmp_path_factory.mktemp("own")
    data = write_own(home, heart_rows())
    # some decisions are certified and some are not, and every group has enough records
    strong = {"epsilon": 60.0, "evaluation_epsilon": 60.0, "lambdas": [8.0], "take_lambda": 8.0, "baselines": True}
    options = {"dataset": str(data), **SHORT, **strong}
    with pytest.MonkeyPatch.context() as patch:
        silence(patch)
        trained, _ = run_jobs(TrainJob, home / "run", options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noisy.noise, "noise_share", lambda party, kind, sigma, rows, holders: np.zeros((rows, 1), int))
        patch.setattr(score, "shuffled_anew", lambda codes, present: None if codes is None else codes[::-1].copy())
        evaluated, jobs = run_jobs(EvaluateJob, home / "evaluation", {**options, "model": str(home / "run")})
    parts = [own_part(data, rank, 0) for rank in range(PARTIES)]
    models = [
        load_model(home / "run" / f"party-{rank}" / "model", Layout.of(parts[rank].schema.features[rank]))
        for rank in range(PARTIES)
    ]
    return home, trained[0], evaluated[0], jobs, parts, models


def encoded(parts, models, rows):
    return {p.rank: m.encoder(p.party.take(rows).inputs) for p, m in zip(parts, models, strict=True)}


def test_majority_and_flips_with_their_null_control_are_those_of_a_plain_computation(judged):
    _, _, evaluated, jobs, parts, models = judged
    split = parts[0].split
    label = next(p.label for p in parts if p.label is not None)[split.test]
    codes = next(p.protected[0].codes for p in parts if p.protected[0].codes is not None)[split.test]
    rows = len(split.test)
    assert evaluated["baselines"]["majority"]["acc"] == pytest.approx(max(label.mean(), 1 - label.mean()), abs=1e-6)
    weight = combined([m.weight for m in models])
    bias = combined([m.bias for m in models])
    test = encoded(parts, models, split.test)
    before = np.hstack([test[r] for r in range(PARTIES)]) @ weight + bias

    def flips(of, groups):
        moved = []
        for part, model in zip(parts, models, strict=True):
            trained, party = part.party.take(split.train), part.party.take(split.test)
            maker = of(model, trained).generators(trained)["s"]
            encoders = {party.rank: model.encoder}
            counterfactuals = EncodedCounterfactuals(
                (party,), 2, {party.rank: maker}, encoders, {party.rank: test[party.rank]}, 1, 0
            )
            ((*by_group,),) = [list(draw) for draw in counterfactuals]
            moved.append(np.stack([b[party.rank] for b in by_group])[groups, np.arange(rows)])
        after = before + np.hstack(moved) @ weight
        return ((after > 0) != (before > 0)).mean()

    def real(model, trained):
        return model

    def null(model, trained):
        rng = stream(0, "null tables", model.rank)
        return replace(real(model, trained), noisy_tables=tuple(shuffled(s, rng) for s in model.noisy_tables))

    assert evaluated["metrics"]["fr_own"] == pytest.approx(flips(real, codes), abs=1.5 / rows)
    assert evaluated["metrics"]["fr_null_own"] == pytest.approx(flips(null, codes[::-1]), abs=1.5 / rows)
    assert {"fr_own", "fr_null_own", "acc"} <= set(evaluated["noise"]), "every figure has its noise"
    of_baselines = {"right erm", "cells erm", "right drop_m", "cells drop_m", "flips erm"}
    assert jobs[0].sums.widths.keys() == {
        *("right", "cells", "flips own", "flips null_own", "certified"),
        *of_baselines,
    }


def test_figures_of_baselines_are_those_of_a_plain_computation(judged):
    _, _, evaluated, _, parts, models = judged
    rows = parts[0].split.test
    label = next(p.label for p in parts if p.label is not None)[rows]
    codes = next(p.protected[0].codes for p in parts if p.protected[0].codes is not None)[rows]
    test = np.hstack(list(encoded(parts, models, rows).values()))
    for name in BASELINES:
        weight, bias = (combined([m.baselines[name][at] for m in models]) for at in (0, 1))
        decision = (test @ weight + bias)[:, 0] > 0
        figures = evaluated["baselines"][name]
        assert figures["acc"] == pytest.approx((decision == label).mean(), abs=1.5 / len(rows))
        rates = [of["rates"]["positive_rate"]["value"] for of in evaluated["baseline_groups"][name]]
        assert rates == pytest.approx([decision[codes == g].mean() for g in (0, 1)], abs=0.02)
    flips = [evaluated["baselines"][name]["fr_own"] for name in BASELINES]
    assert flips[0] > evaluated["metrics"]["fr_own"] and flips[1] == 0.0


def test_baselines_minimise_the_charged_objective_without_a_penalty(judged):
    """Noise is switched off here, so its gradient is 0: of plain training, and of the columns without mediators."""
    home, _, _, _, parts, models = judged
    charged = {e.name: e for e in read_account(home / "sccvfl-ledgers" / "party-0" / "ledger.jsonl").events}
    event = charged["head of baselines"]
    ridge = SLOPES["binary"][2] * (event.sensitivity / (2 * SLOPES["binary"][1])) ** 2 / event.curvature
    rows = parts[0].split.train_and_validation
    label = next(p.label for p in parts if p.label is not None)[rows]
    blocks, roles = encoded(parts, models, rows), Roles(dict(models[0].roles), models[0].proxies)
    mediators = np.concatenate([reached(p.party.layout, roles.edited) for p in parts])
    x = np.column_stack([np.hstack(list(blocks.values())), np.ones(len(rows))])

    def longest(weights, x):
        logits = x @ weights
        batch = PlainEngine().bind({0: x}, label, {0: np.zeros(x.shape[1])})
        return np.abs(x.T @ _residual(logits, batch, "binary", bounded=True) + ridge * weights).max() / len(rows)

    plain, without = (
        np.vstack([combined([m.baselines[name][at] for m in models]) for at in (0, 1)]) for name in BASELINES
    )
    kept = ~np.append(mediators, False)
    assert 0 < mediators.sum() < len(mediators) and not without[:-1][mediators].any()
    assert longest(plain, x) < SETTLED and longest(without[kept], x[:, kept]) < SETTLED
    # Each would be noticed in the place of the other, and so would the model itself.
    model = np.vstack([combined([m.weight for m in models]), combined([m.bias for m in models])])
    others = [(model, x), (without, x), (plain[kept], x[:, kept])]
    assert min(longest(weights, columns) for weights, columns in others) > 3 * SETTLED


def plain_bits(parts, models, forgotten=""):
    """Certified test records by the opened weights, and how close each is to an end of the mediators."""
    roles, test = Roles(dict(models[0].roles), models[0].proxies), parts[0].split.test
    weight, at = combined([m.weight for m in models]), 0
    base, contributions = combined([m.bias for m in models]) * np.ones((len(test), 1)), []
    for part, model in zip(parts, models, strict=True):
        here = weight[at : at + model.encoder.columns]
        moved = at_first_level(part.party.layout, part.party.take(test).inputs, roles.edited)
        base = base + model.encoder(moved) @ here
        contributions += [rows @ here for rows in level_encodings(model.encoder, set(roles.edited) - {forgotten})]
        at += len(here)
    low, high = ends(contributions, 1)
    margin = np.minimum(np.abs(base + low), np.abs(base + high))[:, 0]
    return certified_binary(base, contributions), margin, len(contributions)


def test_certified_records_are_those_of_a_plain_computation_in_every_group(judged):
    """All records but those within the fixed-point bound: two units for the record and for each mediator."""
    _, _, evaluated, _, parts, models = judged
    codes = next(p.protected[0].codes for p in parts if p.protected[0].codes is not None)[parts[0].split.test]
    bits, margin, mediators = plain_bits(parts, models)
    unsure = margin < 2 * (1 + mediators) * 2.0**-16
    assert mediators > 2 and 0 < bits.mean() < 1
    figures, rows = evaluated["metrics"], len(bits)
    assert abs(figures["certified"] * rows - bits.sum()) <= unsure.sum() + 1e-6
    for group, of in enumerate(evaluated["groups"]):
        rate, here = of["rates"]["certified"], codes == group
        assert rate["rows"] == here.sum() and abs(rate["value"] * here.sum() - bits[here].sum()) < 1e-6 + unsure.sum()
        assert rate["low"] <= rate["value"] <= rate["high"]
    assert figures["certified"] in evaluated["metrics"].values() and evaluated["noise"]["certified"] > 0


def test_a_forgotten_mediator_would_be_noticed(judged):
    """The test above can fail: without the mediator that moves logits most, more records would be certified."""
    _, _, evaluated, _, parts, models = judged
    names = Roles(dict(models[0].roles), models[0].proxies).edited
    shares = [plain_bits(parts, models, name)[0].mean() for name in names]
    assert max(shares) > evaluated["metrics"]["certified"] + 2 / len(parts[0].split.test)


def test_the_shuffle_of_s_is_fresh_and_the_evaluation_one_charge(judged):
    home, _, evaluated, _, _, _ = judged
    codes = np.arange(200)
    first, again = score.shuffled_anew(codes), score.shuffled_anew(codes)
    assert sorted(first) == sorted(again) == codes.tolist() and not np.array_equal(first, again)
    assert score.shuffled_anew(None) is None
    log = (home / "evaluation" / "party-0" / "releases.jsonl").read_text().splitlines()
    assert [json.loads(line)["release"] for line in log] == ["alignment", "columns", "evaluation"]
    assert evaluated["evaluation"]["releases"] == 1


def test_tables_of_shuffled_groups_show_no_dependence_and_keep_sizes():
    """The seed is fixed, so this fails by chance never."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 2, 4000)
    bins = {"x": np.eye(2)[codes], "y": np.eye(3)[rng.integers(0, 3, 4000)]}
    real = NoisyTables("s", {k: b.T @ np.eye(2)[codes] for k, b in bins.items()}, 5.0)
    null = shuffled(real, np.random.default_rng(4))
    assert abs(real.tables["x"][0, 0] / real.tables["x"][:, 0].sum() - 0.5) > 0.4
    for name, table in null.tables.items():
        shares = table / table.sum(axis=0)
        assert np.abs(shares[:, 0] - shares[:, 1]).max() < 0.06
        assert np.abs(table.sum(axis=1) - bins[name].sum(axis=0)).max() < 40, (
            "the margins of the released tables, with noise"
        )
    assert null.deviation == real.deviation and not np.array_equal(null.tables["y"], np.rint(null.tables["y"]))


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_what_one_record_adds_is_at_most_what_is_charged(task):
    """Every sum at its largest at once: the norm is the charged sensitivity, without slack to spare or to lack."""
    layout = Sums(task, 3, ("own", "null_own"), True, 4, certificate=True, baselines=BASELINES)
    squares = {"label": 2, "flips null_own": 4, "shift null_own": 4}  # two numbers; two people's edits
    norm = sum(squares.get(name, 1) for name in layout.widths)
    assert layout.sensitivity.added == pytest.approx(norm**0.5, rel=2e-3)
    assert layout.sensitivity.added >= norm**0.5
    fewer = Sums(task, 3, ("own",))
    assert fewer.sensitivity.added < layout.sensitivity.added, "more figures, more noise in each"


def test_standard_errors_are_those_of_the_figures():
    """Noise of one deviation in every sum, many times: figures spread as the plan says. Chance of a false alarm 1e-9.

    With 4,000 draws a standard deviation is known to 1.1 %; seven times that is allowed.
    """
    layout = Sums("binary", 2, ("own", "null_own"), True, 2, certificate=True)
    rows, deviation, rng = 2000, 9.0, np.random.default_rng(0)
    exact = {"right": [1500.0], "cells": [400, 100, 100, 300, 400, 200, 100, 400]}
    exact |= {"flips own": [300.0], "flips null_own": [200.0], "certified": [300.0, 600.0, 500.0, 600.0]}
    drawn = []
    for _ in range(4000):
        sums = {k: np.array(v, float) + rng.normal(0, deviation, len(v)) for k, v in exact.items()}
        figures = figures_of(layout, sums, {"own": 1 / rows, "null_own": 1 / rows}, deviation, rows, 20)
        majority = figures["baselines"]["majority"]["acc"]
        rate = figures["groups"][0]["rates"]["positive_rate"]
        metrics = figures["metrics"]
        drawn.append([metrics["acc"], metrics["fr_null_own"], majority, metrics["certified"]])
        assert figures["groups"][0]["rates"]["certified"]["low"] < 2 / 3 + 0.1
        assert rate["low"] < rate["value"] < rate["high"] and rate["high"] - rate["low"] > 2 * rate["noise"]
    errors = layout.standard_errors(deviation, rows)
    expected = [errors["acc"], errors["flips"], errors["majority"], errors["certified"]]
    assert np.std(drawn, axis=0) == pytest.approx(expected, rel=0.08)
    assert np.mean(drawn, axis=0) == pytest.approx([0.75, 0.1, 0.55, 0.6], abs=0.01)


@pytest.mark.parametrize(
    ("task", "label", "figure", "moved"),
    [
        ("multiclass", 'classes = ["0", "1", "2"]', "acc", "fr_own"),
        ("regression", "low = 0, high = 1", "rmse", "scg_own"),
    ],
)
def test_several_classes_and_regressions_have_baselines_too(tmp_path, task, label, figure, moved):
    rows = people(600, 4)
    signal = 0.5 * rows["amount"] + 0.5 * rows["hours"]
    rows["y"] = signal.clip(0, 1).round(6) if task == "regression" else np.digitize(signal, [0.4, 0.6])
    text = DESCRIPTION.replace('classes = ["0", "1"]', label).replace('"binary"', f'"{task}"')
    base = {"dataset": str(write_data(tmp_path, rows, text)), "card": str(tmp_path / "card.toml"), "min_group": 5}
    base |= {"epsilon": 60.0, "evaluation_epsilon": 60.0, "align": "exact", "baselines": True}
    run_two(TrainJob, tmp_path / "run", base)
    (evaluated, _) = run_two(EvaluateJob, tmp_path / "evaluation", {**base, "model": str(tmp_path / "run")})
    others = evaluated["baselines"]
    assert others["drop_m"][moved] == 0.0 and others["erm"][moved] > 4 * evaluated["metrics"][moved]
    worse, better = others["drop_m"][figure], others["erm"][figure]
    assert worse > better + 0.02 if figure == "rmse" else better > worse + 0.1
    assert evaluated["evaluation"]["releases"] == 1 and "baseline_groups" not in evaluated
