"""The certificate under MPC against the plaintext one, bit for bit where nothing is rounded; and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.metrics import certified as secure
from secure_sccvfl.metrics.certified import AtEnds, certified
from secure_sccvfl.models.certificate import certified_binary, certified_class
from tests.support.sessions import results, run_session

GRID = 2.0**-16


def contributions(counts: tuple[int, ...], outputs: int, seed: int = 0) -> list[np.ndarray]:
    """Few different values, so that many levels are equal; all exact in fixed point."""
    rng = np.random.default_rng(seed)
    of_levels = [rng.integers(-6, 7, (count, outputs)) * GRID for count in counts]
    return [rows - rows[:1] for rows in of_levels]


def bits(base: np.ndarray, of_levels: list[np.ndarray], parties: int = 2) -> tuple[np.ndarray, int]:
    """The opened bits, and the rounds before the comparison of records."""
    counts = [len(rows) for rows in of_levels]
    levels = np.concatenate([rows + 3 * GRID for rows in of_levels]) if counts else np.zeros((0, base.shape[1]))

    def job(session: Session) -> Any:
        ends = AtEnds.of(
            session,
            session.share(base, owner=0, shape=base.shape),
            session.share(levels, owner=0, shape=levels.shape),
            counts,
        )
        rounds = session.costs["ends of the mediators"].rounds
        opened = session.open(certified(ends.low < 0, ends.high < 0), session.declared("result 1"))
        return np.asarray(opened), rounds

    opened, rounds = run_session(job, parties, ReleasePlan(list(results(parties).values())))[0]
    return opened, rounds


COUNTS = [(4, 7, 2), (1, 5), (16,), (1,), (), (3, 3, 3, 3)]


def near_ends(of_levels: list[np.ndarray], outputs: int) -> np.ndarray:
    """Logits around all values at which the certificate changes, on the grid."""
    return np.random.default_rng(1).integers(-30, 31, (400, outputs)) * GRID


@pytest.mark.parametrize("counts", COUNTS)
def test_bits_of_two_classes_are_those_in_plaintext_ties_included(counts: tuple[int, ...]) -> None:
    of_levels = contributions(counts, 1)
    base = near_ends(of_levels, 1)
    expected = certified_binary(base, of_levels)
    assert np.array_equal(bits(base, of_levels)[0], expected)
    assert 0.1 < expected.mean() < 0.9 or max(counts, default=1) == 1 and expected.all()


@pytest.mark.parametrize(("counts", "classes"), [((4, 7, 2), 3), ((5, 3), 4), ((), 3)])
def test_bits_of_several_classes_are_those_in_plaintext_ties_included(counts: tuple[int, ...], classes: int) -> None:
    of_levels = contributions(counts, classes)
    base = near_ends(of_levels, classes)
    expected = certified_class(base, of_levels)
    assert np.array_equal(bits(base, of_levels, 3)[0], expected) and (0.02 < expected.mean() < 0.9 or not counts)


@pytest.mark.parametrize(("counts", "rounds"), [((2,), 7), ((16, 3), 10), ((17, 16), 11), ((40,), 12), ((1,), 0)])
def test_ends_take_at_most_twelve_rounds_up_to_64_levels(counts: tuple[int, ...], rounds: int) -> None:
    of_levels = contributions(counts, 1)
    assert bits(near_ends(of_levels, 1)[:3], of_levels)[1] == rounds


def test_swapped_ends_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: with L and U swapped, records are certified that are not."""
    right = secure.ends
    monkeypatch.setattr(secure, "ends", lambda *given: right(*given)[::-1])
    of_levels = contributions((4, 7, 2), 1)
    base = near_ends(of_levels, 1)
    assert not np.array_equal(bits(base, of_levels)[0], certified_binary(base, of_levels))
