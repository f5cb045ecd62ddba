"""German under MPC, five releases of tables: every party's ledger, the report, and the replay of dp_accounting."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget, BudgetError
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.events import Event, Sensitivity
from secure_sccvfl.accounting.ledger import LedgerError
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums
from secure_sccvfl.launch.privacy_report import main
from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.releases.catalogue import NOISY_TABLES, PlanFacts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.ledgers import draft_decision, keep_copy, open_budget, signed_by
from secure_sccvfl.releases.record_key import record_key
from secure_sccvfl.reports.results import write
from secure_sccvfl.training.modes.base import mode_plan, noise_multiplier_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.sessions import credentials, run_session
from tests.unit.accounting.test_prices import replay
from tests.unit.reports import literal

CAP, DELTA, ROUNDS = 8.0, 1e-5, 5
GERMAN = load("german")
PARTIES = make_parties(GERMAN)
(PROTECTED,) = GERMAN.protected
HOLDER = [party.name for party in GERMAN.parties].index(PROTECTED.holder)
COLUMNS = {party.rank: {k: v.shape[1] for k, v in party.bins().items()} for party in PARTIES}
COUNTS = [len(PROTECTED.groups)]
NAMES = [f"sketch-{i}" for i in range(ROUNDS + 1)]
RECORDS, OTHERS = (RecordSet(np.arange(low, low + 4, dtype=np.uint64)) for low in (0, 2))


def about(records, number):
    return Event(f"sketch-{number}", 1.0, 4.0, records.digest, refresh=number)


EVENT = about(RECORDS, 0)


def spend(folder):
    """At each party: what it got, release by release, until the budget refuses one, and the refusal."""

    def job(session):
        ledger = folder / f"party-{session.rank}" / "ledger.jsonl"
        budget = Budget.open(ledger, CAP, DELTA, len(PROTECTED.codes))
        records = record_key(session, ledger.parent, IdRule(("id",))).record_set(GERMAN.ids)
        charger = Charger(session, budget, noise_multiplier(CAP, DELTA, ROUNDS), "run", records)
        statistics = SecureStatistics(session, COLUMNS, [HOLDER], len(PROTECTED.codes), charger)
        groups = [PROTECTED.codes if session.rank == HOLDER else None]
        bins = PARTIES[session.rank].bins()
        released = []
        for name in NAMES:
            try:
                (tables,) = statistics.release(
                    GroupSums(name, math.sqrt(len(GERMAN.features))), bins, groups, COUNTS
                ).tables
                released.append(np.concatenate(list(tables.values())))
            except BudgetError as error:
                return released, str(error)
        return released, None

    plan = ReleasePlan(NOISY_TABLES.releases(PlanFacts(COLUMNS, tuple(COUNTS), refreshes=ROUNDS)))
    return run_session(job, len(PARTIES), plan, folder=folder)


def test_a_run_with_four_refreshes_writes_the_report_that_its_ledger_gives(tmp_path, capsys):
    for released, refused in spend(tmp_path):
        assert len(released) == ROUNDS and "sketch-5: refused" in refused, "the sixth is refused at every party"
        assert not np.array_equal(released[0], released[1]), "every release has fresh noise"
    write(tmp_path, literal.report())
    assert main([str(tmp_path), "--out", str(tmp_path)]) == 0
    assert "0 more such releases fit the cap" in capsys.readouterr().out
    report = json.loads((tmp_path / "privacy_budget.json").read_text())
    assert [r["name"] for r in report["releases"]] == NAMES[:ROUNDS]
    assert [r["refresh"] for r in report["releases"]] == list(range(ROUNDS))
    assert CAP - 1e-4 < report["epsilon_rdp"] <= CAP
    for rank in range(len(PARTIES)):
        renyi, pld = replay((tmp_path / f"party-{rank}" / "ledger.jsonl").read_text())
        assert report["epsilon_rdp"] == pytest.approx(renyi, rel=1e-9)
        assert report["epsilon_pld"] == pytest.approx(pld, rel=1e-3)


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("refreshes", [0, 4])
def test_the_budget_is_planned_for_the_releases_that_the_plan_charges(conditional, gain, late, refreshes):
    options = RunOptions.of_flat(refreshes=refreshes, late_refreshes=late)
    options = options.changed(conditional=conditional, gain=gain, private_model=False)
    assert options.charged == 1 + refreshes + late + conditional + gain
    plan = mode_plan(options.schema(3), options)
    events = {release.event for release in plan.releases.values() if release.event is not None}
    assert len(events) == options.charged == options.train_config().charged
    simulated = options.simulated_budget(3)
    assert simulated.releases == options.charged and simulated.multiplier == noise_multiplier_of(
        options, options.schema(3)
    )


def test_a_consortium_has_one_ledger_whatever_its_data_are_called(tmp_path):
    """Two descriptions, for two tasks say, spend from one ledger; the evaluation's is next to it."""
    session = SimpleNamespace(rank=1, folder=None)
    options = RunOptions.of_flat(dataset=str(tmp_path / "a.toml"), pooled=False)
    budget, path = open_budget(options.ledger_folder(session), CAP, DELTA, 500)
    assert path == tmp_path / "sccvfl-ledgers" / "party-1" / "ledger.jsonl"
    budget.charge(EVENT, "run sketch-0", RECORDS)
    again, same = open_budget(
        options.changed(dataset=str(tmp_path / "b.toml")).ledger_folder(session), CAP, DELTA, 500
    )
    assert same == path and len(again.charges) == 1
    other, other_path = open_budget(options.ledger_folder(session), 2.0, DELTA, 500, "evaluation.jsonl")
    assert other_path == path.with_name("evaluation.jsonl") and not other.charges
    with pytest.raises(ConfigError, match="at most 1/n"):
        open_budget(options.ledger_folder(session), CAP, DELTA, 10**6)
    with pytest.raises(ConfigError, match="needs a folder"):
        RunOptions().ledger_folder(session)


def test_ledgers_of_version_1_are_not_passed_over(tmp_path):
    old = tmp_path / "sccvfl-ledgers" / "loans-0123456789ab" / "party-1"
    old.mkdir(parents=True)
    (old / "ledger.jsonl").write_text("{}\n")
    options = RunOptions.of_flat(dataset=str(tmp_path / "a.toml"), pooled=False)
    with pytest.raises(ConfigError, match="loans-0123456789ab in sccvfl-ledgers is a ledger of version 1"):
        options.ledger_folder(SimpleNamespace(rank=1, folder=None))


def test_a_copy_of_a_ledger_has_what_its_report_needs(tmp_path):
    ledger, run = tmp_path / "ledgers" / "ledger.jsonl", tmp_path / "run"
    Budget.open(ledger, CAP, DELTA).charge(EVENT, "k", RECORDS)
    Budget.open(ledger.with_name("evaluation.jsonl"), CAP, DELTA).charge(
        replace(EVENT, records=OTHERS.digest), "k", OTHERS
    )
    run.mkdir()
    keep_copy(ledger, run)
    modes = {str(p.relative_to(run)): p.stat().st_mode & 0o777 for p in run.rglob("*") if p.is_file()}
    assert modes == dict.fromkeys(["ledger.jsonl", "ledger.jsonl.head", f"sets/{RECORDS.digest}"], 0o600)
    assert Budget.open(run / "ledger.jsonl", CAP, DELTA).spent == Budget.open(ledger, CAP, DELTA).spent
    keep_copy(ledger, ledger.parent)


def test_an_interrupted_charge_is_completed_by_all_when_they_continue(tmp_path):
    """Parties 0 and 2 had charged when party 1 died: its ledger takes the line over, and all are equal again."""

    def job(session):
        budget = Budget.open(tmp_path / f"{session.rank}" / "ledger.jsonl", CAP, DELTA)
        budget.charge(EVENT, "run sketch-0", RECORDS)
        if session.rank != 1:
            budget.charge(about(OTHERS, 1), "run sketch-1", OTHERS)
        charger = Charger(session, budget, 4.0, "again", OTHERS)
        caught_up = [charger.catch_up(), charger.catch_up()]
        charger.charge("sketch-2", Sensitivity.of_counts(1.0))
        return caught_up, budget.head_digest, len(budget.charges), budget.account.spent(OTHERS).renyi

    results = run_session(job, 3)
    assert [caught_up for caught_up, *_ in results] == [[True, False]] * 3
    assert len({head for _, head, *_ in results}) == 1 and {count for _, _, count, _ in results} == {3}
    assert len({spent for *_, spent in results}) == 1


def test_a_release_that_would_use_the_reserve_is_refused():
    """Without a reserve the same release is paid for."""
    cost = epsilon_of([about(RECORDS, 0)], DELTA)

    def job(session, reserve):
        budget = Budget.in_memory(1.5 * cost, DELTA)
        charger = Charger(session, budget, 4.0, "run", RECORDS, "dealer", reserve=reserve)
        try:
            charger.charge("sketch-0", Sensitivity(1.0, 1.0))
        except BudgetError as error:
            return str(error), len(budget.charges)
        return "", len(budget.charges)

    for message, charges in run_session(lambda session: job(session, 0.5), 2):
        assert "refused by the ledger of party 0" in message and "less a reserve of" in message and charges == 0
    assert run_session(lambda session: job(session, 0.0), 2) == [("", 1)] * 2


def test_two_runs_at_once_leave_the_reserve(tmp_path):
    """All ledgers have said yes when another run charges them; what is left then is not for this one."""
    cost = epsilon_of([about(RECORDS, 0)], DELTA)

    def job(session):
        budget = Budget.open(tmp_path / f"{session.rank}" / "ledger.jsonl", 2 * cost, DELTA)
        charger, asked = Charger(session, budget, 4.0, "run", RECORDS, "dealer", reserve=0.4), session.tell_all

        def tell_all(name, value):
            replies = asked(name, value)
            budget.charge(about(RECORDS, 0), "another run sketch-0", RECORDS)
            return replies

        session.tell_all = tell_all
        try:
            charger.charge("sketch-0", Sensitivity(1.0, 1.0))
        except ProtocolError as error:
            return str(error), len(budget.charges), budget.spent.renyi <= charger.limit
        return "", len(budget.charges), budget.spent.renyi <= charger.limit

    for message, charges, kept in run_session(job, 2):
        assert "the ledger changed while the release was agreed on" in message and charges == 1 and kept


def test_where_each_charges_its_own_records_a_cut_charge_is_made_up_for_and_no_digest_is_sent(tmp_path):
    record_sets = [RecordSet(np.arange(low, low + 4, dtype=np.uint64)) for low in range(3)]

    def job(session):
        budget, records = (
            Budget.open(tmp_path / f"{session.rank}" / "ledger.jsonl", CAP, DELTA),
            record_sets[session.rank],
        )
        budget.charge(about(records, 0), "run sketch-0", records)
        if session.rank != 1:
            budget.charge(about(records, 1), "run sketch-1", records)
        charger = Charger(session, budget, 4.0, "again", records, same_records=False)
        seen, swap = [], session.swap_bytes
        session.swap_bytes = lambda name, text: seen.append(text) or swap(name, text)
        caught_up = [charger.catch_up(), charger.catch_up()]
        return caught_up, [(charge.key, charge.event.records) for charge in budget.charges], b"".join(seen)

    for rank, (caught_up, charges, sent) in enumerate(run_session(job, 3)):
        assert caught_up == [True, False]
        assert charges == [(f"run sketch-{number}", record_sets[rank].digest) for number in range(2)]
        assert record_sets[rank].digest.encode() not in sent and b'"hash"' not in sent and b"sketch" in sent


def test_ledgers_that_differ_otherwise_are_left_as_they_are(tmp_path):
    def job(session):
        budget = Budget.open(tmp_path / f"{session.rank}" / "ledger.jsonl", CAP, DELTA)
        for number in range(3 if session.rank else 1):  # two lines apart
            budget.charge(about(RECORDS, number), f"run {number}", RECORDS)
        return Charger(session, budget, 4.0, "again", RECORDS).catch_up(), len(budget.charges)

    assert run_session(job, 3) == [(True, 1), (True, 3), (True, 3)]


@pytest.mark.parametrize(
    "signed", [{}, {"party-0": {"certificate": "", "signature": "00"}}], ids=["no signature", "forged signature"]
)
def test_a_ledger_whose_cap_was_raised_without_signatures_is_refused(tmp_path, signed):
    """A line that somebody wrote into the file; its hashes fit, and no party's signature is under it."""
    budget, path = open_budget(tmp_path, CAP, DELTA, 500)
    budget.raise_cap(replace(draft_decision(path, 50.0, "a reason", "2026-11-17"), signed=signed))
    with pytest.raises(LedgerError, match="decision on its cap without valid signatures"):
        open_budget(tmp_path, 50.0, DELTA, 500)


def test_one_signature_that_does_not_fit_is_enough_to_refuse_a_ledger(tmp_path):
    budget, path = open_budget(tmp_path, CAP, DELTA, 500)
    raised = draft_decision(path, 50.0, "a reason", "2026-11-17")
    for rank in range(2):
        raised = signed_by(raised, credentials(rank, 2), f"party-{rank}")
    wrong = {
        **raised.signed,
        "party-1": {**raised.signed["party-1"], "signature": raised.signed["party-0"]["signature"]},
    }
    shutil.copytree(tmp_path, tmp_path.parent / "good")
    budget.raise_cap(replace(raised, signed=wrong))
    with pytest.raises(LedgerError, match="without valid signatures"):
        open_budget(tmp_path, 50.0, DELTA, 500)
    Budget.open(tmp_path.parent / "good" / path.name, CAP, DELTA).raise_cap(raised)
    assert open_budget(tmp_path.parent / "good", 50.0, DELTA, 500)[0].terms.epsilon == 50.0
