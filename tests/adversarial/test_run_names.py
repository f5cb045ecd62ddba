"""One active party gives a run the name of an earlier one, so that ledgers take its charges for those of that run.

Names used to be the sum of all parties' random words: who spoke last chose it, charging a known key was free, and 250
discoveries with fresh noise left every honest ledger as it was. Now names are committed to before they are revealed,
all parties refuse a name that one ledger knows, and no charge of a known key is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget, read_account
from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.errors import PeerError, ProtocolError
from secure_sccvfl.protocols.net.transport import Spec
from secure_sccvfl.protocols.session import runtime
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases import ledgers
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.ledgers import agree_on_run
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event
from secure_sccvfl.reports.verify import _unpaid as unpaid
from secure_sccvfl.runs import discover
from secure_sccvfl.runs import evaluate as scoring
from secure_sccvfl.runs.discover import DiscoveryJob
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.base import Spread, planned_spread, spread_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.own_data import heart_rows, write_own
from tests.support.sessions import run_session, stopping
from tests.support.two_parties import OPTIONS, error_text, ledger_lines, opened, people, run_two, write_data

REPLAYS = 250
ATTACKER = 0
RECORDS = RecordSet(np.arange(5, dtype=np.uint64))
COUNTS = Sensitivity.of_counts(1.0)


def summed(self: Session) -> str:
    """The protocol as it was: the sum of all words, in one round."""
    word = np.frombuffer(runtime.fresh_key(), np.uint8)
    return bytes(sum(self._to_all("name of the run", word).values(), word)).hex()


def rushing(wanted: list[str], attacker: int = ATTACKER) -> Any:
    """The attack on the sum: hear the others' words first, then choose the own ones."""

    def name(self: Session) -> str:
        if self.rank != attacker or not wanted:
            return summed(self)
        others, spec = self.party.others, Spec("|u1", (32,))
        came = self._transport.exchange("name of the run", {}, {rank: [spec] for rank in others})
        self.party._broadcasts.add(came)
        total = sum((came[rank][0] for rank in others), np.zeros(32, np.uint8))
        word = np.frombuffer(bytes.fromhex(wanted[0]), np.uint8) - total
        self._transport.exchange("name of the run", {rank: [word] for rank in others}, {})
        return wanted[0]

    return name


def without_checks(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Names are not looked for in ledgers, and neither are keys of charges."""
    for module in modules:
        monkeypatch.setattr(module, "agree_on_run", lambda session, folder: session.agree_on_name())
    monkeypatch.setattr(Budget, "paid", lambda self, key: False)


# the protocol


@pytest.mark.parametrize("parties", [2, 3])
def test_words_that_were_not_committed_to_stop_everybody(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker sees all other words before it sends its own; it may send any, and only its first ones pass."""
    honest = runtime.Party.compared

    def late(self: Any, step: str, send: Any, receive: Any) -> Any:
        if step == "name of the run" and self.rank == ATTACKER:
            send = {peer: [arrays[0] ^ 1] for peer, arrays in send.items()}
        return honest(self, step, send, receive)

    monkeypatch.setattr(runtime.Party, "compared", late)
    with pytest.raises(ExceptionGroup) as stopped:
        run_session(lambda session: session.agree_on_name(), parties)
    errors = [error for error in stopped.value.exceptions if isinstance(error, PeerError)]
    assert len(errors) >= parties and "party 0: sent other bytes than it had committed to" in error_text(
        stopped.value
    )


def test_other_commitments_to_other_parties_are_noticed_with_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = runtime.Party.broadcast

    def two_faced(self: Any, step: str, arrays: Any, theirs: Any) -> Any:
        if step == "commitment to the name of the run" and self.rank == ATTACKER:
            send = {peer: [arrays[0] ^ peer] for peer in self.others}
            came = self.transport.exchange(step, send, theirs)
            self._broadcasts.add(came)
            return came
        return honest(self, step, arrays, theirs)

    monkeypatch.setattr(runtime.Party, "broadcast", two_faced)
    with stopping("received something else: a party sent different data to different parties"):
        run_session(lambda session: session.agree_on_name(), 3)


@pytest.mark.chance(1e-50)
def test_names_are_the_same_at_all_and_new_each_time() -> None:
    names = run_session(lambda session: [session.agree_on_name() for _ in range(4)], 3)
    assert names[0] == names[1] == names[2]
    assert len(set(names[0])) == 4 and all(len(name) == 64 for name in names[0])


def test_a_name_costs_two_rounds_and_80_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def job(session: Session) -> tuple[int, int]:
        before = session.total_cost.rounds, session.total_cost.sent
        session.agree_on_name()
        return session.total_cost.rounds - before[0], session.total_cost.sent - before[1]

    for rounds, sent in run_session(job, 2):
        assert rounds == 2 and 80 <= sent <= 80 + 2 * 60, "two frames with headers"


# 250 replayed names


def replayed(folder: Path, refusing: bool) -> list[tuple[int, int, float, int]]:
    """At each party: names refused, charges refused, epsilon and lines of its ledger, after 250 runs of one name."""

    def job(session: Session) -> tuple[int, int, float, int]:
        party_folder = folder / f"party-{session.rank}"
        party_folder.mkdir()
        budget = Budget.open(party_folder / "ledger.jsonl", 8.0, 1e-5)
        name = agree_on_run(session, party_folder)
        Charger(session, budget, 4.0, name, RECORDS).charge("sketch-0", COUNTS)
        session.agree_on_name = lambda: name  # type: ignore[method-assign]
        names = charges = 0
        for _ in range(REPLAYS):
            try:
                agree_on_run(session, party_folder) if refusing else session.agree_on_name()
            except ProtocolError:
                names += 1
            try:
                Charger(session, budget, 4.0, name, RECORDS).charge("sketch-0", COUNTS)
            except ProtocolError:
                charges += 1
        return names, charges, budget.spent.renyi, len(budget.charges)

    return run_session(job, 2)


def test_250_replayed_names_are_refused_and_leave_every_ledger_right(tmp_path: Path) -> None:
    results = replayed(tmp_path, refusing=True)
    once = results[0][2]
    assert results == [(REPLAYS, REPLAYS, once, 1)] * 2 and 0 < once < 8


def test_without_the_checks_250_charges_cost_what_one_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: every one of them would have drawn fresh noise."""
    monkeypatch.setattr(Budget, "paid", lambda self, key: False)
    results = replayed(tmp_path, refusing=False)
    assert results == [(0, 0, results[0][2], 1)] * 2


def test_one_ledger_that_knows_a_name_stops_all(tmp_path: Path) -> None:
    """Also if it is the ledger of evaluations, or only one party's."""

    def job(session: Session) -> str:
        party_folder = tmp_path / f"party-{session.rank}"
        party_folder.mkdir()
        if session.rank == 1:
            event = noised_event("evaluation", COUNTS, NoiseLevel(4.0, "dealer+holder", 2), RECORDS.digest)
            Budget.open(party_folder / ledgers.EVALUATIONS, 8.0, 1e-5).charge(event, "ab evaluation", RECORDS)
        session.agree_on_name = lambda: "ab"  # type: ignore[method-assign]
        with pytest.raises(ProtocolError, match="the ledger of party 1 already has charges under this run's name"):
            agree_on_run(session, party_folder)
        return session.agree_on_name()

    assert run_session(job, 2) == ["ab", "ab"]


# a whole run


def problems(home: Path, *runs: str) -> list[str]:
    """What an audit finds in the release logs of party 1 in these runs, beside the ledger as it is."""
    ledger = home / "sccvfl-ledgers" / "party-1" / "ledger.jsonl"
    account = read_account(ledger)
    return list(unpaid(account, [home / run / "party-1" / "releases.jsonl" for run in runs]))


def test_a_discovery_under_an_old_name_is_refused_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control without the checks: a second draw of the same tables is free, and an audit of both runs sees it.

    The attacker reports a large planned noise, so that two runs fit the cap and have equal events.
    """
    monkeypatch.setattr(discover, "planned_spread", lambda *given: Spread(10.0))
    data = write_data(tmp_path, people(300, seed=3))
    options = {"dataset": str(data), "align": "exact", "refreshes": 0}
    first = run_two(DiscoveryJob, tmp_path / "first", options)
    before = [ledger_lines(tmp_path, rank) for rank in range(2)]
    monkeypatch.setattr(Session, "agree_on_name", rushing([before[1][-1]["key"].split()[0]]))
    with stopping("already has charges under this run's name; nothing was charged"):
        run_two(DiscoveryJob, tmp_path / "second", options)
    assert [ledger_lines(tmp_path, rank) for rank in range(2)] == before
    assert opened(tmp_path / "second") == ["alignment"], "which is not charged"
    assert problems(tmp_path, "first", "second") == []

    without_checks(monkeypatch, discover)
    again = run_two(DiscoveryJob, tmp_path / "control", options)
    assert [ledger_lines(tmp_path, rank) for rank in range(2)] == before
    tables = [np.concatenate(list(run[ATTACKER]["own_tables"]["s"].values())) for run in (first, again)]
    assert np.abs(tables[0] - tables[1]).max() > 0.01, "the noise is new"
    assert again[1]["privacy"]["epsilon_rdp"] == first[1]["privacy"]["epsilon_rdp"]
    assert problems(tmp_path, "first") == problems(tmp_path, "control") == [], "alone, nothing is odd"
    assert problems(tmp_path, "first", "control") == [
        f"release 'sketch-{number} for party {owner}' was made twice for one charge"
        for number in range(2)
        for owner in range(2)
    ]


def three_parties(home: Path, folder: str) -> list[Any]:
    """A discovery of three parties on own data, with records that overlap in secret."""
    options = {"dataset": str(home / "own.toml"), "refreshes": 1, "align": "hidden"}
    addresses = tuple(f"127.0.0.1:{7000 + rank}" for rank in range(3))
    jobs = [DiscoveryJob(SessionConfig(parties=addresses, options=options), rank) for rank in range(3)]
    return run_session(
        lambda session: jobs[session.rank].run(session, lambda *_: None), 3, jobs[0].plan(), folder=home / folder
    )


def test_with_three_parties_and_hidden_records_an_old_name_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last party chooses, and all hear the same, so comparing what was heard does not help."""
    attacker = 2
    monkeypatch.setattr(discover, "planned_spread", lambda *given: Spread(10.0))
    write_own(tmp_path, heart_rows())
    first = three_parties(tmp_path, "first")
    before = [ledger_lines(tmp_path, rank) for rank in range(3)]
    name = before[0][-1]["key"].split()[0]
    monkeypatch.setattr(Session, "agree_on_name", rushing([name], attacker))
    with stopping("already has charges under this run's name; nothing was charged"):
        three_parties(tmp_path, "second")
    assert [ledger_lines(tmp_path, rank) for rank in range(3)] == before
    logs = (tmp_path / "second").rglob("releases.jsonl")
    assert not any(word in log.read_text() for log in logs for word in ("sketch", "first count"))

    without_checks(monkeypatch, discover)
    again = three_parties(tmp_path, "control")
    assert [ledger_lines(tmp_path, rank) for rank in range(3)] == before, "the control: fresh noise is free"
    tables = [np.concatenate(list(run[attacker]["own_tables"]["s"].values())) for run in (first, again)]
    assert np.abs(tables[0] - tables[1]).max() > 0.01


def test_the_largest_planned_noise_is_taken(tmp_path: Path) -> None:
    """A party whose records have spent more needs more noise for what is left; less would overdraw its ledger."""
    options = RunOptions.of({"dataset": "german", "epsilon": 4.0, "refreshes": 0})
    schema = options.schema(2)

    def job(session: Session) -> tuple[float, float]:
        budget = Budget.open(tmp_path / f"{session.rank}.jsonl", 8.0, 1e-5)
        if session.rank == 1:
            event = noised_event("sketch-0", COUNTS, NoiseLevel(8.0, "dealer+holder", 2), RECORDS.digest)
            budget.charge(event, "earlier sketch-0", RECORDS)
        needed = spread_of(options, schema, budget.events).multiplier
        return needed, planned_spread(session, options, schema, budget, RECORDS, ()).multiplier

    (less, first), (more, second) = run_session(job, 2)
    assert less < more and first == second == pytest.approx(more)


def test_an_evaluation_under_an_old_name_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten evaluations of the same test records were opened and one was charged."""
    options = {"dataset": str(write_data(tmp_path, people(600))), "card": str(tmp_path / "card.toml"), **OPTIONS}
    for model, more in (("one", {"reserve": 0.4}), ("two", {"tables": "kept"})):
        run_two(TrainJob, tmp_path / model, {**options, **more})
    run_two(EvaluateJob, tmp_path / "first", {**options, "model": str(tmp_path / "one")})
    (line,) = [one for one in ledger_lines(tmp_path, 1, ledgers.EVALUATIONS) if one["kind"] == "charge"]
    monkeypatch.setattr(Session, "agree_on_name", rushing([line["key"].split()[0]]))
    before = ledger_lines(tmp_path, 1, ledgers.EVALUATIONS)
    with stopping("already has charges under this run's name"):
        run_two(EvaluateJob, tmp_path / "second", {**options, "model": str(tmp_path / "two")})
    assert ledger_lines(tmp_path, 1, ledgers.EVALUATIONS) == before
    without_checks(monkeypatch, scoring)
    again = run_two(EvaluateJob, tmp_path / "control", {**options, "model": str(tmp_path / "two")})
    assert again[1]["metrics"] and ledger_lines(tmp_path, 1, ledgers.EVALUATIONS) == before, "the control: free"
