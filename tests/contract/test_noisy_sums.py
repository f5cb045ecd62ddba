"""The sums of a noisy evaluation in secret against the same sums in plaintext: what one record adds is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.noisy import NoisyEvaluation, Sums
from secure_sccvfl.metrics.rates import Copies
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.charging import Charger
from tests.contract.test_secure_evaluation import GROUPS, LABEL, shares
from tests.support.sessions import run_session

PARTIES = 2


@pytest.fixture(autouse=True)
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact sums are what is looked at here; no configuration of a run leaves noise out."""
    monkeypatch.setattr(
        noise, "noise_share", lambda party, kind, sigma, rows, holders: np.zeros((rows, len(holders)), np.int64)
    )


def opened(
    layout: Sums,
    logits: np.ndarray,
    label: np.ndarray,
    codes: np.ndarray,
    edited: np.ndarray,
    of: Copies,
) -> dict[str, np.ndarray]:
    def job(session: Session) -> Any:
        records = RecordSet(np.arange(len(logits), dtype=np.uint64))
        charger = Charger(session, Budget.in_memory(4.0, 1e-5), 3.0, "run", records)
        secret = SecureEvaluation(session, layout.task, LABEL, GROUPS)
        held = (label if session.rank == LABEL else None, codes if session.rank == GROUPS else None)
        copies = {"own": (shares(session, edited), of)}
        return NoisyEvaluation(secret, charger).sums(layout, shares(session, logits), *held, copies)

    sums: dict[str, np.ndarray] = run_session(job, PARTIES, ReleasePlan([layout.release(PARTIES)]))[0]
    return sums


NUMBER = Sums("regression", 2, ("own",), majority=True)
FAR = np.array([0.0, 0.3, -0.2, 1.0, 2.5, -40.0, 7.0, 0.9])[:, None]
"""Predictions inside the public range of the label, 0 to 1, and far outside it."""


def of_number() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    label = rng.uniform(0, 1, len(FAR))
    source = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 7])
    weight = np.array([0.5, 1.5, 1.0, 2.0, 0.5, 1.0, 2.0, 1.0, 0.5, 0.5])
    edited = FAR[source] + rng.normal(0, 2, (len(source), 1))
    return label, source, weight, edited


def test_sums_of_a_number_are_those_in_plaintext_with_every_term_cut_to_one() -> None:
    """Errors and shifts beyond the public range count 1, and the copies of one record together at most 1."""
    label, source, weight, edited = of_number()
    sums = opened(NUMBER, FAR, label, np.zeros(8, int), edited, Copies(source, weight))
    cut = np.clip(FAR[:, 0] - label, -1, 1)
    shift = weight / 2.0 @ np.minimum(np.abs(edited - FAR[source])[:, 0], 1.0)
    plain = {"error": [cut @ cut], "label": [label.sum(), label @ label], "shift own": [shift]}
    assert sums.keys() == plain.keys() == NUMBER.widths.keys()
    for name, value in plain.items():
        assert sums[name] == pytest.approx(value, abs=1e-3), name
    assert (np.abs(FAR[:, 0] - label) > 1).any() and cut @ cut < 8 < ((FAR[:, 0] - label) ** 2).sum()


@pytest.mark.parametrize("row", [0, 3, 7])
def test_no_replaced_record_moves_sums_of_a_number_by_more_than_is_charged(row: int) -> None:
    """Its label, prediction, copies: from nothing at all to as much as they can be. Exact to the last bit."""
    _, source, weight, _ = of_number()
    codes, of = np.zeros(8, int), Copies(source, weight)
    nothing, most = np.zeros((8, 1)), np.zeros((8, 1))
    most[row] = 300.0
    still = opened(NUMBER, nothing, np.zeros(8), codes, nothing[source], of)
    label = (np.arange(8) == row).astype(float)
    moved = opened(NUMBER, most, label, codes, -most[source], of)
    change = np.concatenate([moved[name] - still[name] for name in NUMBER.widths])
    assert np.linalg.norm(change) <= NUMBER.sensitivity.replaced
    assert np.abs(change[:3]) == pytest.approx(np.ones(3)), "error, both of the label"
    assert change[3] == pytest.approx(weight[source == row].sum() / 2.0, abs=1e-4)


def test_copies_of_one_record_flip_once_together() -> None:
    """A record whose copies weigh 2 and all flip adds 1; one whose copies weigh 1 adds a half."""
    layout = Sums("binary", 2, ("own",))
    source, weight = np.array([0, 0, 1]), np.array([0.5, 1.5, 1.0])
    logits = np.array([[3.0], [3.0]])
    codes, label = np.array([0, 1]), np.array([1, 1])
    for flipping, total in (([0], 1.0), ([1], 0.5), ([0, 1], 1.5)):
        edited = np.where(np.isin(source, flipping), -3.0, 3.0)[:, None]
        sums = opened(layout, logits, label, codes, edited, Copies(source, weight))
        assert sums["flips own"] == pytest.approx([total], abs=1e-6)
    assert layout.sensitivity.replaced == pytest.approx(2.0), "right 1, two cells, flips 1: nothing more"


def test_squared_errors_are_exact_to_the_last_bit() -> None:
    """Rounded squares of numbers with 16 fractional bits could move a sum by more than the charged sensitivity."""
    layout = Sums("regression", 2, ("own",))
    off = np.array([3, 5, -7, 301])[:, None] * 2.0**-16
    sums = opened(layout, off, np.zeros(4), np.zeros(4, int), off, Copies(np.arange(4), np.ones(4)))
    assert sums["error"] == [float((off**2).sum())]
