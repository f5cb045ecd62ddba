"""The trained head as a function of the records: the optimum that the plaintext engine steps towards.

Attackers use it in two ways: as shadow models (membership inference), and because an optimum is a set of equations
about the records that it was trained on (retraining). The objective is
    mean of log(1 + exp(-(2 y - 1) (x . w + b)))  +  w^T P w / 2  +  (noise . (w, b)) / n.
`noise` is that of objective perturbation, for sums over records; None for a head without it.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit


def with_bias(rows: np.ndarray) -> np.ndarray:
    """The rows with a column of ones behind them."""
    return np.column_stack([rows, np.ones(len(rows))])


def fit_head(
    rows: np.ndarray,
    label: np.ndarray,
    penalty: np.ndarray,
    noise: np.ndarray | None = None,
    bias_ridge: float = 1e-9,
    steps: int = 60,
) -> np.ndarray:
    """Weights and, last, the bias: Newton steps until the objective no longer falls.

    The ridge of the bias only keeps it finite where all labels are the same. A head with noise needs more: without a
    ridge in every direction, noise moves a head without bound.
    """
    x, n = with_bias(rows), len(rows)
    pull = np.zeros(x.shape[1]) if noise is None else noise / n
    square, sign = np.pad(penalty, ((0, 1), (0, 1))), 2.0 * label - 1.0
    square[-1, -1] = bias_ridge

    def value(head: np.ndarray) -> float:
        return float(np.logaddexp(0.0, -sign * (x @ head)).mean() + head @ square @ head / 2 + pull @ head)

    head = np.zeros(x.shape[1])
    now = value(head)
    for _ in range(steps):
        chance = expit(x @ head)
        slope = x.T @ (chance - label) / n + square @ head + pull
        curve = (x * (chance * (1 - chance) / n)[:, None]).T @ x + square
        step = np.linalg.solve(curve + 1e-12 * np.eye(len(head)), slope)
        size = 1.0
        while (after := value(head - size * step)) > now and size > 1e-6:
            size /= 2
        head, before, now = head - size * step, now, after
        if float(slope @ step) < 1e-20 or (size < 1e-5 and after >= before):
            break
    return head


def head_noise(columns: int, sigma: float, rng: np.random.Generator) -> np.ndarray | None:
    """Noise of objective perturbation for a head of so many columns and its bias; a deviation of 0 gives none."""
    return rng.normal(0.0, sigma, columns + 1) if sigma > 0 else None
