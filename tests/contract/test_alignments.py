"""Alignments give what plain sets give, over real sessions, and stop with a clear line where they cannot."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.alignment import psi as ring
from secure_sccvfl.protocols.alignment.hidden_intersection import HiddenIntersection, SessionPseudonyms
from secure_sccvfl.protocols.alignment.interface import COMMON, SIZES, UNION, AlignmentError, releases
from secure_sccvfl.protocols.alignment.pre_aligned import PreAligned
from secure_sccvfl.protocols.alignment.psi import Blinding, NoElement, PrivateSetIntersection, in_all
from secure_sccvfl.protocols.dealing import matching
from secure_sccvfl.protocols.dealing.matching import ABSENT, Aligned, checked_bounds, numbered
from secure_sccvfl.protocols.dealing.randomness import Stream
from secure_sccvfl.protocols.errors import InputError, PeerError, PeerStopped, ProtocolError
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.operations import comparison
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import ALIGNMENT, PlanFacts
from tests.support.sessions import run_session, stopping

MODES: dict[str, Callable[..., Any]] = {"hidden": HiddenIntersection, "revealed": PrivateSetIntersection}
Lists = Sequence[Sequence[str]]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that lists of this file come in several pieces, the last one short."""
    monkeypatch.setattr(ring, "CHUNK", 64)
    monkeypatch.setattr(matching, "_CHUNK", 64)


def plan(parties: int, mode: str) -> ReleasePlan:
    return ReleasePlan(releases(parties, revealed=mode == "revealed"))


def run(mode: str, lists: Lists, job: Callable[[Session, Aligned], Any] | None = None, **more: Any) -> list[Any]:
    """Align these lists; what each party gets, or what `job` makes of it."""
    settings = {name: more.pop(name) for name in ("wrap", "folder", "transport") if name in more}

    def work(session: Session) -> Any:
        aligned = MODES[mode](session, **more).align(lists[session.rank])
        return aligned if job is None else job(session, aligned)

    return run_session(work, len(lists), plan(len(lists), mode), **settings)


def some_lists(parties: int, seed: int) -> list[list[str]]:
    """Random lists with records of one, of several and of all parties, in random orders."""
    rng = random.Random(seed)
    everyone = [f"person {number}" for number in range(400)]
    common = rng.sample(everyone, 60)
    lists = [list({*common, *rng.sample(everyone, rng.randint(5, 200))}) for _ in range(parties)]
    for ids in lists:
        rng.shuffle(ids)
    return lists


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_hidden_gives_the_union_and_a_mask_and_psi_the_intersection_sorted_by_id(parties: int) -> None:
    lists = some_lists(parties, parties)
    union, common = set.union(*map(set, lists)), sorted(set.intersection(*map(set, lists)))
    aligned = run("hidden", lists)
    row: dict[str, int] = {}
    for ids, table in zip(lists, aligned, strict=True):
        assert table.size == len(union)
        for name, at in zip(ids, table.rows.tolist(), strict=True):
            assert row.setdefault(name, at) == at
    assert sorted(row.values()) == list(range(len(union)))
    mask = sum(table.shares for table in aligned)
    assert set(np.flatnonzero(mask)) == {row[name] for name in common} and set(mask.tolist()) <= {0, 1}
    for ids, table in zip(lists, run("revealed", lists), strict=True):
        assert table.size == len(common) and table.present.all()
        names = {int(at): name for name, at in zip(ids, table.rows, strict=True) if at != ABSENT}
        assert [names[at] for at in range(table.size)] == common


def test_a_long_list_against_a_short_one() -> None:
    lists = [[f"{number:05d}" for number in range(1000)], ["00999", "x", "00000"]]
    for mode, size in (("hidden", 1001), ("revealed", 2)):
        long, short = run(mode, lists)
        assert long.size == short.size == size
        assert long.rows[[999, 0]].tolist() == short.rows[[0, 2]].tolist()


@pytest.mark.slow
def test_a_million_ids_against_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_CHUNK", 1 << 16)
    lists = [[f"{number:07d}" for number in range(10**6)], [f"{number:07d}" for number in range(999_950, 1_000_050)]]
    long, short = run("hidden", lists)
    assert long.size == short.size == 10**6 + 50
    assert long.rows[999_950:].tolist() == short.rows[:50].tolist()
    intersections = run("revealed", [lists[0][-20_000:], lists[1]])
    assert [aligned.size for aligned in intersections] == [50, 50]


def test_tuples_that_the_dealer_made_ahead_do_not_get_in_the_way() -> None:
    lists = some_lists(2, 9)

    def job(session: Session) -> tuple[int, Any]:
        bits = np.ones((8, 2), np.uint8) * (session.rank == 0)
        for number in session.repeat(9):
            share = comparison.all_ones(session.party, bits)
            if number == 3:
                break
        aligned = HiddenIntersection(session).align(lists[session.rank])
        for _ in session.repeat(3):
            share = comparison.all_ones(session.party, bits)
        return aligned.size, share

    outcomes = run_session(job, 2, plan(2, "hidden"))
    assert {size for size, _ in outcomes} == {len({*lists[0], *lists[1]})}
    assert (outcomes[0][1] ^ outcomes[1][1]).all(), "products after it are right"


def test_bounds_hide_the_numbers_of_records() -> None:
    lists = some_lists(3, 4)
    tables = run("hidden", lists, bounds=(250, 300, 260))
    assert {table.size for table in tables} == {810}
    assert [len(table.rows) for table in tables] == [len(ids) for ids in lists]
    assert sum(table.shares for table in tables).sum() == len(set.intersection(*map(set, lists)))
    with pytest.raises(ExceptionGroup) as stopped:
        run("hidden", [["a", "b", "c"], ["a"]], bounds=(2, 2))
    messages = [str(error) for error in stopped.value.exceptions]
    assert "3 records are more than the bound of 2 for this party" in messages
    assert all("3 records" not in text for text in messages[1:]), "the bound is named at its own party alone"
    for counts in ((-1, 2), (1.5, 2), (True, "2"), (1 << 40, 2)):
        with pytest.raises(ProtocolError, match="integers"):
            checked_bounds(counts, 2)
    with pytest.raises(ProtocolError, match="for 3 parties, not 2"):
        checked_bounds([1, 2], 3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["secret", "b", "secret"], "the same id occurs twice, in rows 1 and 3"),
        (["1", 1], "an id is of type int"),
    ],
    ids=["twice", "numbers"],
)
def test_ids_that_cannot_be_used_stop_all_before_anything_is_sent(
    mode: str, ids: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExceptionGroup) as stopped:
        run(mode, [["a"], ids], folder=tmp_path)
    input_errors = [error for error in stopped.value.exceptions if isinstance(error, InputError)]
    others = [str(error) for error in stopped.value.exceptions if error not in input_errors]
    assert len(input_errors) == 1 and message in str(input_errors[0])
    assert others and all("(InputError)" in text and "secret" not in text for text in others)
    assert all(not read_chain(log) for log in tmp_path.glob("*/releases.jsonl"))


def test_no_common_record_stops_revealed_and_stays_secret_in_hidden(tmp_path: Path) -> None:
    lists = [["a", "b"], ["b", "c"], ["c", "a"]]
    with pytest.raises(ExceptionGroup) as stopped:
        run("revealed", lists, folder=tmp_path)
    errors = stopped.value.exceptions
    assert any(isinstance(error, AlignmentError) for error in errors)
    assert len(errors) >= 3 and all("no record is common to all parties" in str(error) for error in errors)
    assert sum(table.shares for table in run("hidden", lists)).tolist() == [0, 0, 0]
    lists = [["a", "b"], [], ["b"]]
    with stopping("party 1 has no record"):
        run("revealed", lists)
    tables = run("hidden", lists)
    assert [table.size for table in tables] == [2, 2, 2] and sum(table.shares for table in tables).tolist() == [0, 0]
    assert [len(table.shares) for table in run("hidden", [[], []])] == [0, 0]


def changed(step: str, node: int, change: Callable[[np.ndarray], None]) -> Callable[[Transport], Transport]:
    """A transport that changes the first array of a step as it comes to one party."""

    def wrap(transport: Transport) -> Transport:
        honest = transport.exchange

        def exchange(name: str, send: Any, receive: Any) -> Any:
            came = honest(name, send, receive)
            if name == step and transport.node == node and came:
                change(next(iter(came.values()))[0])
            return came

        transport.exchange = exchange  # type: ignore[method-assign]
        return transport

    return wrap


def add(number: int) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array += number

    return change


def test_a_dealer_that_sends_different_sizes_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = matching.ask

    def with_other_size(transport: Transport, pseudonyms: Any) -> Any:
        answer = honest(transport, pseudonyms)
        more = transport.node
        return replace(answer, size=answer.size + more, shares=np.append(answer.shares, [0] * more))

    monkeypatch.setattr(matching, "ask", with_other_size)
    with stopping("sent the parties different numbers of rows"):
        run("hidden", [["a", "b"], ["b"]])
    monkeypatch.setattr(matching, "ask", honest)
    with stopping("named a row outside the table"):
        run("hidden", [["a", "b"], ["b"]], wrap=changed("places of records", 1, add(-2)))


def test_bytes_that_are_no_element_stop_all() -> None:
    with stopping("party 0: sent an invalid group element"):
        run("revealed", [["a", "b"], ["b"]], wrap=changed("pass 1", 1, lambda array: array.fill(255)))
    with pytest.raises(NoElement):  # the neutral element would be the same under every scalar
        Blinding(Stream(bytes(32), "test").draw()).blinded(np.zeros((1, 32), np.uint8))


class Gone(Exception):
    """A party that is no longer there."""


@pytest.mark.parametrize(
    ("mode", "step", "opened"),
    [
        ("hidden", "parts of the key of tags", set()),
        ("hidden", "tags of records", set()),
        ("hidden", "shares of presence", {UNION}),
        ("revealed", "pass 1", {SIZES}),
        ("revealed", "lists to compare", {SIZES}),
        ("revealed", "back 1", {SIZES, COMMON}),
    ],
)
def test_a_party_that_goes_in_a_phase_stops_all_and_nothing_more_is_opened(
    mode: str, step: str, opened: set[str], tmp_path: Path
) -> None:
    def wrap(transport: Transport) -> Transport:
        honest = transport.exchange

        def exchange(name: str, send: Any, receive: Any) -> Any:
            if name == step and transport.node == 2:
                raise Gone
            return honest(name, send, receive)

        transport.exchange = exchange  # type: ignore[method-assign]
        return transport

    with pytest.raises(ExceptionGroup) as stopped:
        run(mode, some_lists(3, 5), wrap=wrap, folder=tmp_path)
    errors = stopped.value.exceptions
    assert sum(isinstance(error, Gone) for error in errors) == 1
    others = [error for error in errors if not isinstance(error, Gone)]
    assert len(others) >= 2 and all(isinstance(error, PeerError | PeerStopped) for error in others)
    logged = {entry["release"] for log in tmp_path.glob("*/releases.jsonl") for entry in read_chain(log)}
    assert logged <= opened


def test_costs_are_those_of_the_docstrings() -> None:
    lists = some_lists(3, 6)

    def job(session: Session, aligned: Aligned) -> Any:
        return session.costs["alignment"], aligned.size

    for ids, (cost, size) in zip(lists, run("hidden", lists, job), strict=True):
        assert cost.rounds == 3 and cost.sent < 2 * 240
        frames = 40 * (3 + len(ids) // 64 + size // 64) + 200
        assert 20 * len(ids) + 8 * size <= cost.dealer <= 20 * len(ids) + 8 * size + frames

    sizes = [len(ids) for ids in lists]
    costs = run("revealed", lists, lambda session, aligned: session.costs["alignment"])
    for rank, cost in enumerate(costs):
        passed = 32 * (sizes[rank] + sizes[rank - 1])
        to_compare = 16 * sizes[(rank + 1) % 3] if rank else 0
        pieces = sum(-(-size // 64) for size in sizes)
        assert passed + to_compare <= cost.sent <= passed + to_compare + sum(sizes) // 4 + 60 * pieces + 600
        assert cost.dealer == 0, "no dealer takes part"


def test_progress_counts_to_the_end_and_threads_change_nothing() -> None:
    lists, seen = some_lists(2, 7), []
    alone = run("revealed", lists)
    shared = run("revealed", lists, threads=3, progress=lambda *step: seen.append(step))
    assert [a.rows.tolist() for a in alone] == [a.rows.tolist() for a in shared]
    total = sum(map(len, lists))
    assert [step for step in seen if step[1] == total] and max(done for _, done, _ in seen) == total
    assert {every for _, _, every in seen} == {total} and len(seen) > 4


def test_a_table_is_filled_with_zeros_where_there_is_no_record() -> None:
    aligned = Aligned(4, np.array([2, ABSENT, 0]))
    assert aligned.present.tolist() == [True, False, True, False]
    assert aligned.spread(np.array([[1.5, 1], [7, 7], [3, 4]])).tolist() == [[3, 4], [0, 0], [1.5, 1], [0, 0]]
    assert "2" not in repr(aligned)
    for size, rows in ((2, [0, 0]), (2, [0, 2]), (2, [-2])):
        with pytest.raises(ProtocolError, match="same row, or a row"):
            Aligned(size, np.array(rows))


def test_numbers_are_those_of_sets() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        lists = [np.unique(rng.integers(0, 3, (rng.integers(0, 12), 2)).astype(np.uint64), axis=0) for _ in range(3)]
        different, numbers = numbered(lists)
        rows = [[tuple(row) for row in elements.tolist()] for elements in lists]
        union = {row for elements in rows for row in elements}
        assert different == len(union)
        pairs = {
            pair
            for elements, at in zip(rows, numbers, strict=True)
            for pair in zip(elements, at.tolist(), strict=True)
        }
        assert len(pairs) == len(union) == len({number for _, number in pairs})
        common = set.intersection(*map(set, rows))
        assert [bits.astype(bool).tolist() for bits in in_all(lists)] == [
            [row in common for row in elements] for elements in rows
        ]


def test_a_tag_twice_in_a_list_names_its_party() -> None:
    pseudonyms = np.array([[1, 2], [1, 2]], np.uint64)
    with pytest.raises(PeerError, match="party 1: sent a pseudonym twice"):
        matching.matched([pseudonyms[:1], pseudonyms], None, Stream(bytes(32), "test").draw())


def test_keys_and_scalars_do_not_show_themselves() -> None:
    for secret in (SessionPseudonyms(bytes(32)), Blinding(Stream(bytes(32), "test").draw())):
        assert "key hidden" in repr(secret)
        with pytest.raises(ProtocolError, match="cannot be pickled"):
            pickle.dumps(secret)
    with pytest.raises(ProtocolError, match="has 32 bytes"):
        SessionPseudonyms(b"short")


# Pre-aligned lists

IDS = [f"r{i:03d}" for i in range(50)]


def compare(lists: Lists, **settings: Any) -> list[str]:
    """What each party learns of whether all hold the same list."""
    names = [f"office {k}" for k in range(len(lists))]

    def job(session: Session) -> str:
        try:
            assert PreAligned(session, names).align(lists[session.rank]).size == len(lists[session.rank])
        except AlignmentError as error:
            return str(error)
        return "aligned"

    declared = ALIGNMENT.releases(PlanFacts({rank: {} for rank in range(len(lists))}))
    return run_session(job, len(lists), ReleasePlan(declared), **settings)


@pytest.mark.parametrize(
    "other",
    [IDS[:-1], IDS[1:] + IDS[:1], [*IDS[:-1], "stranger"], [*IDS, "more"], ["".join(IDS)], []],
    ids=["one missing", "another order", "another record", "one more", "joined", "none"],
)
def test_a_difference_of_pre_aligned_lists_stops_all_and_names_the_two(other: list[str]) -> None:
    (line,) = set(compare([IDS, IDS, other]))
    assert line.startswith("office 2 holds other records, or another order, than office 0, office 1")


def test_equal_lists_are_aligned_and_no_id_is_in_a_message_or_on_the_wire() -> None:
    assert compare([IDS, IDS, IDS]) == ["aligned"] * 3
    seen: list[bytes] = []

    def watch(transport: Transport) -> Transport:
        plain = transport.exchange

        def exchange(step: str, send: Any, receive: Any) -> Any:
            seen.extend(array.tobytes() for arrays in send.values() for array in arrays)
            return plain(step, send, receive)

        transport.exchange = exchange  # type: ignore[method-assign]
        return transport

    lines = compare([IDS, IDS[::-1]], wrap=watch)
    assert not any(name in text for name in IDS for text in lines)
    assert not any(name.encode() in sent for name in IDS for sent in seen) and len(seen) > 4
