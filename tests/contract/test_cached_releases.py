"""Runs of a consortium on one budget: paid tables serve again, part of the cap is kept, a cap is raised."""

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.ledger import comparable
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.discovery.cached_releases import load_releases, save_releases
from secure_sccvfl.protocols.net.certificates import fingerprint
from secure_sccvfl.protocols.records.chain import unused_name
from secure_sccvfl.releases.ledgers import (
    FINISHED_HEADS,
    draft_decision,
    read_decision,
    signed_by,
    spent_figures,
    write_decision,
)
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.files import ModelError
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.train import TrainJob
from tests.support.own_data import COLUMNS, heart_rows, jobs_of, run_jobs, without, write_own
from tests.support.sessions import credentials, node_names, run_session
from tests.unit.accounting.test_prices import replay

PARTIES = 3
SHORT = {"refreshes": 0, "lambdas": [3.0], "take_lambda": 3.0}
PINS = {
    name: fingerprint(credentials(node, PARTIES).certificate.read_bytes())
    for node, name in enumerate(node_names(PARTIES))
}


def train(folder, options, certificates=None):
    """Training at every party, as threads with real sockets, each with its own folder."""
    jobs = jobs_of(TrainJob, options, certificates=certificates)
    for log in list(folder.glob("party-*/releases.jsonl")):  # of an earlier session
        log.rename(unused_name(log))
    return run_jobs(jobs, folder)


def refused(folder, options, certificates=None):
    """What every party says when all of them refuse."""
    with pytest.raises(ExceptionGroup) as caught:
        train(folder, options, certificates)
    return {str(error) for error in caught.value.exceptions}


def ledgers(home):
    return {path.parent.name: path.read_text() for path in sorted(home.glob("sccvfl-ledgers/*/ledger.jsonl"))}


def files(home):
    return sorted(home.glob("sccvfl-ledgers/*/tables/*.npz"))


def releases(folder, rank=0):
    lines = (folder / f"party-{rank}" / "releases.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """Own data and a run that paid for its tables and its head, half of the cap. Each party lacks a record."""
    home = tmp_path_factory.mktemp("own")
    data = write_own(home, heart_rows())
    for rank, party in enumerate(COLUMNS):
        table = home / f"{party}.csv"
        table.write_text(without(table, (rank,)))
    options = {"dataset": str(data), **SHORT}
    return home, options, train(home / "paid", {**options, "reserve": 0.5})


HEADS = ["head", "head output"]


def test_another_training_from_kept_tables_opens_nothing_about_s_and_charges_its_head(consortium, tmp_path):
    first, options, paid = consortium
    home = tmp_path / "copy"
    shutil.copytree(first, home)
    options = {**options, "dataset": str(home / Path(options["dataset"]).name)}
    before = ledgers(home)
    other = {**options, "tables": str(home / "paid"), "fdr": 0.9, "lambdas": [1.0], "take_lambda": 1.0}
    retrained = train(home / "again", {**other, "generator_seed": 7})
    for name, text in ledgers(home).items():
        assert text.startswith(before[name])
        more = [json.loads(line) for line in text[len(before[name]) :].splitlines()]
        assert [line["event"]["name"] for line in more] == HEADS, "every model counts"
    assert retrained[0]["privacy"]["epsilon_rdp"] == pytest.approx(replay(ledgers(home)["party-0"])[0], rel=1e-3)
    assert not [line for line in releases(home / "again") if line["event"] is not None]
    assert [r["release"] for r in releases(home / "paid") if r["event"] is not None] != []
    assert retrained[0]["privacy"]["releases"] == 2 and paid[0]["privacy"]["releases"] == 5
    assert paid[0]["privacy"]["epsilon_rdp"] < retrained[0]["privacy"]["epsilon_rdp"] <= 8.0
    assert retrained[0]["tables"]["runs"] == [paid[0]["run"]]
    assert retrained[0]["scores"] == pytest.approx(paid[0]["scores"], abs=1e-4), (
        "the same tables give the same scores"
    )
    assert retrained[0]["roles"] != paid[0]["roles"], "roles follow the new threshold"
    assert retrained[0]["lambda"] == 1.0
    once = ledgers(home)
    messages = refused(home / "third", {**other, "generator_seed": 8})
    assert any("too little is left of the cap for another head" in line for line in messages), messages
    assert ledgers(home) == once


def test_a_model_without_its_charge_in_every_ledger_is_refused_by_all(consortium, tmp_path):
    first, options, _ = consortium
    home = shutil.copytree(first, tmp_path / "own")
    jobs = jobs_of(TrainJob, options)
    models = [load_model(home / "paid" / f"party-{k}" / "model", jobs[k].data.party.layout) for k in range(PARTIES)]

    def lacking(models):
        """How many parties refuse, and which party's ledger they name."""

        def job(session):
            folder = home / "sccvfl-ledgers" / f"party-{session.rank}"
            try:
                EvaluateJob.check_charged(session, models[session.rank], folder)
            except ModelError as error:
                return str(error)
            return ""

        return {line.partition(" has no charge of this model")[0] for line in run_session(job, PARTIES)}

    assert lacking(models) == {""}
    assert lacking([*models[:2], replace(models[2], charged="")]) == {"the ledger of party 2"}
    (home / "sccvfl-ledgers" / "party-1" / "ledger.jsonl").unlink()
    assert lacking(models) == {"the ledger of party 1"}


def test_a_run_whose_model_is_finished_anywhere_is_not_trained_a_second_time(consortium, tmp_path):
    first, options, _ = consortium
    home = shutil.copytree(first, tmp_path / "own")
    options = {**options, "dataset": str(home / Path(options["dataset"]).name), "reserve": 0.5}
    before = ledgers(home)
    for checkpoints in home.glob("paid/party-*/checkpoints"):
        max(checkpoints.glob("*.npz"), key=lambda path: int(path.stem)).unlink()  # the one with the finished head
    for gone in (1, 2):
        shutil.rmtree(home / "paid" / f"party-{gone}" / "model")
    messages = refused(home / "paid", {**options, "resume": True})
    assert any("a party has a model of this run already" in line for line in messages), messages
    assert ledgers(home) == before
    shutil.rmtree(home / "paid" / "party-0" / "model")
    messages = refused(home / "paid", {**options, "resume": True})
    assert any("the check of its head was opened" in line for line in messages), messages
    for log in home.glob("paid/party-*/releases*.jsonl"):
        log.unlink()
    messages = refused(home / "paid", {**options, "resume": True})
    assert any("has finished the head of this run" in line for line in messages), messages
    for claim in home.rglob(FINISHED_HEADS):
        claim.unlink()
    retrained = train(home / "paid", {**options, "resume": True})
    assert retrained[0]["ok"] and ledgers(home) == before, (
        "nobody has a model: the head is trained, and paid for once"
    )


def test_kept_tables_are_those_of_the_model_and_private(consortium):
    home, options, _ = consortium
    paths = files(home)
    assert len(paths) == PARTIES and {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    model = load_model(home / "paid" / "party-0" / "model", jobs_of(TrainJob, options)[0].data.party.layout)
    kept = load_releases(paths[0])
    for name, table in model.noisy_tables[0].tables.items():
        both = [kept.releases[f"sketch-{k}"].parts[0][name] for k in range(2)]
        assert np.allclose(np.mean(both, axis=0), table)
    assert not set(kept.releases["sketch-0"].parts[0]) & {"age", "fbs"}, "columns of others"


def test_other_records_splits_and_descriptions_and_missing_or_changed_tables_are_refused(consortium):
    home, options, _ = consortium
    before, kept = ledgers(home), {**options, "tables": "kept"}
    assert any("split otherwise" in line for line in refused(home / "seed", {**kept, "seed": 3}))
    fewer = write_own(home / "fewer", heart_rows(290))
    (home / "fewer" / "sccvfl-ledgers").symlink_to(home / "sccvfl-ledgers")
    messages = refused(home / "records", {**kept, "dataset": str(fewer)})
    assert any("of other records" in line for line in messages)
    wider = write_own(home / "wider", heart_rows())
    wider.write_text(wider.read_text().replace("high = 200", "high = 210"))
    (home / "wider" / "sccvfl-ledgers").symlink_to(home / "sccvfl-ledgers")
    assert any("bins or public" in line for line in refused(home / "ranges", {**kept, "dataset": str(wider)}))
    messages = refused(home / "gain", {**kept, "gain": True})  # which keeps validation records apart
    assert any("split otherwise" in line for line in messages)
    path = files(home)[1]
    whole = path.read_bytes()
    path.unlink()
    assert any("party 1 has no cached releases" in line for line in refused(home / "lost", kept))
    path.write_bytes(whole[:-200] + bytes(200))
    assert any("party 1 has cached releases that were changed" in line for line in refused(home / "torn", kept))
    path.write_bytes(whole)
    tables = load_releases(path)
    unpaid = {name: replace(one, key=f"x{one.key}") for name, one in tables.releases.items()}
    save_releases(path.parent.parent, replace(tables, releases=unpaid))
    assert any("party 1 has tables that no charge" in line for line in refused(home / "unpaid", kept))
    fewer_releases = {"sketch-0": tables.releases["sketch-0"]}
    save_releases(path.parent.parent, replace(tables, releases=fewer_releases))
    assert any("of different releases" in line for line in refused(home / "differ", kept))
    path.write_bytes(whole)
    assert ledgers(home) == before


def test_a_reserve_is_left_and_a_later_run_plans_for_what_is_left(consortium, tmp_path):
    home, options, paid = consortium
    assert 3.99 < paid[0]["privacy"]["epsilon_rdp"] <= 4.0
    copied = tmp_path / "sccvfl-ledgers"
    data = write_own(tmp_path, heart_rows())
    shutil.copytree(home / "sccvfl-ledgers", copied)
    options = {**options, "dataset": str(data)}
    messages = refused(tmp_path / "kept", {**options, "reserve": 0.5})
    assert any("less a reserve of 4" in line for line in messages), messages
    later = train(tmp_path / "later", options)
    assert 7.99 < later[0]["privacy"]["epsilon_rdp"] <= 8.0
    assert (later[0]["privacy"]["releases"], later[0]["privacy"]["releases_in_ledger"]) == (5, 10)
    before = ledgers(tmp_path)
    assert any("refused by the ledger" in line for line in refused(tmp_path / "over", options))
    assert ledgers(tmp_path) == before, "not even a first count is paid for tables that will not come"


def signed(home, name, **changes):
    """A decision about the consortium's ledger with the signatures of all."""
    raised = draft_decision(home / "sccvfl-ledgers" / "party-0" / "ledger.jsonl", 12.0, "yearly review", "2026-11-17")
    raised = replace(raised, **changes)
    for rank in range(PARTIES):
        raised = signed_by(raised, credentials(rank, PARTIES), f"party-{rank}")
    write_decision(home / name, raised)
    return home / name


def test_a_cap_is_raised_by_all_signatures_alone_and_stands_in_every_ledger(consortium):
    home, options, _ = consortium
    before = ledgers(home)
    good = signed(home, "cap.toml")
    raised = read_decision(good)
    forged = {
        "changed.toml": replace(raised, after=50.0),
        "lacking.toml": replace(raised, signed={k: v for k, v in raised.signed.items() if k != "party-2"}),
        "swapped.toml": replace(raised, signed={**raised.signed, "party-2": raised.signed["party-1"]}),
        "more.toml": replace(
            raised, signed={**raised.signed, "party-3": {**raised.signed["party-1"], "signature": ""}}
        ),
    }
    settings = {**options, "tables": "kept", "epsilon": 12.0}
    said = []
    for name, one in forged.items():
        write_decision(home / name, one)
        said += refused(home / name[:-5], {**settings, "cap": str(home / name)}, PINS)
    elsewhere = signed(home, "elsewhere.toml", head="0" * 64)
    said += refused(home / "elsewhere", {**settings, "cap": str(elsewhere)}, PINS)
    said += refused(home / "unpinned", {**settings, "cap": str(good)})
    for part in (
        "not of its pinned certificate",
        "has not signed",
        "another ledger",
        "must pin",
        "party-3, which is no party",
    ):
        assert any(part in line for line in said), part
    assert ledgers(home) == before
    results = train(home / "raised", {**settings, "cap": str(good)}, PINS)
    assert results[0]["privacy"]["cap"] == 12.0 and results[0]["privacy"]["raised"] == ["yearly review"]

    def decisions():
        entries = [[json.loads(line) for line in text.splitlines()] for text in ledgers(home).values()]
        assert all(
            comparable(lines, own_records=True) == comparable(entries[0], own_records=True) for lines in entries
        )
        assert len({lines[-1]["hash"] for lines in entries}) > 1, "though each has its own records in it"
        return [line["reason"] for line in entries[0] if "reason" in line]

    assert decisions() == ["yearly review"]
    again = refused(home / "twice", {**settings, "cap": str(good)}, PINS)
    assert any("too little is left of the cap for another head" in line for line in again), "the first spent the rest"
    assert decisions() == ["yearly review"], "a decision counts once"


def test_a_charge_is_counted_for_the_run_that_made_it(tmp_path):
    """Two runs on one ledger at the same time: each says what it made."""
    records = RecordSet(np.arange(5, dtype=np.uint64))
    budget = Budget.open(tmp_path / "ledger.jsonl", 8.0, 1e-5)
    for number, run in enumerate(["aa", "bb", "aa", "aa", "aa"]):
        budget.charge(Event(f"sketch-{number}", 1.0, 4.0, records.digest), f"{run} sketch-{number}", records)
    for runs, releases in ((["aa"], 4), (["bb"], 1), (["aa", "bb"], 5)):
        figures = spent_figures(budget.account, "dealer", runs)
        assert (figures["releases"], figures["releases_in_ledger"]) == (releases, 5)
