"""Tables scaled to one length: the error bound, hunted; its sensitivity; what too few steps would do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_sccvfl.accounting.paper import clipped, scaled_sensitivity
from secure_sccvfl.discovery.statistics import ClippedSums, Shape
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.steps import clipping as protocol
from secure_sccvfl.protocols.steps.clipping import BITS, UNIT_BITS, Clipping, scaled
from tests.support.discovery import Consortium

GROUPS = (2, 3)
SIZES = [(20, 2, (2,)), (560, 10, (2,)), (300, 4, GROUPS), (30_000, 60, (2, 9)), ((1 << 26) - 1, 12, (2,))]


def fixed(table: np.ndarray, scale: Clipping, rng: np.random.Generator, steps: int | None = None) -> np.ndarray:
    """One table as the shares would have it, with divisions that round to either side."""

    def divided(value: int, divisor: int) -> int:
        return value // divisor + int(rng.integers(0, 2))

    z = divided(int((table.astype(object) ** 2).sum()) << scale.square_shift, scale.square_divisor)
    w = round(scale.start * 2**BITS)
    for _ in range(scale.steps if steps is None else steps):
        product = divided(z * w, 1 << BITS)
        w = divided(((3 << BITS) - divided(product * w, 1 << BITS)) * w, 1 << (BITS + 1))
    whole = [divided((int(c) << scale.product_shift) * w, scale.product_divisor) for c in table.ravel()]
    assert max(abs(z * w), max(whole), z, (1 << scale.product_shift) * int(table.max()) * w) < 1 << 62
    return np.array(whole).reshape(table.shape) * scale.unit


def tables(scale: Clipping, rng: np.random.Generator) -> np.ndarray:
    """Tables of N / 2 to N records: from all in one cell to equal cells."""
    rows = int(rng.integers(scale.rows // 2, scale.rows + 1))
    flat = rng.choice([0.01, 1.0, 1e6])
    parts = []
    for count in scale.groups:
        chances = rng.dirichlet(np.full(scale.bins * count, flat))
        parts.append(rng.multinomial(rows, chances).reshape(scale.bins, count))
    return np.hstack(parts)


@pytest.mark.parametrize(("rows", "bins", "groups"), SIZES)
def test_no_table_is_further_from_the_exact_one_than_stated(rows, bins, groups):
    rng = np.random.default_rng(rows)
    scale = Clipping(rows, bins, groups, 1.0)
    for _ in range(60):
        table = tables(scale, rng)
        off = fixed(table, scale, rng) - scaled(table, 1.0)
        assert np.linalg.norm(off) <= scale.distance < 1e-3


@pytest.mark.parametrize(("rows", "bins", "groups"), SIZES)
def test_three_steps_less_break_the_bound(rows, bins, groups):
    """So the number of steps is needed, up to what the recursion allows for rounding."""
    scale = Clipping(rows, bins, groups, 1.0)
    flat = np.full((bins, sum(groups)), max(1, rows // 2 // (bins * max(groups))))
    rng = np.random.default_rng(0)
    off = fixed(flat, scale, rng, scale.steps - 3) - scaled(flat, 1.0)
    assert np.linalg.norm(off) > scale.distance


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_record_moves_scaled_tables_by_more_than_is_charged(data):
    """Replaced and removed records of small tables, in fixed point as under MPC."""
    cells = data.draw(st.integers(2, 8))
    counts = data.draw(
        st.lists(st.integers(0, 9), min_size=2 * cells, max_size=2 * cells).filter(lambda c: sum(c) > 7)
    )
    table = np.array(counts).reshape(cells, 2)
    length = data.draw(st.sampled_from([0.25, 0.5]))
    scale = Clipping(int(table.sum()), cells, (2,), length)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    full = np.argwhere(table > 0)
    gone = tuple(full[data.draw(st.integers(0, len(full) - 1))])
    less = table.copy()
    less[gone] -= 1
    other = less.copy()
    other[tuple(data.draw(st.tuples(st.integers(0, cells - 1), st.integers(0, 1))))] += 1
    moved = ClippedSums("", scale.length).sensitivity(Shape(scale.rows, [scale.bins], scale.groups))
    here = fixed(table, scale, rng)
    assert np.linalg.norm(here - fixed(other, scale, rng)) <= moved.replaced
    assert np.linalg.norm(here - fixed(less, scale, rng)) <= moved.added


def test_the_charge_is_the_papers_with_the_error_of_both_neighbours():
    scale = Clipping(560, 10, (2,), 1.0)
    moved = ClippedSums("", 1.0).sensitivity(Shape(560, [10] * 19, (2,)))
    assert moved.added == pytest.approx(scaled_sensitivity(math.sqrt(19), 1.0) + 2 * math.sqrt(19) * scale.distance)
    assert moved.replaced == pytest.approx(math.sqrt(38) + 2 * math.sqrt(19) * scale.distance)
    assert moved.unit == 2.0**-UNIT_BITS and moved.replaced > math.sqrt(38)
    assert clipped(1.0, 1.0, 0.0, 1.0).replaced == math.sqrt(2)


@pytest.mark.parametrize(
    ("rows", "bins", "length"), [(1, 2, 0.1), (1 << 26, 2, 1.0), (100, 5, 20.0), (100, 5, 0.0), (10**6, 1 << 17, 1.0)]
)
def test_what_cannot_be_scaled_under_mpc_is_refused(rows, bins, length):
    with pytest.raises(RangeError):
        Clipping(rows, bins, (2,), length)


def test_refreshes_scale_once_and_the_ledger_names_the_mechanism():
    group = Consortium()

    def job(session, statistics, budget):
        rank = session.rank
        for number in range(2):
            name = f"sketch-{number}"
            statistics.release(ClippedSums(name, 1.0), group.party_columns(rank), group.held(rank), group.counts)
        return session.costs["clipping"].calls, session.costs["clipping"].rounds, budget.events

    steps = Clipping(group.rows, 4, group.counts, 1.0).steps
    for calls, rounds, events in group.run(job):
        assert calls == 1 and rounds == 4 + 6 * steps
        assert [(e.name, e.mechanism) for e in events] == [("sketch-0", "paper"), ("sketch-1", "paper")]
        assert events[0].sensitivity > math.sqrt(2) * group.sensitivity


def test_a_wrong_divisor_is_noticed(monkeypatch):
    """The comparison with the exact table sees a public factor that is off by a thousandth."""
    group = Consortium()
    wrong = property(lambda self: round(right.fget(self) * 1.001))
    right = protocol.Clipping.product_divisor
    scale = Clipping(group.rows, 4, group.counts, 1.0)
    monkeypatch.setattr(protocol.Clipping, "product_divisor", wrong)

    def job(session, statistics, budget):
        rank = session.rank
        release = statistics.release(
            ClippedSums("sketch-0", 1.0), group.party_columns(rank), group.held(rank), group.counts
        )
        return np.hstack([part[next(iter(part))] for part in release.tables])

    for rank, table in enumerate(group.run(job)):
        name = next(iter(group.columns[rank]))
        exact = np.hstack([group.table(name, attribute) for attribute in range(2)])
        assert np.linalg.norm(table - scaled(exact, 1.0)) > replace(scale).distance
