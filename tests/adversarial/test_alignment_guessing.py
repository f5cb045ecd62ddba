"""After 'the records differ' a party has nothing to try lists of ids against: it saw masked bits and one bit."""

from __future__ import annotations

import hashlib
import random
import threading
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.alignment import pre_aligned
from secure_sccvfl.protocols.alignment.interface import AlignmentError
from secure_sccvfl.protocols.dealing.randomness import Draw
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import ALIGNMENT, PlanFacts
from tests.support.sessions import run_session

RUNS = 40
STANDARD_ERRORS = 6.3
"""A normal value is further off than this with probability 3e-10."""

RANDOM = random.Random(7)
BOTH = sorted(RANDOM.sample(range(100000, 1000000), 200))
EXTRA = RANDOM.choice([number for number in range(100000, 1000000) if number not in BOTH])
LISTS = [list(map(str, BOTH)), list(map(str, sorted([*BOTH, EXTRA])))]


class Watched:
    """Keeps all that comes to party 0, by step."""

    def __init__(self, inner: Transport, seen: list[tuple[str, np.ndarray]], lock: threading.Lock) -> None:
        self._inner, self._seen, self._lock = inner, seen, lock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, step: str, send: Any, receive: Any) -> Any:
        came = self._inner.exchange(step, send, receive)
        if self._inner.node == 0:
            with self._lock:
                self._seen += [(step, array.copy()) for arrays in came.values() for array in arrays]
        return came


def view(runs: int = 1) -> list[tuple[str, np.ndarray]]:
    """What comes to party 0 while its list lacks one record of party 1's."""
    seen: list[tuple[str, np.ndarray]] = []

    def job(session: Session) -> None:
        with pytest.raises(AlignmentError, match="party 1 holds other records"):
            pre_aligned.PreAligned(session).align(LISTS[session.rank])

    for _ in range(runs):
        plan = ReleasePlan(ALIGNMENT.releases(PlanFacts({0: {}, 1: {}})))
        run_session(job, 2, plan, wrap=lambda inner: Watched(inner, seen, threading.Lock()))
    return seen


def guessed_record(seen: list[tuple[str, np.ndarray]]) -> int | None:
    """The extra record, if the hash of some list with one record more is in what was seen."""
    words = b"".join(array.tobytes() for _, array in seen)
    for guess in range(EXTRA - 500, EXTRA + 500):
        listed = list(map(str, sorted([*BOTH, guess])))
        hashed = np.packbits(pre_aligned._hashed(listed)).tobytes()
        if hashed in words or hashed[:8] in words:
            return guess
    return None


def agreement(seen: list[tuple[str, np.ndarray]]) -> tuple[int, int]:
    """How many bits that party 1 sent in the first product are those of its hash, and how many there are."""
    true = pre_aligned._hashed(LISTS[1])
    first = [array for step, array in seen if step == "bit product" and array.size == 16]
    bits = np.array([np.unpackbits(array) for array in first])
    return int((bits == true).sum()), bits.size


@pytest.mark.chance(1e-12)
def test_no_hash_is_there_to_try_lists_against() -> None:
    assert guessed_record(view()) is None


@pytest.mark.chance(3e-10)
def test_what_is_sent_agrees_with_the_hash_at_chance() -> None:
    right, count = agreement(view(RUNS))
    assert count == RUNS * 128 and abs(right - count / 2) < STANDARD_ERRORS * count**0.5 / 2


def test_without_masks_the_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draw, "bits", lambda self, shape: np.zeros(shape, np.uint8))
    seen = view()
    assert guessed_record(seen) == EXTRA and agreement(seen) == (128, 128)


def test_different_lists_have_different_hashes() -> None:
    """A hash of all ids and their lengths: no two of these lists are alike, and none is cut short."""
    lists = [LISTS[0], LISTS[1], LISTS[0][::-1], ["".join(LISTS[0])], [], [""]]
    hashes = [pre_aligned._hashed(ids).tobytes() for ids in lists]
    assert len(set(hashes)) == len(lists) and all(len(bits) == 128 for bits in hashes)
    assert (
        hashlib.sha256(np.zeros(1, ">u8").tobytes()).digest()[:16] == np.packbits(pre_aligned._hashed([])).tobytes()
    )
