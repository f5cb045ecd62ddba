"""A whole run in secret with a risk gain, roles within parties and a late refresh, against the plaintext engine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.protocols.steps import second_order
from secure_sccvfl.releases.catalogue import kind_of
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.reports.collect import table_releases_of
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.config import WARM_STEPS
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import Trainer, train
from tests.contract.test_secure_run import PARTIES, head_of, run_jobs
from tests.support.sessions import Recorded
from tests.unit.accounting.test_prices import replay

OPTIONS = {
    "private_model": False,
    **{"refreshes": 0, "late_refreshes": 1, "lambdas": [3.0]},
    **{"rule": "fractions", "rho_m": 0.5, "rho_p": 0.3, "per_party": True, "gain": True},
}
CHARGES = ["risk gains", "sketch-0", "sketch-1"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    with pytest.MonkeyPatch.context() as patch:
        released = Recorded.watch(patch)
        results = run_jobs(TrainJob, folder, OPTIONS)
    return folder, results, released


def test_the_model_is_that_of_the_plaintext_engine_on_the_same_releases(secure):
    folder, results, released = secure
    data = pooled("german", PARTIES)
    split = make_split(data, "iid", 0)
    config = RunOptions.of(OPTIONS).train_config()
    model = train(PlainEngine(), PlainStatistics(released), data, split, config, 0)
    for result in results:
        assert result["scores"] == pytest.approx(dict(model.assignment.scores), abs=1e-4)
        assert result["roles"] == model.roles.of
        sure = dict(model.assignment.confidence)  # of 400 joint redraws, in which rounded numbers may tie
        assert result["confidence"] == pytest.approx(sure, abs=0.02)
    rows = np.concatenate([split.train, split.test])
    parties = make_parties(data)
    expected = model.logits([p.take(rows) for p in parties]) * model.temperature
    logits = head_of(folder, data)(np.hstack([p.inputs[rows] for p in parties])) * results[0]["temperature"]
    assert np.abs(logits - expected).max() <= 0.02


def test_every_release_is_paid_and_every_version_of_the_mask_is_in_the_log(secure):
    folder, results, _ = secure
    for rank in range(PARTIES):
        party_folder = folder / f"party-{rank}"
        lines = [json.loads(line) for line in (party_folder / "ledger.jsonl").read_text().splitlines()]
        assert [line["event"]["name"] for line in lines if "event" in line] == CHARGES
        renyi, _ = replay((party_folder / "ledger.jsonl").read_text())
        assert 7.99 < renyi <= 8.0 and results[rank]["privacy"]["epsilon_rdp"] == pytest.approx(renyi)
        audit = [json.loads(line) for line in (party_folder / "audit.jsonl").read_text().splitlines()]
        masks = [entry["mask"] for entry in audit if entry["event"] in ("roles", "interventional check")]
        assert len(masks) == 4 and masks[-1] == results[rank]["mask"]
    assert results[0]["steps"] == WARM_STEPS + 9


DEFAULT = ["sketch-0", "sketch-1", "head", "head output"]


@pytest.mark.parametrize("private", [False, True], ids=["not private", "the default"])
@pytest.mark.parametrize("opened", [False, True], ids=["before it", "half way"])
def test_a_run_that_stopped_at_its_late_release_continues_and_pays_once(opened, private, tmp_path, monkeypatch):
    """Half way, its tables are out and paid for but in no checkpoint: nothing is left in the cap for other noise."""
    options, charges = ({}, DEFAULT) if private else (OPTIONS, CHARGES)
    refresh = Discovery.refresh

    def broken(self, number):
        raise RuntimeError("a fault after the steps before the late refresh")

    def half(self, number, *rest):
        refreshed = refresh(self, number, *rest)
        if number:
            raise RuntimeError("a fault after the late tables were opened")
        return refreshed

    with monkeypatch.context() as patch:
        patch.setattr(*((Discovery, "refresh", half) if opened else (Trainer, "release_again", broken)))
        with pytest.raises(ExceptionGroup):
            run_jobs(TrainJob, tmp_path, options)
    for log in tmp_path.glob("party-*/releases.jsonl"):
        log.unlink()  # sessions in threads write a new one
    results = run_jobs(TrainJob, tmp_path, {**options, "resume": True})
    assert [r["steps"] for r in results] == [WARM_STEPS + 9] * PARTIES
    lines = [json.loads(line) for line in (tmp_path / "party-0" / "ledger.jsonl").read_text().splitlines()]
    assert [line["event"]["name"] for line in lines if "event" in line] == charges


def test_a_default_run_opens_nothing_about_records_between_its_tables_and_its_finished_head(tmp_path, monkeypatch):
    """What leaves after the first tables follows from tables, up to the one check of the finished head.

    Noise of a head is drawn twice at each party: in the objective and on the finished weights of one head.
    """
    drawn, dealt = [], second_order.noise_of_heads
    monkeypatch.setattr(
        second_order, "noise_of_heads", lambda party, *rest: (drawn.append(party.rank), dealt(party, *rest))[1]
    )
    results = run_jobs(TrainJob, tmp_path, {})
    log = [json.loads(line) for line in (tmp_path / "party-0" / "releases.jsonl").read_text().splitlines()]
    names = [line["release"] for line in log]
    tables = [at for at, line in enumerate(log) if (line["event"] or "").startswith("sketch")]
    after = names[tables[0] :]
    free = [name for name in after if kind_of(name, charged=False).basis in ("uncharged", "exact")]
    assert free == ["range check"] == [after[-1]]
    assert [log[at]["event"] for at in tables] == ["sketch-0"] * PARTIES + ["sketch-1"] * PARTIES
    assert sorted(drawn) == sorted(2 * list(range(PARTIES)))
    ledger = [json.loads(line) for line in (tmp_path / "party-0" / "ledger.jsonl").read_text().splitlines()]
    assert [line["event"]["name"] for line in ledger if "event" in line] == DEFAULT
    assert results[0]["privacy"]["releases"] == 4
    refreshes = table_releases_of(tmp_path / "party-0")
    assert [one["refresh"] for one in refreshes] == [0, 1] and refreshes[1]["roles"] == results[0]["roles"]
    assert refreshes[0]["deviation"] == pytest.approx(2**0.5 * refreshes[1]["deviation"])
    assert 0 < refreshes[0]["epsilon"] < refreshes[1]["epsilon"] < results[0]["privacy"]["epsilon_rdp"] <= 8.0
    assert refreshes[1]["epsilon"] == pytest.approx(results[0]["privacy"]["parts"]["tables"])


def test_a_refresh_after_the_budget_is_spent_is_one_line_and_opens_nothing(tmp_path, monkeypatch, caplog):
    ask = Charger.ask

    def spent(self, event, key=""):
        self.limit = 0.0 if event.name == "sketch-1" else self.budget.terms.epsilon
        return ask(self, event, key)

    monkeypatch.setattr(Charger, "ask", spent)
    results = run_jobs(TrainJob, tmp_path, {})
    log = [json.loads(line) for line in (tmp_path / "party-0" / "releases.jsonl").read_text().splitlines()]
    assert "sketch-1" not in {line["event"] for line in log}
    lines = [record.getMessage() for record in caplog.records if "no refresh 1" in record.getMessage()]
    assert len(lines) == PARTIES and all("\n" not in line and "refused by the ledger" in line for line in lines)
    assert results[0]["confidence"] and [r["refresh"] for r in table_releases_of(tmp_path / "party-0")] == [0]
