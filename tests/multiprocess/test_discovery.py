"""Private discovery by real processes: noise of what they opened, ledgers, audit logs, refusal by the budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant

from secure_sccvfl.accounting.events import Event
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.launch import privacy_report
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import LocalError, LogError
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs.discover import DiscoveryJob
from secure_sccvfl.runs.files import read_audit
from secure_sccvfl.runs.local.processes import Ending, LocalSession
from secure_sccvfl.training.modes.base import spread_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.chance import fits_alone
from tests.support.sessions import run_session

PARTIES, CATEGORIES, GROUPS, ROWS = 3, 60, 4, 500


def discover(folder: Path, **options: Any) -> Ending:
    addresses = tuple(f"127.0.0.1:{rank + 1}" for rank in range(PARTIES))
    config = SessionConfig(
        parties=addresses, job="discovery", options={"ledger": str(folder.parent / "ledgers"), **options}
    )
    with LocalSession(config, folder) as session:
        return session.wait()


def result(folder: Path, rank: int) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / f"party-{rank}" / "result.json").read_text())
    return loaded


def wide_data(folder: Path) -> Path:
    """A user's own data set with long tables: one feature of many categories at each party."""
    rng = np.random.default_rng(0)
    groups = np.arange(ROWS) % GROUPS
    names = json.dumps([f"c{i}" for i in range(CATEGORIES)])
    lines = [
        'name = "wide"\ntask = "binary"\nid = "id"',
        'label = { party = "p0", column = "y", classes = ["0", "1"] }',
        f'protected = [ {{ party = "p1", column = "s", groups = {json.dumps([str(g) for g in range(GROUPS)])} }} ]',
    ]
    for rank in range(PARTIES):
        lines.append(f'[parties.p{rank}]\nfile = "p{rank}.csv"')
        lines.append(f'features = [ {{ name = "x{rank}", kind = "category", categories = {names} }} ]')
        extra = {0: groups % 2, 1: groups, 2: groups * 0}[rank]
        rows = [f"r{i:04},c{rng.integers(CATEGORIES)},{extra[i]}" for i in range(ROWS)]
        (folder / f"p{rank}.csv").write_text(f"id,x{rank},{('y', 's', 'z')[rank]}\n" + "\n".join(rows) + "\n")
    path = folder / "wide.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.chance(1e-9)  # `fits_alone` of 720 values
def test_what_real_processes_open_has_the_charged_noise_and_no_other(tmp_path: Path) -> None:
    path = wide_data(tmp_path)
    ending = discover(tmp_path / "run", dataset=str(path), refreshes=0, epsilon=2.0, head_share=0.01)
    assert ending.code == 0, ending.failures
    data = load(str(path))
    indicators = np.eye(GROUPS)[data.protected[0].codes]
    drawn, deviations = [], set()
    for rank in range(PARTIES):
        party_result = result(tmp_path / "run", rank)
        tables = party_result["own_tables"]["s"]
        assert set(tables) == {f"x{rank}"}, "a party keeps its own tables only"
        exact = np.eye(CATEGORIES)[data.parties[rank].values[:, 0].astype(int)].T @ indicators
        drawn.append(np.array(tables[f"x{rank}"]) - exact)
        deviations.add(party_result["deviation"])
    (deviation,) = deviations
    noise = np.concatenate(drawn)
    assert noise.size == PARTIES * CATEGORIES * GROUPS
    assert fits_alone(noise, deviation)


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run on German with one refresh."""
    folder = tmp_path_factory.mktemp("discovery") / "run"
    ending = discover(folder)
    assert ending.code == 0, ending.failures
    return folder


def ledgers(german: Path) -> list[Path]:
    return sorted((german.parent / "ledgers").glob("party-*/ledger.jsonl"))


def test_the_ledgers_replayed_by_dp_accounting_alone_give_the_same_epsilon(german: Path) -> None:
    assert len(ledgers(german)) == PARTIES
    for rank, path in enumerate(ledgers(german)):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        charges = [line for line in lines if line["kind"] == "charge"]
        assert [line["event"]["name"] for line in charges] == [f"sketch-{i}" for i in range(2)]
        accountant = RdpAccountant()
        for line in charges:
            event = Event.from_dict(line["event"])
            assert event.sensitivity == pytest.approx(np.sqrt(38)) and event.added == pytest.approx(np.sqrt(19))
            assert event.copies == 2 and (path.parent / "sets" / event.records).stat().st_size == 8 * 1000
            accountant.compose(GaussianDpEvent(event.sigma * np.sqrt(2) / event.sensitivity))
        epsilon = accountant.get_epsilon(1e-5)
        assert epsilon == pytest.approx(result(german, rank)["privacy"]["epsilon_rdp"], rel=1e-9)
        planned = spread_of(RunOptions.of({}), RunOptions.of({}).schema(PARTIES)).multiplier
        whole = RdpAccountant()
        whole.compose(GaussianDpEvent(planned), 2)
        assert epsilon == pytest.approx(whole.get_epsilon(1e-5), rel=1e-3) and epsilon < 6, "the head's share is left"


def test_what_is_left_pays_for_the_head_of_a_later_training(german: Path) -> None:
    """With no more noise than in a run that discovers and trains at once, and for nothing beyond it."""
    lines = [json.loads(line) for line in ledgers(german)[0].read_text().splitlines()]
    spent = tuple(Event.from_dict(line["event"]) for line in lines if line["kind"] == "charge")
    options = RunOptions.of({})
    schema = options.schema(PARTIES)
    planned, later = spread_of(options, schema).heads, spread_of(options, schema, spent, cached=True).heads
    assert planned is not None and later is not None
    assert later[1].head_multiplier == pytest.approx(planned[1].head_multiplier, rel=1e-3)
    alone = spread_of(options, schema, cached=True).heads
    assert alone is not None and alone[1].head_multiplier < 0.9 * planned[1].head_multiplier


def test_what_was_opened_is_what_was_declared_and_paid_for(german: Path) -> None:
    opened = [
        (e["release"], e["event"], tuple(e["receivers"])) for e in read_chain(german / "party-0" / "releases.jsonl")
    ]
    expected: list[tuple[str, str | None, tuple[int, ...]]] = [("alignment", None, (0, 1, 2))]
    for number in range(2):
        expected += [(f"sketch-{number} for party {rank}", f"sketch-{number}", (rank,)) for rank in range(3)]
        expected += [("group sizes", None, (0, 1, 2)), ("hsic", None, (0, 1, 2))]
    assert opened == expected


def test_all_parties_make_the_same_decisions_and_the_audit_log_has_the_numbers(german: Path) -> None:
    results = [result(german, rank) for rank in range(PARTIES)]
    assert results[0]["roles"] == results[1]["roles"] == results[2]["roles"] and len(results[0]["roles"]) == 19
    entries = [read_audit(german / f"party-{rank}" / "audit.jsonl") for rank in range(PARTIES)]
    assert entries[0] == entries[1] == entries[2]
    assert [entry["event"] for entry in entries[0]] == ["roles"] * 2 + ["confidence"]
    assert results[0]["confidence"] == results[1]["confidence"] == entries[2][2]["confidence"]
    assert set(results[0]["confidence"]) == set(results[0]["roles"])
    assert all(0 <= share <= 1 for share in results[0]["confidence"].values())
    assert set(entries[0][1]["scores"]) == set(results[0]["roles"]) and entries[0][1]["releases"] == 2
    path = german / "party-0" / "audit.jsonl"
    changed = german.parent / "changed.jsonl"
    changed.write_text(path.read_text().replace('"refresh": 1', '"refresh": 3'))
    with pytest.raises(LogError, match="line 2"):
        read_audit(changed)


def test_the_report_is_written_from_the_ledgers(german: Path) -> None:
    folder, out = ledgers(german)[0].parent.parent, german.parent / "told"
    before = sorted(folder.rglob("*"))
    assert privacy_report.main([str(folder)]) == 0 and sorted(folder.rglob("*")) == before, "reading writes nothing"
    assert privacy_report.main([str(folder), "--quiet", "--out", str(out)]) == 0
    report = json.loads((out / "privacy_budget.json").read_text())
    assert report["epsilon_rdp"] == pytest.approx(result(german, 0)["privacy"]["epsilon_rdp"])
    assert [r["name"] for r in report["releases"]] == [f"sketch-{i}" for i in range(2)]


def test_a_second_run_on_the_same_records_is_refused_by_what_was_spent(tmp_path: Path) -> None:
    """The ledgers that the processes left behind, with next to nothing for a head; the second run is in threads."""
    first = tmp_path / "first" / "run"
    ending = discover(first, head_share=0.01)
    assert ending.code == 0, ending.failures
    before = [path.read_text() for path in ledgers(first)]
    addresses = tuple(f"127.0.0.1:{rank + 1}" for rank in range(PARTIES))
    config = SessionConfig(parties=addresses, options={"ledger": str(first.parent / "ledgers")})
    jobs = [DiscoveryJob(config, rank) for rank in range(PARTIES)]

    def again(session: Session) -> None:
        with pytest.raises(LocalError, match=r"refused by the ledger of party 0.*nothing was charged"):
            jobs[session.rank].run(session, lambda step, number, total: None)

    run_session(again, PARTIES, jobs[0].plan(), folder=tmp_path)
    assert [path.read_text() for path in ledgers(first)] == before
    assert [e["release"] for e in read_chain(tmp_path / "party-0" / "releases.jsonl")] == ["alignment"]


@pytest.mark.parametrize(
    "bad",
    [{"delta": 0.01}, {"epsilon": 0.0}, {"noise": "none"}, {"rule": "guess"}, {"dataset": "nowhere"}, {"speed": 1}],
    ids=lambda bad: next(iter(bad)),
)
def test_a_setting_that_cannot_work_is_refused_before_a_session_starts(bad: dict[str, Any]) -> None:
    config = SessionConfig(parties=("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"), options=bad)
    with pytest.raises(ConfigError):
        DiscoveryJob(config, 0)
