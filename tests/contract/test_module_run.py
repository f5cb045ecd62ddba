"""Whole runs on German with a network as the head: against the plaintext engine, evaluated, resumed, asked."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.audit.finished_run import write_records
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.scoring import evaluate, flat
from secure_sccvfl.protocols.session.saving import save_share
from secure_sccvfl.research.benchmarks import trainings
from secure_sccvfl.runs.checkpoints import Checkpoints
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.config import WARM_STEPS
from tests.contract.test_secure_run import PARTIES, run_jobs

SHORT = {"private_model": False, "head": "mlp", "hidden": 6, "steps": 12}


def apart(folder: Path, options: dict[str, Any]) -> float:
    """The largest difference of a logit between the secure model and the plaintext engine on its releases."""
    logits, expected = trainings.plain("german", PARTIES, folder, **options).logits()
    assert expected.std() > 0.05, "a model that was trained"
    return float(np.abs(logits - expected).max())


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("module")
    return folder, run_jobs(TrainJob, folder, SHORT)


def test_logits_are_those_of_the_plaintext_engine(secure: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, results = secure
    assert apart(folder, SHORT) <= 0.02
    assert [result["steps"] for result in results] == [WARM_STEPS + 12] * PARTIES
    assert not results[0]["private_model"] and len(results[0]["trials"]) == 1
    assert {"matmul", "sigmoid", "lt", "pinned"} <= results[0]["crypten_operations"]["training"].keys()


def test_no_share_of_a_weight_is_the_weight(secure: tuple[Path, list[dict[str, Any]]]) -> None:
    """First weights are public; after training every party's shares of all weights are far from any weight."""
    folder, _ = secure
    layouts = [party.layout for party in make_parties(pooled("german", PARTIES))]
    kept = [load_model(folder / f"party-{rank}" / "model", layout) for rank, layout in enumerate(layouts)]
    for model in kept:
        assert sorted(model.layers) == ["0.bias", "0.weight", "2.bias", "2.weight"] and len(model.weight) == 0
        for layer in model.layers.values():
            share = save_share(layer)
            assert (np.abs(share.astype(float)) > 2.0**40).mean() > 0.9 or share.size < 8


def test_evaluation_and_prediction_use_the_module(secure: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder, _ = secure
    results = run_jobs(EvaluateJob, folder / "evaluation", {"seed": 0, "model": str(folder)})
    data = pooled("german", PARTIES)
    test = make_split(data, "iid", 0).test
    logits = trainings.plain("german", PARTIES, folder, **SHORT).logits()[0][test]
    inputs = np.hstack([party.inputs[test] for party in make_parties(data)])
    label, codes = data.label.values[test], data.protected[0].codes[test]
    expected = flat(evaluate(lambda _: logits, inputs, label, codes, "binary", {}, {}))
    for name in ("acc", "logloss", "positive_rate"):
        assert results[0]["metrics"][name] == pytest.approx(expected[name], abs=2e-3)
    assert 0 <= results[0]["metrics"]["fr_own"] < 0.2 and results[0]["metrics"]["scg_own"] > 0

    write_records(data, test[:9], tmp_path / "new.csv")
    asked = {"model": str(folder), "records": str(tmp_path / "new.csv"), "scores": True}
    run_jobs(PredictJob, tmp_path / "asked", asked)
    (answers,) = (tmp_path / "asked").glob("party-*/predictions.csv")
    with open(answers, newline="") as file:
        scores = [
            float(next(v for k, v in row.items() if "logit" in k or "score" in k)) for row in csv.DictReader(file)
        ]
    assert np.abs(np.array(scores) - logits[:9, 0]).max() < 2e-3


def test_a_run_that_stopped_half_way_ends_as_one_that_nobody_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SHORT, "steps": 20}
    keep = Checkpoints.keep

    def stops(self: Checkpoints, state: Any) -> None:
        keep(self, state)
        if state.taken == 10:
            raise RuntimeError("a fault after ten of twenty steps")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "keep", stops)
        with pytest.raises(ExceptionGroup):
            run_jobs(TrainJob, tmp_path, options)
    for log in tmp_path.glob("party-*/releases.jsonl"):
        log.unlink()  # sessions in threads write a new one
    run_jobs(TrainJob, tmp_path, {**options, "resume": True})
    assert apart(tmp_path, options) <= 0.02


@pytest.mark.slow
def test_logits_after_the_default_number_of_steps(tmp_path: Path) -> None:
    options = {"private_model": False, "head": "mlp"}
    run_jobs(TrainJob, tmp_path, options)
    assert apart(tmp_path, options) <= 0.02
