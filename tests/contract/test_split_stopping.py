"""Early stopping of mode `split` in secret, against the same objective and the same rule in the clear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.steps.head import Weights
from secure_sccvfl.protocols.steps.split import SPLIT_HEAD_BITS
from secure_sccvfl.research.split.mode import SplitConfig, split_releases
from secure_sccvfl.research.split.stopping import EarlyStopping
from secure_sccvfl.training.secure import SecureEngine
from tests.support.gradient_modes import EVERYONE, GROUP_HOLDERS, LABEL_HOLDER, PARTIES, german, parts
from tests.support.sessions import run_session

WIDTHS, EDITING, GROUPS = (3, 2, 4), (0, 2), 2
PATIENCE = 3
FACTORS = (0.1, 0.4, 0.8, 1.2, 1.0, 2.0, 3.0, 0.9, 4.0)
"""How far each step's head is from none. The objective rises and falls with it."""
OUTPUTS = {"binary": 1, "regression": 1, "multiclass": 3}


class Steps:
    """Activations, their shifts by counterfactuals and heads of every step, and the objective of the paper."""

    def __init__(self, task: str, penalised: bool = True) -> None:
        rng, whole = np.random.default_rng(4), german()
        self.task, self.penalised, self.outputs = task, penalised, OUTPUTS[task]
        rows = whole.split.validation
        self.codes = whole.data.protected[0].codes[rows]
        label = whole.data.label.values[rows]
        self.label = {"binary": label, "regression": label * 1.5, "multiclass": (label + 2 * self.codes) % 3}[task]
        self.h = [[rng.uniform(0, 2, (len(rows), w)) for w in WIDTHS] for _ in FACTORS]
        self.moved = [[rng.normal(0, 0.5, (len(rows), GROUPS, w)) for w in WIDTHS] for _ in FACTORS]
        fit = np.linalg.lstsq(np.hstack(self.h[0]), self.target() - self.target().mean(), rcond=None)[0]
        self.heads = [factor * (4 * fit + rng.normal(0, 0.1, fit.shape)) for factor in FACTORS]
        self.bias = self.target().mean(axis=0) - 0.4

    def target(self) -> np.ndarray:
        return np.eye(3)[self.label] if self.task == "multiclass" else self.label[:, None] * 1.0

    def objective(self, step: int) -> float:
        """Log loss or squared error, a tenth of the l1 gap, and a tenth of the flips."""
        logits = np.hstack(self.h[step]) @ self.heads[step] + self.bias
        if self.task == "regression":
            loss = ((logits - self.target()) ** 2).sum(axis=1)
        else:  # of several classes each against the rest
            loss = (np.logaddexp(0, logits) - logits * self.target()).sum(axis=1)
        if not self.penalised:
            return float(loss.mean())
        chosen = [m[np.arange(len(m)), self.codes] * (k in EDITING) for k, m in enumerate(self.moved[step])]
        shift = np.hstack(chosen) @ self.heads[step]
        gap = np.abs(shift).sum(axis=1).mean()

        def decided(values: np.ndarray) -> np.ndarray:
            return values[:, 0] > 0 if self.outputs == 1 else values.argmax(axis=1)

        flips = 0.0 if self.task == "regression" else (decided(logits) != decided(logits + shift)).mean()
        return float(loss.mean() + 0.1 * gap + 0.1 * flips)

    def stops(self) -> int:
        """After how many steps, as `JointTraining` counts them."""
        best, waited = float("inf"), 0
        for step in range(len(FACTORS)):
            value = self.objective(step)
            best, waited = (value, 0) if value < best else (best, waited + 1)
            if waited >= PATIENCE:
                return step + 1
        return len(FACTORS)

    def secret(self) -> list[tuple[list[float], list[bool], int]]:
        """Objectives, the bits, and the rounds of a step. Every step goes on from a kept state."""
        shown = Release("objective", EVERYONE, (ANY,), "test", times=len(FACTORS))
        config = SplitConfig(warmup=2, steps=len(FACTORS), patience=PATIENCE)

        def fresh(session: Any) -> EarlyStopping:
            engine = SecureEngine(session, LABEL_HOLDER, GROUP_HOLDERS)
            engine.widths = WIDTHS
            part = parts(german(), session.rank)[1]
            validation = replace(part, label=self.label if session.rank == LABEL_HOLDER else None)
            return EarlyStopping(engine, validation, self.task, self.outputs, PATIENCE)  # type: ignore[arg-type]

        def job(session: Any) -> tuple[list[float], list[bool], int]:
            stopping, rank = fresh(session), session.rank
            values, bits, rounds = [], [], 0
            for step, head in enumerate(self.heads):
                kept, stopping = stopping.state(), fresh(session)
                stopping.go_on(kept)
                parts = head, self.bias, np.zeros_like(head), np.zeros_like(self.bias)
                weights = Weights(*(session.public(part, SPLIT_HEAD_BITS) for part in parts))
                moved = self.moved[step][rank] if rank in EDITING else None
                state = weights, self.h[step][rank], moved, self.penalised
                values.append(float(session.open(stopping.objective(*state), shown)[0]))
                before = session.total_cost.rounds
                bits.append(stopping.goes_on(*state))
                rounds = session.total_cost.rounds - before
                if not bits[-1]:
                    break
            return values, bits, rounds

        return run_session(job, PARTIES, ReleasePlan([shown, *split_releases(PARTIES, config)]))


def test_it_stops_where_the_paper_faithful_method_stops_also_from_a_saved_state() -> None:
    """A state that forgot the best step, or how long ago it was, would stop later. 37 rounds, as the page says."""
    steps = Steps("binary")
    expected = steps.stops()
    assert PATIENCE + 1 < expected < len(FACTORS), "neither at the first chance nor never"
    for values, bits, rounds in steps.secret():
        assert np.allclose(values, [steps.objective(k) for k in range(expected)], atol=2e-3)
        assert bits == [True] * (expected - 1) + [False] and rounds == 37


@pytest.mark.parametrize(
    ("task", "penalised", "tolerance"), [("regression", True, 2e-3), ("multiclass", False, 2e-3)]
)
def test_other_tasks_have_the_paper_faithful_objective(task: str, penalised: bool, tolerance: float) -> None:
    steps = Steps(task, penalised)
    for values, bits, _ in steps.secret():
        assert np.allclose(values, [steps.objective(k) for k in range(len(bits))], atol=tolerance)
