"""German in secret, a sketch and four refreshes: every party's ledger, the report, and dp_accounting's own replay."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from accounting.budget import Budget, BudgetError
from accounting.calibration import noise_multiplier
from accounting.events import Event
from launch.privacy_report import main
from protocols.config import ConfigError
from protocols.releases import ReleasePlan
from secure_sccvfl.charging import Charger, records_digest
from secure_sccvfl.data import load
from secure_sccvfl.parties import make_parties
from secure_sccvfl.run_options import RunOptions
from secure_sccvfl.secure_statistics import SecureStatistics
from secure_sccvfl.train_job import open_budget
from tests.harness import run_session
from tests.unit.test_accounting import replay

CAP, DELTA, ROUNDS = 8.0, 1e-5, 5
GERMAN = load("german")
PARTIES = make_parties(GERMAN)
(PROTECTED,) = GERMAN.protected
HOLDER = [party.name for party in GERMAN.parties].index(PROTECTED.holder)
COLUMNS = {party.rank: {k: v.shape[1] for k, v in party.bins().items()} for party in PARTIES}
COUNTS = [len(PROTECTED.groups)]
NAMES = [f"sketch-{i}" for i in range(ROUNDS + 1)]


def spend(folder):
    """At each party: what it got, release by release, until the budget refuses one, and the refusal."""

    def job(session):
        ledger = folder / f"party-{session.rank}" / "ledger.jsonl"
        budget = Budget.open(ledger, "german", CAP, DELTA, len(PROTECTED.codes))
        charger = Charger(session, budget, noise_multiplier(CAP, DELTA, ROUNDS), "run")
        statistics = SecureStatistics(session, COLUMNS, [HOLDER], len(PROTECTED.codes), charger)
        groups = [PROTECTED.codes if session.rank == HOLDER else None]
        own = PARTIES[session.rank].bins()
        made = []
        for name in NAMES:
            try:
                (tables,) = statistics.group_sums(own, groups, COUNTS, name, math.sqrt(len(GERMAN.features)))
                made.append(np.concatenate(list(tables.values())))
            except BudgetError as error:
                return made, str(error)
        return made, None

    plan = ReleasePlan(SecureStatistics.releases(COLUMNS, COUNTS, tables=NAMES))
    return run_session(job, len(PARTIES), plan, folder=folder)


def test_a_run_with_four_refreshes_writes_the_report_that_its_ledger_gives(tmp_path, capsys):
    for made, refused in spend(tmp_path):
        assert len(made) == ROUNDS and "sketch-5: refused" in refused, "the sixth is refused at every party"
        assert not np.array_equal(made[0], made[1]), "every refresh has noise of its own"
    (tmp_path / "report.json").write_text(json.dumps({"privacy": {"noise": "dealer+holder"}}))
    assert main([str(tmp_path)]) == 0
    assert "0 more such releases fit the cap" in capsys.readouterr().out
    report = json.loads((tmp_path / "privacy_budget.json").read_text())
    assert [r["name"] for r in report["releases"]] == NAMES[:ROUNDS]
    assert [r["refresh"] for r in report["releases"]] == list(range(ROUNDS))
    assert CAP - 1e-4 < report["epsilon_rdp"] <= CAP
    for rank in range(len(PARTIES)):
        renyi, pld = replay((tmp_path / f"party-{rank}" / "ledger.jsonl").read_text())
        assert report["epsilon_rdp"] == pytest.approx(renyi, rel=1e-9)
        assert report["epsilon_pld"] == pytest.approx(pld, rel=1e-3)


def test_another_name_of_the_description_is_not_another_budget(tmp_path):
    """Two descriptions of the same records, for two tasks say, spend from one ledger."""
    options, session = (
        RunOptions(dataset=str(tmp_path / "a.toml"), pooled=False),
        SimpleNamespace(rank=1, folder=None),
    )
    records = records_digest(["1", "2"])
    budget, path = open_budget(options, session, "default", records, 500)
    budget.charge(Event("sketch-0", 1.0, 5.0, records), "run sketch-0")
    again, same = open_budget(options, session, "churn", records, 500)
    assert same == path and len(again.charges) == 1
    assert not open_budget(options, session, "churn", records_digest(["1", "3"]), 500)[0].charges
    (tmp_path / "sccvfl-ledgers" / f"churn-{records[:12]}").mkdir()
    with pytest.raises(ConfigError, match="two ledgers"):
        open_budget(options, session, "churn", records, 500)


def test_a_charge_that_a_fault_cut_short_is_counted_by_all_when_they_go_on(tmp_path):
    """Parties 0 and 2 had charged when party 1 died: its ledger takes the line over, and all are equal again."""
    line = Event("sketch-0", 1.0, 4.0, "german")

    def job(session):
        budget = Budget.open(tmp_path / f"{session.rank}.jsonl", "german", CAP, DELTA)
        budget.charge(line, "run sketch-0")
        if session.rank != 1:
            budget.charge(replace(line, name="sketch-1", refresh=1), "run sketch-1")
        charger = Charger(session, budget, 4.0, "again")
        told = [charger.catch_up(), charger.catch_up()]
        charger.charge("sketch-2", 1.0)
        return told, budget.head_digest, len(budget.charges)

    results = run_session(job, 3)
    assert [told for told, *_ in results] == [[True, False]] * 3
    assert len({head for _, head, _ in results}) == 1 and {count for *_, count in results} == {3}


def test_ledgers_that_differ_otherwise_are_left_as_they_are(tmp_path):
    def job(session):
        budget = Budget.open(tmp_path / f"{session.rank}.jsonl", "german", CAP, DELTA)
        for number in range(3 if session.rank else 1):  # two lines apart
            budget.charge(Event(f"sketch-{number}", 1.0, 4.0, "german"), f"run {number}")
        return Charger(session, budget, 4.0, "again").catch_up(), len(budget.charges)

    assert run_session(job, 3) == [(True, 1), (True, 3), (True, 3)]
