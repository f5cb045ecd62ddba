"""The training step of benchmarks/steps/step.py with stock CrypTen's own tensors and operations.

There are two ways to the probabilities. `sigmoid` of the one logit (the difference of two) is the same mathematical
step as ours. `softmax` over two logits is what CrypTen users write. `sealed` takes the displacements of each
record's own group as shared rows; `gram` gives it our algebra (one matrix for all rows).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from secure_sccvfl.research.benchmarks.steps.step import GROUPS, LAM, MOMENTUM, PARTIES, RATE, PlainStep, Size, inputs

CASES = ("sealed", "sealed softmax", "sealed gram", "split", "split softmax")


class StockStep:
    """One case; calling it takes a step."""

    def __init__(self, crypten: Any, case: str, size: Size) -> None:
        self.crypten, self.size, self.given = crypten, size, inputs(size)
        self.split, self.softmax, self.gram = case.startswith("split"), "softmax" in case, "gram" in case
        given, outputs = self.given, 2 if self.softmax else 1
        start = given.start if self.split else np.zeros_like(given.start)
        # Two logits that differ by the one: half of it in each direction.
        start = np.hstack([-start / 2, start / 2]) if self.softmax else start
        self.weight, self.velocity = self._share(start, 0), self._share(np.zeros_like(start), 0)
        self.bias, self.bias_velocity = (self._share(np.zeros((1, outputs)), 0) for _ in range(2))
        target = np.eye(2)[given.label] if self.softmax else given.label[:, None]
        self.target = self._share(target, 0)
        self.one_hot = self._share(np.eye(GROUPS)[given.codes].T.reshape(-1, 1), PARTIES - 1)
        if not self.split:
            self.rows = self._join(given.rows)
            chosen = given.chosen
            self.chosen = self._share(chosen.T @ chosen, 0) if self.gram else self._join(chosen)

    def _share(self, values: np.ndarray, owner: int) -> Any:
        return self.crypten.cryptensor(torch.from_numpy(np.ascontiguousarray(values)).float(), src=owner)

    def _join(self, values: np.ndarray) -> Any:
        """Columns of all parties, each shared by its owner."""
        parts = [self._share(values[..., self.given.of(rank)], rank) for rank in range(PARTIES)]
        return self.crypten.cat(parts, dim=values.ndim - 1)

    def __call__(self) -> None:
        rows, chosen = (self.rows, self.chosen) if not self.split else self._activations()
        logits = rows.matmul(self.weight) + self.bias
        residual = (logits.softmax(1) if self.softmax else logits.sigmoid()) - self.target
        shift = chosen.matmul(self.weight)
        if self.split:
            shift = shift * self.one_hot
            rows_of = self.size.rows
            whole = shift[:rows_of]
            for group in range(1, GROUPS):
                whole = whole + shift[group * rows_of : (group + 1) * rows_of]
            self._open_gradients(residual - whole * LAM)
        pull = shift if self.gram else chosen.t().matmul(shift)
        gradient = rows.t().matmul(residual)
        slope = residual.sum(dim=0, keepdim=True) * (1 if self.split else 4)
        self.velocity = self.velocity * MOMENTUM - (gradient + pull * LAM) * (RATE / self.size.rows)
        self.bias_velocity = self.bias_velocity * MOMENTUM - slope * (RATE / self.size.rows)
        self.weight, self.bias = self.weight + self.velocity, self.bias + self.bias_velocity

    def _activations(self) -> tuple[Any, Any]:
        """Rows, and below them the displacements of every hypothesised group, shared anew."""
        return self._join(self.given.rows), self._join(
            self.given.deltas.transpose(1, 0, 2).reshape(-1, self.size.columns)
        )

    def _open_gradients(self, pull: Any) -> None:
        """Open each party's gradient in its own activations to it alone."""
        for rank in range(PARTIES):
            pull_of = pull.matmul(self.weight[self.given.of(rank)].t())
            pull_of.get_plain_text(dst=rank)

    def result(self) -> np.ndarray:
        plain: np.ndarray = self.weight.get_plain_text().double().numpy()
        return plain[:, 1:] - plain[:, :1] if self.softmax else plain


def check(case: str, size: Size, found: np.ndarray, steps: int) -> float:
    """Largest difference from the step in the clear. Two logits halve the consistency, so they are not checked."""
    if "softmax" in case:
        return 0.0
    plain = PlainStep(inputs(size), "split" if case.startswith("split") else "sealed").after(steps)
    return float(np.abs(found - plain).max())
