"""Statistics of s over records that overlap in secret: those of the common records, and how many these are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.data.features import DataError
from secure_sccvfl.discovery.residuals import ResidualDependence
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums
from secure_sccvfl.protocols.alignment.interface import AlignmentError
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.discovery import WIDTH, Consortium

ROWS = 400
STANDARD_ERRORS = 6.3
"""A normal value is further off than this with chance 3e-10."""


def held(consortium: Consortium, share: float) -> np.ndarray:
    """At which rows each party has a record: all three at this share of them."""
    members = np.random.default_rng(3).random((consortium.rows, 3)) < 0.5
    members[members.all(axis=1), 0] = False
    members[: round(share * consortium.rows)] = True
    return members


def without_absent(consortium: Consortium, rank: int, has: np.ndarray) -> dict[str, np.ndarray]:
    return {name: block * has[:, rank : rank + 1] for name, block in consortium.party_columns(rank).items()}


def test_tables_are_those_of_the_common_records_and_their_number_is_opened() -> None:
    consortium = Consortium(ROWS)
    has = held(consortium, 0.6)

    def job(session: Session, statistics: SecureStatistics, budget: Budget) -> Any:
        rank, (counts, held_codes) = session.rank, (consortium.counts, consortium.held(session.rank))
        columns = without_absent(consortium, rank, has)
        first = statistics.release(GroupSums("sketch-0", consortium.sensitivity), columns, held_codes, counts).tables
        again = statistics.release(GroupSums("sketch-1", consortium.sensitivity), columns, held_codes, counts).tables
        with pytest.raises(DataError, match="conditional scores need the exact number of records"):
            consortium.release(session, statistics, ResidualDependence("residuals", WIDTH))
        return first, again, statistics._membership.count  # type: ignore[union-attr]

    everybody = has.all(axis=1)
    for rank, (first, again, count) in enumerate(consortium.run(job, held=has)):
        assert count == everybody.sum() == 240, "without noise the number is exact"
        for attribute, groups in enumerate(consortium.counts):
            chosen = np.eye(groups)[consortium.codes[attribute]][everybody]
            for name in consortium.columns[rank]:
                expected = consortium.bins[name][everybody].T @ chosen
                assert (first[attribute][name] == expected).all() and (again[attribute][name] == expected).all()
                assert (consortium.table(name, attribute) != expected).any()


@pytest.mark.chance(3e-10)
def test_the_number_has_the_noise_of_the_tables_and_too_few_stop_all_before_a_table_is_opened(tmp_path: Any) -> None:
    """The sum of all cells over the number of tables; it is below the floor if there is no common record."""
    consortium = Consortium(ROWS)
    counts: list[tuple[int, float]] = []
    charged: list[list[str]] = []

    def job(session: Session, statistics: SecureStatistics, budget: Budget) -> str:
        columns = without_absent(consortium, session.rank, has)
        given = session, statistics, GroupSums("sketch-0", consortium.sensitivity), columns
        try:
            consortium.release(*given)
        except AlignmentError as error:
            charged.append([charge.event.name for charge in budget.charges])
            return str(error)
        membership = statistics._membership
        assert membership is not None
        counts.append((membership.count, statistics.deviation(consortium.sensitivity)))
        return ""

    has = held(consortium, 0.6)
    assert set(consortium.run(job, SecureStatistics, held=has)) == {""} and len(set(counts)) == 1
    cells = sum(sum(widths.values()) for widths in consortium.columns.values()) * sum(consortium.counts)
    count, deviation = counts[0]
    error = deviation * cells**0.5 / (consortium.features * len(consortium.counts))
    assert abs(count - 240) < STANDARD_ERRORS * error and error > 1
    has = held(consortium, 0.0)
    messages = consortium.run(job, held=has, folder=tmp_path)
    assert len(set(messages)) == 1 and "too few to go on; are the ids written by the same rule?" in messages[0]
    for log in tmp_path.glob("**/releases.jsonl"):
        assert [entry["release"] for entry in read_chain(log)] == ["first count"]
    assert charged == [["first count"]] * 3, "nobody has paid for a table"


def test_the_first_count_is_charged_once_at_a_twenty_fifth_of_a_table(tmp_path: Any) -> None:
    consortium = Consortium(ROWS)
    has = held(consortium, 0.6)

    def job(session: Session, statistics: SecureStatistics, budget: Budget) -> Any:
        columns, codes = without_absent(consortium, session.rank, has), consortium.held(session.rank)
        for name in ("sketch-0", "sketch-1"):
            statistics.release(GroupSums(name, consortium.sensitivity), columns, codes, consortium.counts)
        return {charge.event.name: charge.event for charge in budget.charges}

    for events in consortium.run(job, held=has, folder=tmp_path):
        assert list(events) == ["first count", "sketch-0", "sketch-1"]
        first, table = events["first count"], events["sketch-0"]
        assert first.multiplier == pytest.approx(5 * table.multiplier) and first.sensitivity == first.added == 1
    for log in tmp_path.glob("**/releases.jsonl"):
        names = [entry["release"] for entry in read_chain(log)]
        assert names[:2] == ["first count", "records"] and names.count("records") == names.count("first count") == 1


@pytest.mark.parametrize("holders", [(1, 1), (1, 2)])
def test_every_holder_of_s_adds_its_copy_of_noise_to_the_first_count(
    holders: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price counts the dealer's copy and one of each holder. Here a copy is a number, so they can be counted."""
    monkeypatch.setattr(noise, "discrete_gaussian", lambda sigma, shape: np.full(shape, 1 << 20, np.int64))
    monkeypatch.setattr(tuples, "discrete_gaussian", lambda sigma, shape: np.full(shape, 1 << 30, np.int64))
    consortium = Consortium(ROWS, holders=holders)
    has, counts = held(consortium, 0.6), []
    honest = SecureStatistics._enough

    def watched(self: SecureStatistics, *given: Any) -> float:
        counts.append(honest(self, *given))
        return counts[-1]

    monkeypatch.setattr(SecureStatistics, "_enough", watched)

    def job(session: Session, statistics: SecureStatistics, budget: Budget) -> None:
        columns, codes = without_absent(consortium, session.rank, has), consortium.held(session.rank)
        statistics.release(GroupSums("sketch-0", consortium.sensitivity), columns, codes, consortium.counts)

    consortium.run(job, SecureStatistics, held=has)
    assert counts[:3] == [240 + (1 << 30) + len(set(holders)) * (1 << 20)] * 3
