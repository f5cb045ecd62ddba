"""A run of mode `aware` in secret against the plaintext engine; its evaluation, and its decisions."""

import csv
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from secure_sccvfl.api.frames import to_frames
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.methods import aware_predictor
from secure_sccvfl.evaluation.pooled import hand_out, run_counterfactuals
from secure_sccvfl.evaluation.scoring import AwarePredictor, evaluate, flat, logits_of
from secure_sccvfl.policy.card import USES_S
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.base import mode_plan
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import AwareTrainer, train
from tests.contract.test_secure_run import PARTIES, run_jobs
from tests.support.aware_card import write_card
from tests.support.private import Silent, silence
from tests.support.sessions import Recorded, stopping

SHORT = {"seed": 0, "mode": "aware", "generator": "minimal", "refreshes": 0, "warmup": 20, "steps": 30}


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A finished run: its folder and settings, what it found and released."""
    folder = tmp_path_factory.mktemp("aware")
    options = {**SHORT, "card": str(write_card(folder / "card.toml"))}
    with pytest.MonkeyPatch.context() as patch:
        released = Recorded.watch(patch)
        silence(patch)
        results = run_jobs(TrainJob, folder / "run", options)
    return folder / "run", options, results, released


@pytest.fixture(scope="module")
def plain(secure):
    """Data, split and the same model of the plaintext engine."""
    _, options, _, released = secure
    data = pooled("german", PARTIES)
    split, run_options = make_split(data, "iid", 0), RunOptions.of(options)
    statistics = PlainStatistics(released)
    config, card, privacy = (
        run_options.train_config(),
        run_options.policy(),
        Silent(run_options, run_options.schema(PARTIES)),
    )
    given = (PlainEngine(), statistics, data, split, config, 0)
    return data, split, train(*given, card=card, driver=AwareTrainer, privacy=privacy)


@pytest.fixture(scope="module")
def secret(secure, plain):
    """The secure model as a function of inputs and groups: heads of all parties put together."""
    folder, data = secure[0], plain[0]
    parties = make_parties(data)
    models = [load_model(folder / f"party-{p.rank}" / "model", p.layout) for p in parties]
    weight, bias = (combined([getattr(m, name) for m in models]) for name in ("weight", "bias"))
    encoders = [m.aware_encoders(p.layout)[p.rank] for m, p in zip(models, parties, strict=True)]
    cuts = np.cumsum([p.layout.width for p in parties])[:-1]

    def logits(inputs, codes):
        pieces = zip(encoders, np.split(inputs, cuts, axis=1), strict=True)
        return (np.hstack([encode(u, codes) for encode, u in pieces]) @ weight + bias) / models[0].temperature

    return AwarePredictor(logits)


def test_logits_and_decisions_are_those_of_the_plaintext_engine(secure, plain, secret):
    results, (data, _, model) = secure[2], plain
    assert [r["roles"] for r in results] == [model.roles.of] * PARTIES
    assert results[0]["lambda"] == model.lam == RunOptions.of(secure[1]).training.lambdas[0]
    inputs, codes = np.hstack([p.inputs for p in make_parties(data)]), data.protected[0].codes
    expected, logits = aware_predictor(model, make_parties(data)).of(inputs, codes), secret.of(inputs, codes)
    assert np.abs(logits - expected).max() <= 0.02
    assert ((logits > 0) == (expected > 0)).mean() >= 0.995
    assert np.abs(logits - secret.of(inputs, 1 - codes)).max() > 0.1, "the model does use s"


def test_it_opens_what_a_sealed_run_opens(secure):
    aware = RunOptions.of(secure[1])
    plans = [mode_plan(aware.schema(PARTIES), options) for options in (aware, aware.changed(mode="sealed"))]
    assert plans[0].releases.keys() == plans[1].releases.keys()  # tables are of all columns here, not of M and P
    lines = (secure[0] / "party-0" / "releases.jsonl").read_text().splitlines()
    opened = {json.loads(line)["release"] for line in lines}
    assert "columns" in opened and opened <= set(plans[1].releases)


NEAR = 0.005
"""Logits of shares and of the same model in floating point differ by less."""


def _shown(inputs, codes, copies):
    """Records as they are, and their edited copies as members of either group."""
    yield inputs, codes
    for edited in copies:
        yield edited.inputs, edited.target
        yield edited.inputs, codes[edited.source]


def test_the_secret_evaluation_gives_the_plaintext_metrics(secure, plain, secret):
    folder, options, results, *_ = secure
    data, split, _ = plain
    models = run_counterfactuals(data, split, Roles(results[0]["roles"]), 0)
    hand_out(data, models, folder)
    with np.load(folder / "party-0" / "judge-all.npz") as file:
        assert "target" not in file, "groups of edited records go to the holder of s alone"
    results_of_evaluation = run_jobs(EvaluateJob, folder / "evaluation", {"seed": 0, "model": str(folder)})
    held_out = data.take(split.test)
    inputs = np.hstack([p.inputs for p in make_parties(data)])[split.test]
    label, codes = held_out.label.values, held_out.protected[0].codes
    figures = flat(evaluate(secret, inputs, label, codes, "binary", models.counterfactuals, models.nulls))
    opened = {name: value for name, value in results_of_evaluation[0]["metrics"].items() if not name.endswith("_own")}
    assert {
        f"{metric}_{name_of_model}" for name_of_model in models.counterfactuals for metric in ("fr", "net", "fr_null")
    } <= opened.keys()
    # Fixed point may turn a decision whose logit is this near to 0; each turns a rate by one record of its cell.
    copies = [*models.counterfactuals.values(), *models.nulls.values()]
    near = [(np.abs(logits_of(secret, rows, s)) < NEAR).sum() for rows, s in _shown(inputs, codes, copies)]
    cell = min(np.bincount(2 * codes + label))
    for name, value in opened.items():
        gap = name.endswith("_gap")
        tolerance = (0.01 if gap else 2e-3) + max(near) / (cell if gap else len(label)) * (2 if gap else 1)
        assert value == pytest.approx(figures[name], abs=tolerance), name
    assert options["mode"] == "aware"


def write_records(path, data, *, s=True):
    """New records of all parties in one file, of which each party reads its own columns."""
    whole = None
    for frame in to_frames(data).values():
        whole = frame if whole is None else whole.merge(frame, on="id")
    whole.drop(columns=["y"] if s else ["y", data.protected[0].name]).to_csv(path, index=False)
    return str(path)


def test_decisions_about_new_records_use_s_and_say_so(secure, plain, secret, tmp_path):
    folder, data = secure[0], plain[0].take(np.arange(60))
    records = write_records(tmp_path / "new.csv", data)
    table = pd.read_csv(records, dtype=str, keep_default_na=False)
    table.loc[7, data.protected[0].name] = "unknown"  # s of one record: refused, and only its holder knows why
    table.to_csv(records, index=False)
    asked = {"model": str(folder), "records": records, "scores": True}
    results = run_jobs(PredictJob, tmp_path / "out", asked)
    with (tmp_path / "out" / "party-0" / "predictions.csv").open() as file:
        predictions = {row["id"]: row for row in csv.DictReader(file)}
    logits = secret.of(np.hstack([p.inputs for p in make_parties(data)]), data.protected[0].codes)[:, 0]
    assert {row["note"] for row in predictions.values()} == {USES_S}
    decided = np.arange(60) != 7
    assert predictions.keys() == set(data.ids[decided])
    assert np.abs([float(predictions[name]["logit 1"]) for name in data.ids[decided]] - logits[decided]).max() < 0.02
    assert "unknown" not in (tmp_path / "out" / "party-0" / "refused.csv").read_text()
    assert all(r["note"].startswith(USES_S.capitalize()) and "unlawful" in r["note"] for r in results)
    assert not list((tmp_path / "out").glob("party-[12]/predictions.csv"))


def test_a_missing_column_of_s_is_one_clear_line(secure, plain, tmp_path):
    records = write_records(tmp_path / "new.csv", plain[0].take(np.arange(20)), s=False)
    with pytest.raises(DataError, match=r"uses s: new\.csv has no column 's', which employer needs"):
        run_jobs(PredictJob, tmp_path / "out", {"model": str(secure[0]), "records": records})


def test_a_model_whose_review_is_overdue_decides_only_under_a_reviewed_card(secure, plain, tmp_path, monkeypatch):
    """The entry of the model is what counts, unless a card with a later date is given."""
    records = write_records(tmp_path / "new.csv", plain[0].take(np.arange(20)))
    options = {"model": str(secure[0]), "records": records}
    monkeypatch.setattr("secure_sccvfl.policy.card.AwareEntry.overdue", lambda self, today: True)
    with pytest.raises(ConfigError, match="was to be reviewed by 2999-01-31"):
        run_jobs(PredictJob, tmp_path / "out", options)
    monkeypatch.setattr(
        "secure_sccvfl.policy.card.AwareEntry.overdue", lambda self, today: self.review_due < "2999-06-01"
    )
    renewed = tmp_path / "renewed.toml"
    renewed.write_text(write_card(renewed).read_text().replace("2999-01-31", "2999-12-31"))
    assert len(run_jobs(PredictJob, tmp_path / "out", {**options, "card": str(renewed)})) == PARTIES
    with pytest.raises(ConfigError, match="was to be reviewed by 2999-01-31"):
        run_jobs(EvaluateJob, tmp_path / "out", {"seed": 0, "model": str(secure[0])})
    other = tmp_path / "other.toml"
    other.write_text(renewed.read_text().replace("a test", "another ground"))
    with pytest.raises(ConfigError, match="another use of s than the model was trained for"):
        run_jobs(PredictJob, tmp_path / "out", {**options, "card": str(other)})


def test_parties_that_declare_other_review_dates_do_not_decide_together(secure, plain, tmp_path):
    records = write_records(tmp_path / "new.csv", plain[0].take(np.arange(20)))
    renewed = tmp_path / "renewed.toml"
    renewed.write_text(write_card(renewed).read_text().replace("2999-01-31", "2999-12-31"))

    def job(config, rank):
        more = {"card": str(renewed)} if rank == 1 else {}
        return PredictJob(replace(config, options={**config.options, **more}), rank)

    with stopping("declare different uses of s"):
        run_jobs(job, tmp_path / "out", {"model": str(secure[0]), "records": records})


def test_a_run_continues_after_a_fault_and_pays_once(secure, tmp_path, monkeypatch):
    def broken(self, penalty, grid):
        raise RuntimeError("a fault before training")

    with monkeypatch.context() as patch:
        patch.setattr(AwareTrainer, "train_private", broken)
        with pytest.raises(ExceptionGroup):
            run_jobs(TrainJob, tmp_path, secure[1])
    for log in tmp_path.glob("party-*/releases.jsonl"):
        log.unlink()  # sessions in threads write a new one
    results = run_jobs(TrainJob, tmp_path, {**secure[1], "resume": True})
    assert [r["steps"] for r in results] == [r["steps"] for r in secure[2]]
    assert [r["privacy"]["releases"] for r in results] == [4] * PARTIES
    assert len(list(tmp_path.glob("party-*/model/model.json"))) == PARTIES


def test_parties_whose_cards_declare_something_else_do_not_start(secure, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(write_card(other).read_text().replace("a test", "another ground"))

    def make(config, rank):
        job = TrainJob(config, rank)
        if rank == 1:
            job.card = RunOptions.of({**secure[1], "card": str(other)}).policy()
        return job

    with stopping("policy cards differ"):
        run_jobs(make, tmp_path / "run", secure[1])
