"""The net penalty: fewer net flips by released tables alone, the same on both engines, privacy as before."""

from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.counterfactual_models import RUN_MODELS
from secure_sccvfl.evaluation.methods import default_run, erm, prepare, scc, sealed
from secure_sccvfl.evaluation.scoring import fit_counterfactuals, flat
from secure_sccvfl.models.table_gram import TableGram
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.config import NET_WEIGHT
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import train
from tests.contract.test_secure_run import PARTIES, head_of, run_jobs
from tests.support.private import Silent, silence
from tests.support.sessions import Recorded

LAMBDA = 0.25


@pytest.fixture(scope="module")
def figures():
    """Of plain training, and of a small lambda without noise on the model, with and without the net penalty."""
    data = load("german")
    split, (config, budget) = make_split(data, "iid", 0), default_run(data)
    config = replace(config.only(LAMBDA), take_lambda=LAMBDA, private=False, alternatives=False)
    ready = prepare(data, split, 0, config, budget)
    scoring = fit_counterfactuals(data, split, ready.roles, 0, RUN_MODELS)
    fitted = {"erm": erm(ready), "scc": scc(ready), "net": sealed(ready, replace(ready.config, net="zero"))}
    trials = {name: one.model.trials[-1].validation.gap_rms for name, one in fitted.items()}
    return {name: flat(scoring.score(one.predict)) for name, one in fitted.items()}, trials


def test_net_flips_fall_and_flips_do_not_rise(figures):
    """The control is the same training without it."""
    scored, shifts = figures
    for model in RUN_MODELS:
        plain, control, net = (scored[name][f"net_{model}"] for name in ("erm", "scc", "net"))
        assert control > 0.01 and net < 0.6 * control < 0.6 * plain
        assert scored["net"][f"fr_{model}"] <= scored["scc"][f"fr_{model}"] + 0.005
    assert scored["net"]["acc"] > scored["scc"]["acc"] - 0.03
    assert shifts["net"] < shifts["scc"], "what is measured is the shift, not the penalty"


def test_the_matrix_is_positive_semidefinite_and_weighs_expected_shifts_alone():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 6))
    gram = TableGram(rng.normal(size=(6, 6)), root.T @ root)
    held = gram.with_net_penalty(NET_WEIGHT)
    more = held.vectors.T @ held.vectors - gram.vectors.T @ gram.vectors
    assert np.allclose(more, NET_WEIGHT * gram.vectors.T @ gram.vectors) and np.linalg.eigvalsh(more).min() > -1e-9
    assert np.array_equal(held.within, gram.within) and (held.energy >= gram.energy).all()
    assert np.array_equal(gram.with_net_penalty(0.0).vectors, gram.vectors)


def test_mediators_of_all_parties_are_one_direction():
    """An expected shift is a sum over parties: what one adds another may take away. Both engines sum joined rows."""
    rng, widths = np.random.default_rng(1), (3, 2, 4)
    parts = {rank: TableGram(rng.normal(0, 0.3, (2, w)), 0.01 * np.eye(w)) for rank, w in enumerate(widths)}
    rows = np.concatenate([parts[rank].vectors for rank in parts], axis=1)
    gram = PlainEngine().table_penalty([{k: one.with_net_penalty(NET_WEIGHT) for k, one in parts.items()}], []).gram
    assert np.allclose(gram, (1 + NET_WEIGHT) * rows.T @ rows + 0.01 * np.eye(sum(widths)))
    assert np.abs(gram[: widths[0], widths[0] :]).max() > 0.5


@pytest.mark.parametrize("private", [True, False])
def test_logits_are_those_of_the_plaintext_engine(tmp_path, monkeypatch, private):
    options = {"seed": 0, "net": "zero", "private_model": private, "lambdas": [LAMBDA], "take_lambda": LAMBDA}
    released = Recorded.watch(monkeypatch)
    silence(monkeypatch)
    results = run_jobs(TrainJob, tmp_path, options)
    data, settings = pooled("german", PARTIES), RunOptions.of(options)
    split, config = make_split(data, "iid", 0), settings.train_config()

    tested = [party.take(split.test) for party in make_parties(data)]

    def logits_of(used):
        privacy = Silent(settings, settings.schema(PARTIES)) if private else None
        model = train(PlainEngine(), PlainStatistics(released), data, split, used, 0, privacy=privacy)
        return model, model.logits(tested)

    model, expected = logits_of(config)
    assert [r["roles"] for r in results] == [model.roles.of] * PARTIES
    secret = head_of(tmp_path, data)(np.hstack([p.inputs for p in tested]))
    assert np.abs(secret - expected).max() <= 0.02
    assert np.abs(logits_of(replace(config, net=""))[1] - expected).max() > 0.1, "the penalty matters"
