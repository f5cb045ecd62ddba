"""Secret group tables, HSIC and sums over parties: right values, few messages, refusals before any charge."""

from __future__ import annotations

import importlib
import pkgutil
import random
from typing import get_args

import numpy as np
import pytest
import torch

import secure_sccvfl
from secure_sccvfl import launch
from secure_sccvfl.accounting.budget import Budget, BudgetError
from secure_sccvfl.discovery.residuals import Grid, ResidualDependence
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums
from secure_sccvfl.protocols.errors import PeerError, ProtocolError, RangeError, UndeclaredRelease
from secure_sccvfl.protocols.operations import group_table as protocol
from secure_sccvfl.protocols.operations import noise
from tests.support.discovery import WIDTH, Consortium, Noiseless
from tests.support.sessions import run_session, stopping


def columns_for(parties):
    return {rank: {f"x{rank}{i}": 2 + i for i in range(1 + rank % 2)} for rank in range(parties)}


@pytest.mark.parametrize(("parties", "holders"), [(2, (0,)), (2, (1, 1)), (3, (1, 0)), (5, (1, 1))])
def test_the_secret_shared_table_without_noise_is_the_plain_one(parties, holders):
    group = Consortium(columns=columns_for(parties), holders=holders, counts=(2, 3)[: len(holders)])
    results = group.run(lambda session, statistics, budget: group.release_counts(session, statistics))
    for rank, tables in enumerate(results):
        for attribute, table in enumerate(tables):
            assert set(table) == set(group.columns[rank]), "a party sees the tables of its own features only"
            for name, values in table.items():
                assert (values == group.table(name, attribute)).all()


@pytest.mark.parametrize(("chunk", "rows"), [(100, 7), (100, 250), (700, 250)])
def test_chunks_of_any_size_give_the_same_table(chunk, rows, monkeypatch):
    monkeypatch.setattr(protocol, "CHUNK_BYTES", chunk * 8)
    group = Consortium(rows=rows)
    results = group.run(lambda session, statistics, budget: group.release_counts(session, statistics))
    for rank, names in group.columns.items():
        for name in names:
            assert (results[rank][1][name] == group.table(name, 1)).all()


@pytest.mark.chance(1e-9)
@pytest.mark.parametrize("kind", get_args(noise.NoiseKind))
def test_two_sessions_with_the_same_seeds_draw_different_noise(kind):
    """Else the difference of two runs on the same data, one with another statistic, would have no noise.

    A cell has the same noise twice with a chance of 1 / (2 sigma sqrt(pi)) < .05; there are 55 of them.
    """
    group = Consortium()

    def job(session, statistics, budget):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        return group.release_counts(session, statistics)

    results = [group.run(job, SecureStatistics, noise=kind) for _ in range(2)]
    apart = [
        here[name] - there[name]
        for party in zip(*results, strict=True)
        for here, there in zip(*party, strict=True)
        for name in here
    ]
    assert sum(np.count_nonzero(cells) for cells in apart) > 30


def test_large_values_use_the_whole_ring():
    group = Consortium()
    big = 1 << 25

    def job(session, statistics, budget):
        scaled = {k: v * big for k, v in group.party_columns(session.rank).items()}
        return group.release(session, statistics, GroupSums("sketch-0", big * group.sensitivity), scaled)

    for rank, tables in enumerate(group.run(job)):
        for name in group.columns[rank]:
            assert (tables[0][name] == big * group.table(name, 0)).all()


def test_a_refresh_on_the_same_data_multiplies_nothing_and_changed_data_are_noticed_by_all():
    group = Consortium()

    def job(session, statistics, budget):
        group.release_counts(session, statistics, 0)
        after_first = session.costs["group table"].calls
        group.release_counts(session, statistics, 1)
        after_second = session.costs["group table"].calls
        columns = group.party_columns(session.rank)
        if session.rank == 0:
            columns["a"] = np.roll(columns["a"], 1, axis=1)
        changed = group.release(session, statistics, GroupSums("sketch-2", group.sensitivity), columns)
        return after_first, after_second, session.costs["group table"].calls, changed

    results = group.run(job)
    assert [outcome[:3] for outcome in results] == [(1, 1, 2)] * 3
    assert (results[0][3][0]["a"] == np.roll(group.table("a", 0), 1, axis=0)).all()


def test_a_release_of_some_features_with_other_columns():
    group = Consortium()
    widths = {"a": 3, "d": 3}

    def job(session, statistics, budget):
        columns = {
            k: np.tile(np.array([[1024, 7, 3]]), (group.rows, 1)) for k in widths if k in group.columns[session.rank]
        }
        bound = 1100 * np.sqrt(len(widths) * 2)
        return group.release(session, statistics, GroupSums("moments", bound, widths), columns)

    results = group.run(job)
    sizes = np.bincount(group.codes[1])
    assert set(results[0][1]) == {"a"} and results[1] == ({}, {})
    assert (results[2][1]["d"] == np.outer([1024, 7, 3], sizes)).all()


def test_hsic_stays_in_the_ring_up_to_a_million_records_and_beyond():
    for rows in (2, 560, 10**4, 10**6, 1 << 20, 10**7, (1 << 26) - 1):
        grid = Grid(rows)
        largest = rows * rows << grid.fraction  # |N^2 2^f C| with |C| <= 1/sqrt(2)
        assert largest * 0.7072 < 2**62 - grid.divisor and grid.fraction >= 8
        assert 0.5 / grid.unit**2 < 2**56


def test_noise_that_does_not_fit_the_ring_is_refused_before_a_charge():
    group = Consortium(rows=20)

    def job(session, statistics, budget):
        statistics._charger.multiplier = 1e3
        with pytest.raises(RangeError, match="do not fit the ring"):
            group.release(session, statistics, ResidualDependence("residuals", WIDTH))
        return len(budget.events), len(session.released)

    assert group.run(job, kind=SecureStatistics) == [(0, 0)] * 3


def test_blocks_go_to_the_holder_alone_and_the_groups_to_owners_alone():
    group = Consortium(columns={0: {"a": 3}, 1: {"c": 2}, 2: {"d": 2}, 3: {"e": 2}}, holders=(1,), counts=(2,))
    sent = []

    class Watched:
        def __init__(self, transport):
            self._inner = transport

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def exchange(self, step, send, receive):
            if step == "group table":
                sent.append((self._inner.node, sorted(send)))
            return self._inner.exchange(step, send, receive)

    group.run(lambda session, statistics, budget: group.release_counts(session, statistics), wrap=Watched)
    assert sorted(sent) == [(0, [1]), (1, [0, 2, 3]), (2, [1]), (3, [1])]


# charged, agreed, declared


def test_one_ledger_that_refuses_stops_the_release_everywhere_and_the_run_goes_on():
    group = Consortium()

    def job(session, statistics, budget):
        if session.rank == 2:
            poor = Budget.in_memory(0.5, 1e-5)
            statistics._charger.budget = poor
        with pytest.raises(BudgetError, match="refused by the ledger of party 2"):
            group.release_counts(session, statistics)
        held = len(statistics._charger.budget.events), len(session.released)
        return held, session.tell_all("still here", 1)

    assert group.run(job, kind=SecureStatistics) == [((0, 0), [1, 1, 1])] * 3


def test_what_is_opened_was_charged_and_the_log_names_the_event():
    group = Consortium()

    def job(session, statistics, budget):
        group.release_counts(session, statistics)
        return [e["event"] for e in session.released], budget.events

    for log, events in group.run(job, kind=SecureStatistics):
        assert log == ["sketch-0"] * 3
        assert [e.name for e in events] == ["sketch-0"]
        assert events[0].added == group.sensitivity and events[0].multiplier == pytest.approx(3.0)
        assert events[0].sensitivity == pytest.approx(np.sqrt(2) * group.sensitivity) and events[0].copies == 2
        assert events[0].records == group.records.digest


def test_a_ledger_that_changes_after_the_agreement_stops_all_parties(monkeypatch):
    group = Consortium()

    def job(session, statistics, budget):
        if session.rank == 0:

            def late(event, key, records, limit):
                raise BudgetError("someone was faster")

            monkeypatch.setattr(budget, "charge", late)
        group.release_counts(session, statistics)

    with pytest.raises(ExceptionGroup) as caught:
        group.run(job)
    assert any("ledger changed" in str(error) for error in caught.value.exceptions)
    assert len(caught.value.exceptions) >= 3, "no party got a table"


def test_a_table_that_no_plan_declares_is_not_opened():
    group = Consortium()

    def job(session, statistics, budget):
        with pytest.raises(UndeclaredRelease, match="not in the run plan"):
            group.release_counts(session, statistics, number=7)
        return len(session.released)

    assert group.run(job) == [0] * 3


def test_a_delta_above_one_over_n_is_refused():
    group = Consortium(rows=200_001)
    with pytest.raises(ExceptionGroup) as caught:
        group.run(lambda session, statistics, budget: None)
    assert all("at most 1/n" in str(e) or isinstance(e, PeerError) for e in caught.value.exceptions)


def test_columns_that_differ_from_the_public_ones_are_refused():
    group = Consortium()
    group.bins["a"] = np.eye(5)[np.arange(group.rows) % 5]
    with stopping("differ from the public ones"):
        group.run(lambda session, statistics, budget: group.release_counts(session, statistics))


def test_only_a_holder_gives_groups():
    def job(session):
        with pytest.raises(ProtocolError, match="only the holder gives"):
            protocol.group_table(
                session.party, 2, [1, 1, 1], lambda rows: np.ones((2, 1)), 1, 2, lambda rows: np.ones((2, 2)), False
            ) if session.rank != 1 else protocol.group_table(
                session.party, 2, [1, 1, 1], lambda rows: np.ones((2, 1)), 1, 2, None, False
            )

    run_session(job)


def test_announced_scores_arrive_exactly_and_only_as_declared():
    group = Consortium()
    values = {"a": 0.1, "b": -3e300, "c": 1e-300, "d": 7.0}

    def job(session, statistics, budget):
        own_scores = {k: values[k] for k in group.columns[session.rank]}
        published = statistics.publish("scores", own_scores)
        with pytest.raises(UndeclaredRelease):
            statistics.publish("scores", {k: v for k, v in own_scores.items() if k != "b"})
        with pytest.raises(UndeclaredRelease):
            statistics.publish("tables", own_scores)
        return published

    assert group.run(job) == [values] * 3


@pytest.mark.chance(1e-12)
def test_exact_tables_come_from_the_test_switch_and_from_nothing_that_is_shipped():
    """All 25 cells of party 0 without noise of deviation 12: below 1e-30. Every shipped module is looked at."""
    group = Consortium()
    exact, noisy = (
        group.run(lambda session, statistics, budget: group.release_counts(session, statistics), kind=kind)[0]
        for kind in (Noiseless, SecureStatistics)
    )
    assert all((exact[a][k] == group.table(k, a)).all() for a in (0, 1) for k in group.columns[0])
    assert not all((noisy[a][k] == group.table(k, a)).all() for a in (0, 1) for k in group.columns[0])
    for package in (launch, secure_sccvfl):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("._native"):  # a C library, which is no module of Python
                continue
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # FLARE is an extra
                if not str(error.name).startswith("nvflare"):
                    raise
    assert [kind for kind in SecureStatistics.__subclasses__() if not kind.__module__.startswith("tests.")] == []
