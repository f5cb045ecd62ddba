"""CrypTen's operators on long, lazy and pinned tensors: the shares, rounds and bytes of the kernels below them.

Every case is run twice with the same randomness: with the kernels of protocols/operations, and with operators. A
third way, written a little differently, must be told apart.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import ProtocolError, RangeError, UndeclaredRelease
from secure_sccvfl.protocols.operations import arithmetic, banded
from secure_sccvfl.protocols.session import binding, runtime, tensors
from secure_sccvfl.protocols.session.runtime import Session, bits_of, crypten, share_of
from secure_sccvfl.protocols.session.saving import combined, restore_share, save_share
from tests.support.randomness import drawn_from
from tests.support.sessions import results, run_session

RNG = np.random.default_rng(8)
TALL = 2 * banded.BAND_ROWS + 5
WIDTHS = (2, 1, 1)
COLUMNS = sum(WIDTHS)
RECORDS, RATE, MOMENTUM, CURVATURE = 37, 1.2, 0.25, 0.375
X, Y = RNG.uniform(-3, 3, (6, COLUMNS)), RNG.uniform(-3, 3, (6, COLUMNS))
BLOCKS = [RNG.uniform(-1, 1, (TALL, width)) for width in WIDTHS]
HEADS, ROWS = RNG.uniform(-1, 1, (COLUMNS, 3)), RNG.uniform(-1, 1, (TALL, 3))
MATRICES = RNG.uniform(-1, 1, (5, COLUMNS, COLUMNS))
LARGE = RNG.uniform(-1, 1, (1 << 15, 1))
TRIANGLES = ring.upper_triangles((MATRICES + MATRICES.transpose(0, 2, 1)) / 8)
SIZES = np.array([4, 1, 4, 2])
PLACES = [4, 0, 4]


def held(session: Session, values: np.ndarray, bits: int) -> np.ndarray:
    """A share of a value that party 1 has."""
    words = ring.encode(values, bits)
    return words if session.rank == 1 else np.zeros_like(words)


def tensor(session: Session, values: np.ndarray, bits: int) -> Any:
    return session.owned(values if session.rank == 1 else None, owner=1, shape=values.shape, bits=bits)


def fused(session: Session) -> Any:
    return crypten.cat(
        [session.owned(block, owner=rank, shape=block.shape) for rank, block in enumerate(BLOCKS)], dim=1
    )


def masked(session: Session) -> banded.BandedMatrix:
    return banded.mask_columns(session.party, ring.encode(BLOCKS[session.rank]), WIDTHS)


def divide_each(party: Any, work: Sequence[tuple[np.ndarray, int]]) -> list[np.ndarray]:
    masked, finish = arithmetic.divisions(party, work)
    return finish(party.open_masked("truncate", masked))


@dataclass(frozen=True)
class Case:
    """Kernels, the same in operators, and something else in operators."""

    kernels: Callable[[Session], Sequence[Any]]
    operators: Callable[[Session], Sequence[Any]]
    other: Callable[[Session], Sequence[Any]]


# sums with coefficients


def sum_kernels(s: Session) -> Sequence[Any]:
    unit = round(RECORDS * 2**26 / RATE)
    step, kept = divide_each(s.party, [(held(s, X, 40), unit), (held(s, Y, 14) * round(MOMENTUM * 2**16), 1 << 16)])
    return [-step + kept]


def sum_operators(s: Session, divisor: int = RECORDS) -> Sequence[Any]:
    x, y = tensor(s, X, 40), tensor(s, Y, 14)
    return [(-RATE * x / divisor + MOMENTUM * y).rescale(14)]


def columns_kernels(s: Session) -> Sequence[Any]:
    words, divided = held(s, X, 40), np.zeros(X.shape, np.int64)
    columns = [np.flatnonzero(size == SIZES) for size in (1, 2, 4)]
    quotients = divide_each(
        s.party, [(words[:, at], (1 << 26) // size) for at, size in zip(columns, (1, 2, 4), strict=True)]
    )
    for at, quotient in zip(columns, quotients, strict=True):
        divided[:, at] = quotient
    return [divided]


# products


def product_kernels(s: Session) -> Sequence[Any]:
    x, y = held(s, X, 20), held(s, Y, 24)
    pair = arithmetic.multiplication(s.party, "mul", x, y), arithmetic.squaring(s.party, x)
    opened = s.party.open_masked("mul", [one for half, _ in pair for one in half])
    return [pair[0][1](opened[:2]), pair[1][1](opened[2:])]


def product_operators(s: Session) -> Sequence[Any]:
    x, y = tensor(s, X, 20), tensor(s, Y, 24)
    return [x * y, x.square()]


# pinned matrices


def look_kernels(s: Session) -> Sequence[Any]:
    tall, stack = masked(s), arithmetic.mask_shared(s.party, held(s, MATRICES, 28).reshape(-1, COLUMNS))
    heads = held(s, HEADS, 24)
    first, logits_of = banded.multiplication(s.party, tall, heads)
    second, pulls_of = banded.stack_product(s.party, stack, PLACES, heads)
    opened = s.party.open_masked("head product", [*first, *second])
    return [logits_of(opened[:1]), pulls_of(opened[1:])]


def look_operators(s: Session, indices: Sequence[int] = PLACES) -> Sequence[Any]:
    tall, stack = fused(s).pinned(), tensor(s, MATRICES, 28).pinned()
    heads = tensor(s, HEADS, 24)
    logits, pulls = tall @ heads, stack[list(indices)].each(heads)
    s.flush()
    return [logits, pulls]


def slope_kernels(s: Session, together: int = 1) -> Sequence[Any]:
    to_open, finish = banded.multiplication(s.party, masked(s), held(s, ROWS, 28), transposed=True)
    bands = finish(s.party.open_masked("head gradient", to_open))
    if together > 1:
        bands = np.add.reduceat(bands, list(range(0, len(bands), together)), axis=0)
    (quotient,) = divide_each(s.party, [(bands if len(bands) > 1 else bands[0], RECORDS << 18)])
    return [quotient.sum(axis=0) if len(bands) > 1 else quotient]


def slope_operators(s: Session, bound: float | None = None) -> Sequence[Any]:
    return [(fused(s).pinned(bound).t() @ tensor(s, ROWS, 28) / RECORDS).rescale(26)]


def gram_kernels(s: Session) -> Sequence[Any]:
    unit = round(RECORDS * 2**4 / CURVATURE)
    (quotient,) = divide_each(s.party, [(banded.gram_sums(s.party, masked(s))[0], unit)])
    return [quotient]


def gram_operators(s: Session, bits: int = 28) -> Sequence[Any]:
    return [(fused(s).pinned().gram() / (RECORDS / CURVATURE)).rescale(bits)]


CASES = {
    "sum": Case(sum_kernels, lambda s: sum_operators(s), lambda s: sum_operators(s, RECORDS + 1)),
    "factor for each column": Case(
        columns_kernels,
        lambda s: [(tensor(s, X, 40) * SIZES).rescale(14)],
        lambda s: [(tensor(s, X, 40) * np.full(4, 4)).rescale(14)],
    ),
    "product": Case(product_kernels, product_operators, lambda s: [*reversed(product_operators(s))]),
    "product rescaled": Case(
        lambda s: [-arithmetic.scaled_bilinear(s.party, "mul", held(s, X, 20), held(s, Y, 24), RECORDS << 18)],
        lambda s: [(tensor(s, X, 20) * tensor(s, Y, 24) / -RECORDS).rescale(26)],
        lambda s: [(tensor(s, X, 20) * tensor(s, Y, 24) / -RECORDS).rescale(27)],
    ),
    "matrix product rescaled": Case(
        lambda s: [arithmetic.scaled_bilinear(s.party, "matmul", held(s, X.T, 20), held(s, Y, 24), 1 << 18)],
        lambda s: [(tensor(s, X, 20).t() @ tensor(s, Y, 24)).rescale(26)],
        lambda s: [(tensor(s, X, 20).t() @ tensor(s, Y, 24)) + 0],
    ),
    "look": Case(look_kernels, look_operators, lambda s: look_operators(s, [4, 1, 4])),
    "slope": Case(slope_kernels, slope_operators, lambda s: slope_operators(s, 2.0)),
    "slope of short rows": Case(
        lambda s: slope_kernels(s, 16), lambda s: slope_operators(s, 2.0), lambda s: slope_operators(s, 64.0)
    ),
    "gram": Case(gram_kernels, gram_operators, lambda s: gram_operators(s, 27)),
    "doubling": Case(
        lambda s: banded.doubled(s.party, held(s, TRIANGLES, 30), held(s, TRIANGLES, 24), COLUMNS, 1 << 30),
        lambda s: tensor(s, TRIANGLES, 30).doubled(tensor(s, TRIANGLES, 24), COLUMNS),
        lambda s: tensor(s, TRIANGLES, 29).doubled(tensor(s, TRIANGLES, 24), COLUMNS),
    ),
    "large truncation in slices": Case(
        lambda s: [arithmetic.truncate(s.party, held(s, LARGE, 40), 12)],
        lambda s: [tensor(s, LARGE, 40).rescale(28, sliced=True)],
        lambda s: [tensor(s, LARGE, 40).rescale(28)],
    ),
    "large truncation in one round": Case(
        lambda s: divide_each(s.party, [(held(s, LARGE, 40), 1 << 12)]),
        lambda s: [tensor(s, LARGE, 40).rescale(28)],
        lambda s: [tensor(s, LARGE, 40).rescale(28, sliced=True)],
    ),
}


def spent(way: Callable[[Session], Sequence[Any]], parties: int = 3) -> list[Any]:
    """Shares of the results at every party, and what they took."""

    def job(session: Session) -> Any:
        values = way(session)
        words = [one if isinstance(one, np.ndarray) else share_of(one) for one in values]
        cost = session.total_cost
        return [(one.shape, one.tolist()) for one in words], (cost.rounds, cost.sent, cost.received, cost.dealer)

    with drawn_from("operators"):
        return run_session(job, parties)


@pytest.mark.parametrize("name", CASES)
def test_operators_have_the_shares_rounds_and_bytes_of_the_kernels(name: str) -> None:
    case = CASES[name]
    expected = spent(case.kernels)
    assert spent(case.operators) == expected
    assert spent(case.other) != expected


# values


@pytest.mark.parametrize("parties", [2, 5])
def test_values_are_right(parties: int) -> None:
    def job(session: Session) -> None:
        x, y, release = tensor(session, X, 20), tensor(session, Y, 24), results(parties)[2]
        for computed, wanted, off in (
            ((x * y / 3).rescale(20), X * Y / 3, 2.0**-16),
            ((0.3 * x - y / 7).rescale(20), 0.3 * X - Y / 7, 2.0**-13),
            (x / 2.5, X / 2.5, 2.0**-13),
            (3 * x + y, 3 * X + Y, 2.0**-19),
            (x * y, X * Y, 2.0**-16),
            (-(x + 0.5), -X - 0.5, 2.0**-19),
            (x @ np.ones((COLUMNS, 2)), X @ np.ones((COLUMNS, 2)), 2.0**-17),
            (x[1:, :2].t() * SIZES[0], X[1:, :2].T * SIZES[0], 2.0**-17),
            (crypten.cat([x, y], dim=0), np.concatenate([X, Y]), 2.0**-19),
            (x.sum(0, keepdim=True), X.sum(0, keepdims=True), 2.0**-16),
        ):
            assert np.abs(np.asarray(session.open(computed, release)) - wanted).max() <= off

    run_session(job, parties)


@pytest.mark.parametrize(
    ("have", "wanted", "p", "q", "expected"),
    [
        (44, 26, 1, 37, (1, 37 << 18)),
        (54, 24, -1.2, 1, (1, round(2**30 / 1.2))),
        (24, 24, 0.25, 1, (1 << 14, 1 << 16)),
        (24, 24, 0.0, 1, (0, 1 << 16)),
        (32, 28, 1, 40 / 0.25, (1, 2560)),
        (16, 24, 1, 3, (1 << 8, 3)),
        (24, 24, 3, 1, (3, 1)),
        (24, 24, 1, 2.5, (round(2**16 / 2.5), 1 << 16)),
        (24, 24, 5e-324, 1, (0, 1 << 16)),
    ],
)
def test_the_divisor_of_a_term(have: int, wanted: int, p: float, q: float, expected: tuple[int, int]) -> None:
    assert tensors.division(have, wanted, p, q) == expected


# rounds


def test_what_nobody_needs_is_not_sent_at_the_end() -> None:
    def job(session: Session, used: bool) -> int:
        before, x = session.total_cost.rounds, tensor(session, X, 20)
        waiting = x * x
        share_of(waiting) if used else None
        return session.total_cost.rounds - before

    for used in (False, True):
        assert run_session(lambda session: job(session, used)) == [int(used)] * 3  # noqa: B023


def test_what_a_pass_of_a_loop_has_written_is_sent_in_that_pass() -> None:
    def job(session: Session) -> list[int]:
        x, seen, start = tensor(session, X, 20), [], session.total_cost.rounds
        for _ in session.repeat(3):
            before = session.total_cost.rounds
            (x.square() / 3).rescale(20)
            seen.append(session.total_cost.rounds - before)
        return [*seen, session.total_cost.rounds - start]

    *inside, total = run_session(job)[0]
    assert inside == [1, 1, 1] and total == 3 * 2


# memory, kinds, errors


def test_writing_in_place_leaves_other_tensors_alone() -> None:
    def job(session: Session) -> None:
        release = results(3)[2]
        x = tensor(session, X, 20)
        doubled, same = (x * 2).rescale(20), x.clone()
        twice = doubled.clone()
        doubled[0].mul_(0)
        x.mul_(0)
        for computed, wanted in ((twice, 2 * X), (same, X), (x, 0 * X), (doubled[1:], 2 * X[1:])):
            assert np.abs(np.asarray(session.open(computed, release)) - wanted).max() < 1e-5

    run_session(job)


def test_encoders_cannot_be_changed() -> None:
    def job(session: Session) -> None:
        x, y = tensor(session, X, 20), tensor(session, Y, 20)
        with pytest.raises(ProtocolError, match="not in its encoder"):
            x.encoder._scale = 1
        assert bits_of(x) == bits_of(y) == 20

    run_session(job)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda s: tensor(s, X, 40) * tensor(s, Y, 40), "80 fractional bits"),
        (lambda s: tensor(s, X, 40).square(), "80 fractional bits"),
        (lambda s: (fused(s).pinned().t() @ tensor(s, ROWS, 28)) * tensor(s, X[:1, :3], 4), "use rescale"),
        (lambda s: share_of(fused(s).pinned().t() @ tensor(s, ROWS, 28)), "use rescale"),
        (lambda s: tensor(s, X, 20).pinned(), "16 fractional bits, can be pinned"),
        (lambda s: fused(s).pinned().t().gram(), "transposed"),
        (lambda s: tensor(s, X, 24).each(tensor(s, X, 24)), "pinned together"),
        (lambda s: s.forget(tensor(s, X, 24)), "masks to forget"),
        (lambda s: tensor(s, X, 24) / 0, "division by zero"),
        (lambda s: s.owned(X, owner=s.rank, shape=(1, 1)), "were declared"),
        (lambda s: tensor(s, X, 40).sigmoid(bound=47.0), "beyond 46"),
    ],
)
def test_what_cannot_be_right_raises(way: Callable[[Session], Any], message: str) -> None:
    def job(session: Session) -> None:
        with pytest.raises((ProtocolError, RangeError), match=message):
            way(session)

    run_session(job)


def test_a_pinned_matrix_is_a_tensor_like_any_other() -> None:
    """A regular operand gives a regular product; its shares serve other operations; masks can be dropped."""

    def job(session: Session) -> None:
        release, whole = results(3)[2], np.concatenate(BLOCKS, axis=1)
        tall = fused(session).pinned()
        heads = session.share(HEADS if session.rank == 0 else None, owner=0, shape=HEADS.shape)
        back = tall.t() @ (tall @ heads)
        assert bits_of(back) == 16
        for computed, wanted in (
            ((tall @ heads), whole @ HEADS),
            (back, whole.T @ (whole @ HEADS)),
            (tall + 1, whole + 1),
        ):
            assert np.abs(np.asarray(session.open(computed, release)) - wanted).max() < 0.1
        session.forget(tall)

    run_session(job)


def test_threads_that_open_sessions_together_install_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def slow(*args: Any) -> None:
        time.sleep(0.05)
        calls.append(threading.get_ident())

    monkeypatch.setattr(runtime, "_installed", False)
    monkeypatch.setattr(binding, "install", slow)
    run_session(lambda session: None, 3)
    assert len(calls) == 1


def counts(session: Session) -> tuple[Any, Any, np.ndarray]:
    """Whole-number columns of two parties, the groups that party 2 knows, and their sums in the clear."""
    rng = np.random.default_rng(3)
    columns, groups = rng.integers(0, 3, (50, 4)).astype(np.int8), np.eye(3, dtype=np.int8)[rng.integers(0, 3, 50)]
    blocks = [session.owned(columns[:, :3], owner=0, shape=(50, 3), bits=0)]
    blocks.append(session.owned(columns[:, 3:], owner=2, shape=(50, 1), bits=0))
    member = session.owned(groups, owner=2, shape=(50, 3), bits=0)
    return crypten.cat(blocks, dim=1), member, columns.astype(int).T @ groups.astype(int)


@pytest.mark.parametrize(("bound", "bits"), [(2.0**30 - 1, 32), (2.0**30, 0)])
def test_sums_by_group_are_exact_in_either_size_of_shares(bound: float, bits: int) -> None:
    def job(session: Session) -> int:
        columns, member, exact = counts(session)
        sums = columns.group_sums(member, bound=bound)
        assert bits_of(sums) == bits
        assert (np.asarray(session.open(sums, results(3)[2])) == exact).all()
        return session.operations["group_sums"]

    assert run_session(job) == [1] * 3


def test_what_sums_by_group_cannot_take_is_refused_and_nothing_is_sent() -> None:
    def job(session: Session) -> None:
        columns, member, _ = counts(session)
        other = session.owned(np.ones((50, 1), np.int8), owner=1, shape=(50, 1), bits=0)
        halves = session.owned(np.ones((50, 1)), owner=0, shape=(50, 1))
        before = session.total_cost.rounds
        for given in (
            lambda: columns.group_sums(crypten.cat([member, other], dim=1), bound=9.0),
            lambda: columns.group_sums(member, bound=2.0**62),
            lambda: columns.group_sums(session.public(np.ones((50, 3)), 0), bound=9.0),
            lambda: halves.group_sums(member, bound=9.0),
            lambda: crypten.cat([other, columns], dim=1).group_sums(member, bound=9.0),
            lambda: columns.group_sums(session.owned(np.ones((9, 1)), owner=2, shape=(9, 1), bits=0), bound=9.0),
        ):
            with pytest.raises(ProtocolError):
                given()
        assert session.total_cost.rounds == before

    run_session(job)


def test_pinned_whole_numbers_have_exact_products_over_many_bands() -> None:
    """No band is truncated, and the result has no fraction."""
    rows = 3 * banded.BAND_ROWS + 1
    tall, right = np.ones((rows, 2)), np.arange(rows)[:, None] % 7

    def job(session: Session) -> None:
        pinned = session.owned(tall, owner=1, shape=tall.shape, bits=0).pinned()
        product = pinned.t() @ (session.public(right, 0) + session.zeros(right.shape, 0))
        assert bits_of(product) == 0
        assert (np.asarray(session.open(product, results(3)[2])) == tall.T @ right).all()

    run_session(job)


def test_a_saved_share_is_restored_in_another_session_and_alone_reveals_nothing() -> None:
    def first(session: Session) -> np.ndarray:
        return save_share(session.share(X if session.rank == 0 else None, owner=0, shape=X.shape, bits=24))

    kept = run_session(first)
    assert all(np.abs(share).min() > 2**40 for share in kept), "far from what was shared, which has 26 bits"
    assert np.abs(combined([restore_share(share, 24) for share in kept]) - X).max() < 2**-24

    def second(session: Session) -> np.ndarray:
        return np.asarray(session.open(restore_share(kept[session.rank], 24), results(3)[2]))

    assert all(np.abs(opened - X).max() < 2**-24 for opened in run_session(second))


def test_what_is_no_saved_share_is_refused() -> None:
    for wrong in (np.ones(3), np.ones(3, np.int32), [1, 2]):
        with pytest.raises(ProtocolError, match="a saved share is an array of 64-bit ring elements"):
            restore_share(wrong, 24)  # type: ignore[arg-type]
    one, two = restore_share(np.ones(3, np.int64), 24), restore_share(np.ones(2, np.int64), 24)
    for parts in ([one, two], [one, restore_share(np.ones(3, np.int64), 16)]):
        with pytest.raises(ProtocolError, match="one shape and one fraction"):
            combined(parts)
    with pytest.raises(UndeclaredRelease):
        pickle.dumps(one)
